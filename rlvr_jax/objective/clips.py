"""Gains: what is maximised for each token, from ratio and advantage, with the clip of the method."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rlvr_jax.objective.base import Clip, paper, proposal, reported
from rlvr_jax.registry import register
from rlvr_jax.types import Needs, Pass, Stat, Stats, needs

_LARGEST_INVERSE = 80.0
"""Nats; 1 / pi_old is e^80 at the most, which is finite in float32."""


def ppo_gain(
    ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], low: float, high: float
) -> Float[Array, "B T"]:
    """min(r A, clip(r, 1 - low, 1 + high) A). At the very edge the clip is not in force, and the gradient is A.

    Reference: PPO, arXiv:1707.06347, eq. 7; low != high ("clip-higher"): DAPO, arXiv:2503.14476, eq. 10.
    """
    return _bounded_gain(ratio, advantage, 1 - low, 1 + high)


def _bounded_gain(ratio, advantage, least, most) -> Float[Array, "B T"]:
    """min(r A, clip(r, least, most) A)."""
    free = ratio * advantage
    bounded = jnp.clip(ratio, least, most) * advantage
    # `minimum` halves the gradient where both are equal and `clip` at its edge: with low or high 0 that is r = 1, so
    # every token of an on-policy step.
    return jnp.where(free <= bounded, free, bounded)


def _cut(ratio, advantage, least, most) -> Float[Array, "B T"]:
    """1 where the bounds take the gradient of `_bounded_gain` away, else 0."""
    above = (advantage > 0) & (ratio > most)
    below = (advantage < 0) & (ratio < least)
    return (above | below).astype(jnp.float32)


def _with_floor(gain, advantage, cap: float) -> Float[Array, "B T"]:
    """max(gain, cap A) where A < 0. At the very edge the gradient is that of the gain."""
    floor = cap * advantage
    return jnp.where((advantage < 0) & (gain < floor), floor, gain)


def dual_clip_gain(
    ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], low: float, high: float, cap: float
) -> Float[Array, "B T"]:
    """PPO's gain, and where A < 0 not below cap A: a bad token that became likely pulls with a bounded force.

        A >= 0   min(r A, clip(r, 1 - low, 1 + high) A)
        A <  0   max(min(r A, clip(r, 1 - low, 1 + high) A), cap A)

    cap > 1; an infinite one is `ppo_gain`. Reference: dual-clip PPO, arXiv:1912.09729, eq. 5.
    """
    return _with_floor(ppo_gain(ratio, advantage, low, high), advantage, cap)


def cispo_gain(
    ratio: Float[Array, "B T"],
    advantage: Float[Array, "B T"],
    logprob: Float[Array, "B T"],
    low: float,
    high: float,
) -> Float[Array, "B T"]:
    """sg[clip(r, 1 - low, 1 + high)] A log pi: the weight is clipped and has no gradient, no token loses its own.

    `low` and `high` are offsets from 1, not absolute bounds. Reference: CISPO, arXiv:2506.13585, eq. 4 and 5.
    """
    return jax.lax.stop_gradient(jnp.clip(ratio, 1 - low, 1 + high)) * advantage * logprob


def dynamic_bounds(
    old_logprob: Float[Array, "B T"], low: float, high: float, *, cap: float = 10.0
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Bounds of the ratio of each token, wider the less likely it was; q = pi_old(o_it).

        lo = 1/2 + 1/2 sqrt(max(1 - 4 low / q, 0))
        hi = min(1/2 + 1/2 sqrt(1 + 4 high / q), cap)

    So lo is in [1/2, 1] and hi in [1, cap]. They solve (1 - r) r q = low and (r - 1) r q = high.
    Reference: DCPO, arXiv:2509.02333, section on dynamic-adaptive clipping.
    """
    inverse = jnp.exp(jnp.minimum(-old_logprob, _LARGEST_INVERSE))
    least = 0.5 + 0.5 * jnp.sqrt(jnp.maximum(1 - 4 * low * inverse, 0.0))
    most = jnp.minimum(0.5 + 0.5 * jnp.sqrt(1 + 4 * high * inverse), cap)
    return least, most


@register("clip", "ppo")
@dataclasses.dataclass(frozen=True)
class Ppo(Clip):
    """PPO's clipped surrogate: `ppo_gain`.

        min(r A, clip(r, 1 - low, 1 + high) A)

    Reference: PPO, arXiv:1707.06347, eq. 7; DAPO, arXiv:2503.14476, eq. 10.
    """

    low: float = reported(0.2, "Dr. GRPO, DAPO and F-GRPO, which train with it; GRPO's paper gives none")
    """Offset below 1, in [0, 1]."""
    high: float = reported(0.2, "Dr. GRPO and F-GRPO, which train with it; GRPO's paper gives none")
    """Offset above 1, >= 0. DAPO: 0.28."""

    def __post_init__(self):
        if not (0 <= self.low <= 1 and self.high >= 0):
            raise ValueError(
                f"ppo keeps the ratio in [1 - low, 1 + high]: low is in [0, 1] and high >= 0, got low={self.low}, "
                f"high={self.high}."
            )

    def gain(
        self, log_ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], stats: Stats
    ) -> Float[Array, "B T"]:
        return ppo_gain(jnp.exp(log_ratio), advantage, self.low, self.high)

    def clipped(
        self, log_ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], stats: Stats
    ) -> Float[Array, "B T"]:
        return _cut(jnp.exp(log_ratio), advantage, 1 - self.low, 1 + self.high)


@register("clip", "dual")
@dataclasses.dataclass(frozen=True)
class Dual(Clip):
    """PPO's clipped surrogate with a floor for negative advantages: `dual_clip_gain`.

        max(min(r A, clip(r, 1 - low, 1 + high) A), cap A)  where A < 0

    Reference: dual-clip PPO, arXiv:1912.09729, eq. 5.
    """

    low: float = reported(0.2, "Dr. GRPO, DAPO and F-GRPO, which train with it; GRPO's paper gives none")
    """Offset below 1, in [0, 1]."""
    high: float = reported(0.2, "Dr. GRPO and F-GRPO, which train with it; GRPO's paper gives none")
    """Offset above 1, >= 0. DAPO: 0.28."""
    cap: float = reported(10.0, "verl's DAPO recipe, AR-Lopti and DCPO; verl's own default is 3")
    """Ratio beyond which a negative advantage pulls no harder; above 1."""

    def __post_init__(self):
        if not (0 <= self.low <= 1 and self.high >= 0 and self.cap > 1):
            raise ValueError(
                "dual keeps the ratio in [1 - low, 1 + high] and that of a negative advantage below cap: low is in "
                f"[0, 1], high >= 0 and cap > 1, got low={self.low}, high={self.high}, cap={self.cap}."
            )

    def gain(
        self, log_ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], stats: Stats
    ) -> Float[Array, "B T"]:
        return dual_clip_gain(jnp.exp(log_ratio), advantage, self.low, self.high, self.cap)

    def clipped(
        self, log_ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], stats: Stats
    ) -> Float[Array, "B T"]:
        ratio = jnp.exp(log_ratio)
        beyond = ((advantage < 0) & (ratio > self.cap)).astype(jnp.float32)
        return beyond + _cut(ratio, advantage, 1 - self.low, 1 + self.high)  # never both


@register("clip", "cispo")
@dataclasses.dataclass(frozen=True)
class Cispo(Clip):
    """Policy gradient with a clipped, detached importance weight: `cispo_gain`.

        sg[clip(r, 1 - low, 1 + high)] A log pi

    `policy/clip_fraction` counts the tokens whose weight is cut; they still learn.
    Reference: CISPO, arXiv:2506.13585, eq. 4 and 5; bounds of F-GRPO, arXiv:2602.06717.
    Deviations: both bounds are offsets from 1, so r is in [0, 6]; some trainers take the upper one as it is, so 5.
    """

    low: float = reported(1.0, "F-GRPO's runs, after ScaleRL; CISPO's paper has no lower bound in effect")
    """Offset below 1, in [0, 1]; 1 is no lower bound."""
    high: float = reported(5.0, "F-GRPO's runs, after ScaleRL; CISPO's paper does not publish its own")
    """Offset above 1, >= 0."""

    needs: ClassVar[Needs] = needs(new=Stat.LOGPROB)

    def __post_init__(self):
        if not (0 <= self.low <= 1 and self.high >= 0):
            raise ValueError(
                "cispo keeps the weight in [1 - low, 1 + high], offsets from 1: low is in [0, 1] and high >= 0, got "
                f"low={self.low}, high={self.high}."
            )

    def gain(
        self, log_ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], stats: Stats
    ) -> Float[Array, "B T"]:
        logprob = stats.get(Pass.NEW, Stat.LOGPROB)
        return cispo_gain(jnp.exp(log_ratio), advantage, logprob, self.low, self.high)

    def clipped(
        self, log_ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], stats: Stats
    ) -> Float[Array, "B T"]:
        ratio = jnp.exp(log_ratio)
        return ((ratio < 1 - self.low) | (ratio > 1 + self.high)).astype(jnp.float32)


@register("clip", "dynamic")
@dataclasses.dataclass(frozen=True)
class Dynamic(Clip):
    """PPO's surrogate between bounds that depend on the token's old probability: `dynamic_bounds`.

        min(r A, clip(r, lo(q), hi(q)) A),  and not below cap A where A < 0

    Reference: DCPO, arXiv:2509.02333.
    Deviations: the floor is the dual clip of the authors' code; one cap bounds hi and it, since both are 10 there.
    """

    low: float = paper(0.16, "the authors' README; their run script has 0.2")
    """>= 0; 0 lets no ratio fall."""
    high: float = paper(0.2, "the authors' README; their run script has 0.28")
    """>= 0; 0 lets no ratio rise."""
    cap: float = paper(10.0, "the authors' code")
    """Largest upper bound, and the dual clip of negative advantages; above 1."""

    needs: ClassVar[Needs] = needs(old=Stat.LOGPROB)

    def __post_init__(self):
        if not (self.low >= 0 and self.high >= 0 and self.cap > 1):
            raise ValueError(
                "dynamic bounds the ratio by low >= 0 and high >= 0 over the old probability and by cap > 1, got "
                f"low={self.low}, high={self.high}, cap={self.cap}."
            )

    def _bounds(self, stats: Stats) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
        return dynamic_bounds(stats.get(Pass.OLD, Stat.LOGPROB), self.low, self.high, cap=self.cap)

    def gain(
        self, log_ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], stats: Stats
    ) -> Float[Array, "B T"]:
        gain = _bounded_gain(jnp.exp(log_ratio), advantage, *self._bounds(stats))
        return _with_floor(gain, advantage, self.cap)

    def clipped(
        self, log_ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], stats: Stats
    ) -> Float[Array, "B T"]:
        ratio = jnp.exp(log_ratio)
        beyond = ((advantage < 0) & (ratio > self.cap)).astype(jnp.float32)
        return beyond + _cut(ratio, advantage, *self._bounds(stats))


@register("clip", "ppo_region")
@dataclasses.dataclass(frozen=True)
class PpoRegion(Clip):
    """PPO's clip as a mask: the ordinary ratio of the token says where there is no gradient, whatever is weighed.

        c A 1[not (A > 0 and r > 1 + high or A < 0 and r < 1 - low)]
        r = pi / pi_old,   c = exp(log_ratio)

    With ratio `token` the gradient is that of clip `ppo`. Made for ratio `bernoulli_variance`.
    Reference: the region of PPO, arXiv:1707.06347, eq. 7, as we read ReCo, arXiv:2607.26862, to keep it.
    """

    low: float = proposal(0.2, "GRPO's customary clip; ReCo's own was not found")
    """Offset below 1, in [0, 1]."""
    high: float = proposal(0.2, "GRPO's customary clip; ReCo's own was not found")
    """Offset above 1, >= 0."""

    needs: ClassVar[Needs] = needs(new=Stat.LOGPROB, old=Stat.LOGPROB)

    def __post_init__(self):
        if not (0 <= self.low <= 1 and self.high >= 0):
            raise ValueError(
                "ppo_region keeps tokens whose ratio is in [1 - low, 1 + high]: low is in [0, 1] and high >= 0, got "
                f"low={self.low}, high={self.high}."
            )

    def gain(
        self, log_ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], stats: Stats
    ) -> Float[Array, "B T"]:
        cut = self.clipped(log_ratio, advantage, stats)
        return jnp.where(cut > 0, 0.0, jnp.exp(log_ratio) * advantage)

    def clipped(
        self, log_ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], stats: Stats
    ) -> Float[Array, "B T"]:
        ratio = jnp.exp(stats.get(Pass.NEW, Stat.LOGPROB) - stats.get(Pass.OLD, Stat.LOGPROB))
        return _cut(ratio, advantage, 1 - self.low, 1 + self.high)


@register("clip", "unclipped")
@dataclasses.dataclass(frozen=True)
class Unclipped(Clip):
    """Advantage times the logarithm of the ratio; with ratio `none`, the policy gradient's A log pi.

        A_it * l_it

    Reference: REINFORCE as in RLOO, arXiv:2402.14740, eq. 5.
    """

    needs_ratio: ClassVar[bool] = False

    def gain(
        self, log_ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], stats: Stats
    ) -> Float[Array, "B T"]:
        return advantage * log_ratio

    def clipped(
        self, log_ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], stats: Stats
    ) -> Float[Array, "B T"]:
        return jnp.zeros_like(log_ratio)
