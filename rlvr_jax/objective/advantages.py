"""Advantages: [B] rewards in, [B] advantages out. Groups are consecutive rows."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from rlvr_jax.numerics import group_mean, group_std, grouped, safe_divide
from rlvr_jax.objective.base import Context, Stateless
from rlvr_jax.registry import register
from rlvr_jax.types import BatchSpec


def group_normalize(
    rewards: Float[Array, " B"], group_size: int, *, epsilon: float = 1e-6, ddof: int = 1
) -> Float[Array, " B"]:
    """A_i = (R_i - mean R) / (std R + epsilon) in each group; exactly 0 for a group of equal rewards.

    epsilon >= 0, in units of the reward. `ddof=1` is the sample standard deviation (torch's default, which the authors' and most trainers' code uses).
    Reference: GRPO, arXiv:2402.03300, section 4.1.2.
    """
    centred = group_center(rewards, group_size).reshape(-1, group_size)
    spread = group_std(rewards, group_size, ddof=ddof) + epsilon
    return safe_divide(centred, jnp.broadcast_to(spread, centred.shape)).reshape(rewards.shape)


def group_center(rewards: Float[Array, " B"], group_size: int) -> Float[Array, " B"]:
    """A_i = R_i - mean R in each group; exactly 0 for a group of equal rewards.

    Reference: Dr. GRPO, arXiv:2503.20783.
    """
    rows = grouped(rewards, group_size)
    shifted = rows - rows[:, :1]  # equal rewards become exact zeros, which no rounded mean can disturb
    return (shifted - shifted.mean(1, keepdims=True)).reshape(rewards.shape)


def leave_one_out(rewards: Float[Array, " B"], group_size: int) -> Float[Array, " B"]:
    """A_i = R_i - mean of the other rewards of the group = G / (G - 1) * (R_i - mean R).

    Reference: RLOO, arXiv:2402.14740, eq. 6. Raises ValueError for groups of one.
    """
    if group_size < 2:
        raise ValueError(f"leave_one_out needs another response in the group, got group_size={group_size}.")
    return group_center(rewards, group_size) * (group_size / (group_size - 1))


def focal_weight(correct: Float[Array, " B"], group_size: int, gamma: float) -> Float[Array, " B"]:
    """g(x) = (1 - X/N)^gamma for every row of the group, X of whose N responses are correct. In [0, 1].

    gamma = 0 gives 1 everywhere. Reference: F-GRPO, arXiv:2602.06717, section 4.
    """
    # The mean of 1 - X, not 1 - the mean: compilers multiply by the rounded 1/N, and a solve rate of 1.0000001 under
    # a root is nan. The power has no finite slope at 0, where the weight is constant.
    wrong = group_mean(1.0 - correct, group_size)
    weight = jnp.where(wrong > 0, jnp.where(wrong > 0, wrong, 1.0) ** gamma, 0.0**gamma)
    return jnp.broadcast_to(weight, (wrong.shape[0], group_size)).reshape(correct.shape)


class _InGroup(Stateless):
    """An advantage that compares responses of one group: a group of one would learn nothing, silently."""

    def check(self, spec: BatchSpec) -> None:
        if spec.group_size < 2:
            raise ValueError(
                f"advantage {self.name!r} compares the responses of a group, and group_size={spec.group_size} leaves "
                "nothing to compare: every advantage would be 0. Set batch.group_size to 2 or more."
            )


@register("advantage", "group")
@dataclasses.dataclass(frozen=True)
class Group(_InGroup):
    """GRPO's group-normalised reward: `group_normalize`.

        A_i = (R_i - mean R) / (std R + epsilon)

    Reference: GRPO, arXiv:2402.03300, section 4.1.2.
    Deviations: the paper gives neither ddof nor epsilon; 1 and 1e-6 are those of common trainers.
    """

    epsilon: float = 1e-6
    ddof: int = 1
    """1: sample standard deviation; 0: population."""

    def __post_init__(self):
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon is added to a standard deviation and is >= 0, got {self.epsilon}.")
        if self.ddof not in (0, 1):
            raise ValueError(f"ddof is 0 (population) or 1 (sample standard deviation), got {self.ddof}.")

    def transform(self, x: Float[Array, " B"], ctx: Context) -> Float[Array, " B"]:
        return group_normalize(x, ctx.spec.group_size, epsilon=self.epsilon, ddof=self.ddof)


@register("advantage", "center")
@dataclasses.dataclass(frozen=True)
class Center(_InGroup):
    """Dr. GRPO's advantage without the division by the standard deviation: `group_center`.

        A_i = R_i - mean R

    Reference: Dr. GRPO, arXiv:2503.20783.
    """

    def transform(self, x: Float[Array, " B"], ctx: Context) -> Float[Array, " B"]:
        return group_center(x, ctx.spec.group_size)


@register("advantage", "leave_one_out")
@dataclasses.dataclass(frozen=True)
class LeaveOneOut(_InGroup):
    """RLOO's advantage over the mean of the other responses: `leave_one_out`.

        A_i = R_i - 1/(G-1) sum_{j != i} R_j

    Reference: RLOO, arXiv:2402.14740, eq. 6.
    """

    def transform(self, x: Float[Array, " B"], ctx: Context) -> Float[Array, " B"]:
        return leave_one_out(x, ctx.spec.group_size)


@register("advantage", "focal")
@dataclasses.dataclass(frozen=True)
class Focal(Stateless):
    """F-GRPO: shrinks the advantages of prompts that are solved often already. Comes after a base advantage.

        A_i <- (1 - X/N)^gamma * A_i

    X counts raw correctness, whatever the reward was shaped to.
    Reference: F-GRPO, arXiv:2602.06717, section 4.
    """

    gamma: float = 0.5
    """>= 0; 0 is the base method. The paper sweeps 0.5, 1, 2 and mostly ends at 0.5."""

    def __post_init__(self):
        if not self.gamma >= 0:
            raise ValueError(f"focal gamma is an exponent >= 0 (0 turns it off), got {self.gamma}.")

    def transform(self, x: Float[Array, " B"], ctx: Context) -> Float[Array, " B"]:
        return x * focal_weight(ctx.rollout.correct, ctx.spec.group_size, self.gamma)
