"""How one batch becomes sequential updates: masks [B, K, T] that sum to the mask over K."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from rlvr_jax.objective.base import Context, Passes, paper
from rlvr_jax.registry import register
from rlvr_jax.types import Needs, Pass, Stat, needs


@register("passes", "single")
@dataclasses.dataclass(frozen=True)
class Single(Passes):
    """All tokens in one pass.

        pass 0   m_it

    Reference: GRPO, arXiv:2402.03300.
    """

    def split(self, ctx: Context) -> Float[Array, "B K T"]:
        return ctx.mask[:, None]


@register("passes", "by_probability")
@dataclasses.dataclass(frozen=True)
class ByProbability(Passes):
    """Lopti: two updates one after the other, of the unlikely tokens first and then of the likely ones.

        pass 0   m_it 1[pi_old(o_it) <= eta]
        pass 1   m_it 1[pi_old(o_it) >  eta]

    Both passes have the denominators of all the tokens, and a token's penalties (KL, entropy) fall in its own pass.
    It doubles the optimiser steps. Reference: Lopti, arXiv:2505.12929.
    """

    eta: float = paper(0.5, "released script with AR; 0.4 alone")
    """Probability in (0, 1) up to which a token is unlikely."""

    count: ClassVar[int] = 2
    needs: ClassVar[Needs] = needs(old=Stat.LOGPROB)

    def __post_init__(self):
        if not 0 < self.eta < 1:
            raise ValueError(f"by_probability eta is a probability in (0, 1), got {self.eta}.")

    def split(self, ctx: Context) -> Float[Array, "B K T"]:
        unlikely = jnp.exp(ctx.stats.get(Pass.OLD, Stat.LOGPROB)) <= self.eta
        first = jnp.where(unlikely, ctx.mask, 0.0)
        return jnp.stack([first, ctx.mask - first], 1)
