"""Where two runs part: their figures, samples, evaluations and parameters, compared step by step and to the bit."""

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from rlvr_jax.train.checkpoint import FOLDER
from rlvr_jax.train.evaluate import load_evaluations
from rlvr_jax.train.metrics import METRICS, ROLLOUTS, Row, rows_by_step, without_times
from rlvr_jax.train.rundir import differences

ABSENT = "absent"
ORDER = ("parameters", "evaluations", "rollouts", "metrics")
"""In which these come about: a checkpoint of step n holds what step n (counted from 0) samples with."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """One value of a step that is not the same in both: what it belongs to, and both values."""

    name: str
    first: Any
    second: Any

    @property
    def by(self) -> float | None:
        """Second less first, of numbers."""
        numbers = [isinstance(x, int | float) and not isinstance(x, bool) for x in (self.first, self.second)]
        return float(self.second - self.first) if all(numbers) else None


@dataclasses.dataclass(frozen=True)
class Part:
    """One kind of thing, compared at the steps that both runs have: how many things, in how many steps they differ, the first
    of these, and every difference in it."""

    steps: tuple[int, ...]
    things: int
    parted: int = 0
    step: int | None = None
    differences: tuple[Difference, ...] = ()


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Trained parameters of a checkpoint that both runs have: how many numbers, the largest difference, and in which array."""

    step: int
    numbers: int
    largest: float
    array: str | None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two runs beside each other. Steps that only one of them has are no difference."""

    metrics: Part
    rollouts: Part
    evaluations: Part
    parameters: tuple[Parameters, ...]

    @property
    def first(self) -> tuple[int, str] | None:
        """The first step where they part, and in what; None where they are bit-identical."""
        found = [(p.step, "parameters") for p in self.parameters if p.largest]
        for name in ORDER[1:]:
            step = getattr(self, name).step
            found += [] if step is None else [(step, name)]
        return min(found, key=lambda each: (each[0], ORDER.index(each[1])), default=None)


def compare_runs(first: pathlib.Path, second: pathlib.Path, steps: int | None = None) -> Comparison:
    """The steps that two run directories both have, at most the first `steps`.

    Raises ValueError where they have none in common.
    """
    metrics = _part(_both(rows_by_step(first / METRICS), rows_by_step(second / METRICS), steps), _metric_gaps)
    if not metrics.steps:
        raise ValueError(
            f"{first} and {second} have no step in common in their {METRICS}: nothing can be compared."
        )
    rollouts = _part(_both(rows_by_step(first / ROLLOUTS), rows_by_step(second / ROLLOUTS), steps), _row_gaps)
    known = [
        sorted((step, [found]) for step, found in load_evaluations(run).items()) for run in (first, second)
    ]
    # An evaluation or a checkpoint of step n is what n steps led to.
    through = None if steps is None else steps + 1
    evaluations = _part(_both(iter(known[0]), iter(known[1]), through), _evaluation_gaps)
    shared = sorted(set(_checkpoints(first)) & set(_checkpoints(second)))
    apart = tuple(_parameters(first, second, step) for step in shared if through is None or step < through)
    return Comparison(metrics, rollouts, evaluations, apart)


Stepped = Iterator[tuple[int, list[Row]]]


def _both(first: Stepped, second: Stepped, steps: int | None) -> Iterator[tuple[int, list[Row], list[Row]]]:
    """The steps below `steps` that two ordered sequences both have."""
    one, other = next(first, None), next(second, None)
    while one and other and (steps is None or max(one[0], other[0]) < steps):
        if one[0] == other[0]:
            yield one[0], one[1], other[1]
        behind = min(one[0], other[0])
        one = next(first, None) if one[0] == behind else one
        other = next(second, None) if other[0] == behind else other


def _part(both: Iterator[tuple[int, list[Row], list[Row]]], gaps: Any) -> Part:
    steps, things, parted, first = [], 0, 0, None
    for step, one, other in both:
        steps.append(step)
        things += len(one)
        if one != other and (found := gaps(one, other)):
            parted += 1
            first = first or (step, tuple(found))
    at, found = first or (None, ())
    return Part(tuple(steps), things, parted, at, found)


def _metric_gaps(one: Sequence[Row], other: Sequence[Row]) -> list[Difference]:
    return _fields(without_times(one[0]), without_times(other[0]))


def _fields(one: Mapping[str, Any], other: Mapping[str, Any], before: str = "") -> list[Difference]:
    return [
        Difference(before + name, one.get(name, ABSENT), other.get(name, ABSENT))
        for name in sorted(one.keys() | other.keys())
        if one.get(name, ABSENT) != other.get(name, ABSENT)
    ]


def _row_gaps(one: Sequence[Row], other: Sequence[Row]) -> list[Difference]:
    """Of answers, which are in one order in both."""
    found = [] if len(one) == len(other) else [Difference("answers", len(one), len(other))]
    for row, its in zip(one, other, strict=False):
        found += _fields(row, its, f"prompt {row['prompt_id']}, sample {row['sample']}, ")
    return found


def _evaluation_gaps(one: Sequence[Row], other: Sequence[Row]) -> list[Difference]:
    return [Difference(key, *map(_value, values)) for key, values in differences(one[0], other[0]).items()]


def _value(text: str) -> Any:
    """A number, where that is what the text of a value shows."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _checkpoints(run: pathlib.Path) -> list[int]:
    folder = run / FOLDER
    return [int(p.name) for p in folder.iterdir() if p.name.isdigit()] if folder.is_dir() else []


def _parameters(first: pathlib.Path, second: pathlib.Path, step: int) -> Parameters:
    """Read one array at a time: a model need not be in memory twice."""
    folders = [(run / FOLDER / str(step) / "state").absolute() for run in (first, second)]
    with ocp.PyTreeCheckpointer() as reader:
        # The checkpointer itself would look for a file that only whole steps have. Any path will do.
        described: Any = ocp.PyTreeCheckpointHandler()
        names = [{n for n in described.metadata(f).tree if n.startswith("params")} for f in folders]
        if names[0] != names[1]:
            (other, *_) = sorted(names[0] ^ names[1])
            raise ValueError(
                f"only one of {first} and {second} has the parameters {other!r}: they are of two models."
            )
        numbers, largest, where = 0, 0.0, None
        for name in sorted(names[0]):
            one, other = (_array(reader, folder, name) for folder in folders)
            if one.shape != other.shape:
                raise ValueError(
                    f"{name} has the shape {one.shape} in {first} and {other.shape} in {second}: they are of two models."
                )
            numbers += one.size
            gap = _gap(one, other)
            if gap > largest:
                largest, where = gap, name
    return Parameters(step, numbers, largest, where)


def _array(reader: ocp.PyTreeCheckpointer, folder: pathlib.Path, name: str) -> np.ndarray:
    as_numpy = {name: ocp.RestoreArgs(restore_type=np.ndarray)}
    return reader.restore(
        folder, args=ocp.args.PyTreeRestore({name: 0}, restore_args=as_numpy, partial_restore=True)
    )[name]


def _gap(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference; 0 exactly where the bytes are the same, and infinite where nan stands beside a number."""
    if one.tobytes() == other.tobytes():
        return 0.0
    gaps = np.abs(one.astype(np.float64) - other.astype(np.float64))
    tiny = np.finfo(np.float64).tiny  # 0 and -0 differ, by nothing
    return max(float(np.nan_to_num(gaps, nan=np.inf).max()), float(tiny))
