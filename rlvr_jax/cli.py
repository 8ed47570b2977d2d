"""`rlvr-jax`: the command line. Reads arguments, calls, prints; it decides nothing."""

import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import tyro
from rich.console import Console

from rlvr_jax.cluster import find_cluster
from rlvr_jax.commands import (
    Bench,
    Command,
    Data,
    DataBuild,
    DataCheck,
    DataShow,
    Eval,
    Export,
    Plan,
    Report,
    Reproduce,
    Sample,
    Study,
    Train,
    Variants,
)
from rlvr_jax.memory import keep_buffers


def program() -> int:
    """`main` in a process of its own, which keeps its buffers."""
    keep_buffers()
    return main()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status. What a user got wrong is one line on standard error, and status 2."""
    command, rest = parse(sys.argv[1:] if arguments is None else arguments)
    run = {
        Train: _train,
        Eval: _eval,
        Reproduce: _reproduce,
        Sample: _sample,
        Export: _export,
        Variants: _variants,
        Bench: _bench,
        Plan: _plan,
        Data: _data,
        Report: _report,
        Study: _study,
    }[type(command)]
    try:
        with _joined(command):
            return run(command, rest)
    except Exception as error:
        return _failed(error)


def parse(words: Sequence[str]) -> tuple[Command, list[str]]:
    """A command, and the words behind it that are none of its own: a config's fields. Exits where there is no such command."""
    return tyro.cli(
        Command,  # type: ignore[arg-type]
        prog="rlvr-jax",
        description="Reinforcement learning with verifiable rewards, in JAX.",
        args=list(words),
        return_unknown_args=True,
        use_underscores=False,
    )


def _joined(command: Command) -> AbstractContextManager[None]:
    """With the other processes, where several run a command together."""
    from rlvr_jax.distributed import joined

    if not isinstance(command, Train | Eval | Reproduce):
        return nullcontext()
    return joined(find_cluster(os.environ, command.place), _failed)


def _failed(error: BaseException) -> int:
    """The exit status of what a user got wrong, which is told; anything else is raised again."""
    if isinstance(error, BrokenPipeError):  # whoever read our output has seen enough
        sys.stderr.close()
        return 141
    if not isinstance(error, (ValueError, OSError, ModuleNotFoundError)):
        raise error
    print(f"rlvr-jax: {error}", file=sys.stderr)
    return 2


def _train(command: Train, rest: Sequence[str]) -> int:
    from rlvr_jax.configfile import load
    from rlvr_jax.distributed import is_first
    from rlvr_jax.report.page import REPORT, is_quick, write_report
    from rlvr_jax.train.loop import fit
    from rlvr_jax.train.stop import STOPPED
    from rlvr_jax.train.summary import print_summary, summarize

    config = load(command.config, rest)
    outcome = fit(config)
    if not outcome.complete:
        return STOPPED
    if not is_first():
        return 0
    run_dir = pathlib.Path(config.run_dir)
    summary = summarize(run_dir, f"{config.task.name}: {command.config.stem}")
    if is_quick(run_dir):
        write_report([run_dir], run_dir / REPORT)
    console = Console()
    print_summary(summary, console)
    wanted = str(run_dir / REPORT) if is_quick(run_dir) else f"rlvr-jax report {run_dir}"
    console.print(f"report: {wanted}", soft_wrap=True, highlight=False, markup=False)
    if command.json:
        print(json.dumps(summary))
    return 0


def _eval(command: Eval, rest: Sequence[str]) -> int:
    from rlvr_jax.distributed import is_first
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
        folder, found = evaluate_policy(command.policy, config, wanted, progress, stop.agreed)
    if found is None:
        say(f"stopped; the same command goes on with what is in {folder}")
        return STOPPED
    if not is_first():
        return 0
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


def _reproduce(command: Reproduce, rest: Sequence[str]) -> int:
    from rlvr_jax.distributed import is_first
    from rlvr_jax.train.reproduce import against, as_json, lines, reproduce
    from rlvr_jax.train.stop import STOPPED

    if command.against is not None:
        if command.out is not None or rest:
            extra = " ".join([*([f"--out {command.out}"] if command.out else []), *rest])
            raise ValueError(
                f"reproduce --against runs nothing, and takes --steps alone; got {extra!r} beside it."
            )
        found = against(command.run, command.against, command.steps)
    else:
        found = reproduce(command.run, command.out, command.steps, rest)
    if is_first():
        print(json.dumps(as_json(found)) if command.json else "\n".join(lines(found)))
    if found.comparison is None:
        return STOPPED
    return 0 if found.comparison.first is None else 1


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


def _study(command: Study, rest: Sequence[str]) -> int:
    from rlvr_jax.studies.run import study

    if rest:
        raise ValueError(f"study takes the name of one study, got {' '.join(rest)!r} beside it.")
    out, errors = Console(), Console(stderr=True)
    say = (lambda _: None) if command.json else out.print
    for result in study(command.what, command.out, command.quick, say, errors):
        if command.json:
            print(json.dumps({key: result[key] for key in ("study", "fields", "statements", "table")}))
    return 0


def _bench(command: Bench, rest: Sequence[str]) -> int:
    from rlvr_jax.train.bench.command import NAMES, measured

    asked = command.what
    if rest:
        name = NAMES[type(asked.options)]
        raise ValueError(f"bench {name} has no option {' '.join(rest)!r}: see rlvr-jax bench {name} --help.")
    found, tables = measured(asked.options, lambda line: print(line, file=sys.stderr, flush=True))
    if asked.json:
        print(json.dumps(found))
    else:
        Console().print(tables)
    return 0


def _plan(command: Plan, rest: Sequence[str]) -> int:
    from rlvr_jax.plan.command import run

    return run(command.config, command.options, rest)


def _report(command: Report, rest: Sequence[str]) -> int:
    from rlvr_jax.report.page import REPORT, write_report

    if rest:
        raise ValueError(f"report has no option {' '.join(rest)!r}: see rlvr-jax report --help.")
    if not command.runs:
        raise ValueError("report takes a run directory, or several.")
    first = command.runs[0]
    output = command.output or (first if len(command.runs) == 1 else first.parent) / REPORT
    write_report(command.runs, output)
    print(output)
    return 0


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
    sys.exit(program())
