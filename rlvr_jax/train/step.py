"""The jitted functions of a step: score and credit once per batch, update once per optimiser step."""

import dataclasses
import functools
from collections.abc import Callable, Set
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from rlvr_jax.models.lora import joined
from rlvr_jax.objective import Credit, Objective
from rlvr_jax.sharding import constrain, microbatches
from rlvr_jax.stats import token_stats
from rlvr_jax.train.packing import Part, Plan
from rlvr_jax.types import BatchSpec, Mean, Metrics, Pass, Rollout, Stat, Stats, pytree

Values = dict[tuple[Pass, Stat], jax.Array]


@pytree
class TrainState:
    """All that a step changes, and the weights that it leaves alone.

    `params` are trained. `frozen` are the others: all but the adapters where there are adapters, else none. `step` counts
    finished steps; randomness is a function of seed and step.
    """

    params: Any
    opt: Any
    objective: Any
    step: Any
    frozen: Any = ()

    @property
    def policy(self) -> Any:
        """Every parameter of the model."""
        return joined(self.params, self.frozen)

    @property
    def changing(self) -> "TrainState":
        """Without the frozen weights: what a checkpoint holds."""
        return dataclasses.replace(self, frozen=())


@dataclasses.dataclass(frozen=True)
class Forward:
    """How a batch is scored: the model's structure, the temperature of the policy and the vocabulary chunk."""

    graphdef: Any
    temperature: float = 1.0
    chunk: int = 8192

    def __call__(self, params: Any, rollout: Rollout, part: Part, want: Set[Stat]) -> dict[Stat, jax.Array]:
        """[W * Q, T]: statistics of the response tokens of a micro-batch of `rollout`; 0 behind their ends."""
        if not want:
            return {}
        model, mine = nnx.merge(self.graphdef, params), part.responses(rollout)
        prompt, length = part.asked(rollout.prompt), part.asked(rollout.prompt_length)
        prefix = model.prefill(constrain(prompt[:, :-1], "batch", None), length - 1)
        last = jnp.take_along_axis(mine.prompt, mine.prompt_length[:, None] - 1, axis=1)
        inputs = jnp.concatenate([last, mine.tokens[:, :-1]], axis=1)
        hidden = model.hidden(
            part.packed(inputs, mine.length),
            prefix,
            segments=part.segments(mine.length, inputs.shape[1]),
            owners=part.owners,
        )
        found = token_stats(
            hidden,
            model.head(),
            part.packed(mine.tokens, mine.length),
            want,
            chunk=self.chunk,
            temperature=self.temperature,
            softcap=model.config.softcap,
        )
        return {stat: part.unpacked(x, mine.length) for stat, x in found.items()}


def make_score(forward: Forward, which: Pass, want: Set[Stat]) -> Callable:
    """(params, rollout, plan) -> statistics of one pass over the whole batch, micro-batch after micro-batch."""

    def score(params: Any, rollout: Rollout, plan: Plan) -> Values:
        def body(i: jax.Array, found: dict[Stat, jax.Array]) -> dict[Stat, jax.Array]:
            part = plan.part(i)
            new = forward(params, rollout, part, want)
            return {stat: part.put_back(x, new[stat]) for stat, x in found.items()}

        nothing = jnp.zeros(rollout.tokens.shape, jnp.float32)
        found = jax.lax.fori_loop(0, plan.count, body, {stat: nothing for stat in sorted(want)})
        return {(which, stat): jax.lax.stop_gradient(x) for stat, x in found.items()}

    return score


def make_credit(objective: Objective, spec: BatchSpec) -> Callable:
    """(rollout, stats, objective state) -> credit, new state, metrics."""

    def credit(rollout: Rollout, stats: Stats, state: Any) -> tuple[Credit, Any, Metrics]:
        return objective.credit(rollout, stats, spec, state)

    return credit


def make_update(
    objective: Objective,
    forward: Forward,
    tx: optax.GradientTransformation,
    spec: BatchSpec,
    minibatches: int,
) -> Callable:
    """(state, rollout, stats, credit, plan, k, j) -> state after one optimiser step, metrics.

    The step is on pass `k` of mini-batch `j`, every `minibatches`-th group of the batch; `plan` says how its rows are
    computed. `spec` holds the sizes of *that*, and its rows are normalised on their own: a step's size does not depend on
    how many others there are. Gradients are summed over micro-batches; since the weights hold every denominator, the sum
    is the gradient of the whole batch, whatever the plan and the sharding are: rows that it leaves out are in the
    denominators. Where `stats` holds no old log-probability (one update per batch: old is new) the new one stands in,
    without gradient, and the ratio is exactly 1. Frozen weights have no gradient: none is computed.
    """
    want = objective.wants(Pass.NEW)
    old = (Pass.OLD, Stat.LOGPROB)

    def loss(params: Any, frozen: Any, batch: tuple[Rollout, Stats, Credit, jax.Array], part: Part):
        new = forward(joined(params, frozen), batch[0], part, want)
        stats, credit, weight = part.responses(batch[1:])
        present = part.present[:, None]
        credit = dataclasses.replace(credit, mask=jnp.where(present, credit.mask, 0.0))
        values: Values = {(Pass.NEW, s): v for s, v in new.items()}
        if old in objective.loss_needs and old not in stats.values:
            values[old] = jax.lax.stop_gradient(new[Stat.LOGPROB])
        stats = stats.merge(values)
        value, metrics = objective.loss(stats, credit, jnp.where(present, weight, 0.0))
        return value, {**metrics, **_drift(stats, credit)}

    def update(state: TrainState, rollout: Rollout, stats: Stats, credit: Credit, plan: Plan, k, j):
        parts = microbatches((rollout, stats, credit), minibatches, spec.group_size)
        rollout, stats, credit = jax.tree.map(lambda x: x[j], parts)
        batch = rollout, stats, credit, objective.weights(credit, spec, k)

        def body(i: jax.Array, sums: Any) -> Any:
            part = plan.part(i)
            found = jax.value_and_grad(loss, has_aux=True)(state.params, state.frozen, batch, part)
            return jax.tree.map(jnp.add, sums, found)

        shapes = jax.eval_shape(lambda: loss(state.params, state.frozen, batch, plan.part(0)))
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (shapes, state.params))
        (value, metrics), grads = jax.lax.fori_loop(0, plan.count, body, nothing)
        updates, opt = tx.update(grads, state.opt, state.params)
        norm = optax.tree.norm(grads)
        metrics = metrics | {
            "loss": Mean(total=value, count=jnp.ones(())),
            "optimizer/grad_norm": Mean(total=norm, count=jnp.ones(())),
        }
        params = optax.apply_updates(state.params, updates)
        return dataclasses.replace(state, params=params, opt=opt), metrics

    return update


def jit_update(update: Callable, **settings: Any) -> "InPlace":
    """`update`, compiled to work in the buffers of the state that it is given, which is gone then.

    But for the frozen weights, which are no result of it: they are in the state that comes back as they were. Were they
    donated, a compiler that may give any result the buffer of any argument of its shape would move them around.
    """

    @functools.wraps(update)
    def on_frozen(state: TrainState, frozen: Any, *batch: Any) -> tuple[TrainState, Metrics]:
        state, metrics = update(dataclasses.replace(state, frozen=frozen), *batch)
        return state.changing, metrics

    compiled = jax.jit(on_frozen, donate_argnums=0, **settings)

    return InPlace(compiled)


@dataclasses.dataclass(frozen=True, eq=False)
class InPlace:
    """What `jit_update` returns: `compiled` takes the state in two parts, what changes and what is frozen."""

    compiled: Any

    def __call__(self, state: TrainState, *batch: Any) -> tuple[TrainState, Metrics]:
        after, metrics = self.compiled(state.changing, state.frozen, *batch)
        return dataclasses.replace(after, frozen=state.frozen), metrics

    def trace(self, state: TrainState, *batch: Any) -> jax.stages.Traced:
        """For arrays or their shapes, as a jitted function's `trace`."""
        return self.compiled.trace(state.changing, state.frozen, *batch)


def _drift(stats: Stats, credit: Credit) -> Metrics:
    """How far the new policy is from the old one, from the sampler and from the reference; nats per token."""
    new = stats.values.get((Pass.NEW, Stat.LOGPROB))
    out = {}
    for name, which in (
        ("policy/kl_old", Pass.OLD),
        ("policy/kl_ref", Pass.REF),
        ("policy/kl_sampler", Pass.SAMPLER),
    ):
        past = stats.values.get((which, Stat.LOGPROB))
        if new is not None and past is not None:
            gap = jnp.where(credit.mask > 0, past - new, 0.0)
            out[name] = Mean.of(jnp.expm1(jnp.clip(gap, -20.0, 20.0)) - gap, credit.mask)  # k3
    return jax.lax.stop_gradient(out)
