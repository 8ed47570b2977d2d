"""Gates: weights of single tokens from the new policy, without gradient. They multiply the gain."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rlvr_jax.numerics import masked_mean, safe_divide
from rlvr_jax.objective.base import Gate, proposal, reported
from rlvr_jax.registry import register
from rlvr_jax.types import Mean, Metrics, Needs, Pass, Stat, Stats, needs

_CONFIG = "a third party's config (grpo-composer); not seen in the paper"


def confidence_weight(
    logit: Float[Array, "B T"], *, alpha: float, tau: float, mu: float, lower: float, upper: float
) -> Float[Array, "B T"]:
    """clip(alpha (sigmoid(sg[h] / tau) - mu), lower, upper) of the sampled token's logit h. No gradient.

    Reference: GRPO-SG, arXiv:2511.00066, eq. 20.
    """
    confidence = jax.nn.sigmoid(jax.lax.stop_gradient(logit) / tau)
    return jnp.clip(alpha * (confidence - mu), lower, upper)


class _Confidence(Gate):
    """What the two forms share: the checks, and how many tokens are at the bounds."""

    alpha: float
    tau: float
    mu: float
    lower: float
    upper: float
    needs: ClassVar[Needs] = needs(new=Stat.LOGIT)

    def __post_init__(self):
        if not (self.tau > 0 and self.alpha > 0):
            raise ValueError(
                f"{self.name} alpha and tau are positive: the weight rises with confidence; got alpha={self.alpha}, "
                f"tau={self.tau}."
            )
        if not 0 <= self.lower <= self.upper:
            raise ValueError(
                f"{self.name} weights are in [lower, upper] with 0 <= lower <= upper, got lower={self.lower}, "
                f"upper={self.upper}."
            )

    def _of(self, logit: Float[Array, "B T"]) -> Float[Array, "B T"]:
        return confidence_weight(
            logit, alpha=self.alpha, tau=self.tau, mu=self.mu, lower=self.lower, upper=self.upper
        )

    def metrics(self, weight: Float[Array, "B T"], mask: Float[Array, "B T"]) -> Metrics:
        """Shares of the tokens at the lower bound, between the bounds, and at the upper one."""
        low, high = weight <= self.lower, weight >= self.upper
        share = lambda where: Mean.of(where.astype(jnp.float32), mask)  # noqa: E731
        return {"at_lower": share(low), "inside": share(~low & ~high), "at_upper": share(high)}


@register("gate", "confidence")
@dataclasses.dataclass(frozen=True)
class Confidence(_Confidence):
    """GRPO-SG: tokens that the new policy is sure of weigh more, by their raw logit: `confidence_weight`.

        w_it = clip(alpha (sigmoid(sg[h_it] / tau) - mu), lower, upper)

    h is the logit of the sampled token before the temperature. lower = upper = 1 is the base method. With the
    defaults w is 1 up to h = 9.9 and 1.4 from h = 26.5: a small model may never leave 1 (see `at_lower`), for which
    there is `standardised_confidence`. Reference: GRPO-SG, arXiv:2511.00066, eq. 20.
    Deviations: the gate does not weigh the KL penalty, as the paper's first version does.
    """

    alpha: float = reported(2.0, _CONFIG)
    tau: float = reported(9.0, _CONFIG)
    mu: float = reported(0.25, _CONFIG)
    lower: float = reported(1.0, _CONFIG)
    upper: float = reported(1.4, _CONFIG)

    def weight(self, stats: Stats, mask: Float[Array, "B T"]) -> Float[Array, "B T"]:
        return self._of(jnp.where(mask > 0, stats.get(Pass.NEW, Stat.LOGIT), 0.0))


@register("gate", "standardised_confidence")
@dataclasses.dataclass(frozen=True)
class StandardisedConfidence(_Confidence):
    """The confidence gate on logits standardised in each response: for models whose raw logits are small.

        w_it = clip(alpha (sigmoid(sg[(h_it - mean_i) / std_i] / tau) - mu), lower, upper)

    mean and population std are over the tokens of response i (what is differentiated may not look at other rows),
    so an offset of the head, which no softmax sees, changes nothing. w = 1 up to the mean and 1.4 from 0.85 std above.
    Reference: a form of GRPO-SG, arXiv:2511.00066, eq. 20.
    Deviations: the standardisation is our proposal, not the paper's.
    """

    alpha: float = proposal(2.0, "as reported for `confidence`")
    tau: float = proposal(1.0, "the ramp is then about one standard deviation wide")
    mu: float = proposal(0.0, "the ramp then begins at the response's mean")
    lower: float = proposal(1.0, "the range reported for `confidence`")
    upper: float = proposal(1.4, "the range reported for `confidence`")

    def weight(self, stats: Stats, mask: Float[Array, "B T"]) -> Float[Array, "B T"]:
        logit = jnp.where(mask > 0, stats.get(Pass.NEW, Stat.LOGIT), 0.0)
        centred = jnp.where(mask > 0, logit - masked_mean(logit, mask)[:, None], 0.0)
        variance = jax.lax.stop_gradient(masked_mean(centred**2, mask))[:, None]
        return self._of(safe_divide(centred, jnp.broadcast_to(jnp.sqrt(variance), centred.shape)))
