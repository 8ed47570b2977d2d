"""Advantages against loops over the papers' equations, in float64."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import SPEC, batch, context

from rlvr_jax.objective import Objective, chain
from rlvr_jax.objective.advantages import (
    Batch,
    Center,
    Focal,
    Group,
    LeaveOneOut,
    batch_normalize,
    focal_weight,
    group_center,
    group_normalize,
    leave_one_out,
)
from rlvr_jax.objective.presets import from_config
from rlvr_jax.sharding import make_mesh, row_sharding
from rlvr_jax.types import BatchSpec

REWARDS = np.random.default_rng(0).normal(size=24).astype(np.float32)
TWO = BatchSpec(groups=2, group_size=2, length=5, num_prompts=4)
CLOSE = {"rtol": 2e-5, "atol": 1e-6}
"""Differences of float32 rewards of order 1 (an ulp is 6e-8 to 1e-7), divided by deviations not far below 1."""


def groups(rewards, size):
    return [[float(r) for r in rewards[i : i + size]] for i in range(0, len(rewards), size)]


def slow_group(rewards, size, epsilon, ddof):
    out = []
    for group in groups(rewards, size):
        mean = sum(group) / size
        std = (sum((r - mean) ** 2 for r in group) / (size - ddof)) ** 0.5
        out += [(r - mean) / (std + epsilon) for r in group]
    return out


def slow_center(rewards, size):
    return [r - sum(group) / size for group in groups(rewards, size) for r in group]


def slow_leave_one_out(rewards, size):
    out = []
    for group in groups(rewards, size):
        for i, r in enumerate(group):
            others = [other for j, other in enumerate(group) if j != i]
            out.append(r - sum(others) / len(others))
    return out


def slow_focal(correct, size, gamma):
    return [(1 - sum(group) / size) ** gamma for group in groups(correct, size) for _ in group]


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("epsilon", [1e-6, 0.1])
def test_group_matches_the_paper(size, ddof, epsilon):
    got = group_normalize(jnp.asarray(REWARDS), size, epsilon=epsilon, ddof=ddof)
    np.testing.assert_allclose(got, slow_group(REWARDS, size, epsilon, ddof), **CLOSE)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_center_and_leave_one_out_match_the_papers(size):
    np.testing.assert_allclose(group_center(jnp.asarray(REWARDS), size), slow_center(REWARDS, size), **CLOSE)
    got = leave_one_out(jnp.asarray(REWARDS), size)
    np.testing.assert_allclose(got, slow_leave_one_out(REWARDS, size), **CLOSE)


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_focal_weight_matches_the_paper(size, gamma):
    correct = (REWARDS > 0.2).astype(np.float32)
    got = jax.jit(focal_weight, static_argnums=(1, 2))(jnp.asarray(correct), size, gamma)
    np.testing.assert_allclose(got, slow_focal(correct, size, gamma), rtol=1e-5, atol=1e-7)


def test_by_hand():
    """One right answer of four: mean 1/4, sample deviation 1/2, population deviation sqrt(3)/4."""
    one = jnp.asarray([1.0, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(group_normalize(one, 4, epsilon=0.0), [1.5, -0.5, -0.5, -0.5], rtol=1e-6)
    population = np.array([3, -1, -1, -1]) / 3**0.5
    np.testing.assert_allclose(group_normalize(one, 4, epsilon=0.0, ddof=0), population, rtol=1e-6)
    np.testing.assert_allclose(group_center(one, 4), [0.75, -0.25, -0.25, -0.25])
    np.testing.assert_allclose(leave_one_out(one, 4), [1, -1 / 3, -1 / 3, -1 / 3], rtol=1e-6)
    np.testing.assert_allclose(focal_weight(one, 4, 2.0), [0.5625] * 4)


@pytest.mark.parametrize("size", [*range(2, 34), 41, 47, 55, 61, 83, 97])
def test_equal_rewards_give_exactly_zero_and_a_solved_group_has_no_weight(size):
    """Under jit the mean of G ones may be G * float32(1 / G), which is 1.0000001 for G = 3 and 0.99999994 for 41: no
    deviation and no root may notice."""

    @jax.jit
    def advantages(rewards, correct):
        return group_normalize(rewards, size), leave_one_out(rewards, size), focal_weight(correct, size, 0.5)

    for value in (0.95, 0.1, 1 / 3, 1e8, -1.0):
        found = advantages(np.full(2 * size, value, np.float32), np.ones(2 * size, np.float32))
        assert not np.any(found)


def test_nearly_equal_rewards_stay_bounded():
    """|A| <= (G - 1) / sqrt(G) for a sample deviation, reached by one outlier; a one-pass variance gave -2075 here."""
    outliers = [[0.0] + [0.95] * 7, [0.35] * 7 + [1.0], [0.95] * 7 + [0.9500001]]
    rng = np.random.default_rng(0)
    noisy = 0.95 + 1e-6 * rng.integers(0, 3, (500, 8))
    rewards = np.concatenate([outliers, noisy]).astype(np.float32)
    got = np.asarray(group_normalize(jnp.asarray(rewards.ravel()), 8)).reshape(-1, 8)
    bound = 7 / 8**0.5
    assert (np.abs(got) <= bound * (1 + 1e-5)).all()
    np.testing.assert_allclose(np.abs(got[:2]).max(1), bound, rtol=1e-5)
    np.testing.assert_allclose(np.abs(leave_one_out(jnp.asarray(rewards[0]), 8)).max(), 0.95, rtol=1e-6)


def test_statistics_are_those_of_the_group_and_not_of_the_batch():
    """A second group with other mean and scale: the batch's statistics would give every member of a group one sign."""
    rewards = jnp.asarray([0.0, 1.0, 0.0, 1.0, 100.0, 110.0, 100.0, 110.0])
    a = 3**0.5 / 2  # deviation of (0, 1, 0, 1) is 1 / sqrt(3)
    np.testing.assert_allclose(group_normalize(rewards, 4, epsilon=0.0), [-a, a, -a, a] * 2, rtol=1e-5)
    np.testing.assert_allclose(group_center(rewards, 4), [-0.5, 0.5, -0.5, 0.5, -5, 5, -5, 5])


def test_a_group_that_straddles_devices_is_still_one_group():
    rows = row_sharding(make_mesh())
    rewards = jnp.asarray(
        np.random.default_rng(1).normal(size=16), jnp.float32
    )  # 2 rows a device, groups of 4
    for function in (group_normalize, group_center, leave_one_out):
        whole = jax.jit(function, static_argnums=1)(rewards, 4)
        split = jax.jit(function, static_argnums=1, in_shardings=rows, out_shardings=rows)(rewards, 4)
        np.testing.assert_allclose(split, whole, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("epsilon", [1e-6, 0.1])
def test_batch_matches_the_paper(epsilon):
    mean = sum(map(float, REWARDS)) / 24
    std = (sum((float(r) - mean) ** 2 for r in REWARDS) / 24) ** 0.5
    expected = [(float(r) - mean) / (std + epsilon) for r in REWARDS]
    np.testing.assert_allclose(batch_normalize(jnp.asarray(REWARDS), epsilon=epsilon), expected, **CLOSE)


@pytest.mark.parametrize("rows", [2, 3, 41, 96])
def test_a_batch_of_equal_rewards_gives_exactly_zero(rows):
    for value in (0.95, 0.1, 1 / 3, 1e8):
        assert not jax.jit(lambda x: batch_normalize(x, epsilon=0.0))(jnp.full(rows, value)).any()


def test_the_groups_mean_and_the_batchs_deviation_are_not_swapped():
    """Groups (0, 2) and (10, 16): means 1 and 13, deviations of the centred batch sqrt((1 + 1 + 9 + 9) / 4) = sqrt 5."""
    rollout, stats = batch(spec=TWO, reward=[0.0, 2.0, 10.0, 16.0])
    ctx = context(rollout, stats, TWO)

    def advantage(*names):
        stages = from_config({"advantage": list(names)}).advantage
        return stages.apply(rollout.reward, ctx, stages.init(TWO))[0]

    np.testing.assert_allclose(advantage("center", "batch"), np.array([-1, 1, -3, 3]) / 5**0.5, rtol=1e-5)
    np.testing.assert_allclose(advantage("group"), np.array([-1, 1, -1, 1]) / 2**0.5, rtol=1e-5)
    # The whole batch alone: mean 7, deviation sqrt((49 + 25 + 9 + 81) / 4) = sqrt 41.
    np.testing.assert_allclose(advantage("batch"), np.array([-7, -5, 3, 9]) / 41**0.5, rtol=1e-5)


def test_the_batch_is_that_of_all_devices():
    """Each of 8 devices holds two rows of one level: its own statistics would give +1 and -1 everywhere."""
    rows = row_sharding(make_mesh())
    rewards = jnp.asarray(np.repeat(np.arange(8.0), 2) + np.tile([-0.1, 0.1], 8), jnp.float32)
    normalize = lambda x: batch_normalize(x, epsilon=1e-6)  # noqa: E731
    split = jax.jit(normalize, in_shardings=rows, out_shardings=rows)(rewards)
    assert len(split.sharding.device_set) == 8
    np.testing.assert_allclose(split, jax.jit(normalize)(rewards), rtol=1e-6, atol=1e-7)
    expected = (np.asarray(rewards, float) - 3.5) / (
        5.25 + 0.01
    ) ** 0.5  # variance (64 - 1) / 12 of 0..7, and 0.1^2
    np.testing.assert_allclose(split, expected, rtol=1e-5)


def test_a_batch_of_groups_of_one_is_normalised_and_one_response_is_refused():
    """REINFORCE++ without a baseline has one response a prompt."""
    spec = BatchSpec(groups=4, group_size=1, length=5, num_prompts=4)
    objective = Objective(advantage=chain(Batch()))
    objective.check(spec)
    text = (
        "advantage 'batch' compares the responses of a batch, and one response leaves nothing to compare: its advantage "
        "would be 0. Set batch.prompts or batch.group_size to 2 or more."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        objective.check(BatchSpec(groups=1, group_size=1, length=5, num_prompts=4))


def test_zero_gamma_is_the_identity():
    rollout, stats = batch(reward=[0, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0])
    x = jnp.asarray(REWARDS[:12])
    np.testing.assert_array_equal(Focal(0.0).transform(x, context(rollout, stats)), x)


def test_focal_counts_correctness_and_not_the_shaped_reward():
    """Right answers whose reward was shaped down still count as right."""
    rollout, stats = batch(reward=[1, 1, 1, 0] * 3)
    shaped = context(rollout, stats)
    shaped = type(shaped)(rollout, shaped.stats, SPEC, rollout.reward - 0.7, rollout.mask)
    np.testing.assert_allclose(Focal(1.0).transform(jnp.ones(12), shaped), 0.25)


def test_a_rare_success_keeps_more_of_its_advantage_than_a_common_one():
    rare, common = jnp.asarray([1.0, 0, 0, 0, 0, 0, 0, 0]), jnp.asarray([1.0, 1, 1, 1, 1, 1, 1, 0])
    assert focal_weight(rare, 8, 1.0)[0] == 0.875 and focal_weight(common, 8, 1.0)[0] == 0.125


@pytest.mark.parametrize(
    "function", [group_normalize, group_center, leave_one_out, lambda r, g: focal_weight(r, g, 0.5)]
)
def test_gradients_are_finite_where_a_group_is_uniform(function):
    gradient = jax.grad(lambda r: (function(r, 4) * jnp.arange(8.0)).sum())(
        jnp.asarray([1.0] * 4 + [0, 1, 0, 0])
    )
    assert np.isfinite(gradient).all()


def test_functions_go_through_vmap():
    stacked = jnp.asarray(REWARDS.reshape(3, 8))
    for function in (group_normalize, group_center, leave_one_out):
        each = jnp.stack([function(row, 4) for row in stacked])
        np.testing.assert_allclose(jax.vmap(lambda r, f=function: f(r, 4))(stacked), each, **CLOSE)


@pytest.mark.parametrize("stage", [Group(), Center(), LeaveOneOut()])
def test_a_group_of_one_is_refused_before_anything_runs(stage):
    text = (
        f"advantage {stage.name!r} compares the responses of a group, and group_size=1 leaves nothing to compare: every "
        "advantage would be 0. Set batch.group_size to 2 or more."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        Objective(advantage=chain(stage, Focal())).check(
            BatchSpec(groups=4, group_size=1, length=5, num_prompts=4)
        )


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: Group(ddof=2), "ddof is 0 (population) or 1 (sample standard deviation), got 2."),
        (lambda: Group(epsilon=-1e-6), "epsilon is added to a standard deviation and is >= 0, got -1e-06."),
        (lambda: Batch(epsilon=-1.0), "epsilon is added to a standard deviation and is >= 0, got -1.0."),
        (lambda: Focal(-0.5), "focal gamma is an exponent >= 0 (0 turns it off), got -0.5."),
        (lambda: Focal(float("nan")), "focal gamma is an exponent >= 0 (0 turns it off), got nan."),
        (
            lambda: leave_one_out(jnp.ones(4), 1),
            "leave_one_out needs another response in the group, got group_size=1.",
        ),
        (
            lambda: group_normalize(jnp.ones(4), 1),
            "a standard deviation with ddof=1 needs groups of more than 1, got 1.",
        ),
        (lambda: group_center(jnp.ones(10), 4), "10 rows are no whole number of groups of 4."),
    ],
)
def test_errors(make, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        make()
