"""Shaping of rewards: [B] -> [B], before anything is compared within a group."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from rlvr_jax.numerics import masked_mean, masked_sum
from rlvr_jax.objective.base import Context, Part, Stateless, paper, proposal
from rlvr_jax.registry import register
from rlvr_jax.types import BatchSpec, Needs, Pass, Stat, needs


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

    max_length: int = proposal(0, "the length limit of the run, as in the paper")
    """Tokens; at this length the punishment is complete. 0 takes the run's `sampling.max_new_tokens`."""
    buffer: int = paper(0, "4096 of 20480 tokens, section 4.1")
    """Tokens over which the punishment grows. 0 takes a fifth of the length, at least 1."""
    factor: float = paper(1.0)
    """>= 0, in units of the reward; 0 turns the punishment off."""

    def __post_init__(self):
        if self.max_length < 0 or self.buffer < 0:
            raise ValueError(
                "overlong max_length (0: the run's limit) and buffer (0: a fifth of it) are numbers of tokens, got "
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
        buffer = self.buffer or max(1, limit // 5)
        return x + self.factor * overlong_penalty(ctx.rollout.mask.sum(1), limit, buffer)


class _WithoutLabels(Part):
    """A reward from the policy's own statistics, which takes the place of the verifier's, or some of it."""

    keep: float

    def __post_init__(self):
        if not self.keep >= 0:
            raise ValueError(
                f"{self.name} keep is the weight of the reward before it and >= 0, got {self.keep}."
            )

    def _combine(self, before: Float[Array, " B"], own: Float[Array, " B"]) -> Float[Array, " B"]:
        return self.keep * before + own


@register("reward", "self_certainty")
@dataclasses.dataclass(frozen=True)
class SelfCertainty(_WithoutLabels, Stateless):
    """INTUITOR: the reward is how far the old policy's distributions are from uniform, and needs no labels.

        R_i <- keep R_i + (1/|o_i|) sum_t KL(uniform || pi_old(. | o_i,<t))

    In nats, >= 0. With keep = 0 it replaces what the verifier gave; correctness is still logged, and read by the stages
    that need it (`focal`, `drop_uniform_groups`). Reference: INTUITOR, arXiv:2505.19590.
    Deviations: their code leaves out the constant - log V, which no group advantage sees.
    """

    keep: float = paper(0.0)
    """Weight of the reward before it, >= 0; 0 replaces it."""

    needs: ClassVar[Needs] = needs(old=Stat.SELF_CERTAINTY)

    def transform(self, x: Float[Array, " B"], ctx: Context) -> Float[Array, " B"]:
        certainty = ctx.stats.get(Pass.OLD, Stat.SELF_CERTAINTY)
        return self._combine(x, masked_mean(certainty, ctx.rollout.mask))


@register("reward", "negative_entropy")
@dataclasses.dataclass(frozen=True)
class NegativeEntropy(_WithoutLabels, Stateless):
    """RENT: the reward is minus the mean entropy of the old policy at the response's tokens, and needs no labels.

        R_i <- keep R_i - (1/|o_i|) sum_t H(pi_old(. | o_i,<t))

    In nats, <= 0. With keep = 0 it replaces what the verifier gave. Reference: RENT, arXiv:2505.22660.
    Deviations: their option of -7 for a response without a parsable answer is left out.
    """

    keep: float = paper(0.0)
    """Weight of the reward before it, >= 0; 0 replaces it."""

    needs: ClassVar[Needs] = needs(old=Stat.ENTROPY)

    def transform(self, x: Float[Array, " B"], ctx: Context) -> Float[Array, " B"]:
        entropy = ctx.stats.get(Pass.OLD, Stat.ENTROPY)
        return self._combine(x, -masked_mean(entropy, ctx.rollout.mask))


@register("reward", "kl_in_reward")
@dataclasses.dataclass(frozen=True)
class KLInReward(Stateless):
    """Takes an estimate of the response's KL from the reference out of its reward, in place of a penalty in the loss.

        R_i <- R_i - coef sum_t (log pi_old(o_it) - log pi_ref(o_it))

    The sum over a response (k1) is an unbiased estimate of KL(pi_old || pi_ref), and as part of the reward its policy
    gradient is right, which it is not as a term of the loss. Loads a reference model.
    Reference: InstructGPT, arXiv:2203.02155, eq. 2.
    """

    coef: float = proposal(
        1e-3, "the usual size for language models; no source of these methods has KL in the reward"
    )
    """> 0, in units of the reward per nat."""

    needs: ClassVar[Needs] = needs(old=Stat.LOGPROB, ref=Stat.LOGPROB)

    def __post_init__(self):
        if not self.coef > 0:
            raise ValueError(f"kl_in_reward has a coefficient > 0 (leave it out for none), got {self.coef}.")

    def transform(self, x: Float[Array, " B"], ctx: Context) -> Float[Array, " B"]:
        gap = ctx.stats.get(Pass.OLD, Stat.LOGPROB) - ctx.stats.get(Pass.REF, Stat.LOGPROB)
        return x - self.coef * masked_sum(gap, ctx.rollout.mask)
