"""Advantages: [B] rewards in, [B] advantages out. Groups are consecutive rows.

`valid` leaves rows out: the others get what they would get without them, and they get 0, whatever their reward is.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rlvr_jax.numerics import group_centre, group_count, group_mean, group_std, grouped, safe_divide
from rlvr_jax.objective.base import Context, Part, Stage, Stateless, paper, proposal, reported
from rlvr_jax.registry import register
from rlvr_jax.types import BatchSpec, Mean, Metrics, State

Valid = Bool[Array, " B"] | None
"""The rows that count; None for all."""

COLLAPSED = 1e-6
"""Population standard deviation of a group's rewards below which it teaches nothing (AVSPO's tau)."""


def group_normalize(
    rewards: Float[Array, " B"],
    group_size: int,
    *,
    epsilon: float = 1e-6,
    ddof: int = 1,
    valid: Valid = None,
) -> Float[Array, " B"]:
    """A_i = (R_i - mean R) / (std R + epsilon) in each group; exactly 0 for a group of equal rewards.

    epsilon >= 0, in units of the reward. `ddof=1` is the sample standard deviation (torch's default, which the authors' and most trainers' code uses).
    Reference: GRPO, arXiv:2402.03300, section 4.1.2.
    """
    centred = group_centre(rewards, group_size, valid)
    spread = group_std(rewards, group_size, ddof=ddof, valid=valid) + epsilon
    return safe_divide(centred, jnp.broadcast_to(spread, centred.shape)).reshape(rewards.shape)


def batch_normalize(x: Float[Array, " B"], *, epsilon: float, valid: Valid = None) -> Float[Array, " B"]:
    """A_i = (x_i - mean x) / (std x + epsilon) over the whole batch; exactly 0 where all are equal.

    Population standard deviation. Reference: REINFORCE++, arXiv:2501.03262, global advantage normalisation.
    """
    return group_normalize(x, x.shape[0], epsilon=epsilon, ddof=0, valid=valid)


def group_center(rewards: Float[Array, " B"], group_size: int, *, valid: Valid = None) -> Float[Array, " B"]:
    """A_i = R_i - mean R in each group; exactly 0 for a group of equal rewards.

    Reference: Dr. GRPO, arXiv:2503.20783.
    """
    return group_centre(rewards, group_size, valid).reshape(rewards.shape)


def leave_one_out(rewards: Float[Array, " B"], group_size: int, *, valid: Valid = None) -> Float[Array, " B"]:
    """A_i = R_i - mean of the other n - 1 rewards of the group = n / (n - 1) * (R_i - mean R); 0 where there is none.

    Reference: RLOO, arXiv:2402.14740, eq. 6. Raises ValueError for groups of one.
    """
    if group_size < 2:
        raise ValueError(f"leave_one_out needs another response in the group, got group_size={group_size}.")
    count = _count(rewards, group_size, valid)
    return (group_centre(rewards, group_size, valid) * safe_divide(count, count - 1)).reshape(rewards.shape)


def focal_weight(
    correct: Float[Array, " B"], group_size: int, gamma: float, *, valid: Valid = None
) -> Float[Array, " B"]:
    """g(x) = (1 - X/N)^gamma for every row of the group, X of whose N responses are correct. In [0, 1].

    gamma = 0 gives 1 everywhere. Reference: F-GRPO, arXiv:2602.06717, section 4.
    """
    # The mean of 1 - X, not 1 - the mean: compilers multiply by the rounded 1/N, and a solve rate of 1.0000001 under
    # a root is nan. The power has no finite slope at 0, where the weight is constant.
    wrong = group_mean(1.0 - correct, group_size, valid)
    weight = jnp.where(wrong > 0, jnp.where(wrong > 0, wrong, 1.0) ** gamma, 0.0**gamma)
    return jnp.broadcast_to(weight, (wrong.shape[0], group_size)).reshape(correct.shape)


def _count(x: Float[Array, " B"], group_size: int, valid: Valid) -> Float[Array, "P 1"]:
    """Number of rows of each group that count."""
    return group_count(jnp.ones(x.shape, bool) if valid is None else valid, group_size)


def _rows_and_first(
    x: Float[Array, " B"], group_size: int, valid: Valid
) -> tuple[Float[Array, "P G"], Float[Array, "P 1"]]:
    """Groups with 0 in the rows that do not count, and the first value that does: that of all, where all are equal."""
    rows = grouped(x, group_size)
    if valid is None:
        return rows, rows[:, :1]
    use = grouped(valid, group_size)
    rows = jnp.where(use, rows, 0.0)
    return rows, jnp.take_along_axis(rows, jnp.argmax(use, axis=1)[:, None], axis=1)


def collapsed(
    rewards: Float[Array, " B"], group_size: int, *, valid: Valid = None
) -> tuple[Bool[Array, "P 1"], Bool[Array, "P 1"]]:
    """Which groups have no spread of rewards, sigma(R) < 1e-6, and which groups can be judged: those of two rows or more.

    One response has no spread, however unsure the policy is: it says nothing about collapse, and is never collapsed.
    Reference: ACR of AVSPO, arXiv:2605.21125.
    """
    judged = _count(rewards, group_size, valid) > 1
    return judged & (group_std(rewards, group_size, ddof=0, valid=valid) < COLLAPSED), judged


def virtual_normalize(
    rewards: Float[Array, " B"],
    group_size: int,
    count: int | Int[Array, ""],
    *,
    r_max: float,
    anchor: float = 0.1,
    epsilon: float = 1e-6,
    valid: Valid = None,
) -> Float[Array, " B"]:
    """A'_i = (r_i - mu') / (sigma' + epsilon) over the G rewards of a collapsed group and K = count virtual ones.

        all right (r >= r_max)   v_k = r_max (1 - k / (K + 1)),          k = 1..K
        all wrong (r < anchor)   v_k = anchor (K - k + 1) / K

    K is cut to 0..G and may be traced; sigma' is the population's. |A'| = sqrt(K / (G + (G+K)(K-1) / (3(K+1)))) <= sqrt(K / G),
    whatever the anchor is. G counts valid rows; a group with one is never collapsed. Other groups get `group_normalize`,
    and so do all with K = 0; a collapsed group in between gets 0, since the paper gives no values for it.
    Reference: AVSPO, arXiv:2605.21125.
    """
    rows, value = _rows_and_first(rewards, group_size, valid)
    size = _count(rewards, group_size, valid)
    number = jnp.clip(jnp.asarray(count, jnp.float32), 0, size)
    k = jnp.arange(1, group_size + 1, dtype=jnp.float32)[None]
    right = r_max * (1 - k / (number + 1)) - value
    wrong = anchor * (number - k + 1) / jnp.maximum(number, 1) - value
    gap = jnp.where(value >= r_max - COLLAPSED, right, jnp.where(value < anchor, wrong, 0.0))
    used = k <= number
    total = jnp.maximum(size + number, 1)
    mean = jnp.where(used, gap, 0.0).sum(1, keepdims=True) / total  # relative to the rewards
    squares = size * mean**2 + jnp.where(used, (gap - mean) ** 2, 0.0).sum(1, keepdims=True)
    variance = squares / total
    spread = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
    virtual = jnp.broadcast_to(safe_divide(-mean, spread + epsilon), rows.shape)
    plain = grouped(group_normalize(rewards, group_size, epsilon=epsilon, valid=valid), group_size)
    found = jnp.where(collapsed(rewards, group_size, valid=valid)[0], virtual, plain)
    return _only(found.reshape(rewards.shape), valid)


def _only(advantage: Float[Array, " B"], valid: Valid) -> Float[Array, " B"]:
    return advantage if valid is None else jnp.where(valid, advantage, 0.0)


def adaptive_threshold(
    threshold: Float[Array, ""],
    collapse_rate: Float[Array, ""],
    reward_change: Float[Array, ""],
    *,
    rate: float = 0.01,
    low: float = 0.1,
    high: float = 0.9,
) -> Float[Array, ""]:
    """tau <- clip(tau + rate sign(dJ) (ACR - tau), low, high): towards the collapse rate while rewards rise, else away.

    Reference: AVSPO, arXiv:2605.21125.
    """
    return jnp.clip(threshold + rate * jnp.sign(reward_change) * (collapse_rate - threshold), low, high)


def official_virtual_normalize(
    rewards: Float[Array, " B"], group_size: int, *, epsilon: float = 1e-4, valid: Valid = None
) -> Float[Array, " B"]:
    """Group normalisation with one virtual reward in each group, if the whole batch is wrong (1.0) or right (0.0).

    Sample standard deviation, over G + 1 rewards then. Wrong is a reward of 0 and right of 1. A group with one valid
    row gets 0. Reference: the code released with AVSPO, arXiv:2605.21125.
    """
    rest = False if valid is None else ~valid
    wrong, right = ((jnp.isclose(rewards, r) | rest).all() for r in (0.0, 1.0))
    size = _count(rewards, group_size, valid)
    gap = jnp.where(wrong, 1.0, -1.0)  # of the virtual reward to the equal real ones
    mean = gap / (size + 1)
    spread = jnp.sqrt((size * mean**2 + (gap - mean) ** 2) / jnp.maximum(size, 1))
    virtual = jnp.broadcast_to(-mean / (spread + epsilon), (size.shape[0], group_size))
    plain = grouped(group_normalize(rewards, group_size, epsilon=epsilon, valid=valid), group_size)
    found = jnp.where((wrong | right) & (size > 1), virtual, plain)
    return _only(found.reshape(rewards.shape), valid)


def smooth_standardize(
    rewards: Float[Array, " B"],
    group_size: int,
    past: Float[Array, "P 3"],
    *,
    epsilon: float = 1e-6,
    valid: Valid = None,
) -> tuple[Float[Array, " B"], Float[Array, "P 3"]]:
    """Advantages between those of this visit to a prompt and those over all visits, and the new moments.

    `past` holds visits, mean and variance of each prompt's rewards before this (i-th) visit; zeros for none.

        A_new = (R - mean_new) / std_new           A_tot = (R - mean_tot) / std_tot, this visit included
        S_new = (i-1)/i A_new + 1/i A_tot          S_tot = 1/i A_new + (i-1)/i A_tot
        A = the one of S_new and S_tot whose magnitude is smaller

    An A whose std is 0 is 0. Population standard deviations, for which merging variances is exact; epsilon is added to
    them. Visits weigh the same, however many rows of them are valid; without a valid row it was none.
    Reference: smooth advantage standardisation of DCPO, arXiv:2509.02333.
    """
    seen, old_mean, old_variance = past[:, :1], past[:, 1:2], past[:, 2:]
    rows, first = _rows_and_first(rewards, group_size, valid)
    std = group_std(rewards, group_size, ddof=0, valid=valid)
    mean = first + group_mean((rows - first).ravel(), group_size, valid)  # exact for equal rewards
    visit = seen + 1
    change = mean - old_mean
    mean_all = old_mean + change / visit
    variance = (seen * old_variance + std**2 + seen / visit * change**2) / visit
    std_all = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
    centred = group_centre(rewards, group_size, valid)
    new = jnp.where(std > 0, safe_divide(centred, jnp.broadcast_to(std + epsilon, rows.shape)), 0.0)
    centred = centred + seen / visit * change  # R - mean_tot, without the rounding of either
    total = safe_divide(centred, jnp.broadcast_to(std_all + epsilon, rows.shape))
    total = jnp.where(std_all > 0, total, 0.0)
    near_new = (seen * new + total) / visit
    near_total = (new + seen * total) / visit
    smooth = jnp.where(jnp.abs(near_new) <= jnp.abs(near_total), near_new, near_total)
    visited = _count(rewards, group_size, valid) > 0
    moments = jnp.where(visited, jnp.concatenate([visit, mean_all, variance], 1), past)
    return _only(smooth.reshape(rewards.shape), valid), moments


class InGroup(Part):
    """An advantage that compares responses of one group: a group of one would learn nothing, silently."""

    def check(self, spec: BatchSpec) -> None:
        if spec.group_size < 2:
            raise ValueError(
                f"advantage {self.name!r} compares the responses of a group, and group_size={spec.group_size} leaves "
                "nothing to compare: every advantage would be 0. Set batch.group_size to 2 or more."
            )


@register("advantage", "group")
@dataclasses.dataclass(frozen=True)
class Group(InGroup, Stateless):
    """GRPO's group-normalised reward: `group_normalize`.

        A_i = (R_i - mean R) / (std R + epsilon)

    Reference: GRPO, arXiv:2402.03300, section 4.1.2.
    Deviations: the paper gives neither ddof nor epsilon; 1 and 1e-6 are those of common trainers.
    """

    epsilon: float = proposal(
        1e-6, "that of verl; the paper names none, and other trainers take 1e-4 and 1e-8"
    )
    ddof: int = reported(1, "verl, TRL and Dr. GRPO's code, which take torch's default")
    """1: sample standard deviation; 0: population."""

    def __post_init__(self):
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon is added to a standard deviation and is >= 0, got {self.epsilon}.")
        if self.ddof not in (0, 1):
            raise ValueError(f"ddof is 0 (population) or 1 (sample standard deviation), got {self.ddof}.")

    def transform(self, x: Float[Array, " B"], ctx: Context) -> Float[Array, " B"]:
        return group_normalize(x, ctx.spec.group_size, epsilon=self.epsilon, ddof=self.ddof, valid=ctx.valid)


@register("advantage", "center")
@dataclasses.dataclass(frozen=True)
class Center(InGroup, Stateless):
    """Dr. GRPO's advantage without the division by the standard deviation: `group_center`.

        A_i = R_i - mean R

    Reference: Dr. GRPO, arXiv:2503.20783.
    """

    def transform(self, x: Float[Array, " B"], ctx: Context) -> Float[Array, " B"]:
        return group_center(x, ctx.spec.group_size, valid=ctx.valid)


@register("advantage", "leave_one_out")
@dataclasses.dataclass(frozen=True)
class LeaveOneOut(InGroup, Stateless):
    """RLOO's advantage over the mean of the other responses: `leave_one_out`.

        A_i = R_i - 1/(G-1) sum_{j != i} R_j

    Reference: RLOO, arXiv:2402.14740, eq. 6.
    """

    def transform(self, x: Float[Array, " B"], ctx: Context) -> Float[Array, " B"]:
        return leave_one_out(x, ctx.spec.group_size, valid=ctx.valid)


@register("advantage", "batch")
@dataclasses.dataclass(frozen=True)
class Batch(Stateless):
    """Normalised over the whole batch: `batch_normalize`. After `center`, it is REINFORCE++ with the group's baseline.

        A_i = (x_i - mean_B x) / (std_B x + epsilon)

    The batch is that of the rollout, on all devices and whatever the mini-batches are. A group's deviation depends on
    the response that it divides, and is small for prompts that are nearly always or never solved, whose responses then
    weigh more; the batch has one for all.
    Reference: REINFORCE++, arXiv:2501.03262 (abstract; the equation as RLinf's documentation gives it).
    Deviations: the moments are over responses; those of the equation are over tokens, so that long responses count more.
    """

    epsilon: float = proposal(1e-6, "that of `group`; the paper's formula has none")

    def __post_init__(self):
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon is added to a standard deviation and is >= 0, got {self.epsilon}.")

    def check(self, spec: BatchSpec) -> None:
        if spec.rows < 2:
            raise ValueError(
                "advantage 'batch' compares the responses of a batch, and one response leaves nothing to compare: its "
                "advantage would be 0. Set batch.prompts or batch.group_size to 2 or more."
            )

    def transform(self, x: Float[Array, " B"], ctx: Context) -> Float[Array, " B"]:
        return batch_normalize(x, epsilon=self.epsilon, valid=ctx.valid)


@register("advantage", "focal")
@dataclasses.dataclass(frozen=True)
class Focal(Stateless):
    """F-GRPO: shrinks the advantages of prompts that are solved often already. Comes after a base advantage.

        A_i <- (1 - X/N)^gamma * A_i

    X counts raw correctness, whatever the reward was shaped to.
    Reference: F-GRPO, arXiv:2602.06717, section 4.
    """

    gamma: float = paper(0.5, "of 0.5, 1 and 2 the best in seven of nine runs")
    """>= 0; 0 is the base method."""

    def __post_init__(self):
        if not self.gamma >= 0:
            raise ValueError(f"focal gamma is an exponent >= 0 (0 turns it off), got {self.gamma}.")

    def transform(self, x: Float[Array, " B"], ctx: Context) -> Float[Array, " B"]:
        weight = focal_weight(ctx.rollout.correct, ctx.spec.group_size, self.gamma, valid=ctx.valid)
        return jnp.where(ctx.valid, x * weight, 0.0)


@register("advantage", "smooth")
@dataclasses.dataclass(frozen=True)
class Smooth(InGroup, Stage):
    """DCPO's smooth advantage standardisation: rewards against this visit and all visits to the prompt.

        A = the smaller of S_new and S_tot in magnitude (`smooth_standardize`)

    State: visits, mean and variance of the rewards of every prompt of the data set, [num_prompts, 3] in float32. A
    prompt that is in the batch twice is visited twice, in the order of the batch. Metric: visits.
    Reference: DCPO, arXiv:2509.02333.
    Deviations: population standard deviations; epsilon is our proposal (the paper's formula has none).
    """

    epsilon: float = proposal(1e-6, "that of `group`; the paper's formula has none")

    def __post_init__(self):
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon is added to a standard deviation and is >= 0, got {self.epsilon}.")

    def init(self, spec: BatchSpec) -> State:
        return jnp.zeros((spec.num_prompts, 3), jnp.float32)

    def apply(
        self, x: Float[Array, " B"], ctx: Context, state: State
    ) -> tuple[Float[Array, " B"], State, Metrics]:
        size = ctx.spec.group_size

        def visit(moments, group):
            rewards, valid, prompt = group
            past = moments[prompt][None]
            advantage, new = smooth_standardize(rewards, size, past, epsilon=self.epsilon, valid=valid)
            return moments.at[prompt].set(new[0]), (advantage, new[0, 0])

        groups = grouped(x, size), grouped(ctx.valid, size), ctx.rollout.prompt_id[::size]
        state, (advantage, visits) = jax.lax.scan(visit, state, groups)
        visited = jnp.minimum(group_count(ctx.valid, size)[:, 0], 1.0)
        return advantage.reshape(x.shape), state, {"visits": Mean.of(visits, visited)}
