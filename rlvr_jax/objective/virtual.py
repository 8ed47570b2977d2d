"""AVSPO: advantages with virtual rewards in groups that collapsed. Their functions are in `advantages.py`."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rlvr_jax.numerics import grouped, safe_divide
from rlvr_jax.objective.advantages import (
    COLLAPSED,
    InGroup,
    adaptive_threshold,
    collapsed,
    official_virtual_normalize,
    virtual_normalize,
)
from rlvr_jax.objective.base import Context, Stage, paper, proposal, reported
from rlvr_jax.registry import register
from rlvr_jax.types import BatchSpec, Mean, Metrics, State

_NOTES = "third-party notes on version 2 and on the authors' draft"


@register("advantage", "virtual")
@dataclasses.dataclass(frozen=True)
class Virtual(InGroup, Stage):
    """AVSPO: GRPO's advantage, with virtual rewards in the groups that collapsed while many did: `virtual_normalize`.

        ACR = share of groups with sigma(R) < 1e-6
        K = max(1, min(G, ceil(G ACR^alpha))) if ACR > tau, else 0
        tau <- adaptive_threshold(tau, ACR, mean R - last mean R)

    So all-right groups get a constant push up and all-wrong ones down. State: tau and the last batch's mean reward.
    Metrics: ACR before and after the virtual rewards (the latter falls by construction), tau, and K.
    Reference: AVSPO, arXiv:2605.21125 (version 2 as third parties describe it; thresholds as in the authors' draft).
    Deviations: a batch's own ACR meets the threshold from before it. epsilon is that of `group`; theirs is 1e-4. The
    authors' released code is `virtual_official`. Everything is about the reward that earlier stages have shaped, and
    about the rows that were not rejected: K comes from the full G and is cut to a group's rows, and a group with one
    row is neither collapsed nor counted.
    """

    threshold: float = reported(0.5, _NOTES)
    """tau before the first batch, in [low, high]."""
    alpha: float = paper(0.5, "the authors' draft")
    """> 0; the smaller, the more virtual rewards."""
    rate: float = reported(0.01, _NOTES)
    """Of the threshold, in [0, 1]; 0 keeps it fixed."""
    low: float = reported(0.1, _NOTES)
    high: float = reported(0.9, _NOTES)
    r_max: float = proposal(1.0, "what the tasks of this package give a right response")
    """Reward of a right response."""
    anchor: float = reported(0.1, "the re-implementation SOVA, and notes on version 2")
    """Highest virtual reward in an all-wrong group, in (0, r_max)."""
    epsilon: float = proposal(
        1e-6, "that of `group`, which this is without virtual rewards; SOVA and TRL take 1e-4"
    )

    uses_uniform_groups: ClassVar[bool] = True

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
        size, valid = ctx.spec.group_size, ctx.valid
        before, found = _collapse(x, size, valid), Mean.of(x, valid.astype(jnp.float32))
        collapse = safe_divide(before.total, before.count)
        wanted = jnp.ceil(size * collapse**self.alpha * (1 - 1e-6))  # 4 * 0.25^0.5 may round up to above 2
        count = jnp.where(collapse > state["threshold"], jnp.clip(wanted, 1, size), 0).astype(jnp.int32)
        advantage = virtual_normalize(
            x, size, count, r_max=self.r_max, anchor=self.anchor, epsilon=self.epsilon, valid=valid
        )
        reward = jnp.where(found.count > 0, safe_divide(found.total, found.count), state["reward"])
        change = jnp.where(state["batches"] > 0, reward - state["reward"], 0.0)
        # The sign of a rounding error says nothing.
        change = jnp.where(jnp.abs(change) < COLLAPSED, 0.0, change)
        threshold = adaptive_threshold(
            state["threshold"], collapse, change, rate=self.rate, low=self.low, high=self.high
        )
        batches = state["batches"] + (found.count > 0).astype(jnp.int32)
        new = {"batches": batches, "reward": reward, "threshold": threshold}
        metrics = {
            "acr_before_virtual": before,
            "acr_after_virtual": _idle(advantage, size, valid),
            "threshold": Mean(total=state["threshold"], count=jnp.ones(())),
            "virtual_rewards": Mean(total=count.astype(jnp.float32), count=jnp.ones(())),
        }
        return advantage, new, metrics


def _collapse(rewards: Float[Array, " B"], group_size: int, valid: Bool[Array, " B"]) -> Mean:
    """Share of groups without a spread of rewards, among those that can be judged."""
    flat, judged = collapsed(rewards, group_size, valid=valid)
    return Mean.of(flat.astype(jnp.float32), judged.astype(jnp.float32))


def _idle(advantage: Float[Array, " B"], group_size: int, valid: Bool[Array, " B"]) -> Mean:
    """Share of groups without an advantage, among the same."""
    judged = collapsed(advantage, group_size, valid=valid)[1]
    idle = jnp.abs(grouped(advantage, group_size)).max(1, keepdims=True) == 0
    return Mean.of(idle.astype(jnp.float32), judged.astype(jnp.float32))


@register("advantage", "virtual_official")
@dataclasses.dataclass(frozen=True)
class VirtualOfficial(InGroup, Stage):
    """The rule in AVSPO's released code, which is not the paper's: `official_virtual_normalize`.

        every reward of the batch is 0: each group gets one virtual reward of 1
        every reward of the batch is 1: each group gets one virtual reward of 0

    Metrics: ACR before and after. Reference: the code released with AVSPO, arXiv:2605.21125.
    Deviations from the paper: no threshold, no K, nothing for a collapsed group in a batch that is not all alike.
    """

    epsilon: float = paper(1e-4, "the authors' code")

    uses_uniform_groups: ClassVar[bool] = True

    def __post_init__(self):
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon is added to a standard deviation and is >= 0, got {self.epsilon}.")

    def apply(
        self, x: Float[Array, " B"], ctx: Context, state: State
    ) -> tuple[Float[Array, " B"], State, Metrics]:
        size, valid = ctx.spec.group_size, ctx.valid
        advantage = official_virtual_normalize(x, size, epsilon=self.epsilon, valid=valid)
        metrics = {
            "acr_before_virtual": _collapse(x, size, valid),
            "acr_after_virtual": _idle(advantage, size, valid),
        }
        return advantage, (), metrics
