"""AdamW with warm-up and clipping, and where its moments live on the mesh."""

from typing import Any

import jax
import optax
from jax.sharding import Mesh

from rlvr_jax.config import Optimizer
from rlvr_jax.sharding import replicated


def learning_rate(config: Optimizer, steps: int, updates: int) -> optax.Schedule:
    """Rate of each optimiser step: linear from 0 over the warm-up, then by the schedule's name.

    `steps` are training steps, `updates` optimiser steps in each. The first step has a rate above 0.
    """
    rise = config.warmup_steps * updates
    rest = max(steps * updates - rise, 1)
    peak = config.learning_rate
    after = {
        "constant": optax.constant_schedule(peak),
        "linear": optax.linear_schedule(peak, 0.0, rest),
        "cosine": optax.cosine_decay_schedule(peak, rest),
    }[config.schedule]
    if not rise:
        return after
    return optax.join_schedules([lambda n: peak * (n + 1) / (rise + 1), after], [rise])


def make_optimizer(config: Optimizer, schedule: optax.Schedule | float) -> optax.GradientTransformation:
    """Clip by the global norm, then AdamW. Decay on matrices and embeddings only."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            schedule,
            b1=config.beta1,
            b2=config.beta2,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            mask=_decays,
        ),
    )


def like_params(tree: Any, params: Any, shardings: Any, mesh: Mesh) -> Any:
    """A sharding for every leaf of an optimiser's state: that of the parameter whose path it ends with.

    Moments are kept under the paths of their parameters; counters and the like are replicated.
    """
    where = {
        jax.tree_util.keystr(path): sharding
        for (path, _), sharding in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(shardings), strict=True
        )
    }

    def sharding_of(path: tuple, leaf: Any):
        for start in range(len(path)):
            found = where.get(jax.tree_util.keystr(path[start:]))
            if found is not None:
                return found
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(sharding_of, tree)


def _decays(params: Any) -> Any:
    def decays(path: tuple, leaf: Any) -> bool:
        return not any(word in jax.tree_util.keystr(path) for word in ("norm", "bias"))

    return jax.tree_util.tree_map_with_path(decays, params)
