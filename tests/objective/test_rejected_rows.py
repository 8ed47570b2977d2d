"""Advantages over the valid rows of each group, against loops that never see the others."""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import SPEC, B, G, batch, context

from rlvr_jax.objective.advantages import (
    Smooth,
    batch_normalize,
    collapsed,
    focal_weight,
    group_center,
    group_normalize,
    leave_one_out,
    official_virtual_normalize,
    smooth_standardize,
    virtual_normalize,
)
from rlvr_jax.objective.response_weights import inverse_occurrence
from rlvr_jax.objective.virtual import Virtual

VALID = np.array([[1, 1, 1, 1], [0, 1, 1, 1], [1, 0, 0, 1], [1, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]], bool)
RANDOM = np.random.default_rng(0).normal(size=VALID.shape).astype(np.float32)
BINARY = np.array(
    [[1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 1], [1, 0, 1, 0], [0, 0, 1, 0], [1, 0, 0, 1]], np.float32
)
"""The second group is all wrong and the third all right but for the rows that do not count."""
CLOSE = {"rtol": 2e-5, "atol": 1e-6}
"""Differences of float32 rewards of order 1 (an ulp is 6e-8 to 1e-7), divided by deviations not far below 1."""


def of_groups(slow, rewards):
    """`slow` of the valid rewards of each group, 0 for the others."""
    out = np.zeros(VALID.shape)
    for j, (row, use) in enumerate(zip(rewards, VALID, strict=True)):
        if use.any():
            out[j, use] = slow(row[use].astype(float))
    return out.ravel()


def slow_group(r):
    return (r - r.mean()) / (r.std(ddof=1) + 1e-6) if len(r) > 1 else 0 * r


def slow_center(r):
    return r - r.mean()


def slow_leave_one_out(r):
    others = [np.delete(r, i) for i in range(len(r))]
    return np.array([x - o.mean() if len(o) else 0.0 for x, o in zip(r, others, strict=True)])


def slow_focal(r):
    return np.full(len(r), (1 - r.mean()) ** 0.5)


def slow_virtual(r, count=3):
    k = np.arange(1, min(count, len(r)) + 1)
    if len(r) < 2 or r.std() > 1e-6:
        return slow_group(r)
    virtual = 1 - k / (len(k) + 1) if r[0] == 1 else 0.1 * (len(k) - k + 1) / len(k)
    both = np.concatenate([r, virtual])
    return (r - both.mean()) / (both.std() + 1e-6)


def slow_inverse(mean):
    weight = np.minimum(1 / (len(mean) * np.exp(mean)), 0.4)
    return weight / weight.mean()


def virtual(x, size, **valid):
    return virtual_normalize(x, size, 3, r_max=1.0, **valid)


def focal(x, size, valid=True):
    """Where no row counts the weight is anything finite."""
    weight = focal_weight(x, size, 0.5, valid=None if valid is True else valid)
    assert np.isfinite(weight).all()
    return jnp.where(valid, weight, 0.0)


def inverse(x, size, valid=True):
    weight = inverse_occurrence(x, size, cap=0.4, normalize=True, valid=None if valid is True else valid)
    return jnp.where(valid, weight, 0.0)


FUNCTIONS = [
    (group_normalize, slow_group, RANDOM),
    (group_center, slow_center, RANDOM),
    (leave_one_out, slow_leave_one_out, RANDOM),
    (focal, slow_focal, BINARY),
    (virtual, slow_virtual, BINARY),
    (inverse, slow_inverse, -np.abs(RANDOM)),
]
each_function = pytest.mark.parametrize(
    "function, slow, rewards", FUNCTIONS, ids=lambda x: getattr(x, "__name__", "")
)


@each_function
@pytest.mark.parametrize("fill", [0.0, 1e6, np.nan, np.inf])
def test_what_is_left_of_a_group_is_the_group(function, slow, rewards, fill):
    filled = jnp.asarray(np.where(VALID, rewards, np.float32(fill)).ravel())
    got = function(filled, 4, valid=jnp.asarray(VALID.ravel()))
    np.testing.assert_allclose(got, of_groups(slow, rewards), **CLOSE)


@each_function
def test_all_rows_count_by_default(function, slow, rewards):
    x = jnp.asarray(rewards.ravel())
    given, default = function(x, 4, valid=jnp.ones(x.shape, bool)), function(x, 4)
    np.testing.assert_allclose(given, default, **CLOSE)


@pytest.mark.parametrize("function", [group_normalize, group_center, leave_one_out, virtual])
def test_the_gradient_does_not_see_what_a_rejected_row_holds(function):
    """Finite next to nan, and 0 with respect to it."""
    valid, weight = jnp.asarray(VALID.ravel()), jnp.arange(24.0)
    for rewards in (RANDOM, BINARY):
        x = jnp.asarray(np.where(VALID, rewards, np.float32(np.nan)).ravel())
        gradient = jax.jit(jax.grad(lambda r: (function(r, 4, valid=valid) * weight).sum()))(x)
        assert np.isfinite(gradient).all() and not np.asarray(gradient)[~VALID.ravel()].any()


@pytest.mark.parametrize("function", [group_normalize, group_center, leave_one_out])
def test_equal_rewards_give_exactly_zero_whatever_the_rejected_ones_are(function):
    for value in (0.95, 0.1, 1 / 3, 1e8):
        x = jnp.asarray(np.where(VALID, np.float32(value), np.float32(7)).ravel())
        assert not jax.jit(lambda r: function(r, 4, valid=jnp.asarray(VALID.ravel())))(x).any()  # noqa: B023


def test_a_batch_is_normalised_over_its_valid_rows():
    x, valid = jnp.where(VALID, RANDOM, np.nan).ravel(), VALID.ravel()
    r = RANDOM.ravel()[valid].astype(float)
    got = batch_normalize(x, epsilon=0.1, valid=jnp.asarray(valid))
    np.testing.assert_allclose(got[valid], (r - r.mean()) / (r.std() + 0.1), **CLOSE)
    assert not got[~valid].any()
    assert not batch_normalize(x, epsilon=0.0, valid=jnp.zeros(24, bool)).any()


@pytest.mark.parametrize("count", [1, 3, 4])
def test_virtual_advantages_of_fewer_rows_stay_within_their_bound(count):
    """sqrt(K / n) <= 1: K is cut to the n rows that a group has."""
    for right in (0.0, 1.0):
        x = jnp.asarray(np.where(VALID, np.float32(right), np.float32(1 - right)).ravel())
        got = virtual_normalize(x, 4, count, r_max=1.0, valid=jnp.asarray(VALID.ravel())).reshape(-1, 4)
        for row, use in zip(np.asarray(got), VALID, strict=True):
            n = use.sum()
            assert (np.abs(row) <= math.sqrt(min(count, n) / max(n, 1)) * (1 + 1e-5)).all()
            assert (np.sign(row[use]) == (np.sign(right - 0.5) if n > 1 else 0)).all()


def test_a_single_row_is_no_collapse():
    """One answer has no spread, whatever the policy is: the group is not counted, and gets no virtual rewards."""
    flat, judged = collapsed(jnp.asarray(BINARY.ravel()), 4, valid=jnp.asarray(VALID.ravel()))
    np.testing.assert_array_equal(flat[:, 0], [True, True, True, False, False, False])
    np.testing.assert_array_equal(judged[:, 0], [True, True, True, True, False, False])


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_the_official_rule_looks_at_valid_rows(right):
    """The whole batch is alike but for what was rejected: one virtual reward beside the n of each group."""
    x = jnp.asarray(np.where(VALID, np.float32(right), np.float32(1 - right)).ravel())
    got = official_virtual_normalize(x, 4, valid=jnp.asarray(VALID.ravel())).reshape(-1, 4)
    for row, use in zip(np.asarray(got), VALID, strict=True):
        both = np.concatenate([np.full(use.sum(), right), [1 - right]])
        expected = (right - both.mean()) / (both.std(ddof=1) + 1e-4) if use.sum() > 1 else 0.0
        np.testing.assert_allclose(row, np.where(use, expected, 0.0), rtol=1e-5)


def test_smooth_moments_are_those_of_valid_rows_and_no_row_is_no_visit():
    past = np.array([[2.0, 0.4, 0.2]] * 6, np.float32)
    x = jnp.asarray(np.where(VALID, BINARY, np.float32(np.nan)).ravel())
    got, moments = smooth_standardize(x, 4, jnp.asarray(past), valid=jnp.asarray(VALID.ravel()))
    for j, use in enumerate(VALID):
        r = BINARY[j, use].astype(float)
        if not len(r):
            np.testing.assert_array_equal(moments[j], past[j])
            assert not got[4 * j : 4 * j + 4].any()
            continue
        visits = [(0.4, 0.2), (0.4, 0.2), (r.mean(), r.var())]  # moments of a visit; visits weigh the same
        mean = np.mean([m for m, _ in visits])
        variance = np.mean([v + (m - mean) ** 2 for m, v in visits])
        new = (r - r.mean()) / (r.std() + 1e-6) if r.std() else 0 * r
        total = (r - mean) / (variance**0.5 + 1e-6)
        one, two = 2 / 3 * new + total / 3, new / 3 + 2 / 3 * total
        expected = np.zeros(4)
        expected[use] = np.where(np.abs(one) <= np.abs(two), one, two)
        np.testing.assert_allclose(got[4 * j : 4 * j + 4], expected, **CLOSE)
        np.testing.assert_allclose(moments[j], [3, mean, variance], rtol=1e-5)


@pytest.mark.parametrize("stage", [Virtual(threshold=0.1), Smooth()])
def test_a_batch_without_a_valid_row_leaves_the_state_as_it_is(stage):
    """Its mean reward is none, so that the next batch's change is not that from 0."""
    rollout, stats = batch(reward=1.0)
    apply = jax.jit(lambda rollout, state: stage.apply(rollout.reward, context(rollout, stats), state))
    _, state, _ = apply(rollout, stage.init(SPEC))
    nothing = dataclasses.replace(rollout, mask=0 * rollout.mask, reward=rollout.reward * np.nan)
    advantage, after, metrics = apply(nothing, state)
    chex.assert_trees_all_equal(after, state)
    assert not advantage.any()
    assert all(np.isfinite(m.total) for m in metrics.values())


def test_avspo_takes_its_collapse_rate_and_mean_reward_from_what_counts():
    """Three groups: all right but for a rejected row, a single row that counts, and a mixed one: ACR 1/2."""
    reward = np.array([1, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0], np.float32)
    mask = np.ones((B, SPEC.length))
    mask[[2, 4, 5, 6]] = 0
    rollout, stats = batch(reward=reward, mask=mask)
    rollout = dataclasses.replace(rollout, reward=jnp.where(mask.any(1), rollout.reward, jnp.nan))
    stage = Virtual(threshold=0.4)
    apply = jax.jit(lambda reward: stage.apply(reward, context(rollout, stats), stage.init(SPEC)))
    got, state, metrics = apply(rollout.reward)
    assert metrics["acr_before_virtual"].value() == 0.5 and metrics["acr_after_virtual"].value() == 0
    count = math.ceil(G * 0.5**0.5)  # 3, which is also what the first group has
    assert metrics["virtual_rewards"].value() == count == 3
    np.testing.assert_allclose(state["reward"], reward[mask.any(1)].mean(), rtol=1e-6)
    np.testing.assert_allclose(got[:4], np.where(mask.any(1)[:4], slow_virtual(np.ones(3), 3)[0], 0), **CLOSE)
    assert not got[4:8].any()
    np.testing.assert_allclose(got[8:], slow_group(reward[8:].astype(float)), **CLOSE)
