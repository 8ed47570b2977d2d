"""A small ragged batch for the tests of the objective, and what may be done to its padding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.objective.base import Context
from rlvr_jax.types import BatchSpec, Pass, Rollout, Stat, Stats

SPEC = BatchSpec(groups=3, group_size=4, length=5, num_prompts=9)
B, G, T = SPEC.rows, SPEC.group_size, SPEC.length

Batch = tuple[Rollout, Stats]


def batch(seed: int = 0, *, spec: BatchSpec = SPEC, reward=None, mask=None, noise: float = 0.3) -> Batch:
    """Random rewards in {0, 1}, lengths from 1 to T, and every statistic of every pass.

    New log-probabilities differ from the old ones by `noise` nats, so that ratios fall inside and outside the clips.
    Statistics under the padding are as wild as the others.
    """
    rng = np.random.default_rng(seed)
    rows, length = spec.rows, spec.length
    lengths = rng.integers(1, length + 1, rows)
    if mask is None:
        mask = np.arange(length) < lengths[:, None]
    correct = rng.integers(0, 2, rows)
    reward = correct if reward is None else np.broadcast_to(reward, rows)
    rollout = Rollout(
        prompt=jnp.ones((rows, 2), jnp.int32),
        prompt_length=jnp.full(rows, 2, jnp.int32),
        tokens=jnp.asarray(rng.integers(0, 9, (rows, length)), jnp.int32),
        length=jnp.asarray(lengths, jnp.int32),
        mask=jnp.asarray(mask, jnp.float32),
        reward=jnp.asarray(reward, jnp.float32),
        correct=jnp.asarray(correct if reward is correct else reward == 1.0, jnp.float32),
        prompt_id=jnp.asarray(
            np.repeat(rng.permutation(spec.num_prompts)[: spec.groups], spec.group_size), jnp.int32
        ),
        truncated=jnp.asarray(lengths == length),
    )
    old = -rng.exponential(1.0, (rows, length))
    drift = {Pass.SAMPLER: 0.01, Pass.OLD: 0.0, Pass.REF: noise, Pass.NEW: noise}
    values = {}
    for which in Pass:
        logprob = np.minimum(old + drift[which] * rng.normal(size=old.shape), -1e-3)
        values[which, Stat.LOGPROB] = logprob
        values[which, Stat.LOGIT] = 15 + 8 * rng.normal(size=old.shape)
        values[which, Stat.ENTROPY] = rng.exponential(1.0, old.shape)
        values[which, Stat.SELF_CERTAINTY] = rng.exponential(5.0, old.shape)
        values[which, Stat.COLLISION] = np.exp(2 * logprob)
    return rollout, Stats(values={k: jnp.asarray(v, jnp.float32) for k, v in values.items()})


def soil(rollout: Rollout, stats: Stats, fill: float) -> Batch:
    """The same batch with `fill` in every statistic under the padding, and other tokens there."""
    real = np.asarray(rollout.mask) > 0
    values = {k: jnp.asarray(np.where(real, v, np.float32(fill))) for k, v in stats.values.items()}
    tokens = jnp.asarray(np.where(real, rollout.tokens, np.int32(8)))
    return dataclasses.replace(rollout, tokens=tokens), Stats(values=values)


def pad(rollout: Rollout, stats: Stats, extra: int, fill: float) -> Batch:
    """The same batch with `extra` more positions of padding, `fill` in their statistics."""

    def grow(x: jax.Array, value: float) -> jax.Array:
        return jnp.asarray(np.pad(np.asarray(x), ((0, 0), (0, extra)), constant_values=value))

    longer = dataclasses.replace(rollout, tokens=grow(rollout.tokens, 0), mask=grow(rollout.mask, 0))
    return longer, Stats(values={k: grow(v, fill) for k, v in stats.values.items()})


def context(rollout: Rollout, stats: Stats, spec: BatchSpec = SPEC) -> Context:
    return Context(rollout, stats, spec, rollout.reward, rollout.mask)


def take(tree, rows):
    """Some rows of everything."""
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[np.asarray(rows)]), tree)
