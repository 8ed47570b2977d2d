"""Weights of single tokens from the old policy: signed credit [B, T] -> [B, T], and the mask of the 80/20 rule.

A weight leaves every denominator as it is; what is to leave the denominators as well is a mask.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rlvr_jax.objective.base import Context, Stage, Stateless, paper, proposal
from rlvr_jax.registry import register
from rlvr_jax.types import Mean, Metrics, Needs, Pass, Stat, State, needs

_ROUNDING = 2e-7
"""Relative; fraction * n in float32 may lie this much above the whole number that it is."""


def probability_weight(logprob: Float[Array, "B T"], alpha: float) -> Float[Array, "B T"]:
    """alpha p + 1 - alpha, in [1 - alpha, 1]: unlikely tokens, whose gradients are large, weigh less.

    alpha = 0 gives 1 everywhere. Reference: advantage reweighting, arXiv:2505.12929.
    """
    return alpha * jnp.exp(logprob) + (1 - alpha)


def top_entropy_mask(
    entropy: Float[Array, "B T"], mask: Float[Array, "B T"], fraction: float
) -> Bool[Array, "B T"]:
    """The ceil(fraction * n) tokens of the highest entropy among the n of the mask, over all the rows at once.

    Exactly that many: of equal entropies the earlier rows and positions are kept, because taking all of them would keep
    every token where most are certain (entropy 0). Reference: 80/20 rule, arXiv:2506.01939.
    """
    valid = mask > 0
    # In float32, 0.2 * 15 may be 3.0000002, whose ceiling is 4.
    count = jnp.ceil(fraction * (1 - _ROUNDING) * valid.sum().astype(jnp.float32)).astype(jnp.int32)
    order = jnp.argsort(jnp.where(valid, -entropy, jnp.inf).ravel(), stable=True)
    rank = jnp.zeros(order.shape, jnp.int32).at[order].set(jnp.arange(order.size, dtype=jnp.int32))
    return valid & (rank < count).reshape(mask.shape)


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction <= 1:
        raise ValueError(
            f"top_entropy fraction is the share of tokens that is kept, in (0, 1], got {fraction}."
        )


@register("token_weight", "probability")
@dataclasses.dataclass(frozen=True)
class Probability(Stateless):
    """Advantage reweighting (AR): `probability_weight` of the old policy.

        A_it <- (alpha pi_old(o_it) + 1 - alpha) A_it

    Reference: AR, arXiv:2505.12929.
    """

    alpha: float = paper(0.2, "released script alone; 0.3 with Lopti")
    """In [0, 1]; 0 is the base method."""

    needs: ClassVar[Needs] = needs(old=Stat.LOGPROB)

    def __post_init__(self):
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"probability alpha mixes p and 1 and is in [0, 1], got {self.alpha}.")

    def transform(self, x: Float[Array, "B T"], ctx: Context) -> Float[Array, "B T"]:
        return x * probability_weight(ctx.stats.get(Pass.OLD, Stat.LOGPROB), self.alpha)


@register("token_weight", "top_entropy")
@dataclasses.dataclass(frozen=True)
class TopEntropyWeight(Stateless):
    """Zero weight for all but the most uncertain tokens, which stay in the denominators: `top_entropy_mask`.

        A_it <- A_it 1[H_it in the top ceil(fraction n) of the batch]

    With `token_mean` the step is about `fraction` of that with mask `top_entropy`, which is the authors' code.
    Reference: 80/20 rule, arXiv:2506.01939, with the denominators of the base method.
    """

    fraction: float = paper(0.2, "the authors' code")
    """Share of the tokens that keeps its weight, in (0, 1]."""

    needs: ClassVar[Needs] = needs(old=Stat.ENTROPY)

    def __post_init__(self):
        _check_fraction(self.fraction)

    def transform(self, x: Float[Array, "B T"], ctx: Context) -> Float[Array, "B T"]:
        kept = top_entropy_mask(ctx.stats.get(Pass.OLD, Stat.ENTROPY), ctx.mask, self.fraction)
        return jnp.where(kept, x, 0.0)


@register("mask", "top_entropy")
@dataclasses.dataclass(frozen=True)
class TopEntropy(Stateless):
    """Trains only the most uncertain tokens; the others leave the denominators too: `top_entropy_mask`.

        m_it <- m_it 1[H_it in the top ceil(fraction n) of the batch]

    It is a mask, because the authors' code divides by the kept tokens: put it last among the masks. A penalty (KL,
    entropy) then also falls on the kept tokens only. Reference: 80/20 rule, arXiv:2506.01939.
    Deviations: the quantile is over the whole rollout batch and of the policy that sampled it, where the authors'
    code takes each micro-batch and the policy as it is at the update: so shards and micro-batches change nothing.
    """

    fraction: float = paper(0.2, "the authors' code")
    """Share of the tokens that is kept, in (0, 1]; 1 is the base method."""

    needs: ClassVar[Needs] = needs(old=Stat.ENTROPY)

    def __post_init__(self):
        _check_fraction(self.fraction)

    def transform(self, x: Float[Array, "B T"], ctx: Context) -> Float[Array, "B T"]:
        kept = top_entropy_mask(ctx.stats.get(Pass.OLD, Stat.ENTROPY), x, self.fraction)
        return jnp.where(kept, x, 0.0)


@register("token_weight", "sampler_correction")
@dataclasses.dataclass(frozen=True)
class SamplerCorrection(Stage):
    """Truncated importance weight for a sampler whose probabilities are not the trainer's.

        A_it <- min(pi_old(o_it) / pi_sampler(o_it), cap) A_it

    Metrics: the mean ratio before the truncation, and the share of tokens that are truncated.
    Reference: truncated importance weights as in IMPALA, arXiv:1802.01561.
    """

    cap: float = proposal(2.0, "cuts nothing while sampler and trainer agree within a factor of 2")
    """Largest weight, above 0."""

    needs: ClassVar[Needs] = needs(old=Stat.LOGPROB, sampler=Stat.LOGPROB)

    def __post_init__(self):
        if not self.cap > 0:
            raise ValueError(f"sampler_correction cap is the largest weight and above 0, got {self.cap}.")

    def apply(
        self, x: Float[Array, "B T"], ctx: Context, state: State
    ) -> tuple[Float[Array, "B T"], State, Metrics]:
        gap = ctx.stats.get(Pass.OLD, Stat.LOGPROB) - ctx.stats.get(Pass.SAMPLER, Stat.LOGPROB)
        ratio = jnp.exp(jnp.clip(jnp.where(ctx.mask > 0, gap, 0.0), -20.0, 20.0))
        metrics = {
            "ratio": Mean.of(ratio, ctx.mask),
            "truncated": Mean.of((ratio > self.cap).astype(jnp.float32), ctx.mask),
        }
        return x * jnp.minimum(ratio, self.cap), (), metrics
