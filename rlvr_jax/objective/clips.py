"""Gains: what is maximised for each token, from ratio and advantage, with the clip of the method."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from rlvr_jax.objective.base import Clip
from rlvr_jax.registry import register
from rlvr_jax.types import Stats


def ppo_gain(
    ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], low: float, high: float
) -> Float[Array, "B T"]:
    """min(r A, clip(r, 1 - low, 1 + high) A). At the very edge the clip is not in force, and the gradient is A.

    Reference: PPO, arXiv:1707.06347, eq. 7; low != high ("clip-higher"): DAPO, arXiv:2503.14476, eq. 10.
    """
    free = ratio * advantage
    bounded = jnp.clip(ratio, 1 - low, 1 + high) * advantage
    # `minimum` halves the gradient where both are equal and `clip` at its edge: with low or high 0 that is r = 1, so
    # every token of an on-policy step.
    return jnp.where(free <= bounded, free, bounded)


@register("clip", "ppo")
@dataclasses.dataclass(frozen=True)
class Ppo(Clip):
    """PPO's clipped surrogate: `ppo_gain`.

        min(r A, clip(r, 1 - low, 1 + high) A)

    Reference: PPO, arXiv:1707.06347, eq. 7; DAPO, arXiv:2503.14476, eq. 10.
    """

    low: float = 0.2
    """Offset below 1, in [0, 1]."""
    high: float = 0.2
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
        ratio = jnp.exp(log_ratio)
        above = (advantage > 0) & (ratio > 1 + self.high)
        below = (advantage < 0) & (ratio < 1 - self.low)
        return (above | below).astype(jnp.float32)


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
