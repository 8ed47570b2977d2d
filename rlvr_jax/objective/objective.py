"""The objective: slots of stages, and the functions that a trainer calls.

           once per rollout batch, no gradient, whole batch visible, may keep named state
Rollout -> reward -> mask -> advantage -> response_weight -> token_weight -> passes  =>  Credit
           [B]       [B,T]   [B]          [B]                [B,T] signed    [B,K,T]
           once per optimiser step
Credit  -> aggregate  =>  weight [B,T]
           differentiated, stateless, may reduce over T, never over B
new statistics -> ratio -> clip -> x gates (stop-gradient) -> - regularisers  =>  loss = - sum weight * gain
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rlvr_jax.objective.advantages import Group
from rlvr_jax.objective.aggregates import SequenceMean
from rlvr_jax.objective.base import (
    Aggregate,
    Chain,
    Clip,
    Context,
    Gate,
    GroupFilter,
    Part,
    Passes,
    Ratio,
    Regulariser,
    chain,
    labels,
)
from rlvr_jax.objective.clips import Ppo
from rlvr_jax.objective.passes import Single
from rlvr_jax.objective.ratios import Token
from rlvr_jax.types import BatchSpec, Mean, Metrics, Needs, Pass, Rollout, Stat, State, Stats, pytree

CREDIT_SLOTS = ("reward", "mask", "advantage", "response_weight", "token_weight")
"""Slots that hold chains of stages, in the order in which they run."""


@pytree
class Credit:
    """What a batch teaches each token: a signed advantage, the pass it belongs to, and whether it counts."""

    advantage: Float[Array, "B T"]
    passes: Float[Array, "B K T"]
    mask: Float[Array, "B T"]


@dataclasses.dataclass(frozen=True)
class Objective:
    """What is optimised. The defaults *are* GRPO; a variant is a `dataclasses.replace`.

        dapo = dataclasses.replace(Objective(), clip=Ppo(0.2, 0.28), aggregate=TokenMean())

    Hashable: an equal objective as a static argument never retraces.
    """

    reward: Chain = chain()
    mask: Chain = chain()
    advantage: Chain = chain(Group())
    response_weight: Chain = chain()
    token_weight: Chain = chain()
    passes: Passes = Single()
    aggregate: Aggregate = SequenceMean()
    ratio: Ratio = Token()
    clip: Clip = Ppo()
    gates: tuple[Gate, ...] = ()
    regularisers: tuple[Regulariser, ...] = ()

    def __post_init__(self):
        if self.clip.needs_ratio and not self.ratio.is_ratio:
            raise ValueError(
                f"clip {self.clip.name!r} bounds the ratio of two policies, and ratio {self.ratio.name!r} is the "
                "log-likelihood of one: use it with ratio 'token', or take clip 'unclipped'."
            )
        if self.passes.count > 1 and not self.ratio.by_token:
            raise ValueError(
                f"passes {self.passes.name!r} takes the tokens of a response apart, and ratio {self.ratio.name!r} moves "
                "all of them with each: use it with ratio 'gspo_token'."
            )
        for part in self.parts if self.filters else ():
            if part.uses_uniform_groups:
                raise ValueError(
                    f"{part.slot} {part.name!r} learns from groups whose answers are all right or all wrong, and mask "
                    f"{self.filters[0].name!r} leaves them out: take one of the two."
                )

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything that stands in a slot, in the order in which it runs."""
        stages = (stage for slot in CREDIT_SLOTS for stage in getattr(self, slot).stages)
        rest = (self.passes, self.aggregate, self.ratio, self.clip, *self.gates, *self.regularisers)
        return (*stages, *rest)

    @property
    def filters(self) -> tuple[GroupFilter, ...]:
        """Masks that leave whole groups out."""
        return tuple(stage for stage in self.mask.stages if isinstance(stage, GroupFilter))

    @property
    def notes(self) -> tuple[str, ...]:
        """What somebody who runs this objective may trip over."""
        return tuple(part.note for part in self.parts if part.note)

    @property
    def credit_needs(self) -> Needs:
        """Statistics that `credit` reads."""
        return frozenset().union(*(getattr(self, s).needs for s in CREDIT_SLOTS), self.passes.needs)

    @property
    def loss_needs(self) -> Needs:
        """Statistics that `loss` reads."""
        parts: tuple[Part, ...] = (self.ratio, self.clip, *self.gates, *self.regularisers)
        return frozenset().union(*(p.needs for p in parts))

    @property
    def needs(self) -> Needs:
        return self.credit_needs | self.loss_needs

    def wants(self, which: Pass) -> frozenset[Stat]:
        """The statistics of one forward pass that anything here reads."""
        return frozenset(stat for p, stat in self.needs if p is which)

    def check(self, spec: BatchSpec) -> None:
        """Raise ValueError where a part makes no sense for batches of this shape."""
        for part in self.parts:
            part.check(spec)

    def init(self, spec: BatchSpec) -> State:
        """State of every stage before the first batch, keyed by slot and stage name."""
        return {s: getattr(self, s).init(spec) for s in CREDIT_SLOTS}

    def credit(
        self, rollout: Rollout, stats: Stats, spec: BatchSpec, state: State
    ) -> tuple[Credit, State, Metrics]:
        """Rewards to signed credit of each token. No gradient flows through any of it.

        Raises AssertionError where a leaf of `rollout` or `stats` does not have `spec.rows` rows on axis 0.
        """
        chex.assert_tree_shape_prefix((rollout, stats), (spec.rows,))
        ctx = Context(rollout, stats, spec, rollout.reward, rollout.mask)
        new, metrics = {}, {}

        def run(slot: str, x: jax.Array, ctx: Context) -> jax.Array:
            y, new[slot], found = getattr(self, slot).apply(x, ctx, state[slot])
            metrics.update({f"{slot}/{k}": v for k, v in found.items()})
            return y

        ctx = dataclasses.replace(ctx, reward=run("reward", rollout.reward, ctx))
        ctx = dataclasses.replace(ctx, mask=run("mask", rollout.mask, ctx))
        advantage = run("response_weight", run("advantage", ctx.reward, ctx), ctx)
        signed = run("token_weight", jnp.broadcast_to(advantage[:, None], ctx.mask.shape), ctx)
        narrow = dataclasses.replace(ctx, stats=stats.view(self.passes.needs, self.passes.name))
        credit = Credit(
            advantage=jnp.where(ctx.mask > 0, signed, 0.0), passes=self.passes.split(narrow), mask=ctx.mask
        )
        metrics |= {
            "reward/shaped": Mean.of(ctx.reward, ctx.valid.astype(jnp.float32)),
            "advantage/magnitude": Mean.of(jnp.abs(credit.advantage), ctx.mask),
            "mask/kept": Mean(total=ctx.mask.sum(), count=rollout.mask.sum()),
        }
        return jax.lax.stop_gradient((credit, new, metrics))

    def live(self, credit: Credit) -> Bool[Array, " B"]:
        """Rows that can move a parameter: some token has credit. The gain of one without has no gradient, whatever the clip, but
        a regulariser holds every token."""
        if self.regularisers:
            return (credit.mask > 0).any(1)
        return ((credit.mask > 0) & (credit.advantage != 0) & (credit.passes > 0).any(1)).any(1)

    def weights(self, credit: Credit, spec: BatchSpec, k: int | jax.Array) -> Float[Array, "B T"]:
        """Loss weights of pass `k`, over all the rows of one optimiser step."""
        return credit.passes[:, k] * self.aggregate.coefficients(credit.mask, spec)

    def loss(
        self, stats: Stats, credit: Credit, weight: Float[Array, "B T"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """- sum weight * gain. Micro-batches and shards add, because `weight` already holds every denominator."""
        log_ratio = self.ratio.log_ratio(stats.view(self.ratio.needs, self.ratio.name), credit.mask)
        narrow = stats.view(self.clip.needs, self.clip.name)
        gain = self.clip.gain(log_ratio, credit.advantage, narrow)
        metrics = {
            "policy/clip_fraction": Mean.of(
                self.clip.clipped(log_ratio, credit.advantage, narrow), credit.mask
            ),
        }
        for label, gate in zip(labels(self.gates), self.gates, strict=True):
            gate_weight = gate.weight(stats.view(gate.needs, label), credit.mask)
            gain = gain * jax.lax.stop_gradient(gate_weight)
            found = gate.metrics(gate_weight, credit.mask)
            metrics |= {f"gate/{label}/{k}": v for k, v in found.items()}
        for label, part in zip(labels(self.regularisers), self.regularisers, strict=True):
            penalty = part.penalty(stats.view(part.needs, label), credit.mask)
            metrics[f"regulariser/{label}"] = Mean.of(penalty, credit.mask)
            gain = gain - penalty
        loss = -jnp.where(weight > 0, weight * gain, 0.0).sum()
        return loss, jax.lax.stop_gradient(metrics)
