"""What a study is: cells that are computed once and kept, and what follows from all of them."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from jaxtyping import Float

Verdict: TypeAlias = Literal["shown", "not shown", "contradicted"]
Found: TypeAlias = Mapping[str, dict[str, Any]]
"""What `Study.compute` returned, by the names of its cells."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One computation: its name is that of its record, `settings` is all it depends on beside the study's own fields."""

    name: str
    settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Statement:
    """A claim of a paper, its figure and ours. The verdict follows from ours by the rule that `rule` says."""

    claim: str
    source: str
    paper: str
    ours: str
    rule: str
    verdict: Verdict
    p_value: float | None = None


class Study(ABC):
    """Subclasses are frozen dataclasses, registered as a "study", whose fields are what a file in configs/studies may say."""

    slot: ClassVar[str]
    name: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def cells(self) -> Sequence[Cell]:
        """In the order in which they are computed; names differ."""

    @abstractmethod
    def compute(self, cell: Cell) -> dict[str, Any]:
        """Plain data; the same for the same fields and cell."""

    @abstractmethod
    def conclude(self, found: Found) -> Sequence[Statement]:
        """From the records of all cells."""

    @abstractmethod
    def table(self, found: Found) -> list[list[str]]:
        """A row of headings, and rows."""

    @abstractmethod
    def plot(self, found: Found, figure: Any) -> None:
        """Draw on a matplotlib figure."""


@dataclasses.dataclass(frozen=True)
class Paired:
    """Differences of pairs: their mean, its 95 % interval and p-value by Student's t, two-sided.

    Source: Student, Biometrika 6(1), 1908. With n pairs it is t of n - 1 degrees; equal differences have no width.
    """

    mean: float
    low: float
    high: float
    p_value: float

    @classmethod
    def of(cls, differences: Float[np.ndarray, " n"]) -> "Paired":
        """Raises ValueError for fewer than two."""
        from scipy import stats

        n = len(differences)
        if n < 2:
            raise ValueError(f"a paired test needs two pairs or more, got {n}: give the study more seeds.")
        mean, error = float(np.mean(differences)), float(np.std(differences, ddof=1)) / n**0.5
        if error == 0:
            return cls(mean, mean, mean, 1.0 if mean == 0 else 0.0)
        width = float(stats.t.ppf(0.975, n - 1)) * error
        return cls(mean, mean - width, mean + width, float(2 * stats.t.sf(abs(mean) / error, n - 1)))

    @property
    def text(self) -> str:
        """+0.123 [+0.1, +0.146]."""
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"

    @property
    def verdict(self) -> Verdict:
        """Of the claim that differences are above 0: shown where the interval is, contradicted where it is below."""
        return "shown" if self.low > 0 else "contradicted" if self.high < 0 else "not shown"
