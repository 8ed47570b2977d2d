"""Token weights with every denominator: [B, T] mask -> [B, T] coefficients, for the rows of one optimiser step."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from rlvr_jax.numerics import grouped, safe_divide
from rlvr_jax.objective.base import Aggregate, paper
from rlvr_jax.registry import register
from rlvr_jax.types import BatchSpec


def _rows(mask: Float[Array, "B T"]) -> Float[Array, ""]:
    """Number of rows with a token in the loss."""
    return (mask.sum(1) > 0).astype(mask.dtype).sum()


@register("aggregate", "sequence_mean")
@dataclasses.dataclass(frozen=True)
class SequenceMean(Aggregate):
    """Mean over a response's tokens, then over responses: a token of a long response weighs less.

        c_it = m_it / |o_i| / rows

    Reference: GRPO, arXiv:2402.03300, eq. 3.
    """

    def coefficients(self, mask: Float[Array, "B T"], spec: BatchSpec) -> Float[Array, "B T"]:
        return safe_divide(mask, mask.sum(1, keepdims=True) * _rows(mask))


@register("aggregate", "sequence_sum")
@dataclasses.dataclass(frozen=True)
class SequenceSum(Aggregate):
    """Mean over a response's tokens, summed over responses: a step grows with the number of responses.

        c_it = m_it / |o_i|

    Reference: the "only token mean" loss of DCPO, arXiv:2509.02333.
    """

    def coefficients(self, mask: Float[Array, "B T"], spec: BatchSpec) -> Float[Array, "B T"]:
        return safe_divide(mask, jnp.broadcast_to(mask.sum(1, keepdims=True), mask.shape))


@register("aggregate", "token_mean")
@dataclasses.dataclass(frozen=True)
class TokenMean(Aggregate):
    """Mean over all the tokens of the optimiser step: every token weighs the same.

        c_it = m_it / sum_jt m_jt

    Reference: DAPO, arXiv:2503.14476, eq. 12.
    Deviations: the paper writes the sum over one prompt's group; its code, which we follow, takes it over the
    mini-batch. The paper's form is `prompt_token_mean`.
    """

    def coefficients(self, mask: Float[Array, "B T"], spec: BatchSpec) -> Float[Array, "B T"]:
        return safe_divide(mask, jnp.broadcast_to(mask.sum(), mask.shape))


@register("aggregate", "prompt_token_mean")
@dataclasses.dataclass(frozen=True)
class PromptTokenMean(Aggregate):
    """Mean over the tokens of a prompt's responses, then over prompts.

        c_it = m_it / sum_{j in group} |o_j| / prompts

    Reference: DAPO, arXiv:2503.14476, eq. 12, as written.
    """

    def coefficients(self, mask: Float[Array, "B T"], spec: BatchSpec) -> Float[Array, "B T"]:
        tokens = grouped(mask.sum(1), spec.group_size).sum(1)
        prompts = (tokens > 0).astype(mask.dtype).sum()
        each = jnp.repeat(tokens, spec.group_size, total_repeat_length=mask.shape[0])[:, None]
        return safe_divide(mask, each * prompts)


@register("aggregate", "fixed_length")
@dataclasses.dataclass(frozen=True)
class FixedLength(Aggregate):
    """Sum over tokens, divided by a constant and by the number of responses: no bias towards any length.

        c_it = m_it / length / rows

    Reference: Dr. GRPO, arXiv:2503.20783.
    """

    length: int = paper(0, "their constant is the generation budget, 3000 tokens")
    """Tokens; 0 takes the run's `sampling.max_new_tokens`."""

    def __post_init__(self):
        if self.length < 0:
            raise ValueError(
                f"fixed_length divides by a number of tokens >= 1 (0: the budget), got {self.length}."
            )

    def coefficients(self, mask: Float[Array, "B T"], spec: BatchSpec) -> Float[Array, "B T"]:
        return safe_divide(mask, jnp.broadcast_to((self.length or spec.length) * _rows(mask), mask.shape))
