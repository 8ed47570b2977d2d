"""Shaping of rewards: [B] -> [B], before anything is compared within a group."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from rlvr_jax.objective.base import Context, Stateless
from rlvr_jax.registry import register


def overlong_penalty(length: Float[Array, " B"], max_length: int, buffer: int) -> Float[Array, " B"]:
    """Soft punishment of long responses, in [-1, 0].

        0                                      length <= max_length - buffer
        (max_length - buffer - length)/buffer  up to max_length
        -1                                     beyond

    `length`, `max_length` and `buffer` are tokens.
    Reference: DAPO, arXiv:2503.14476, eq. 13.
    """
    return jnp.clip((max_length - buffer - length) / buffer, -1.0, 0.0)


@register("reward", "overlong")
@dataclasses.dataclass(frozen=True)
class Overlong(Stateless):
    """Adds DAPO's soft overlong punishment to the reward.

        R_i <- R_i + factor * overlong_penalty(|o_i|, max_length, buffer)

    Reference: DAPO, arXiv:2503.14476, eq. 13 (there max_length 20480, buffer 4096, rewards +-1).
    Deviations: lengths are sampled tokens, never characters.
    """

    max_length: int = 1024
    """Tokens; at this length the punishment is complete. The run's `sampling.max_new_tokens` in DAPO."""
    buffer: int = 256
    """Tokens over which the punishment grows. The default is our proposal: DAPO's fifth of the length, rounded up."""
    factor: float = 1.0
    """>= 0, in units of the reward; 0 turns the punishment off."""

    def __post_init__(self):
        if not self.factor >= 0:
            raise ValueError(f"overlong factor scales a punishment and is >= 0, got {self.factor}.")
        if not 0 < self.buffer <= self.max_length:
            raise ValueError(
                f"overlong buffer must be in 1..max_length={self.max_length}, got {self.buffer}."
            )

    def transform(self, x: Float[Array, " B"], ctx: Context) -> Float[Array, " B"]:
        length = ctx.rollout.mask.sum(1)
        return x + self.factor * overlong_penalty(length, self.max_length, self.buffer)
