"""Importance ratios, in log space: new against old policy."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from rlvr_jax.objective.base import Ratio
from rlvr_jax.registry import register
from rlvr_jax.types import Needs, Pass, Stat, Stats, needs

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
