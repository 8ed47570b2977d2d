"""Shaping of rewards: [B] -> [B], before anything is compared within a group."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from rlvr_jax.objective.base import Context, Stateless
from rlvr_jax.registry import register
from rlvr_jax.types import BatchSpec


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

    max_length: int = 0
    """Tokens; at this length the punishment is complete. 0 takes the run's `sampling.max_new_tokens`."""
    buffer: int = 256
    """Tokens over which the punishment grows. The default is our proposal; DAPO has a fifth of the length."""
    factor: float = 1.0
    """>= 0, in units of the reward; 0 turns the punishment off."""

    def __post_init__(self):
        if self.max_length < 0 or self.buffer < 1:
            raise ValueError(
                f"overlong max_length is a number of tokens (0: the run's limit) and buffer is 1 or more, got "
                f"max_length={self.max_length}, buffer={self.buffer}."
            )
        if not self.factor >= 0:
            raise ValueError(f"overlong factor scales a punishment and is >= 0, got {self.factor}.")

    def check(self, spec: BatchSpec) -> None:
        limit = self.max_length or spec.length
        if self.buffer > limit:
            raise ValueError(
                f"overlong buffer={self.buffer} is longer than the {limit} tokens at which its punishment is complete: "
                "set a smaller buffer (DAPO: a fifth of the length)."
            )

    def transform(self, x: Float[Array, " B"], ctx: Context) -> Float[Array, " B"]:
        limit = self.max_length or ctx.spec.length
        return x + self.factor * overlong_penalty(ctx.rollout.mask.sum(1), limit, self.buffer)
