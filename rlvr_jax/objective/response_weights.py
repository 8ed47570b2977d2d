"""Weights of whole responses: signed advantages [B] -> [B]. Groups are consecutive rows."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rlvr_jax.numerics import group_count, group_mean, grouped, masked_mean, safe_divide
from rlvr_jax.objective.base import Context, Stateless, proposal
from rlvr_jax.registry import register
from rlvr_jax.types import Needs, Pass, Stat, needs

_LOWEST_MEAN = -60.0
"""Nats; e^60 is far above every weight that makes sense, and sums of them are finite in float32."""


def inverse_occurrence(
    mean_logprob: Float[Array, " B"],
    group_size: int,
    *,
    cap: float | None = None,
    normalize: bool = False,
    valid: Bool[Array, " B"] | None = None,
) -> Float[Array, " B"]:
    """w_i = 1 / (G pbar_i) with pbar_i = exp(mean_logprob_i): responses that the policy gives often weigh less.

    `mean_logprob` is the mean over a response's tokens under the old policy, in nats. `cap` is the largest weight, applied
    first; `normalize` then divides by the mean weight of the group, which keeps the size of a step. G and the mean are
    over the `valid` rows (all by default).
    Reference: ReCo, arXiv:2607.26862. Raises ValueError for a cap that is not positive.
    """
    if cap is not None and not cap > 0:
        raise ValueError(
            f"inverse_occurrence cap is the largest weight and above 0 (None: no cap), got {cap}."
        )
    size = group_size if valid is None else jnp.maximum(group_count(valid, group_size), 1.0)
    weight = jnp.exp(-jnp.maximum(grouped(mean_logprob, group_size), _LOWEST_MEAN)) / size
    if cap is not None:
        weight = jnp.minimum(weight, cap)
    if normalize:
        mean = group_mean(weight.ravel(), group_size, valid)
        weight = safe_divide(weight, jnp.broadcast_to(mean, weight.shape))
    return weight.ravel()


@register("response_weight", "inverse_occurrence")
@dataclasses.dataclass(frozen=True)
class InverseOccurrence(Stateless):
    """ReCo's response level: `inverse_occurrence` of the old policy's length-normalised likelihood.

        A_i <- w_i A_i,   w_i = min(1 / (G pbar_i), cap) / (mean of the group)
        pbar_i = exp(mean_t log pi_old(o_it))

    The likelihood is that of all sampled tokens, whatever the masks leave out of the loss.
    Reference: ReCo, arXiv:2607.26862 (abstract; the equation as three third-party texts give it).
    Deviations: the geometric mean, the cap and the normalisation are our proposal: the full text was not read.
    """

    cap: float | None = proposal(5.0, "a third party's reproduction takes it; the paper's was not found")
    """Largest weight before the normalisation; null for none."""
    normalize: bool = proposal(True, "G pbar is above 1, so that ReCo would mostly be a G times smaller step")
    """Divide by the mean weight of the group."""

    needs: ClassVar[Needs] = needs(old=Stat.LOGPROB)

    def __post_init__(self):
        if self.cap is not None and not self.cap > 0:
            raise ValueError(
                f"inverse_occurrence cap is the largest weight and above 0 (None: no cap), got {self.cap}."
            )

    def transform(self, x: Float[Array, " B"], ctx: Context) -> Float[Array, " B"]:
        mean = masked_mean(ctx.stats.get(Pass.OLD, Stat.LOGPROB), ctx.rollout.mask)
        weight = inverse_occurrence(
            mean, ctx.spec.group_size, cap=self.cap, normalize=self.normalize, valid=ctx.valid
        )
        return x * weight
