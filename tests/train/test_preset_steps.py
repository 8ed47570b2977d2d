"""Every preset through the functions of a step, traced and not compiled: what it declares is all that it needs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from tiny import G, P, T

from rlvr_jax.objective.presets import PRESETS
from rlvr_jax.train.packing import Packer
from rlvr_jax.train.step import Forward, TrainState, make_credit, make_score, make_update
from rlvr_jax.types import BatchSpec, Pass, Rollout, Stat, Stats

SPEC = BatchSpec(groups=P, group_size=G, length=T, num_prompts=P)
FORWARD = Forward(tiny.decoder()[0], 1.0, chunk=24)
SAMPLER = (Pass.SAMPLER, Stat.LOGPROB)


def rollout():
    rows = P * G
    integers = {"prompt_length": 2, "length": 3, "prompt_id": 0}
    return Rollout(
        prompt=np.ones((rows, 2), np.int32),
        tokens=np.ones((rows, T), np.int32),
        mask=np.ones((rows, T), np.float32),
        reward=np.ones(rows, np.float32),
        correct=np.ones(rows, np.float32),
        truncated=np.zeros(rows, bool),
        **{name: np.full(rows, value, np.int32) for name, value in integers.items()},
    )


@pytest.mark.parametrize("name", PRESETS)
def test_a_first_and_only_update_needs_no_more_than_is_declared(name):
    """Old statistics are scored only where the credit reads them: in the loss, the new policy stands in for the old one.
    Presets of two passes make two updates, and score all of them."""
    objective, rows, params = PRESETS[name], rollout(), tiny.decoder()[1]
    plan = Packer(P, G, T, micro_batches=2).all_rows(np.full(P * G, 3), 2)
    needs = objective.credit_needs if objective.passes.count == 1 else objective.needs
    want = frozenset(stat for which, stat in needs if which is Pass.OLD)
    read = [SAMPLER, *((Pass.OLD, stat) for stat in want)]
    stats = Stats(values={key: jnp.zeros(rows.mask.shape) for key in read})
    if want:
        scored = jax.eval_shape(make_score(FORWARD, Pass.OLD, want), params, rows, plan)
        assert set(scored) == set(read[1:])
    start = objective.init(SPEC)
    credit, kept, metrics = jax.eval_shape(make_credit(objective, SPEC), rows, stats, start)
    assert jax.tree.structure(kept) == jax.tree.structure(start)
    assert credit.passes.shape == (P * G, objective.passes.count, T)
    update = make_update(objective, FORWARD, optax.sgd(0.1), SPEC, 1)
    state = TrainState(params=params, opt=optax.sgd(0.1).init(params), objective=kept, step=0)
    after, seen = jax.eval_shape(update, state, rows, stats, credit, plan, 0, 0)
    shapes = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)  # noqa: E731
    assert shapes(after.params) == shapes(params)
    assert not set(metrics) & set(seen), "a metric of the credit and one of the update share a name"
