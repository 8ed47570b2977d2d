"""Warnings that help: what is seen in the figures of a run, from where on that is a warning, and what to try.

Everything is a function of the rows of metrics.jsonl, so a run that is resumed, and whoever reads it later, finds the
same warnings. Every limit is ours unless its text names a source: a place to begin looking, not a law.
"""

import dataclasses
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlvr_jax.analysis.collapse import HIGH

WINDOW = 10
"""Steps whose mean a rule looks at, and steps without a reason after which a warning is over."""
SPIKE_AMONG = 50
"""Steps before a gradient that it is compared with, at the most."""

Figures: TypeAlias = Mapping[str, float | None]
"""The figures of one step by name; None where there was nothing to average, or a figure was not finite."""


@dataclasses.dataclass(frozen=True)
class History:
    """The first WINDOW steps of a run, and the last ones, at most SPIKE_AMONG + 1; steps are in order."""

    first: Sequence[Figures]
    last: Sequence[Figures]

    def recent(self, name: str) -> float | None:
        """The mean over the last WINDOW steps; None where fewer than these have the figure."""
        return _mean(self.last[-WINDOW:], name)

    def begin(self, name: str) -> float | None:
        """The mean over the first WINDOW steps; None where fewer than these have the figure."""
        return _mean(self.first, name)

    def now(self, name: str) -> float | None:
        return self.last[-1].get(name)


@dataclasses.dataclass(frozen=True)
class Seen:
    """The figure that gave the reason, what it is in words, and what to try."""

    value: float
    text: str
    advice: str


@dataclasses.dataclass(frozen=True)
class Rule:
    """`look` finds a reason for a warning in a history, or None; `limit` says from where on, in words."""

    name: str
    limit: str
    reads: tuple[str, ...]
    look: Callable[[History], Seen | None]


@dataclasses.dataclass(frozen=True)
class Warned:
    """One line of warnings.jsonl, `step` being the one whose figures gave the reason."""

    step: int
    name: str
    value: float
    seen: str
    limit: str
    advice: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.seen} (warned of {self.limit}). {self.advice}"


class Watch:
    """Follows a run: `add` each step's figures, in order. A warning is given once, and again only after it was over."""

    def __init__(self) -> None:
        self._first: list[Figures] = []
        self._last: deque[Figures] = deque(maxlen=SPIKE_AMONG + 1)
        self._quiet: dict[str, int] = {}

    def add(self, row: Mapping[str, Any]) -> list[Warned]:
        """What there is to warn of after a step: a row of metrics.jsonl, or the same figures before they were written."""
        figures = {name: _known(row.get(name)) for rule in RULES for name in rule.reads}
        self._last.append(figures)
        if len(self._first) < WINDOW:
            self._first.append(figures)
        history = History(self._first, list(self._last))
        found = [(rule, rule.look(history)) for rule in RULES]
        new = [(rule, seen) for rule, seen in found if seen and self._quiet.get(rule.name, WINDOW) >= WINDOW]
        self._quiet = {
            rule.name: 0 if seen else self._quiet.get(rule.name, WINDOW) + 1 for rule, seen in found
        }
        return [
            Warned(row["step"], rule.name, seen.value, seen.text, rule.limit, seen.advice)
            for rule, seen in new
        ]

    @property
    def active(self) -> int:
        """Warnings that are not over."""
        return sum(quiet < WINDOW for quiet in self._quiet.values())


def warnings_of(rows: Iterable[Mapping[str, Any]]) -> list[Warned]:
    """All warnings of a run, from the rows of its metrics.jsonl."""
    watch = Watch()
    return [warned for row in rows for warned in watch.add(row)]


def _known(value: Any) -> float | None:
    return float(value) if value is not None and np.isfinite(value) else None


def _mean(rows: Sequence[Figures], name: str) -> float | None:
    values = [value for row in rows if (value := row.get(name)) is not None]
    return statistics.fmean(values) if len(values) >= WINDOW else None


def _collapse(history: History) -> Seen | None:
    rate = history.recent("acr/all")
    if rate is None or rate < HIGH:
        return None
    wrong, right = (history.recent(f"acr/all_{which}") or 0.0 for which in ("wrong", "right"))
    return Seen(
        rate,
        f"in {rate:.0%} of the groups of the last {WINDOW} steps all answers got the same reward ({wrong:.0%} all wrong, "
        f"{right:.0%} all right): they taught nothing. Over the 245 runs of arXiv:2605.21125 final accuracy is reported to "
        "fall by 3 points with every 0.1 of this rate in the first 100 steps (R^2 0.62)",
        f"Try {'harder' if right > wrong else 'easier'} prompts, more answers to each (batch.group_size), dynamic sampling "
        "(objective dapo with batch.max_rounds), virtual rewards (objective avspo).",
    )


def _entropy(history: History) -> Seen | None:
    now, begin = history.recent("policy/entropy"), history.begin("policy/entropy")
    if now is None or begin is None or now >= 0.1 * begin:
        return None
    return Seen(
        now,
        f"the policy's entropy is {now:.3g} nats a token, {now / begin:.0%} of what it was in the first {WINDOW} steps: "
        "answers to a prompt become one answer, and there is less and less to learn from",
        "Try a lower optimizer.learning_rate, a wider clip above (objective.clip.high), an entropy or KL regulariser, or an "
        "objective that keeps rare answers (f_grpo).",
    )


def _mismatch(history: History) -> Seen | None:
    whole = history.recent("policy/kl_sampler")
    if whole is None:
        return None
    gap = whole - (history.recent("policy/kl_old") or 0.0)
    if not gap > 0.01:
        return None
    return Seen(
        gap,
        f"sampler and trainer give the same tokens other log-probabilities, {gap:.2g} nats a token apart (KL) beside what "
        "the updates of the batch did",
        "Add sampler_correction to objective.token_weight; look for what computes otherwise: model.dtype, decoding.cache, "
        "an engine of somebody else, top_k or top_p, weights that are old (batch.ahead).",
    )


def _truncated(history: History) -> Seen | None:
    share = history.recent("length/truncated")
    if share is None or share <= 0.2:
        return None
    return Seen(
        share,
        f"{share:.0%} of the answers of the last {WINDOW} steps were cut at the limit",
        "Raise sampling.max_new_tokens, see in rollouts.jsonl whether they end at all (a missing stop token), leave what was "
        "cut out of the loss (drop_truncated in objective.mask), or let length cost (overlong in objective.reward).",
    )


def _verifier(reason: str, words: str, advice: str) -> Callable[[History], Seen | None]:
    def look(history: History) -> Seen | None:
        share = history.recent(f"verdict/{reason}")
        if share is None or share <= 0.01:
            return None
        return Seen(
            share, f"the verifier {words} {share:.1%} of the answers of the last {WINDOW} steps", advice
        )

    return look


def _spike(history: History) -> Seen | None:
    now = history.now("optimizer/grad_norm")
    earlier = [x for row in history.last[:-1] if (x := row.get("optimizer/grad_norm")) is not None]
    if now is None or len(earlier) < WINDOW or not now > 10 * statistics.median(earlier):
        return None
    return Seen(
        now,
        f"the gradient's norm is {now:.2g}, {now / max(statistics.median(earlier), 1e-30):.0f} times the median of the "
        f"{len(earlier)} steps before",
        "Look at this step's answers in rollouts.jsonl. If it comes again: a lower optimizer.clip_norm or learning_rate, "
        "optimizer.warmup_steps, or an objective that bounds the weight of a token (grpo_sg).",
    )


def _not_finite(history: History) -> Seen | None:
    rows = history.now("rollout/nonfinite") or 0.0
    updated = (history.now("optimizer/updates") or 0.0) > 0
    broken = [name for name in ("optimizer/grad_norm", "loss") if updated and history.now(name) is None]
    if not rows and not broken:
        return None
    words = [f"{rows:.1%} of the answers have log-probabilities that are not finite (they are left out)"] * (
        rows > 0
    )
    words += [f"the {name.removeprefix('optimizer/').replace('_', ' ')} is not finite" for name in broken]
    return Seen(
        rows,
        " and ".join(words),
        "Try model.dtype float32, a lower optimizer.learning_rate, and an earlier checkpoint to go on from: parameters that "
        "are not finite stay so.",
    )


RULES: tuple[Rule, ...] = (
    Rule("collapse", f"{HIGH:.0%}", ("acr/all", "acr/all_wrong", "acr/all_right"), _collapse),
    Rule("entropy", "10% of the first steps' entropy", ("policy/entropy",), _entropy),
    Rule("mismatch", "0.01 nats", ("policy/kl_sampler", "policy/kl_old"), _mismatch),
    Rule("truncation", "20%", ("length/truncated",), _truncated),
    Rule(
        "timeouts",
        "1%",
        ("verdict/timeout",),
        _verifier(
            "timeout",
            "ran out of time on",
            "Raise verification.deadline or verification.workers; see in rollouts.jsonl which answers take so long.",
        ),
    ),
    Rule(
        "errors",
        "1%",
        ("verdict/error",),
        _verifier(
            "error",
            "failed on",
            "These answers are no wrong ones and no right ones: see them in rollouts.jsonl, try the verifier on one, and raise "
            "verification.memory_gb where it was killed.",
        ),
    ),
    Rule("spike", f"10 times the median of up to {SPIKE_AMONG} steps", ("optimizer/grad_norm",), _spike),
    Rule(
        "not_finite",
        "any",
        ("rollout/nonfinite", "optimizer/updates", "optimizer/grad_norm", "loss"),
        _not_finite,
    ),
)
"""In the order in which they are told."""
