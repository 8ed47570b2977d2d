"""What a held-out evaluation found: the answers to each problem, and the figures that follow from them."""

import collections
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rlvr_jax.analysis.bootstrap import bootstrap_interval
from rlvr_jax.analysis.diversity import distinct_n, self_bleu
from rlvr_jax.analysis.majority import majority_at_k
from rlvr_jax.analysis.pass_at_k import pass_at_k

DIVERSE = 16
"""So many answers to a prompt, its first ones, stand for all in distinct-2 and Self-BLEU: both depend on how many are
compared, and Self-BLEU's cost grows with the square. Ours."""

CORRECT = "correct"
"""The reason of a right answer."""


@dataclasses.dataclass(frozen=True)
class Answers:
    """Verified answers to one problem, in the order of their samples, the first of which is sample `first`.

    `problem` is the index of the record in its split, `record` a hash of its content, `kind` what the task calls its kind,
    where it tells them apart. `said` is what each answer votes for,
    `variance` p(1-p) of its tokens by thirds (None where a third is empty), and `tokens` are those of the problem's first
    `DIVERSE` answers, special ones left out.
    """

    problem: int
    id: str
    record: str
    kind: str | None
    first: int
    reasons: tuple[str, ...]
    lengths: tuple[int, ...]
    truncated: tuple[bool, ...]
    said: tuple[str | None, ...]
    variance: tuple[tuple[float | None, ...], ...]
    tokens: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        return len(self.reasons)

    @property
    def correct(self) -> tuple[bool, ...]:
        return tuple(reason == CORRECT for reason in self.reasons)

    def then(self, others: "Answers") -> "Answers":
        """These and further answers to the same problem. Raises ValueError for answers that do not follow these."""
        if (others.problem, others.record, others.first) != (
            self.problem,
            self.record,
            self.first + self.count,
        ):
            raise ValueError(
                f"answers from sample {others.first} to problem {others.problem} (record {others.record}) do not follow "
                f"those of problem {self.problem} ({self.record}), which end before sample {self.first + self.count}."
            )
        lists = ("reasons", "lengths", "truncated", "said", "variance", "tokens")
        return dataclasses.replace(self, **{n: getattr(self, n) + getattr(others, n) for n in lists})

    def at_most(self, samples: int) -> "Answers":
        """The first `samples` of these."""
        lists = ("reasons", "lengths", "truncated", "said", "variance", "tokens")
        return dataclasses.replace(self, **{n: getattr(self, n)[:samples] for n in lists})


def by_problem(parts: Iterable[Answers]) -> dict[int, Answers]:
    """The answers to each problem as one, in the order in which the problems came."""
    found: dict[int, Answers] = {}
    for part in parts:
        found[part.problem] = found[part.problem].then(part) if part.problem in found else part
    return found


@dataclasses.dataclass(frozen=True)
class Rate:
    """A mean over prompts for one k, with its 95 % bootstrap interval."""

    k: int
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, k: int, values: Any) -> "Rate":
        """Of a value for each prompt."""
        values = np.asarray(values, float)
        return cls(k, float(values.mean()), *bootstrap_interval(values))


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """Answers to each problem, `samples` of each, and what follows from them: pass@k (`rates`), and majority@k (`votes`;
    None where of no answer it is known what it says)."""

    answers: tuple[Answers, ...]
    samples: int
    rates: tuple[Rate, ...]
    votes: tuple[Rate, ...] | None

    @classmethod
    def of(cls, answers: Iterable[Answers], samples: int, k: Sequence[int]) -> "Evaluation":
        """Raises ValueError where a problem has fewer than `samples` answers; of more, the first count."""
        kept = tuple(each.at_most(samples) for each in answers)
        short = [each for each in kept if each.count < samples]
        if short:
            raise ValueError(
                f"problem {short[0].id} has {short[0].count} answers of {samples}: sample the rest first."
            )
        spoke = any(said is not None for each in kept for said in each.said)
        return cls(
            answers=kept,
            samples=samples,
            rates=_rates(kept, samples, sorted(k)),
            votes=tuple(_votes(x, kept) for x in sorted(k)) if spoke else None,
        )

    def as_json(self) -> dict[str, Any]:
        """Plain data: the figures of all answers, but for their diversity. `kinds` has pass@k for each kind of problem, and is
        empty where the task has none."""
        lengths = np.array([each.lengths for each in self.answers])
        return {
            "prompts": len(self.answers),
            "samples": self.samples,
            "pass_at_k": _plain(self.rates),
            "majority_at_k": None if self.votes is None else _plain(self.votes),
            "kinds": {
                kind: self._of(kind) for kind in sorted({a.kind for a in self.answers if a.kind is not None})
            },
            "reasons": dict(sorted(collections.Counter(r for a in self.answers for r in a.reasons).items())),
            "truncated": float(np.mean([each.truncated for each in self.answers])),
            "length": {
                "mean": float(lengths.mean()),
                "p50": float(np.quantile(lengths, 0.5)),
                "p95": float(np.quantile(lengths, 0.95)),
            },
        }

    def _of(self, kind: str) -> dict[str, Any]:
        mine = [each for each in self.answers if each.kind == kind]
        return {
            "prompts": len(mine),
            "pass_at_k": _plain(_rates(mine, self.samples, [r.k for r in self.rates])),
        }

    def diversity(self) -> dict[str, Any]:
        """Plain data: how the answers to a prompt differ, as means over prompts; None for what no prompt has."""
        thirds = np.array([v for a in self.answers for v in a.variance], float)  # None becomes not a number
        return {
            "answers": min(self.samples, DIVERSE),
            "distinct_2": _mean(distinct_n(a.tokens, 2) for a in self.answers),
            "self_bleu": _mean(self_bleu(a.tokens) for a in self.answers),
            "bernoulli_variance": [_mean(column) for column in thirds.T],
        }


def _rates(answers: Iterable[Answers], samples: int, k: Iterable[int]) -> tuple[Rate, ...]:
    right = np.array([sum(each.correct) for each in answers])
    return tuple(Rate.of(x, pass_at_k(samples, right, x)) for x in k)


def _votes(k: int, answers: Iterable[Answers]) -> Rate:
    return Rate.of(k, [majority_at_k(each.said, each.correct, k) for each in answers])


def _plain(rates: Iterable[Rate]) -> dict[str, dict[str, float]]:
    return {str(r.k): {"value": r.value, "low": r.low, "high": r.high} for r in rates}


def _mean(values: Iterable[float]) -> float | None:
    there = [float(v) for v in values if math.isfinite(v)]
    return math.fsum(there) / len(there) if there else None
