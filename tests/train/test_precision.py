"""What is computed in bfloat16, and what is not: masters, log-softmax and statistics are float32."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tiny
from tiny import QUICK

from rlvr_jax.config import Optimizer
from rlvr_jax.train.optimizer import make_optimizer
from rlvr_jax.train.step import Forward
from rlvr_jax.types import Stat


@functools.cache
def narrow():
    """A rollout, and its statistics by a model that computes in bfloat16."""
    found = tiny.sample(dtype="bfloat16")
    rollout = jax.tree.map(jnp.asarray, tiny.rollout(found))
    return found, rollout, tiny.scorer(dtype="bfloat16")(tiny.decoder(dtype="bfloat16")[1], rollout)


def test_parameters_statistics_and_stored_log_probabilities_are_float32():
    found, _, scored = narrow()
    assert {x.dtype for x in jax.tree.leaves(tiny.decoder(dtype="bfloat16")[1])} == {np.dtype("float32")}
    assert found.logprob.dtype == found.entropy.dtype == np.float32
    assert {x.dtype for x in scored.values()} == {np.dtype("float32")}


def test_log_probabilities_have_more_digits_than_bfloat16_has():
    """A log-softmax in bfloat16 would leave 8 bits: rounding its results to that changes most of them."""
    logprob = np.asarray(narrow()[2][Stat.LOGPROB])
    rounded = np.asarray(jnp.asarray(logprob).astype(jnp.bfloat16).astype(jnp.float32))
    assert (logprob != rounded).mean() > 0.9


def test_small_updates_are_not_lost_because_masters_are_float32():
    """A learning rate of 1e-6 moves a weight of order 0.3 by a thousandth of what bfloat16 can tell apart there (2^-9 of
    it): a hundred steps move nearly all of them all the same, which parameters in bfloat16 would not show."""
    graphdef, start = tiny.decoder(dtype="bfloat16")
    tx = make_optimizer(Optimizer(), 1e-6)
    _, rollout, _ = narrow()
    forward, part = Forward(graphdef), tiny.plan(rollout).part(0)

    def loss(params):
        found = forward(params, rollout, part, {Stat.LOGPROB})[Stat.LOGPROB]
        return -(found * part.responses(rollout.mask)).mean()

    def body(carry, _):
        params, opt = carry
        updates, opt = tx.update(jax.grad(loss)(params), opt, params)
        return (optax.apply_updates(params, updates), opt), None

    run = jax.jit(lambda p: jax.lax.scan(body, (p, tx.init(p)), length=100)[0][0], compiler_options=QUICK)
    end = run(start)
    moved = [np.asarray(a != b) for a, b in zip(jax.tree.leaves(start), jax.tree.leaves(end), strict=True)]
    assert np.concatenate([m.ravel() for m in moved]).mean() > 0.99
    narrowed = [
        np.asarray(a.astype(jnp.bfloat16) != b.astype(jnp.bfloat16))
        for a, b in zip(jax.tree.leaves(start), jax.tree.leaves(end), strict=True)
    ]
    assert np.concatenate([m.ravel() for m in narrowed]).mean() < 0.5
