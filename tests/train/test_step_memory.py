"""No [B, T, V] array is made in a step or a score, nor in the gradient."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from rlvr_jax.objective import preset
from rlvr_jax.train.step import Forward, TrainState, make_score, make_update
from rlvr_jax.types import BatchSpec, Pass, Rollout, Stat, Stats


def sizes(jaxpr):
    """Numbers of elements of everything that a jaxpr and those inside it compute."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            yield int(np.prod(variable.aval.shape)), variable.aval.shape
        for value in jax.tree.leaves(
            equation.params, is_leaf=lambda x: hasattr(x, "jaxpr") or hasattr(x, "eqns")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from sizes(inner)


def largest(function, chunk):
    """The largest array in a step or a score of 3 rows of 5 tokens over 509 words."""
    config = dataclasses.replace(tiny.CONFIG, vocab_size=509, dim=8, head_dim=2)
    graphdef, params = tiny.decoder(config)
    forward = Forward(graphdef, 0.6, chunk)
    spec = BatchSpec(groups=1, group_size=3, length=5, num_prompts=1)
    rows = jnp.ones((3, 5))
    rollout = Rollout(
        prompt=jnp.ones((3, 2), int),
        prompt_length=jnp.full(3, 2),
        tokens=jnp.ones((3, 5), int),
        length=jnp.full(3, 5),
        mask=rows,
        reward=jnp.arange(3.0),
        correct=jnp.arange(3.0),
        prompt_id=jnp.zeros(3, int),
        truncated=jnp.zeros(3, bool),
    )
    plan = tiny.plan(rollout, group=3)
    if function == "score":
        jaxpr = jax.make_jaxpr(make_score(forward, Pass.OLD, set(Stat)))(params, rollout, plan)
    else:
        objective = preset("grpo")
        credit, state, _ = objective.credit(rollout, Stats(values={}), spec, objective.init(spec))
        start = TrainState(
            params=params, opt=tiny.keep_gradient().init(params), objective=state, step=jnp.zeros((), int)
        )
        update = make_update(objective, forward, tiny.keep_gradient(), spec, 1)
        jaxpr = jax.make_jaxpr(update)(
            start, rollout, Stats(values={(Pass.OLD, Stat.LOGPROB): -rows}), credit, plan, 0, 0
        )
    return max(sizes(jaxpr.jaxpr))


@pytest.mark.parametrize("function", ["score", "update"])
def test_no_array_of_rows_by_tokens_by_vocabulary_exists(function):
    """In the loss and in its gradient. The next largest thing is the head, 509 x 8 and less than 3 x 5 x 509."""
    size, shape = largest(function, chunk=64)
    assert size < 3 * 5 * 509, shape
    size, shape = largest(function, chunk=509)  # the search finds it where it does exist
    assert size == 3 * 5 * 509 and 509 in shape
