"""Importance ratios, in log space: new against old policy."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rlvr_jax.numerics import masked_mean
from rlvr_jax.objective.base import Ratio
from rlvr_jax.registry import register
from rlvr_jax.types import Needs, Pass, Stat, Stats, needs

_SUREST = -1e-5
"""Nats; log pi is taken as this at the most, so that 1 - pi is 1e-5 at the least and not a rounding error."""

LOG_RATIO_LIMIT = 20.0
"""Nats. exp(20) is far outside every clip range and still finite in float32; numeric safety, not a clip."""


def token_ratio(logprob: Float[Array, "B T"], old_logprob: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """r_it = pi(o_it) / pi_old(o_it), computed as exp of the difference in nats.

    Reference: PPO, arXiv:1707.06347, eq. 6, for each token as in GRPO, arXiv:2402.03300, eq. 3.
    """
    return jnp.exp(jnp.clip(logprob - old_logprob, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


@register("ratio", "token")
@dataclasses.dataclass(frozen=True)
class Token(Ratio):
    """One ratio for each token: `token_ratio`.

        r_it = pi(o_it) / pi_old(o_it)

    Reference: GRPO, arXiv:2402.03300, eq. 3.
    """

    needs: ClassVar[Needs] = needs(new=Stat.LOGPROB, old=Stat.LOGPROB)

    def log_ratio(self, stats: Stats, mask: Float[Array, "B T"]) -> Float[Array, "B T"]:
        gap = stats.get(Pass.NEW, Stat.LOGPROB) - stats.get(Pass.OLD, Stat.LOGPROB)
        return jnp.clip(jnp.where(mask > 0, gap, 0.0), -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _mean_gap(
    logprob: Float[Array, "B T"], old_logprob: Float[Array, "B T"], mask: Float[Array, "B T"]
) -> Float[Array, "B 1"]:
    """log s_i, the mean gap of a response's tokens in nats; 0 for a row without any."""
    gap = jnp.where(mask > 0, logprob, 0.0) - jnp.where(mask > 0, old_logprob, 0.0)
    return jnp.clip(masked_mean(gap, mask), -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)[:, None]


def sequence_ratio(
    logprob: Float[Array, "B T"], old_logprob: Float[Array, "B T"], mask: Float[Array, "B T"]
) -> Float[Array, "B 1"]:
    """s_i = (pi(o_i) / pi_old(o_i))^(1 / |o_i|) = exp(mean_t (log pi - log pi_old)): one ratio for each response.

    Reference: GSPO, arXiv:2507.18071, eq. 7.
    """
    return jnp.exp(_mean_gap(logprob, old_logprob, mask))


@register("ratio", "sequence")
@dataclasses.dataclass(frozen=True)
class Sequence(Ratio):
    """One ratio for a whole response, the geometric mean of its tokens' ratios: `sequence_ratio`.

        s_i = exp(mean_t (log pi(o_it) - log pi_old(o_it)))

    Every token of the response gets it, so with aggregate `sequence_mean` the loss is the paper's mean over
    responses. The mean is over the tokens in the loss. Reference: GSPO, arXiv:2507.18071, eq. 5 to 7.
    """

    by_token: ClassVar[bool] = False
    needs: ClassVar[Needs] = needs(new=Stat.LOGPROB, old=Stat.LOGPROB)

    def log_ratio(self, stats: Stats, mask: Float[Array, "B T"]) -> Float[Array, "B T"]:
        mean = _mean_gap(stats.get(Pass.NEW, Stat.LOGPROB), stats.get(Pass.OLD, Stat.LOGPROB), mask)
        return jnp.where(mask > 0, jnp.broadcast_to(mean, mask.shape), 0.0)


@register("ratio", "gspo_token")
@dataclasses.dataclass(frozen=True)
class GspoToken(Ratio):
    """The response's ratio in value, each token's own likelihood in gradient; for advantages that differ by token.

        s_it = sg[s_i] pi(o_it) / sg[pi(o_it)]

    With one advantage for the whole response the gradient is that of `sequence`.
    Reference: GSPO, arXiv:2507.18071, eq. 14.
    """

    needs: ClassVar[Needs] = needs(new=Stat.LOGPROB, old=Stat.LOGPROB)

    def log_ratio(self, stats: Stats, mask: Float[Array, "B T"]) -> Float[Array, "B T"]:
        new = jnp.where(mask > 0, stats.get(Pass.NEW, Stat.LOGPROB), 0.0)
        mean = _mean_gap(new, stats.get(Pass.OLD, Stat.LOGPROB), mask)
        value = jnp.where(mask > 0, jnp.broadcast_to(mean, mask.shape), 0.0)
        return jax.lax.stop_gradient(value) + (new - jax.lax.stop_gradient(new))


def _log_variance(logprob: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """log(p (1 - p)), exact for p near 0 and down to 1 - p = 1e-5."""
    logprob = jnp.minimum(logprob, _SUREST)
    return logprob + jnp.log(-jnp.expm1(logprob))


def _log_variance_ratio(
    logprob: Float[Array, "B T"], old_logprob: Float[Array, "B T"]
) -> Float[Array, "B T"]:
    gap = _log_variance(logprob) - _log_variance(old_logprob)
    return jnp.clip(gap, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def bernoulli_variance_ratio(
    logprob: Float[Array, "B T"], old_logprob: Float[Array, "B T"]
) -> Float[Array, "B T"]:
    """r_var = p (1 - p) / (p_old (1 - p_old)): how much more variance "this token or not" has than it had.

    1 exactly where the policies are equal. Autodiff through it gives r_var (1 - 2p) / (1 - p) grad log p, which is
    negative for p > 1/2; as a coefficient of grad log p it has to be detached. 1 - p is taken as 1e-5 at the least.
    Reference: ReCo, arXiv:2607.26862 (abstract; the equation as three third-party texts give it).
    """
    return jnp.exp(_log_variance_ratio(logprob, old_logprob))


def _inside(stats: Stats, mask: Float[Array, "B T"]) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """New and old log-probabilities, -1 under the padding."""
    new, old = (stats.get(p, Stat.LOGPROB) for p in (Pass.NEW, Pass.OLD))
    return jnp.where(mask > 0, new, -1.0), jnp.where(mask > 0, old, -1.0)


@register("ratio", "bernoulli_variance")
@dataclasses.dataclass(frozen=True)
class BernoulliVariance(Ratio):
    """ReCo's token level: r_var as a detached coefficient of grad log p: `bernoulli_variance_ratio`.

        r_it = sg[r_var,it] pi(o_it) / sg[pi(o_it)],   whose gradient is r_var,it grad log pi(o_it)

    With clip `ppo_region`, PPO's clip of the *ordinary* ratio stays in force as a mask, which is our reading of the
    paper; with clip `ppo` the bounds are those of r_var. One update per batch makes r_var = 1: then it does nothing.
    Reference: ReCo, arXiv:2607.26862.
    Deviations: whether the paper detaches or clips r_var was not found; detached is what gives the quoted gradient.
    """

    needs: ClassVar[Needs] = needs(new=Stat.LOGPROB, old=Stat.LOGPROB)
    note: ClassVar[str] = (
        "ratio 'bernoulli_variance' is 1 everywhere with one update per batch, and does nothing: set batch.minibatches "
        "or batch.epochs above 1."
    )

    def log_ratio(self, stats: Stats, mask: Float[Array, "B T"]) -> Float[Array, "B T"]:
        new, old = _inside(stats, mask)
        value = jax.lax.stop_gradient(_log_variance_ratio(new, old))
        return value + (new - jax.lax.stop_gradient(new))


@register("ratio", "bernoulli_variance_inside")
@dataclasses.dataclass(frozen=True)
class BernoulliVarianceInside(Ratio):
    """The other reading of ReCo's token level: r_var itself stands where the ratio stood, and is differentiated.

        min(r_var A, clip(r_var, 1 - low, 1 + high) A)   with clip `ppo`

    The gradient is r_var (1 - 2p) / (1 - p) grad log p: it pushes p towards 1/2, and good tokens with p > 1/2 down.
    That holds with one update per batch too. Here for comparison. Reference: ReCo, arXiv:2607.26862.
    Deviations: a literal reading that does not give the gradient which is quoted from the paper.
    """

    needs: ClassVar[Needs] = needs(new=Stat.LOGPROB, old=Stat.LOGPROB)

    def log_ratio(self, stats: Stats, mask: Float[Array, "B T"]) -> Float[Array, "B T"]:
        return _log_variance_ratio(*_inside(stats, mask))


@register("ratio", "none")
@dataclasses.dataclass(frozen=True)
class NoRatio(Ratio):
    """The log-likelihood itself where a ratio would stand: for `unclipped` gains, A * log pi, and for imitation.

        l_it = log pi(o_it)

    Reference: REINFORCE as in RLOO, arXiv:2402.14740, eq. 5.
    """

    is_ratio: ClassVar[bool] = False
    needs: ClassVar[Needs] = needs(new=Stat.LOGPROB)

    def log_ratio(self, stats: Stats, mask: Float[Array, "B T"]) -> Float[Array, "B T"]:
        return jnp.where(mask > 0, stats.get(Pass.NEW, Stat.LOGPROB), 0.0)
