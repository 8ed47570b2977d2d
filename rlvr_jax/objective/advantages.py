"""Advantages: [B] rewards in, [B] advantages out. Groups are consecutive rows."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rlvr_jax.numerics import group_mean, group_std, grouped, safe_divide
from rlvr_jax.objective.base import Context, Part, Stage, Stateless
from rlvr_jax.registry import register
from rlvr_jax.types import BatchSpec, Mean, Metrics, State

COLLAPSED = 1e-6
"""Population standard deviation of a group's rewards below which it teaches nothing (AVSPO's tau)."""


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


def _collapsed(rewards: Float[Array, " B"], group_size: int) -> Bool[Array, "P 1"]:
    return group_std(rewards, group_size, ddof=0) < COLLAPSED


def virtual_normalize(
    rewards: Float[Array, " B"],
    group_size: int,
    count: int | Int[Array, ""],
    *,
    r_max: float,
    anchor: float = 0.1,
    epsilon: float = 1e-6,
) -> Float[Array, " B"]:
    """A'_i = (r_i - mu') / (sigma' + epsilon) over the G rewards of a collapsed group and K = count virtual ones.

        all right (r >= r_max)   v_k = r_max (1 - k / (K + 1)),          k = 1..K
        all wrong (r < anchor)   v_k = anchor (K - k + 1) / K

    K is in 0..G and may be traced; sigma' is the population's. |A'| = sqrt(K / (G + (G+K)(K-1) / (3(K+1)))) <= sqrt(K / G),
    whatever the anchor is. Other groups get `group_normalize`, and so do all with K = 0; a collapsed group in between
    gets 0, since the paper gives no values for it. Reference: AVSPO, arXiv:2605.21125.
    """
    value = grouped(rewards, group_size)[:, :1]
    number = jnp.clip(jnp.asarray(count, jnp.float32), 0, group_size)
    k = jnp.arange(1, group_size + 1, dtype=jnp.float32)[None]
    right = r_max * (1 - k / (number + 1)) - value
    wrong = anchor * (number - k + 1) / jnp.maximum(number, 1) - value
    gap = jnp.where(value >= r_max - COLLAPSED, right, jnp.where(value < anchor, wrong, 0.0))
    used = k <= number
    mean = jnp.where(used, gap, 0.0).sum(1, keepdims=True) / (group_size + number)  # relative to the rewards
    squares = group_size * mean**2 + jnp.where(used, (gap - mean) ** 2, 0.0).sum(1, keepdims=True)
    variance = squares / (group_size + number)
    spread = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
    virtual = jnp.broadcast_to(safe_divide(-mean, spread + epsilon), (value.shape[0], group_size))
    plain = grouped(group_normalize(rewards, group_size, epsilon=epsilon), group_size)
    return jnp.where(_collapsed(rewards, group_size), virtual, plain).reshape(rewards.shape)


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
    rewards: Float[Array, " B"], group_size: int, *, epsilon: float = 1e-4
) -> Float[Array, " B"]:
    """Group normalisation with one virtual reward in each group, if the whole batch is wrong (1.0) or right (0.0).

    Sample standard deviation, over G + 1 rewards then. Wrong is a reward of 0 and right of 1.
    Reference: the code released with AVSPO, arXiv:2605.21125.
    """
    wrong, right = (jnp.isclose(rewards, r).all() for r in (0.0, 1.0))
    gap = jnp.where(wrong, 1.0, -1.0)  # of the virtual reward to the equal real ones
    mean = gap / (group_size + 1)
    spread = jnp.sqrt((group_size * mean**2 + (gap - mean) ** 2) / group_size)
    plain = group_normalize(rewards, group_size, epsilon=epsilon)
    return jnp.where(wrong | right, -mean / (spread + epsilon), plain)


def smooth_standardize(
    rewards: Float[Array, " B"], group_size: int, past: Float[Array, "P 3"], *, epsilon: float = 1e-6
) -> tuple[Float[Array, " B"], Float[Array, "P 3"]]:
    """Advantages between those of this visit to a prompt and those over all visits, and the new moments.

    `past` holds visits, mean and variance of each prompt's rewards before this (i-th) visit; zeros for none.

        A_new = (R - mean_new) / std_new           A_tot = (R - mean_tot) / std_tot, this visit included
        S_new = (i-1)/i A_new + 1/i A_tot          S_tot = 1/i A_new + (i-1)/i A_tot
        A = the one of S_new and S_tot whose magnitude is smaller

    An A whose std is 0 is 0. Population standard deviations, for which merging variances is exact; epsilon is added to
    them. Reference: smooth advantage standardisation of DCPO, arXiv:2509.02333.
    """
    rows, seen, old_mean, old_variance = grouped(rewards, group_size), past[:, :1], past[:, 1:2], past[:, 2:]
    std = group_std(rewards, group_size, ddof=0)
    mean = rows[:, :1] + (rows - rows[:, :1]).mean(1, keepdims=True)  # exact for equal rewards
    visit = seen + 1
    change = mean - old_mean
    mean_all = old_mean + change / visit
    variance = (seen * old_variance + std**2 + seen / visit * change**2) / visit
    std_all = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
    new = jnp.where(std > 0, safe_divide(rows - mean, jnp.broadcast_to(std + epsilon, rows.shape)), 0.0)
    total = safe_divide(rows - mean_all, jnp.broadcast_to(std_all + epsilon, rows.shape))
    total = jnp.where(std_all > 0, total, 0.0)
    near_new = (seen * new + total) / visit
    near_total = (new + seen * total) / visit
    smooth = jnp.where(jnp.abs(near_new) <= jnp.abs(near_total), near_new, near_total)
    return smooth.reshape(rewards.shape), jnp.concatenate([visit, mean_all, variance], 1)


class _InGroup(Part):
    """An advantage that compares responses of one group: a group of one would learn nothing, silently."""

    def check(self, spec: BatchSpec) -> None:
        if spec.group_size < 2:
            raise ValueError(
                f"advantage {self.name!r} compares the responses of a group, and group_size={spec.group_size} leaves "
                "nothing to compare: every advantage would be 0. Set batch.group_size to 2 or more."
            )


@register("advantage", "group")
@dataclasses.dataclass(frozen=True)
class Group(_InGroup, Stateless):
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
class Center(_InGroup, Stateless):
    """Dr. GRPO's advantage without the division by the standard deviation: `group_center`.

        A_i = R_i - mean R

    Reference: Dr. GRPO, arXiv:2503.20783.
    """

    def transform(self, x: Float[Array, " B"], ctx: Context) -> Float[Array, " B"]:
        return group_center(x, ctx.spec.group_size)


@register("advantage", "leave_one_out")
@dataclasses.dataclass(frozen=True)
class LeaveOneOut(_InGroup, Stateless):
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


@register("advantage", "virtual")
@dataclasses.dataclass(frozen=True)
class Virtual(_InGroup, Stage):
    """AVSPO: GRPO's advantage, with virtual rewards in the groups that collapsed while many did: `virtual_normalize`.

        ACR = share of groups with sigma(R) < 1e-6;  if ACR > tau:  K = max(1, min(G, ceil(G ACR^alpha))), else K = 0
        tau <- adaptive_threshold(tau, ACR, mean R - last mean R)

    So all-right groups get a constant push up and all-wrong ones down. State: tau and the last batch's mean reward.
    Metrics: ACR before and after the virtual rewards (the latter falls by construction), tau, and K.
    Reference: AVSPO, arXiv:2605.21125 (version 2 as third parties describe it; thresholds as in the authors' draft).
    Deviations: a batch's own ACR meets the threshold from before it. epsilon is that of `group`; theirs is 1e-4. The
    authors' released code is `virtual_official`. Everything is about the reward that earlier stages have shaped.
    """

    threshold: float = 0.5
    """tau before the first batch, in [low, high]."""
    alpha: float = 0.5
    """> 0; the smaller, the more virtual rewards."""
    rate: float = 0.01
    """Of the threshold, in [0, 1]; 0 keeps it fixed."""
    low: float = 0.1
    high: float = 0.9
    r_max: float = 1.0
    """Reward of a right response."""
    anchor: float = 0.1
    """Highest virtual reward in an all-wrong group, in (0, r_max)."""
    epsilon: float = 1e-6

    def __post_init__(self):
        if not (0 <= self.low <= self.threshold <= self.high <= 1 and 0 <= self.rate <= 1):
            raise ValueError(
                "virtual threshold is a share of groups with 0 <= low <= threshold <= high <= 1, and rate is in [0, 1]; "
                f"got low={self.low}, threshold={self.threshold}, high={self.high}, rate={self.rate}."
            )
        if not (self.alpha > 0 and self.epsilon >= 0 and 0 < self.anchor < self.r_max):
            raise ValueError(
                "virtual needs alpha > 0, epsilon >= 0 and 0 < anchor < r_max, got "
                f"alpha={self.alpha}, epsilon={self.epsilon}, anchor={self.anchor}, r_max={self.r_max}."
            )

    def init(self, spec: BatchSpec) -> State:
        return {
            "batches": jnp.zeros((), jnp.int32),
            "reward": jnp.zeros((), jnp.float32),
            "threshold": jnp.asarray(self.threshold, jnp.float32),
        }

    def apply(
        self, x: Float[Array, " B"], ctx: Context, state: State
    ) -> tuple[Float[Array, " B"], State, Metrics]:
        size = ctx.spec.group_size
        collapse, reward = _collapsed(x, size).mean(dtype=jnp.float32), x.mean()
        wanted = jnp.ceil(size * collapse**self.alpha * (1 - 1e-6))  # 4 * 0.25^0.5 may round up to above 2
        count = jnp.where(collapse > state["threshold"], jnp.clip(wanted, 1, size), 0).astype(jnp.int32)
        advantage = virtual_normalize(
            x, size, count, r_max=self.r_max, anchor=self.anchor, epsilon=self.epsilon
        )
        change = jnp.where(state["batches"] > 0, reward - state["reward"], 0.0)
        change = jnp.where(
            jnp.abs(change) < COLLAPSED, 0.0, change
        )  # its sign would be that of a rounding error
        threshold = adaptive_threshold(
            state["threshold"], collapse, change, rate=self.rate, low=self.low, high=self.high
        )
        new = {"batches": state["batches"] + 1, "reward": reward, "threshold": threshold}
        metrics = _acr(x, advantage, size) | {
            "threshold": Mean(total=state["threshold"], count=jnp.ones(())),
            "virtual_rewards": Mean(total=count.astype(jnp.float32), count=jnp.ones(())),
        }
        return advantage, new, metrics


def _acr(rewards: Float[Array, " B"], advantage: Float[Array, " B"], group_size: int) -> dict[str, Mean]:
    """Shares of groups without a spread of rewards, and of those still without an advantage."""
    idle = jnp.abs(grouped(advantage, group_size)).max(1) == 0
    return {
        "acr_before_virtual": Mean.of(_collapsed(rewards, group_size).astype(jnp.float32)),
        "acr_after_virtual": Mean.of(idle.astype(jnp.float32)),
    }


@register("advantage", "virtual_official")
@dataclasses.dataclass(frozen=True)
class VirtualOfficial(_InGroup, Stage):
    """The rule in AVSPO's released code, which is not the paper's: `official_virtual_normalize`.

        if every reward of the batch is 0 (or every one is 1), each group gets one virtual reward of 1 (or 0)

    Metrics: ACR before and after. Reference: the code released with AVSPO, arXiv:2605.21125.
    Deviations from the paper: no threshold, no K, nothing for a collapsed group in a batch that is not all alike.
    """

    epsilon: float = 1e-4

    def __post_init__(self):
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon is added to a standard deviation and is >= 0, got {self.epsilon}.")

    def apply(
        self, x: Float[Array, " B"], ctx: Context, state: State
    ) -> tuple[Float[Array, " B"], State, Metrics]:
        advantage = official_virtual_normalize(x, ctx.spec.group_size, epsilon=self.epsilon)
        return advantage, (), _acr(x, advantage, ctx.spec.group_size)


@register("advantage", "smooth")
@dataclasses.dataclass(frozen=True)
class Smooth(_InGroup, Stage):
    """DCPO's smooth advantage standardisation: rewards against this visit and all visits to the prompt.

        A = the smaller of S_new and S_tot in magnitude (`smooth_standardize`)

    State: visits, mean and variance of the rewards of every prompt of the data set, [num_prompts, 3] in float32. A
    prompt that is in the batch twice is visited twice, in the order of the batch. Metric: visits.
    Reference: DCPO, arXiv:2509.02333.
    Deviations: population standard deviations; epsilon is our proposal (the paper's formula has none).
    """

    epsilon: float = 1e-6

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
            rewards, prompt = group
            advantage, new = smooth_standardize(rewards, size, moments[prompt][None], epsilon=self.epsilon)
            return moments.at[prompt].set(new[0]), (advantage, new[0, 0])

        prompts = ctx.rollout.prompt_id[::size]
        state, (advantage, visits) = jax.lax.scan(visit, state, (grouped(x, size), prompts))
        return advantage.reshape(x.shape), state, {"visits": Mean.of(visits)}
