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

    def __call__(self, params: Any, rollout: Rollout, want: Set[Stat], share: int) -> dict[Stat, jax.Array]:
        """Statistics of the response tokens; `share` consecutive rows have the same prompt, which runs once."""
        if not want:
            return {}
        model = nnx.merge(self.graphdef, params)
        prompt, length = rollout.prompt[::share], rollout.prompt_length[::share]
        prefix = model.prefill(prompt[:, :-1], length - 1)
        last = jnp.take_along_axis(rollout.prompt, rollout.prompt_length[:, None] - 1, axis=1)
        inputs = jnp.concatenate([last, rollout.tokens[:, :-1]], axis=1)
        hidden = model.hidden(constrain(inputs, "batch", None), prefix)
        return token_stats(
            hidden,
            model.head(),
            rollout.tokens,
            want,
            chunk=self.chunk,
            temperature=self.temperature,
            softcap=model.config.softcap,
        )


def share_of(rows: int, group_size: int) -> int:
    """How many rows of a micro-batch of `rows` share a prompt: a whole group, or all of a part of one."""
    if rows % group_size and group_size % rows:
        raise ValueError(
            f"a micro-batch of {rows} rows holds neither whole groups of {group_size} nor an even part of one: "
            "change batch.micro_batches, batch.minibatches, batch.prompts or batch.group_size."
        )
    return min(rows, group_size)


def make_score(forward: Forward, which: Pass, want: Set[Stat], group_size: int, micro: int) -> Callable:
    """(params, rollout) -> statistics of one pass over the whole batch, `micro` micro-batches after one another."""

    def score(params: Any, rollout: Rollout) -> Values:
        rows = rollout.tokens.shape[0]
        share = share_of(rows // micro, group_size)
        found = jax.lax.map(lambda x: forward(params, x, want, share), microbatches(rollout, micro, share))
        return {(which, s): jax.lax.stop_gradient(_unsplit(v, share)) for s, v in found.items()}

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
    micro: int,
) -> Callable:
    """(state, rollout, stats, credit, k, j) -> state after one optimiser step, metrics.

    The step is on pass `k` of mini-batch `j`, every `minibatches`-th group of the batch. `spec` holds the sizes of
    *that*, and its rows are normalised on their own: a step's size does not depend on how many others there are.
    Gradients are summed over `micro` micro-batches; since the weights hold every denominator, the sum is the
    gradient of the whole batch, whatever `micro` and the sharding are. Where `stats` holds no old log-probability
    (one update per batch: old is new) the new one stands in, without gradient, and the ratio is exactly 1. Frozen weights
    have no gradient: none is computed.
    """
    share = share_of(spec.rows // micro, spec.group_size)
    want = objective.wants(Pass.NEW)
    old = (Pass.OLD, Stat.LOGPROB)

    def loss(params: Any, frozen: Any, rollout: Rollout, stats: Stats, credit: Credit, weight: jax.Array):
        new = forward(joined(params, frozen), rollout, want, share)
        values: Values = {(Pass.NEW, s): v for s, v in new.items()}
        if old in objective.loss_needs and old not in stats.values:
            values[old] = jax.lax.stop_gradient(new[Stat.LOGPROB])
        stats = stats.merge(values)
        value, metrics = objective.loss(stats, credit, weight)
        return value, {**metrics, **_drift(stats, credit)}

    def update(state: TrainState, rollout: Rollout, stats: Stats, credit: Credit, k, j):
        parts = microbatches((rollout, stats, credit), minibatches, spec.group_size)
        rollout, stats, credit = jax.tree.map(lambda x: x[j], parts)
        weight = objective.weights(credit, spec, k)
        rows = microbatches((rollout, stats, credit, weight), micro, share)

        def body(grads, x):
            (value, metrics), g = jax.value_and_grad(loss, has_aux=True)(state.params, state.frozen, *x)
            return jax.tree.map(jnp.add, grads, g), (value, metrics)

        zero = jax.tree.map(jnp.zeros_like, state.params)
        grads, (values, metrics) = jax.lax.scan(body, zero, rows)
        updates, opt = tx.update(grads, state.opt, state.params)
        norm = optax.tree.norm(grads)
        metrics = jax.tree.map(lambda x: x.sum(0), metrics) | {
            "loss": Mean(total=values.sum(), count=jnp.ones(())),
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

    def lower(self, state: TrainState, *batch: Any) -> jax.stages.Lowered:
        """For arrays or their shapes, as a jitted function's `lower`."""
        return self.compiled.lower(state.changing, state.frozen, *batch)


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


def _unsplit(x: jax.Array, block: int) -> jax.Array:
    """The inverse of `microbatches`: [micro, rows, ...] -> [B, ...] in the order of the batch."""
    blocks = x.reshape(x.shape[0], -1, block, *x.shape[2:]).swapaxes(0, 1)
    return blocks.reshape(-1, *x.shape[2:])
