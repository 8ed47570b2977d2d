"""Two evaluations side by side: by how much one policy is better than the other on the same problems."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlvr_jax.analysis.bootstrap import bootstrap_interval, swap_p_value
from rlvr_jax.analysis.pass_at_k import pass_at_k


@dataclasses.dataclass(frozen=True)
class Difference:
    """pass@k of two evaluations on their common problems, second less first with its 95 % interval, and `swap_p_value`."""

    k: int
    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How many problems two evaluations share and have alone, and their differences there."""

    common: int
    only_first: int
    only_second: int
    differences: tuple[Difference, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        rows = {
            str(d.k): {n: v for n, v in dataclasses.asdict(d).items() if n != "k"} for d in self.differences
        }
        return {
            "common": self.common,
            "only_first": self.only_first,
            "only_second": self.only_second,
            "pass_at_k": rows,
        }


def compare(first: Mapping[str, Any], second: Mapping[str, Any], k: Sequence[int] = ()) -> Comparison:
    """Paired by problem: resampling problems, not answers, gives intervals and p-values of the mean difference.

    `first` and `second` are what `rlvr-jax eval` wrote. A problem is the same where its record is; k defaults to those of
    which both have pass@k, and any other up to the smaller number of samples will do.

    Raises: ValueError for another task or split, no common problem, and a k that one of them has too few samples for.
    """
    for name, values in _identity(first).items():
        other = _identity(second).get(name)
        if values != other:
            raise ValueError(
                f"the two evaluations are not of the same problems: {name} is {values!r} in the first and {other!r} in "
                "the second; compare evaluations of one task and split."
            )
    mine, theirs = _right(first), _right(second)
    common = [record for record in mine if record in theirs]
    if not common:
        raise ValueError(
            f"the {len(mine)} problems of the first evaluation and the {len(theirs)} of the second have none in common: "
            "evaluate both on the same records."
        )
    most = min(first["samples"], second["samples"])
    wanted = sorted(k or (int(x) for x in first["pass_at_k"] if x in second["pass_at_k"]))
    if not wanted or wanted[0] < 1 or wanted[-1] > most:
        raise ValueError(
            f"k={wanted}: name numbers in 1..{most}, the smaller number of samples ({first['samples']} in the first "
            f"evaluation, {second['samples']} in the second)."
        )
    right = [np.array([counts[record] for record in common]) for counts in (mine, theirs)]
    return Comparison(
        common=len(common),
        only_first=len(mine) - len(common),
        only_second=len(theirs) - len(common),
        differences=tuple(_difference(x, right, first["samples"], second["samples"]) for x in wanted),
    )


def _difference(k: int, right: list[np.ndarray], first: int, second: int) -> Difference:
    before, after = (
        np.asarray(pass_at_k(n, c, k), float) for n, c in zip((first, second), right, strict=True)
    )
    low, high = bootstrap_interval(after - before)
    return Difference(
        k=k,
        first=float(before.mean()),
        second=float(after.mean()),
        difference=float((after - before).mean()),
        low=low,
        high=high,
        p_value=swap_p_value(after - before),
    )


def _identity(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """What makes problems the same, but for where their files lie."""
    task = {f"task.{name}": value for name, value in evaluation["task"].items() if name != "path"}
    return {**task, "split": evaluation["split"]}


def _right(evaluation: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """Right answers by record; one that stands in the data twice is two problems."""
    seen: collections.Counter[str] = collections.Counter()
    found = {}
    for problem in evaluation["problems"]:
        record = problem["record"]
        found[record, seen[record]] = problem["right"]
        seen[record] += 1
    return found
