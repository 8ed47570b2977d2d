"""What goes wrong with groups elsewhere: merged by prompt, cut by devices, blown up by a deviation of almost nothing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import batch, context

from rlvr_jax import registry
from rlvr_jax.objective import chain
from rlvr_jax.objective.advantages import batch_normalize, group_normalize, smooth_standardize
from rlvr_jax.objective.base import Context
from rlvr_jax.sharding import make_mesh, row_sharding
from rlvr_jax.types import BatchSpec

SPEC = BatchSpec(groups=4, group_size=4, length=5, num_prompts=9)
"""On 8 devices each group lies on two."""
STAGES = [
    (slot, name)
    for slot in ("mask", "advantage", "response_weight", "token_weight")
    for name in registry.names(slot)
]
every_stage = pytest.mark.parametrize("slot, name", STAGES, ids=[f"{s}-{n}" for s, n in STAGES])


def given(seed=0):
    """Rewards of which some groups are uniform, and a rejected row in one group."""
    reward = np.array([1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1], np.float32)
    rollout, stats = batch(seed, spec=SPEC, reward=reward)
    return dataclasses.replace(rollout, mask=rollout.mask.at[13].set(0)), stats


def run(slot, name):
    """(rollout, stats) -> what a stage makes of them, its state and its metrics."""
    part = registry.build(slot, name)

    def apply(rollout, stats):
        ctx = context(rollout, stats.view(part.needs, name), SPEC)
        signed = jnp.broadcast_to(rollout.reward[:, None] - 0.3, rollout.mask.shape)
        start = {"mask": rollout.mask, "token_weight": signed}.get(slot, rollout.reward - 0.3)
        return part.apply(start, ctx, part.init(SPEC))

    return jax.jit(apply)


@every_stage
def test_groups_are_the_same_on_eight_devices(slot, name):
    """Also a group that lies on two of them, and whole batches of statistics."""
    one, many = (
        run(slot, name)(*given()),
        run(slot, name)(*jax.device_put(given(), row_sharding(make_mesh()))),
    )
    # Sums of up to 80 numbers of order 1 in another order.
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6), one, many)


@pytest.mark.parametrize(
    "slot, name", [case for case in STAGES if case[1] != "smooth"]
)  # it has state by prompt
def test_a_prompt_that_stands_twice_in_a_batch_is_two_groups(slot, name):
    """Groups are consecutive rows: what a row's prompt is called has no influence."""
    rollout, stats = given()
    same = dataclasses.replace(rollout, prompt_id=jnp.full_like(rollout.prompt_id, 3))
    mixed = dataclasses.replace(rollout, prompt_id=jnp.arange(SPEC.rows, dtype=jnp.int32) % 3)
    expected = run(slot, name)(rollout, stats)
    for other in (same, mixed):
        jax.tree.map(np.testing.assert_array_equal, run(slot, name)(other, stats), expected)


def test_two_visits_to_a_prompt_in_one_batch_have_their_own_means():
    """The first group of a prompt knows nothing of the second; the second adds to the moments, not to the group."""
    rollout, stats = given()
    twice = dataclasses.replace(rollout, prompt_id=jnp.repeat(jnp.asarray([3, 3, 5, 0], jnp.int32), 4))
    once = dataclasses.replace(rollout, prompt_id=jnp.repeat(jnp.asarray([3, 4, 5, 0], jnp.int32), 4))
    a, b = (run("advantage", "smooth")(r, stats) for r in (twice, once))
    np.testing.assert_array_equal(np.delete(a[0], range(4, 8)), np.delete(b[0], range(4, 8)))
    assert a[1][3, 0] == 2 and b[1][3, 0] == b[1][4, 0] == 1


NEARLY_EQUAL = np.array(
    [[0.0] + [0.95] * 7, [0.35] * 7 + [1.0], [0.95] * 7 + [0.9500001], [0.95] * 8], np.float32
)


@pytest.mark.parametrize("name", registry.names("advantage"))
def test_no_advantage_grows_with_a_deviation_of_almost_nothing(name):
    """No number of n is more than sqrt(n - 1) population deviations from their mean, and (n - 1) / sqrt(n) sample ones."""
    spec = BatchSpec(groups=4, group_size=8, length=5, num_prompts=9)
    stage = registry.build("advantage", name)
    rollout, stats = batch(spec=spec, reward=NEARLY_EQUAL.ravel())
    ctx = Context(rollout, stats.view(frozenset(), name), spec, rollout.reward, rollout.mask)
    advantage = jax.jit(lambda x: stage.apply(x, ctx, stage.init(spec))[0])(rollout.reward)
    size = spec.rows if name == "batch" else spec.group_size
    assert np.abs(advantage).max() <= (size - 1) ** 0.5 * (1 + 1e-5)
    if name not in ("batch", "focal"):  # which compare with other groups, or with nothing
        assert not advantage[-8:].any()


def test_a_deviation_of_almost_nothing_is_still_exact():
    """Rewards around 0.95 that differ by a few ulp, with epsilon 0, against float64. The mean of squares less the square
    of the mean is noise of 1e-7 there, and would be a deviation of 3e-4 or of nothing where that of 1e-6 is right."""
    noise = 1e-6 * np.random.default_rng(0).integers(0, 3, (40, 8))
    rewards = np.concatenate([NEARLY_EQUAL[:3], (0.95 + noise).astype(np.float32)])
    r = rewards.astype(float)
    centred = r - r.mean(1, keepdims=True)
    x, valid = jnp.asarray(rewards.ravel()), jnp.ones(rewards.size, bool)
    sample, population = (centred / r.std(1, ddof=d, keepdims=True) for d in (1, 0))
    for given in (None, valid):
        # Differences of neighbours are exact in float32; their mean is rounded to 1e-7 of them.
        close = {"rtol": 1e-5, "atol": 1e-6}
        got = group_normalize(x, 8, epsilon=0.0, valid=given)
        np.testing.assert_allclose(got, sample.ravel(), **close)
        smooth, _ = smooth_standardize(x, 8, jnp.zeros((43, 3)), epsilon=0.0, valid=given)
        np.testing.assert_allclose(smooth, population.ravel(), **close)
        near = slice(3 * 8, None)
        one = batch_normalize(x[near], epsilon=0.0, valid=None if given is None else given[near])
        np.testing.assert_allclose(one, ((r[3:] - r[3:].mean()) / r[3:].std()).ravel(), **close)


def test_one_denominator_is_the_groups_and_the_other_the_batchs():
    """Rewards of group 1 times ten: ten times its share of the batch's deviation, and nothing new for its own."""
    rewards = np.array([0, 1, 0, 1, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 0, 0], np.float32)
    scaled = np.where(np.arange(16) // 4 == 1, 10 * rewards, rewards).astype(np.float32)

    def advantage(reward, *names):
        rollout, stats = batch(spec=SPEC, reward=reward)
        stages = chain(*(registry.build("advantage", n) for n in names))
        return np.asarray(stages.apply(rollout.reward, context(rollout, stats, SPEC), stages.init(SPEC))[0])

    # epsilon is 1e-6 of deviations around 0.5, and one of them is ten times as large
    np.testing.assert_allclose(advantage(scaled, "group"), advantage(rewards, "group"), rtol=1e-5, atol=1e-6)
    before, after = (advantage(r, "center", "batch") for r in (rewards, scaled))
    groups = rewards.reshape(4, 4)
    one, ten = ((g - g.mean(1, keepdims=True)).std() for g in (groups, scaled.reshape(4, 4)))
    np.testing.assert_allclose(after[4:8], 10 * before[4:8] * one / ten, rtol=1e-5)
    np.testing.assert_allclose(
        np.delete(after, range(4, 8)), np.delete(before, range(4, 8)) * one / ten, rtol=1e-5
    )
