"""Penalties inside the loss, each with the gradient of the quantity it names."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rlvr_jax.objective.base import Regulariser, paper, reported
from rlvr_jax.registry import register
from rlvr_jax.types import Needs, Pass, Stat, Stats, needs

KL_KINDS = ("k1", "k2", "k3")


def kl_estimate(
    logprob: Float[Array, "B T"], ref_logprob: Float[Array, "B T"], kind: str
) -> Float[Array, "B T"]:
    """Estimate of KL(pi || ref) from one token sampled by pi, in nats; d = log pi - log ref.

        k1 = d            unbiased, any sign
        k2 = d^2 / 2      biased, >= 0
        k3 = e^-d - 1 + d unbiased, >= 0

    Its *value* only: the gradient of k1 through autodiff is 0 in expectation and that of k3 is the forward KL's.
    Reference: Schulman, "Approximating KL divergence", 2020. Raises ValueError for another kind.
    """
    gap = logprob - ref_logprob
    if kind == "k1":
        return gap
    if kind == "k2":
        return gap**2 / 2
    if kind == "k3":
        return jnp.expm1(jnp.clip(-gap, -20.0, 20.0)) + gap
    raise ValueError(f"no KL estimator called {kind!r}: there are {', '.join(KL_KINDS)}.")


@register("regulariser", "kl")
@dataclasses.dataclass(frozen=True)
class KL(Regulariser):
    """coef * KL(pi || ref) of each token, whose gradient is right in expectation for every estimator.

        value     r * k(pi, ref)                   r = pi / pi_old, because pi_old sampled
        gradient  coef * r * d * grad log pi       d = log pi - log ref

    Reference: GRPO, arXiv:2402.03300, eq. 4 (value k3).
    Deviations: the paper differentiates k3, which gives the gradient of KL(ref || pi); we give that of KL(pi || ref).
    """

    coef: float = reported(
        1e-3, "F-GRPO's control runs, AR-Lopti's and RENT's scripts; GRPO's paper has 0.04"
    )
    kind: str = paper("k3", "eq. 4")
    """The estimator whose value is reported: k1, k2 or k3. The gradient is the same for all."""

    needs: ClassVar[Needs] = needs(new=Stat.LOGPROB, old=Stat.LOGPROB, ref=Stat.LOGPROB)

    def __post_init__(self):
        if self.kind not in KL_KINDS:
            raise ValueError(f"no KL estimator called {self.kind!r}: there are {', '.join(KL_KINDS)}.")
        if not self.coef > 0:
            raise ValueError(f"a KL penalty has a coefficient > 0 (leave it out for none), got {self.coef}.")

    def penalty(self, stats: Stats, mask: Float[Array, "B T"]) -> Float[Array, "B T"]:
        new, old, ref = (
            jnp.where(mask > 0, stats.get(p, Stat.LOGPROB), 0.0) for p in (Pass.NEW, Pass.OLD, Pass.REF)
        )
        ratio = jnp.exp(jnp.clip(new - old, -20.0, 20.0))
        value = ratio * kl_estimate(new, ref, self.kind)
        surrogate = jax.lax.stop_gradient(ratio * (new - ref)) * new
        # Straight-through: the first term is the value, the difference is 0 and carries the gradient.
        return self.coef * (jax.lax.stop_gradient(value) + surrogate - jax.lax.stop_gradient(surrogate))


@register("regulariser", "entropy")
@dataclasses.dataclass(frozen=True)
class Entropy(Regulariser):
    """Entropy bonus: minus coef times the entropy of the policy at each token, differentiated exactly.

        - coef * H_t,     H_t = -sum_v p_v log p_v

    Reference: as in F-GRPO's control runs, arXiv:2602.06717 (coef 1e-4 and 1e-3).
    """

    coef: float = paper(1e-3, "the better of the two control runs")

    needs: ClassVar[Needs] = needs(new=Stat.ENTROPY)

    def __post_init__(self):
        if not self.coef > 0:
            raise ValueError(
                f"an entropy bonus has a coefficient > 0 (leave it out for none), got {self.coef}."
            )

    def penalty(self, stats: Stats, mask: Float[Array, "B T"]) -> Float[Array, "B T"]:
        return -self.coef * jnp.where(mask > 0, stats.get(Pass.NEW, Stat.ENTROPY), 0.0)
