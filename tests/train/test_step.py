"""The optimiser step against a dense reference: the same gradient on any mesh, in any micro-batches, masked or not."""

import contextlib
import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from tiny import G, P

from rlvr_jax.objective import preset
from rlvr_jax.objective.clips import Ppo
from rlvr_jax.sharding import batch_shards, make_mesh, row_sharding
from rlvr_jax.stats import logits_of
from rlvr_jax.train import step as module
from rlvr_jax.train.step import Forward, TrainState, make_credit, make_score, make_update
from rlvr_jax.types import BatchSpec, Pass, Rollout, Stat, Stats

B, T, V = P * G, 6, tiny.CONFIG.vocab_size
TEMPERATURE = 0.6
SPEC = BatchSpec(groups=P, group_size=G, length=T, num_prompts=P)

GRADIENT = {"rtol": 1e-5, "atol": 1e-5}
"""The acceptance's 1e-5. Gradients here are of order 0.01 to 1; float32 sums of 32 rows in another order move them by 1e-7."""

FORWARD = Forward(tiny.decoder()[0], TEMPERATURE, chunk=24)
OLD, SAMPLER = (Pass.OLD, Stat.LOGPROB), (Pass.SAMPLER, Stat.LOGPROB)


@functools.cache
def batch() -> tuple[Rollout, dict]:
    """Ragged rows, mixed groups, and log-probabilities of an old policy up to some 0.5 nats away, so that clips bite.

    The rows of the last group, which is what the last of 8 devices holds, have a single token each.
    """
    random = np.random.default_rng(0)
    prompt, prompt_length, ids, _ = tiny.prompts()
    length = random.integers(1, T + 1, B).astype(np.int32)
    length[:G], length[-G:] = (T, 1, 3, T), 1
    inside = np.arange(T) < length[:, None]
    reward = (np.arange(B) % G < np.repeat(random.integers(1, G, P), G)).astype(np.float32)
    rollout = Rollout(
        prompt=np.repeat(prompt, G, axis=0),
        prompt_length=np.repeat(prompt_length, G),
        tokens=(random.integers(0, V, (B, T)) * inside).astype(np.int32),
        length=length,
        mask=inside.astype(np.float32),
        reward=reward,
        correct=reward,
        prompt_id=np.repeat(ids, G),
        truncated=length == T,
    )
    new = tiny.log_softmax(dense_logits(tiny.decoder()[1], rollout))
    new = np.take_along_axis(new, rollout.tokens[..., None], -1)[..., 0]
    old = new + random.normal(0, 0.25, new.shape)
    values = {
        OLD: np.where(inside, old, 7.0).astype(np.float32),  # whatever stands under the padding
        SAMPLER: np.where(inside, new, -9.0).astype(np.float32),
    }
    return rollout, values


def dense_logits(params, rollout):
    """[B, T, V], already divided by the temperature."""
    logits = tiny.dense()(params, rollout.prompt, rollout.prompt_length, rollout.tokens)
    return np.asarray(logits, np.float64) / TEMPERATURE


# ---- the reference -----------------------------------------------------------------------------------------------


def advantages(reward, name, rejected):
    """Group by group, as the papers write them; a group is its rows that are not rejected."""
    out = np.zeros(B)
    for first in range(0, B, G):
        rows = [i for i in range(first, first + G) if not rejected[i]]
        found = np.asarray(reward, np.float64)[rows]
        a = found - found.mean()
        if name != "dr_grpo" and len(rows) > 1:
            a = a / (found.std(ddof=1) + 1e-6)
        out[rows] = a * (1 - found.mean()) ** 0.5 if name.startswith("f_") else a
    return out


def coefficients(mask, name):
    """What each token weighs in the loss of these rows."""
    rows = (mask.sum(1) > 0).sum()
    if name == "grpo":
        return mask / np.maximum(mask.sum(1, keepdims=True), 1) / rows
    return mask / (T * rows) if name == "dr_grpo" else mask / mask.sum()


@functools.cache
def reference_gradient():
    """(params, rollout, weight, advantage, old log-probabilities, largest ratio) -> gradient, through dense logits."""

    def loss(params, rollout, weight, advantage, old, high):
        z = (
            tiny.dense().__wrapped__(params, rollout.prompt, rollout.prompt_length, rollout.tokens)
            / TEMPERATURE
        )
        new = jnp.take_along_axis(jax.nn.log_softmax(z), rollout.tokens[..., None], -1)[..., 0]
        ratio = jnp.exp(new - old)
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, high) * advantage)
        return -(weight * gain).sum()

    return jax.jit(jax.grad(loss), compiler_options=tiny.QUICK)


def reference(name, mask=None, rows=slice(None), old=None, rejected=None):
    """The gradient of the clipped objective over the tokens of `mask` in `rows`; advantages know the whole batch but for
    its `rejected` rows."""
    rollout, values = batch()
    chosen = np.zeros((B, 1))
    chosen[rows] = 1
    mask = np.asarray(rollout.mask if mask is None else mask, np.float64) * chosen
    rejected = np.zeros(B) if rejected is None else rejected
    signed = advantages(rollout.reward, name, rejected)
    arrays = coefficients(mask, name), np.broadcast_to(signed[:, None], (B, T))
    old = np.where(mask > 0, values[OLD] if old is None else old, 0.0)
    high = 1.28 if name == "f_dapo" else 1.2
    return reference_gradient()(tiny.decoder()[1], rollout, *map(np.float32, arrays), np.float32(old), high)


# ---- the step ----------------------------------------------------------------------------------------------------


@functools.cache
def jitted(name, mesh, minibatches):
    """(credit, update) for a batch on a mesh, or where `mesh` is None on one device."""
    objective = preset(name)
    update = make_update(objective, FORWARD, tiny.keep_gradient(), part_of(minibatches), minibatches)
    return tuple(jax.jit(f, compiler_options=tiny.QUICK) for f in (make_credit(objective, SPEC), update))


def plan_of(rollout, j, minibatches, micro, shards, live):
    """Of mini-batch j, which is every `minibatches`-th group."""
    rows = np.arange(B).reshape(-1, minibatches, G)[:, j].reshape(-1)
    mine = jax.tree.map(lambda x: x[rows], rollout)
    return tiny.plan(mine, micro=micro, shards=shards, live=None if live is None else live[rows])


def part_of(minibatches):
    return dataclasses.replace(SPEC, groups=P // minibatches)


def run(functions, name="grpo", mesh=None, j=0, rollout=None, values=None, micro=1, minibatches=1, live=None):
    """The gradient of one update on the batch, and its metrics as numbers."""
    rollout = batch()[0] if rollout is None else rollout
    values = batch()[1] if values is None else values
    credit_of, update = functions
    objective, params = preset(name), tiny.decoder()[1]
    shape = make_mesh(*mesh) if mesh else None
    plan = plan_of(rollout, j, minibatches, micro, batch_shards(shape) if shape else 1, live)
    with jax.set_mesh(shape) if shape else contextlib.nullcontext():
        rollout, values = jax.device_put((rollout, values), row_sharding(shape) if shape else None)
        params = tiny.on_mesh(params, shape) if shape else params
        state = objective.init(SPEC)
        credit, state, _ = credit_of(rollout, Stats(values={}), state)
        start = TrainState(
            params=params, opt=tiny.keep_gradient().init(params), objective=state, step=jnp.zeros((), int)
        )
        state, metrics = update(start, rollout, Stats(values=values), credit, plan, 0, j)
    chex.assert_trees_all_equal(state.params, params)
    return jax.device_get(state.opt), {k: v.value() for k, v in jax.device_get(metrics).items()}


def gradient(name="grpo", mesh=None, micro=1, minibatches=1, **inputs):
    return run(jitted(name, mesh, minibatches), name, mesh, micro=micro, minibatches=minibatches, **inputs)


def norm(tree):
    return float(np.sqrt(sum((np.float64(x) ** 2).sum() for x in jax.tree.leaves(tree))))


@pytest.mark.parametrize(
    "name, mesh, micro",
    [
        ("grpo", None, 1),
        ("grpo", None, 4),
        ("grpo", None, 16),  # two rows, half a group
        ("grpo", (8, 1, 1), 1),
        ("grpo", (1, 8, 1), 1),
        ("grpo", (2, 2, 2), 2),
        ("grpo", (1, 4, 1, 2), 1),
        ("grpo", (2, 1, 2, 2), 2),
        ("dr_grpo", (8, 1, 1), 4),
        ("f_dapo", (8, 1, 1), 4),
        ("f_grpo", (8, 1, 1), 4),
    ],
    ids=str,
)
def test_devices_and_micro_batches_do_not_change_the_gradient(name, mesh, micro):
    want = reference(name)
    got, metrics = gradient(name, mesh, micro)
    assert norm(want) > 0.1
    chex.assert_trees_all_close(got, want, **GRADIENT)
    np.testing.assert_allclose(metrics["optimizer/grad_norm"], norm(want), rtol=1e-5)
    assert 0 < metrics["policy/clip_fraction"] < 0.5


@pytest.mark.parametrize("mesh", [None, (4, 1, 2)])
def test_rows_without_credit_are_left_out_and_change_nothing_but_what_is_computed(mesh):
    """Three groups are all right or all wrong; they stay in the denominators. No row of them is in a packed row."""
    rollout, values = batch()
    reward = rollout.reward.copy()
    reward[: 2 * G], reward[-G:] = 0.0, 1.0
    rollout = dataclasses.replace(rollout, reward=reward, correct=reward)
    live = (np.abs(advantages(reward, "grpo", np.zeros(B))) > 0)[np.arange(B)]
    assert live.sum() == B - 3 * G
    given = dict(mesh=mesh, micro=4, rollout=rollout)
    every, metrics = gradient(**given)
    some, of_some = gradient(**given, live=live)
    chex.assert_trees_all_close(some, every, **GRADIENT)
    np.testing.assert_allclose(of_some["loss"], metrics["loss"], rtol=1e-5, atol=1e-7)
    none, _ = gradient(**given, live=np.zeros(B, bool))
    assert all((x == 0).all() for x in jax.tree.leaves(none))


@pytest.mark.parametrize("j", [0, 1])
def test_a_minibatch_is_normalised_over_its_own_rows(j):
    """Mini-batch j holds groups j, j + 2, ...; advantages are those of the whole batch (groups do not mix)."""
    rows = np.repeat(np.arange(P) % 2 == j, G)
    got, _ = gradient("f_dapo", None, micro=2, minibatches=2, j=j)
    chex.assert_trees_all_close(got, reference("f_dapo", rows=rows), **GRADIENT)


def test_rejected_rows_are_as_if_they_were_not_there():
    """Neither their tokens, nor what is broken in them, nor their rewards in the statistics of their groups."""
    rollout, values = batch()
    gone = np.isin(np.arange(B), (0, 5, 6, 7, 30))
    masked = dataclasses.replace(rollout, mask=rollout.mask * ~gone[:, None])
    broken = {key: np.where(gone[:, None], np.nan, value).astype(np.float32) for key, value in values.items()}
    for given in (values, broken):
        got, metrics = gradient(rollout=masked, values=given)
        chex.assert_trees_all_close(got, reference("grpo", rows=~gone, rejected=gone), **GRADIENT)
        assert all(np.isfinite(v) for v in metrics.values()), metrics


def test_a_batch_without_a_token_has_a_zero_gradient():
    rollout, values = batch()
    got, metrics = gradient(rollout=dataclasses.replace(rollout, mask=np.zeros_like(rollout.mask)))
    assert all((x == 0).all() for x in jax.tree.leaves(got))
    assert metrics["loss"] == metrics["optimizer/grad_norm"] == 0.0


# ---- which logits learn ------------------------------------------------------------------------------------------


def test_every_sampled_token_learns_the_stop_token_too_and_nothing_else_does(monkeypatch):
    """The gradient on the logits, caught on its way back: A r (p - onehot) / temperature * weight where the clip is not in
    force, and exactly 0 beyond a row's length. There are logits for T response tokens and for none of the prompt's."""
    caught = []

    @jax.custom_vjp
    def tap(z):
        return z

    def back(_, g):
        jax.debug.callback(lambda g: caught.append(np.asarray(g)), g)
        return (g,)

    tap.defvjp(lambda z: (z, None), back)

    def dense_stats(hidden, head, targets, want, *, chunk, temperature, softcap):
        z = tap(logits_of(hidden, head, softcap=softcap)) / temperature
        picked = jnp.take_along_axis(jax.nn.log_softmax(z), targets[..., None], -1)[..., 0]
        return {Stat.LOGPROB: picked}

    monkeypatch.setattr(module, "token_stats", dense_stats)
    got, _ = run(jitted.__wrapped__("grpo", None, 1))
    jax.effects_barrier()
    chex.assert_trees_all_close(got, reference("grpo"), **GRADIENT)  # the tap changes nothing
    rollout, values = batch()
    found, rest = np.zeros((B, T, V), np.float32), np.concatenate(caught).reshape(-1, V)
    assert len(rest) == B * T
    plan = tiny.plan(rollout)
    for i, start in zip(plan.rows[0, 0], plan.start[0, 0], strict=True):
        n = rollout.length[i]
        found[i, :n] = rest[start : start + n]
        rest[start : start + n] = 0
    assert (rest == 0).all()
    logp = tiny.log_softmax(dense_logits(tiny.decoder()[1], rollout))
    onehot = np.eye(V)[rollout.tokens]
    ratio = np.exp((logp * onehot).sum(-1) - values[OLD])
    advantage = np.broadcast_to(advantages(rollout.reward, "grpo", np.zeros(B))[:, None], (B, T))
    free = ~np.where(advantage > 0, ratio > 1.2, ratio < 0.8)
    weight = coefficients(np.float64(rollout.mask), "grpo")
    scale = np.where(rollout.mask > 0, weight * advantage * ratio * free, 0) / TEMPERATURE
    np.testing.assert_allclose(found, scale[..., None] * (np.exp(logp) - onehot), rtol=1e-4, atol=1e-7)

    assert (found[rollout.mask == 0] == 0).all()
    last = np.arange(B), rollout.length - 1
    learns = free[last]  # no advantage of this batch is 0
    assert learns.sum() > B / 2
    assert (np.abs(found[last]).max(-1)[learns] > 0).all()


# ---- the first update of a batch ---------------------------------------------------------------------------------

RATIOS = []


@dataclasses.dataclass(frozen=True)
class Watched(Ppo):
    """PPO that lets the logarithms of the ratios be seen."""

    def gain(self, log_ratio, advantage, stats):
        jax.debug.callback(lambda x: RATIOS.append(np.asarray(x)), log_ratio)
        return super().gain(log_ratio, advantage, stats)


@functools.cache
def watched():
    objective = dataclasses.replace(preset("grpo"), clip=Watched())
    update = make_update(objective, FORWARD, tiny.keep_gradient(), part_of(2), 2)
    return tuple(jax.jit(f, compiler_options=tiny.QUICK) for f in (make_credit(objective, SPEC), update))


def log_ratios(values):
    RATIOS.clear()
    _, metrics = run(watched(), values=values, minibatches=2)
    jax.effects_barrier()
    return np.concatenate(RATIOS), metrics


def test_where_the_new_policy_is_the_old_one_the_ratio_is_exactly_one():
    found, metrics = log_ratios({SAMPLER: batch()[1][SAMPLER]})
    assert found.shape == (B // 2, T) and (found == 0).all()
    assert metrics["policy/kl_old"] == metrics["policy/clip_fraction"] == 0.0
    assert abs(metrics["policy/kl_sampler"]) < 1e-8  # a gap of 1e-6 nats, squared


def test_against_recomputed_log_probabilities_the_first_ratio_is_one_to_rounding():
    old = score(micro=4)
    found, metrics = log_ratios({OLD: old[OLD]})
    assert np.abs(found).max() < 1e-5
    assert abs(metrics["policy/kl_old"]) < 1e-8 and metrics["policy/clip_fraction"] == 0.0


# ---- scoring -----------------------------------------------------------------------------------------------------


def score(micro, mesh=None, want=(Stat.LOGPROB, Stat.ENTROPY)):
    function = jax.jit(make_score(FORWARD, Pass.OLD, set(want)), compiler_options=tiny.QUICK)
    params, rollout = tiny.decoder()[1], batch()[0]
    if mesh is None:
        return jax.device_get(function(params, rollout, tiny.plan(rollout, micro=micro)))
    mesh = make_mesh(*mesh)
    plan = tiny.plan(rollout, micro=micro, shards=batch_shards(mesh))
    with jax.set_mesh(mesh):
        return jax.device_get(
            function(tiny.on_mesh(params, mesh), jax.device_put(rollout, row_sharding(mesh)), plan)
        )


@pytest.mark.parametrize("micro, mesh", [(1, None), (16, None), (4, (8, 1, 1))])
def test_scores_are_the_dense_ones_in_the_order_of_the_batch(micro, mesh):
    rollout = batch()[0]
    found = score(micro, mesh)
    logp = tiny.log_softmax(dense_logits(tiny.decoder()[1], rollout))
    want = {
        Stat.LOGPROB: np.take_along_axis(logp, rollout.tokens[..., None], -1)[..., 0],
        Stat.ENTROPY: -(np.exp(logp) * logp).sum(-1),
    }
    for stat, values in want.items():
        # Two float32 forwards whose sums run in other orders: as between sampler and scorer.
        got = np.where(rollout.mask > 0, found[Pass.OLD, stat], values)
        np.testing.assert_allclose(got, values, rtol=0, atol=1e-5)
        assert (found[Pass.OLD, stat][rollout.mask == 0] == 0).all()
