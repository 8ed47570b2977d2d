"""The reference model: run only where something reads it, the policy itself at the start, and untouched by updates."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from tiny import G, P, T
from tiny_task import Vowels

from rlvr_jax.configfile import parse
from rlvr_jax.objective import Credit, Objective
from rlvr_jax.objective.regularisers import KL, KL_KINDS
from rlvr_jax.train.checkpoint import Checkpoints
from rlvr_jax.train.program import assemble
from rlvr_jax.train.step import Forward, TrainState, make_score, make_update
from rlvr_jax.types import BatchSpec, Pass, Rollout, Stat, Stats

TEMPERATURE = 0.6
SPEC = BatchSpec(groups=P, group_size=G, length=T, num_prompts=1_000_000)
REF, OLD = (Pass.REF, Stat.LOGPROB), (Pass.OLD, Stat.LOGPROB)


def forwards(objective, monkeypatch) -> dict[str, int]:
    """How often each function of a run's step traces the model."""
    tree = {
        "model": {"scratch": {"num_layers": 1, "dim": 8, "num_heads": 2, "num_kv_heads": 2, "mlp_dim": 8}},
        "sampling": {"max_new_tokens": 4},
        "prompts": {"max_tokens": 16},
        "batch": {"prompts": 8, "group_size": 2},
        "objective": objective,
    }
    program = assemble(dataclasses.replace(parse(tree), task=Vowels(long=4)), num_prompts=8)
    calls, call = [], Forward.__call__
    monkeypatch.setattr(Forward, "__call__", lambda *args: calls.append(1) or call(*args))
    rows, state = _rows(16, 4), program.abstract
    with jax.set_mesh(program.mesh):
        stats, found = {}, {}
        for name in ("score", "score_ref"):
            if (function := getattr(program, name)) is not None:
                scored = jax.eval_shape(function, state.params, rows, program.score_plan(rows))
                stats |= {key: jnp.zeros(x.shape) for key, x in scored.items()}
                found[name], calls[:] = len(calls), []
        stats = Stats(values=stats)
        credit, _, _ = jax.eval_shape(program.credit, rows, stats, state.objective)
        found["credit"], calls[:] = len(calls), []
        plan = program.update_plan(rows, np.ones(16, bool), 0)
        jax.eval_shape(program.update, state, rows, stats, credit, plan, 0, 0)
        found["update"] = len(calls)
    return found


def _rows(count, length, vocab=8):
    """Ragged responses to prompts of two tokens, each shared by a group of G or a part of one."""
    random = np.random.default_rng(0)
    size = random.integers(1, length + 1, count).astype(np.int32)
    return Rollout(
        prompt=np.repeat(random.integers(1, vocab, (count // G, 16)), G, axis=0).astype(np.int32),
        prompt_length=np.full(count, 2, np.int32),
        tokens=random.integers(0, vocab, (count, length)).astype(np.int32),
        length=size,
        mask=(np.arange(length) < size[:, None]).astype(np.float32),
        reward=random.integers(0, 2, count).astype(np.float32),
        correct=np.ones(count, np.float32),
        prompt_id=np.zeros(count, np.int32),
        truncated=np.zeros(count, bool),
    )


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_without_a_penalty_no_forward_of_a_reference_is_traced(name, monkeypatch):
    """A run without a KL has one forward, that of its update; with one it has the reference's besides, and no third."""
    without = forwards(name, monkeypatch)
    update = without["update"]
    assert without == {"credit": 0, "update": update} and update > 0
    monkeypatch.undo()
    with_kl = forwards({"preset": name, "regularisers": ["kl"]}, monkeypatch)
    assert with_kl == {"score_ref": with_kl["score_ref"], "credit": 0, "update": update}
    assert with_kl["score_ref"] > 0


FORWARD = Forward(tiny.decoder()[0], TEMPERATURE, chunk=24)
ROLLOUT = _rows(P * G, T, tiny.CONFIG.vocab_size)


@functools.cache
def scorer(which):
    score = jax.jit(make_score(FORWARD, which, {Stat.LOGPROB}), compiler_options=tiny.QUICK)
    return lambda params, rows: score(params, rows, tiny.plan(rows, micro=2))


@functools.cache
def scores():
    """Of the reference and of the old policy, which are one model here."""
    params = tiny.decoder()[1]
    return {**scorer(Pass.REF)(params, ROLLOUT), **scorer(Pass.OLD)(params, ROLLOUT)}


@functools.cache
def credit(advantage):
    """The same advantage for every token; 0 leaves nothing but the penalty."""
    mask = jnp.asarray(ROLLOUT.mask)
    return Credit(advantage=advantage * mask, passes=mask[:, None], mask=mask)


def test_a_reference_is_scored_at_the_temperature_of_the_policy():
    """By dense float64 log-softmax; at temperature 1 it would be off by far more."""
    logits = tiny.dense()(tiny.decoder()[1], ROLLOUT.prompt, ROLLOUT.prompt_length, ROLLOUT.tokens)
    at = lambda t: np.take_along_axis(  # noqa: E731
        tiny.log_softmax(np.asarray(logits, np.float64) / t), ROLLOUT.tokens[..., None], -1
    )[..., 0]
    inside = ROLLOUT.mask > 0
    np.testing.assert_allclose(scores()[REF][inside], at(TEMPERATURE)[inside], rtol=1e-5, atol=1e-5)
    assert np.abs(at(1.0) - at(TEMPERATURE))[inside].max() > 0.5


@pytest.mark.parametrize("kind", KL_KINDS)
def test_at_the_start_the_kl_is_exactly_zero_and_so_is_its_gradient(kind):
    """The same model scored twice at T = 0.6: to the bit the same, as policy and as reference."""
    np.testing.assert_array_equal(scores()[REF], scores()[OLD])
    objective = Objective(regularisers=(KL(0.1, kind),))
    new = (Pass.NEW, Stat.LOGPROB)
    weight = objective.weights(credit(0.0), SPEC, 0)

    @jax.jit
    def run(x):
        stats = Stats(values={**scores(), new: x})
        return objective.loss(stats, credit(0.0), weight)

    (loss, metrics), gradient = jax.value_and_grad(run, has_aux=True)(scores()[OLD])
    assert loss == 0 and not gradient.any()
    assert metrics["regulariser/kl"].total == 0 and metrics["regulariser/kl"].count == ROLLOUT.mask.sum()


def test_donated_updates_leave_the_reference_as_it_is():
    """Three updates in place: the KL is 0 in the first only, and what it is measured from is the same to the bit."""
    tx, objective = optax.sgd(0.3), Objective(regularisers=(KL(0.1),))
    reference = jax.tree.map(jnp.copy, tiny.decoder()[1])
    before = jax.device_get(reference)
    params = jax.tree.map(jnp.copy, reference)
    state = TrainState(params=params, opt=tx.init(params), objective=objective.init(SPEC), step=0)
    update = make_update(objective, FORWARD, tx, SPEC, 1)
    update = jax.jit(update, donate_argnums=0, compiler_options=tiny.QUICK)
    kl = []
    for _ in range(3):
        stats = Stats(values=scorer(Pass.REF)(reference, ROLLOUT))
        np.testing.assert_array_equal(stats.values[REF], scores()[REF])
        given = state
        state, metrics = update(state, ROLLOUT, stats, credit(1.0), tiny.plan(ROLLOUT, micro=2), 0, 0)
        assert all(x.is_deleted() for x in jax.tree.leaves(given.params))
        kl.append(metrics["policy/kl_ref"].value())
    assert abs(kl[0]) < 1e-10 and min(kl[1:]) > 1e-4  # a gap of 1e-6 nats between two programs, squared
    chex.assert_trees_all_equal(jax.device_get(reference), before)


def test_the_reference_of_a_run_is_a_copy_of_where_it_began(tmp_path):
    """It outlives the buffers that the first update takes, and a resumed run gets the same and not its own start."""
    take = jax.jit(lambda x: x + 1.0, donate_argnums=0)
    start = {"w": jnp.arange(8.0)}
    with Checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        first = checkpoints.reference(start, start)
        moved = {"w": take(start["w"])}
        assert start["w"].is_deleted()
        np.testing.assert_array_equal(first["w"], np.arange(8.0))
        resumed = checkpoints.reference(moved, moved)
    np.testing.assert_array_equal(resumed["w"], np.arange(8.0))
