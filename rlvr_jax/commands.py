"""The commands of `rlvr-jax` and their arguments: what the command line reads, as plain dataclasses."""

import dataclasses
import pathlib
from typing import Annotated, Generic, Literal, TypeVar

from tyro.conf import Positional, arg, subcommand

from rlvr_jax.cluster import Place
from rlvr_jax.plan.command import PlanOptions
from rlvr_jax.rollout.bench.workload import SamplerBench
from rlvr_jax.train.bench.workload import StepBench, UpdateBench

Options = TypeVar("Options")
PROGRESS = "Progress is on standard error."


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a config, or go on with it where its run directory exists. `--field value` overrides, e.g.
    --batch.group-size 16 --objective f_dapo --objective.advantage.focal.gamma 1."""

    config: Positional[pathlib.Path]
    """YAML file."""
    place: Annotated[Place, arg(name="")]
    json: bool = False
    """End with one line of JSON on standard output."""


@dataclasses.dataclass(frozen=True)
class Eval:
    """Unbiased held-out pass@k and majority@k, with 95 % bootstrap intervals, of a run, of a config's start weights (without
    its warm-up) or of a model. Config fields (`--sampling.temperature 0.6 --seed 1`) may follow. Answers are kept in a
    folder as they come: the same command goes on where it was stopped, and for more samples or prompts samples only these.
    """

    place: Annotated[Place, arg(name="")]
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
class Reproduce:
    """Repeat a run from its directory and compare figures, samples and parameters step by step. Config fields (`--seed 1
    --mesh.data 1`) may follow. The exit status is 0 where they are bit-identical, 1 where they part, 2 where there is nothing
    to compare. The same command goes on where it was stopped."""

    run: Positional[pathlib.Path]
    """Run directory."""
    place: Annotated[Place, arg(name="")]
    out: pathlib.Path | None = None
    """Directory of the repetition; RUN-reproduced without."""
    steps: int | None = None
    """Only the first so many."""
    against: pathlib.Path | None = None
    """Compare with this run, which is there; nothing is run."""
    json: bool = False
    """Print one line of JSON."""


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
class Measured(Generic[Options]):
    """What to measure, and how to print it."""

    options: Annotated[Options, arg(name="")]
    json: bool = False
    """Print one line of JSON instead of a table."""


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure on this machine, and how far from what it could do that is."""

    what: Annotated[
        Annotated[
            Measured[SamplerBench],
            subcommand("sampler", description=f"Sampling beside `transformers.generate`. {PROGRESS}"),
        ]
        | Annotated[
            Measured[UpdateBench],
            subcommand("update", description=f"One optimiser step beside torch's. {PROGRESS}"),
        ]
        | Annotated[
            Measured[StepBench],
            subcommand("step", description=f"Whole steps of training, by phase. {PROGRESS}"),
        ],
        arg(name=""),
    ]


@dataclasses.dataclass(frozen=True)
class Plan:
    """Compile the update, the scoring and the sampling of a config for a slice that need not be here, and say what they take:
    memory, operations, collectives, time at the least, and what to change. Config fields (`--mesh.tensor 2`) may follow.
    The exit status is 0 where it fits, 3 where it does not."""

    config: Positional[pathlib.Path]
    """YAML file. The weights and the data need not be here."""
    options: Annotated[PlanOptions, arg(name="")]


@dataclasses.dataclass(frozen=True)
class Report:
    """Write one HTML file about runs that are done or in progress: results, curves, collapse, times, answers, settings. It
    needs nothing but itself. Runs that differ by seed alone share a colour. Its path is printed."""

    runs: Annotated[Positional[tuple[pathlib.Path, ...]], arg(metavar="RUN [RUN ...]")]
    """Run directories."""
    output: pathlib.Path | None = None
    """HTML file; else report.html in the run, or of several runs beside the first."""


@dataclasses.dataclass(frozen=True)
class Study:
    """Repeat a claim of a paper at a size that a laptop computes: figures, a table, a picture, and whether it was shown. A study
    that was stopped goes on where it was."""

    what: Positional[str]
    """Name of a file in configs/studies, path of one, or all."""
    quick: bool = False
    """Less of it, as its file says."""
    out: pathlib.Path = pathlib.Path("runs/studies")
    """Each study gets a folder in it: cells.jsonl, result.json, README.md, figure.png."""
    json: bool = False
    """Print one line of JSON for each instead of tables."""


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
    | Annotated[Reproduce, subcommand("reproduce")]
    | Annotated[Sample, subcommand("sample")]
    | Annotated[Export, subcommand("export")]
    | Annotated[Variants, subcommand("variants")]
    | Annotated[Bench, subcommand("bench")]
    | Annotated[Plan, subcommand("plan")]
    | Annotated[Data, subcommand("data")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Study, subcommand("study")]
)
