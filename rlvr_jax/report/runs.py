"""What a report reads of a run directory, and which runs belong together."""

import dataclasses
import json
import pathlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlvr_jax.train.credits import CREDIT
from rlvr_jax.train.evaluate import load_evaluations
from rlvr_jax.train.metrics import METRICS, ROLLOUTS, Row, read_rows, rows_by_step
from rlvr_jax.train.rundir import VERSIONS, differences, saved_config

APART = ("seed", "run_dir", "logging")
"""Keys in which the runs of one band may differ."""


@dataclasses.dataclass(frozen=True)
class Group:
    """The answers to one prompt that were sampled together. `flat`: all of them got one reward."""

    step: int
    prompt_id: int
    right: int
    answers: int
    flat: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Sampled:
    """What rollouts.jsonl comes to: the groups in their order, and rewards and lengths of all answers by step."""

    groups: tuple[Group, ...]
    rewards: Mapping[int, np.ndarray]
    lengths: Mapping[int, np.ndarray]

    @classmethod
    def of(cls, path: pathlib.Path, group_size: int) -> "Sampled":
        """Step by step: the file may be far larger than what is kept of it. Answers without a reward count for no group."""
        groups: dict[tuple[int, int, int], list[tuple[float, bool]]] = defaultdict(list)
        rewards, lengths = {}, {}
        for step, rows in rows_by_step(path):
            judged = [row for row in rows if row["reward"] is not None]
            lengths[step] = np.array([row["length"] for row in rows])
            rewards[step] = np.array([row["reward"] for row in judged])
            for row in judged:
                key = step, row["prompt_id"], row["sample"] // group_size
                groups[key].append((row["reward"], row["correct"]))
        return cls(
            groups=tuple(_group(step, prompt, found) for (step, prompt, _), found in groups.items()),
            rewards={step: x for step, x in rewards.items() if len(x)},
            lengths=lengths,
        )


def _group(step: int, prompt: int, found: Sequence[tuple[float, bool]]) -> Group:
    rewards, right = zip(*found, strict=True)
    return Group(step, prompt, sum(right), len(right), len(right) > 1 and min(rewards) == max(rewards))


@dataclasses.dataclass(frozen=True, eq=False)
class RunData:
    """A run as its directory has it; `name` tells it from the others of a report."""

    name: str
    path: pathlib.Path
    config: Mapping[str, Any]
    metrics: Sequence[Row]
    evaluations: Mapping[int, Mapping[str, Any]]
    sampled: Sampled
    credit: Sequence[Row]
    versions: Mapping[str, Any]

    def series(self, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps at which a metric has a value, and the values."""
        found = [(row["step"], row[metric]) for row in self.metrics if row.get(metric) is not None]
        steps, values = zip(*found, strict=True) if found else ((), ())
        return np.array(steps, int), np.array(values, float)


def read_runs(paths: Sequence[pathlib.Path]) -> tuple[RunData, ...]:
    """The runs, each once. Raises ValueError for a directory that is no run."""
    unique = list(dict.fromkeys(path.resolve() for path in paths))
    return tuple(_read(path, name) for path, name in zip(unique, _names(unique), strict=True))


def _read(path: pathlib.Path, name: str) -> RunData:
    config = saved_config(path)
    if config is None:
        raise ValueError(f"{path} is no run (it has no config.yaml): name the run_dir of a training.")
    metrics, credit, versions = path / METRICS, path / CREDIT, path / VERSIONS
    return RunData(
        name=name,
        path=path,
        config=config,
        metrics=read_rows(metrics) if metrics.exists() else [],
        evaluations=load_evaluations(path),
        sampled=Sampled.of(path / ROLLOUTS, config["batch"]["group_size"]),
        credit=read_rows(credit) if credit.exists() else [],
        versions=json.loads(versions.read_text(encoding="utf-8"))[-1] if versions.exists() else {},
    )


def _names(paths: Sequence[pathlib.Path]) -> list[str]:
    """The last parts of each path, as many as tell all of them apart."""
    longest = max(len(path.parts) for path in paths)
    for count in range(1, longest + 1):
        names = ["/".join(path.parts[-count:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return list(map(str, paths))


@dataclasses.dataclass(frozen=True, eq=False)
class Band:
    """Runs that differ by seed alone, and the place of their colour."""

    label: str
    colour: int
    runs: tuple[RunData, ...]


def bands(runs: Sequence[RunData]) -> tuple[Band, ...]:
    """In the order of the first run of each."""
    found: dict[str, list[RunData]] = defaultdict(list)
    for run in runs:
        found[json.dumps(_kept(run.config), sort_keys=True, default=str)].append(run)
    return tuple(Band(_label(each), place, tuple(each)) for place, each in enumerate(found.values()))


def _label(runs: Sequence[RunData]) -> str:
    return runs[0].name + (f" ({len(runs)} seeds)" if len(runs) > 1 else "")


def _kept(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in APART}


def configs_apart(found: Sequence[Band]) -> list[tuple[str, list[str]]]:
    """Each key in which some bands differ, sorted, with its value in every one of them."""
    first, *others = (_kept(band.runs[0].config) for band in found)
    each = [differences(first, other) for other in others]
    keys = sorted({key for one in each for key in one})
    rows = []
    for key in keys:
        base = next(one[key][0] for one in each if key in one)
        rows.append((key, [base, *(one[key][1] if key in one else base for one in each)]))
    return rows
