"""`rlvr-jax`: the command line. Reads arguments, calls, prints; it decides nothing."""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import tyro
from rich.console import Console
from tyro.conf import Positional, arg, subcommand

from rlvr_jax.plan.command import PlanOptions
from rlvr_jax.rollout.bench.workload import SamplerBench


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a config, or go on with it where its run directory exists. `--field value` overrides, e.g.
    --batch.group-size 16 --objective f_dapo --objective.advantage.focal.gamma 1."""

    config: Positional[pathlib.Path]
    """YAML file."""
    json: bool = False
    """End with one line of JSON on standard output."""


@dataclasses.dataclass(frozen=True)
class Eval:
    """Unbiased held-out pass@k and majority@k, with 95 % bootstrap intervals, of a run, of a config's start weights (without
    its warm-up) or of a model. Config fields (`--sampling.temperature 0.6 --seed 1`) may follow. Answers are kept in a
    folder as they come: the same command goes on where it was stopped, and for more samples or prompts samples only these.
    """

    policy: Positional[pathlib.Path | None] = None
    """Run directory, config file, Hugging Face directory or .gguf file."""
    task: str | None = None
    """Name of a task, or YAML with its fields: '{name: maze, size: 7}'. A run has its own."""
    samples: int = 64
    """Answers to each prompt."""
    prompts: int = 0
    """How many held-out prompts; 0: all."""
    k: tuple[int, ...] | None = None
    """1, or with --compare all that both evaluations have."""
    split: Literal["train", "test"] = "test"
    step: int | None = None
    """Training step of a run whose checkpoint is there; the newest without."""
    output: pathlib.Path | None = None
    """Folder of the evaluation; else a folder in the run directory, or in runs/evaluations."""
    compare: tuple[pathlib.Path, pathlib.Path] | None = None
    """Folders of two evaluations: the difference on their common problems, second less first. Nothing is sampled."""
    json: bool = False
    """Print one line of JSON instead of a table."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """Sample answers to prompts of your own. Config fields (`--sampling.max-new-tokens 64`) may follow."""

    policy: Positional[pathlib.Path]
    """Run directory, Hugging Face directory or .gguf file."""
    prompt: Annotated[tuple[str, ...], arg(metavar="TEXT [TEXT ...]")]
    """Chat messages where the model has a chat template, else raw text."""
    samples: int = 1
    """Answers to each prompt."""
    json: bool = False
    """Print one JSON object a line."""


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a run's policy, or any model, as a Hugging Face directory. Of a run with adapters they are merged into the
    weights, and its folder `adapter` holds them alone, for peft."""

    policy: Positional[pathlib.Path]
    """Run directory, Hugging Face directory or .gguf file."""
    directory: Positional[pathlib.Path]
    """New directory."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights. float32 is what a run trains, to the bit."""
    step: int | None = None
    """Training step of a run whose checkpoint is there; the newest without."""
    max_shard_size: str = "5GB"
    """Of one file of weights."""


@dataclasses.dataclass(frozen=True)
class Variants:
    """List the objectives by name, or show one: its stages with their formulas and sources."""

    preset: Positional[str | None] = None
    json: bool = False


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure on this machine: tokens per second, prefill and decoding apart, memory, and how far from what the machine
    could do; beside `transformers.generate` in the same run. Progress is on standard error."""

    what: Positional[Literal["sampler"]]
    """What writes the responses."""
    options: Annotated[SamplerBench, arg(name="")]
    json: bool = False
    """Print one line of JSON instead of a table."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Compile the update, the scoring and the sampling of a config for a slice that need not be here, and say what they take:
    memory, operations, collectives, time at the least, and what to change. Config fields (`--mesh.tensor 2`) may follow.
    The exit status is 0 where it fits, 3 where it does not."""

    config: Positional[pathlib.Path]
    """YAML file. The weights and the data need not be here."""
    options: Annotated[PlanOptions, arg(name="")]


@dataclasses.dataclass(frozen=True)
class DataBuild:
    """Write both splits of a data set as a TFDS directory of ArrayRecord files, which is read at random and not into memory;
    its path, for a task's `path`, is printed. All or nothing."""

    source: Positional[str]
    """Folder with train.jsonl(.gz) and test.jsonl(.gz), directory of Hugging Face `datasets`, or package.module:function."""
    name: str
    """Small letters, digits and underscores."""
    out: pathlib.Path
    """The data set is written to OUT/NAME/1.0.0."""
    replace: bool = False
    """Put it in the place of one that is there."""


@dataclasses.dataclass(frozen=True)
class DataCheck:
    """Repeated and contradictory prompts, train and test that overlap, answers that are missing or that the verifier does
    not accept, lengths of prompts. Config fields (`--task.path data/mine --model.path MODEL`) may follow. The exit status
    is 0 where nothing is wrong, 1 where there are problems to mend, 2 where the data cannot be read."""

    what: Positional[str]
    """Config file, run directory, or name of a task."""
    records: int = 100_000
    """Of each split at the most, evenly spread; 0: all."""
    json: bool = False
    """Print one line of JSON instead of tables."""


@dataclasses.dataclass(frozen=True)
class DataShow:
    """Prompts as the model gets them, and their answers. Config fields (`--task.path data/mine --model.path MODEL`) may
    follow; without a model, messages are shown as they are."""

    what: Positional[str]
    """Config file, run directory, or name of a task."""
    number: Annotated[int, arg(aliases=("-n",))] = 3
    """How many records, from the first one on."""
    split: Literal["train", "test"] = "train"
    json: bool = False
    """Print one JSON object a line, with the record as it is stored."""


@dataclasses.dataclass(frozen=True)
class Data:
    """Build, check or show a data set."""

    what: Annotated[
        Annotated[DataBuild, subcommand("build")]
        | Annotated[DataCheck, subcommand("check")]
        | Annotated[DataShow, subcommand("show")],
        arg(name=""),
    ]


Command = (
    Annotated[Train, subcommand("train")]
    | Annotated[Eval, subcommand("eval")]
    | Annotated[Sample, subcommand("sample")]
    | Annotated[Export, subcommand("export")]
    | Annotated[Variants, subcommand("variants")]
    | Annotated[Bench, subcommand("bench")]
    | Annotated[Plan, subcommand("plan")]
    | Annotated[Data, subcommand("data")]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status. What a user got wrong is one line on standard error, and status 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command, rest = tyro.cli(
        Command,  # type: ignore[arg-type]
        prog="rlvr-jax",
        description="Reinforcement learning with verifiable rewards, in JAX.",
        args=words,
        return_unknown_args=True,
        use_underscores=False,
    )
    run = {
        Train: _train,
        Eval: _eval,
        Sample: _sample,
        Export: _export,
        Variants: _variants,
        Bench: _bench,
        Plan: _plan,
        Data: _data,
    }[type(command)]
    try:
        return run(command, rest)
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stderr.close()
        return 141
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"rlvr-jax: {error}", file=sys.stderr)
        return 2


def _train(command: Train, rest: Sequence[str]) -> int:
    from rlvr_jax.configfile import load
    from rlvr_jax.train.loop import fit
    from rlvr_jax.train.stop import STOPPED
    from rlvr_jax.train.summary import print_summary, summarize

    config = load(command.config, rest)
    outcome = fit(config)
    if not outcome.complete:
        return STOPPED
    summary = summarize(pathlib.Path(config.run_dir), f"{config.task.name}: {command.config.stem}")
    print_summary(summary, Console())
    if command.json:
        print(json.dumps(summary))
    return 0


def _eval(command: Eval, rest: Sequence[str]) -> int:
    from rlvr_jax.train.logs import counting, say
    from rlvr_jax.train.policy import HeldOut, evaluate_policy, evaluation_config
    from rlvr_jax.train.stop import STOPPED, StopRequest
    from rlvr_jax.train.summary import evaluation_lines, evaluation_table

    if command.compare is not None:
        return _compare(command, rest)
    if command.policy is None:
        raise ValueError("eval takes a run, a config or a model; or two evaluations with --compare.")
    config = evaluation_config(command.policy, command.task, rest)
    wanted = HeldOut(
        prompts=command.prompts,
        samples=command.samples,
        k=command.k or (1,),
        split=command.split,
        step=command.step,
        output=command.output,
    )
    with counting("evaluation") as progress, StopRequest() as stop:
        folder, found = evaluate_policy(command.policy, config, wanted, progress, lambda: stop.asked)
    if found is None:
        say(f"stopped; the same command goes on with what is in {folder}")
        return STOPPED
    if command.json:
        short = {name: value for name, value in found.items() if name != "problems"}
        print(json.dumps({**short, "folder": str(folder)}))
        return 0
    console = Console()
    console.print(evaluation_table(found))
    for line in [*evaluation_lines(found), f"folder: {folder}"]:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    return 0


def _compare(command: Eval, rest: Sequence[str]) -> int:
    from rlvr_jax.analysis.comparison import compare
    from rlvr_jax.train.evaluation_folder import read_result, settings_apart
    from rlvr_jax.train.summary import comparison_table

    if command.policy is not None or rest:
        extra = " ".join([*([str(command.policy)] if command.policy else []), *rest])
        raise ValueError(f"eval --compare takes two evaluations, and --k; got {extra!r} beside them.")
    first, second = (read_result(path) for path in command.compare or ())
    found = {**compare(first, second, command.k or ()).as_json(), "settings": settings_apart(first, second)}
    if command.json:
        print(json.dumps(found))
        return 0
    console = Console()
    console.print(comparison_table(found))
    for name, values in found["settings"].items():
        console.print(f"{name}: {' and '.join(values)}", soft_wrap=True, highlight=False, markup=False)
    return 0


def _sample(command: Sample, rest: Sequence[str]) -> int:
    from rlvr_jax.train.policy import policy_config, sample_policy

    config = policy_config(command.policy, rest)
    for found in sample_policy(command.policy, config, command.prompt, command.samples):
        print(json.dumps(dataclasses.asdict(found)) if command.json else found.text)
    return 0


def _export(command: Export, rest: Sequence[str]) -> int:
    from rlvr_jax.models.export import size_in_bytes
    from rlvr_jax.train.policy import export_policy, policy_config

    limit = size_in_bytes(command.max_shard_size)
    config = policy_config(command.policy, rest)
    export_policy(command.policy, config, command.directory, command.dtype, command.step, limit)
    print(command.directory)
    return 0


def _variants(command: Variants, rest: Sequence[str]) -> int:
    from rlvr_jax.objective.describe import describe, listing

    if rest:
        raise ValueError(f"variants takes the name of one objective, got {' '.join(rest)!r} beside it.")
    found = describe(command.preset) if command.preset else listing()
    print(json.dumps(found.data) if command.json else found.text)
    return 0


def _bench(command: Bench, rest: Sequence[str]) -> int:
    from rlvr_jax.rollout.bench.measure import measure
    from rlvr_jax.rollout.bench.report import report

    if rest:
        raise ValueError(f"bench {command.what} has no option {' '.join(rest)!r}: see rlvr-jax bench --help.")
    found = measure(command.options, lambda line: print(line, file=sys.stderr, flush=True))
    if command.json:
        print(json.dumps(found))
    else:
        Console().print(report(found))
    return 0


def _plan(command: Plan, rest: Sequence[str]) -> int:
    from rlvr_jax.plan.command import run

    return run(command.config, command.options, rest)


def _data(command: Data, rest: Sequence[str]) -> int:
    if isinstance(command.what, DataBuild):
        return _data_build(command.what, rest)
    return (
        _data_check(command.what, rest)
        if isinstance(command.what, DataCheck)
        else _data_show(command.what, rest)
    )


def _data_build(command: DataBuild, rest: Sequence[str]) -> int:
    from rlvr_jax.tasks.tfds_builder import build
    from rlvr_jax.train.logs import counting

    if rest:
        raise ValueError(f"data build has no option {' '.join(rest)!r}: see rlvr-jax data build --help.")
    with counting("records") as progress:
        print(build(command.source, command.out, command.name, replace=command.replace, progress=progress))
    return 0


def _data_check(command: DataCheck, rest: Sequence[str]) -> int:
    from rlvr_jax.analysis.data_check import check_data
    from rlvr_jax.analysis.data_report import report
    from rlvr_jax.train.data import open_data
    from rlvr_jax.train.logs import counting

    data = open_data(command.what, rest)
    limits = {"max_tokens": data.prompts.max_tokens, "too_long": data.prompts.too_long}
    with counting("records") as progress:
        found = check_data(data.task, data.tokenizer, **limits, most=command.records, progress=progress)
    if command.json:
        print(json.dumps(found))
    else:
        Console().print(report(found))
    return 1 if found["problems"] else 0


def _data_show(command: DataShow, rest: Sequence[str]) -> int:
    from rlvr_jax.analysis.data_report import show, shown
    from rlvr_jax.train.data import open_data

    data = open_data(command.what, rest)
    found = show(data.task, data.tokenizer, command.split, command.number)
    if command.json:
        for each in found:
            print(json.dumps(each))
    else:
        Console().print(shown(found), soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
