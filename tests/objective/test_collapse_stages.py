"""AVSPO and DCPO's advantages against loops over their equations, and the states that they keep."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import SPEC, B, G, batch, context

from rlvr_jax.analysis import advantage_collapse_rate
from rlvr_jax.objective.advantages import (
    Smooth,
    adaptive_threshold,
    group_normalize,
    official_virtual_normalize,
    smooth_standardize,
    virtual_normalize,
)
from rlvr_jax.objective.virtual import Virtual, VirtualOfficial

CLOSE = {"rtol": 2e-5, "atol": 1e-6}
"""Float32 rewards of order 1 divided by standard deviations not far below 1."""


def moments(values, ddof=0):
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - ddof))


def slow_virtual(rewards, size, count, r_max, anchor, epsilon):
    out = []
    for first in range(0, len(rewards), size):
        group = [float(r) for r in rewards[first : first + size]]
        if max(group) == min(group) and count:
            if group[0] == r_max:
                virtual = [r_max * (1 - k / (count + 1)) for k in range(1, count + 1)]
            else:
                virtual = [anchor * (count - k + 1) / count for k in range(1, count + 1)]
            mean, std = moments(group + virtual)
        else:
            mean, std = moments(group, ddof=1)
        out += [(r - mean) / (std + epsilon) for r in group]
    return out


REWARDS = np.array([1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 0, 1], np.float32)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("scale, anchor", [(1.0, 0.1), (3.0, 0.5)])
def test_virtual_rewards_match_a_loop(count, scale, anchor):
    run = jax.jit(lambda r, k: virtual_normalize(r, 4, k, r_max=scale, anchor=anchor, epsilon=1e-4))
    got = run(jnp.asarray(REWARDS * scale), jnp.asarray(count))
    np.testing.assert_allclose(got, slow_virtual(REWARDS * scale, 4, count, scale, anchor, 1e-4), **CLOSE)


@pytest.mark.parametrize(
    "size, count, value", [(8, 1, 0.3536), (8, 4, 0.6202), (8, 7, 0.7718), (8, 8, 0.8115), (4, 2, 0.6547)]
)
@pytest.mark.parametrize("anchor", [0.01, 0.1, 0.9])
def test_virtual_advantages_have_the_closed_form(size, count, value, anchor):
    """sqrt(K) / sqrt(G + (G+K)(K-1)/(3(K+1))): up for right groups, down for wrong ones, whatever the anchor; at most
    sqrt(K/G)."""
    rewards = jnp.repeat(jnp.asarray([1.0, 0.0]), size)
    got = virtual_normalize(rewards, size, count, r_max=1.0, anchor=anchor, epsilon=0.0)
    closed = math.sqrt(count) / math.sqrt(size + (size + count) * (count - 1) / (3 * (count + 1)))
    np.testing.assert_allclose(got, np.repeat([closed, -closed], size), rtol=1e-5)
    np.testing.assert_allclose(closed, value, atol=5e-5)
    assert closed <= math.sqrt(count / size) + 1e-9


def test_without_virtual_rewards_it_is_grpo():
    got = virtual_normalize(jnp.asarray(REWARDS), 4, 0, r_max=1.0)
    np.testing.assert_array_equal(got, group_normalize(jnp.asarray(REWARDS), 4))
    mixed = jnp.asarray(np.random.default_rng(0).integers(0, 2, (6, 4)) | np.eye(6, 4, dtype=int))
    mixed = mixed.at[:, -1].set(0).at[:, 0].set(1).ravel().astype(jnp.float32)
    np.testing.assert_array_equal(virtual_normalize(mixed, 4, 3, r_max=1.0), group_normalize(mixed, 4))


def test_a_collapsed_group_between_right_and_wrong_keeps_zero():
    assert not virtual_normalize(jnp.full(4, 0.5), 4, 3, r_max=1.0).any()


@pytest.mark.parametrize(
    "threshold, rate, change, expected",
    [
        (0.5, 0.8, 1.0, 0.503),
        (0.5, 0.8, -0.2, 0.497),
        (0.5, 0.8, 0.0, 0.5),
        (0.1, 0.9, -1.0, 0.1),
        (0.9, 1.0, 1.0, 0.9),
    ],
)
def test_the_threshold_follows_the_collapse_while_rewards_rise(threshold, rate, change, expected):
    got = adaptive_threshold(*map(jnp.asarray, (threshold, rate, change)))
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_avspo_over_several_batches_matches_a_loop():
    """Trigger, K from the collapse rate, and the threshold that moves afterwards."""
    stage = Virtual(threshold=0.4, rate=0.2, alpha=2.0)
    state, threshold, last = stage.init(SPEC), 0.4, None
    apply = jax.jit(lambda r, s: stage.apply(r, ctx, s))
    seen = set()
    batches = [
        REWARDS,
        REWARDS * 0,
        np.repeat([1, 0, 1], 4),
        np.tile([1, 0], 6),
        REWARDS,
        np.repeat([0, 0, 1], 4),
    ]
    for rewards in batches:
        rollout, stats = batch(reward=rewards)
        ctx = context(rollout, stats)
        got, state, metrics = apply(rollout.reward, state)
        collapse = float(advantage_collapse_rate(rollout.reward, G))
        count = max(1, min(G, math.ceil(round(G * collapse**2, 6)))) if collapse > threshold else 0
        np.testing.assert_allclose(got, slow_virtual(rewards, G, count, 1.0, 0.1, 1e-6), **CLOSE)
        np.testing.assert_allclose(metrics["threshold"].value(), threshold, rtol=1e-5)
        np.testing.assert_allclose(metrics["acr_before_virtual"].value(), collapse, rtol=1e-6)
        np.testing.assert_allclose(metrics["acr_after_virtual"].value(), 0 if count else collapse, rtol=1e-6)
        assert metrics["virtual_rewards"].value() == count
        seen.add(count)
        sign = 0 if last is None else np.sign(float(np.mean(rewards)) - last)
        threshold = min(max(threshold + 0.2 * sign * (collapse - threshold), 0.1), 0.9)
        np.testing.assert_allclose(state["threshold"], threshold, rtol=1e-5)
        last = float(np.mean(rewards))
    assert state["batches"] == len(batches) and seen == {0, 2, 4}


@pytest.mark.parametrize("size", [4, 16, 64, 256])
def test_the_number_of_virtual_rewards_is_not_rounded_up(size):
    """G * 0.25^0.5 = G / 2 exactly, whatever float32 makes of the power."""
    spec = dataclasses.replace(SPEC, groups=4, group_size=size)
    rewards = np.zeros((4, size), np.float32)
    rewards[1:, 0] = 1
    rollout, stats = batch(spec=spec, reward=rewards.ravel())
    stage = Virtual(threshold=0.1)
    metrics = stage.apply(rollout.reward, context(rollout, stats, spec), stage.init(spec))[2]
    assert metrics["virtual_rewards"].value() == size // 2


@pytest.mark.parametrize("size, value", [(8, 0.33323), (4, 0.44711)])
def test_the_official_rule_gives_what_was_measured(size, value):
    """One virtual reward of 1 (or 0) beside G zeros (or ones): torch's std over G + 1, epsilon 1e-4."""
    for reward, sign in ((0.0, -1), (1.0, 1)):
        got = official_virtual_normalize(jnp.full(2 * size, reward), size)
        mean, std = moments([reward] * size + [1 - reward], ddof=1)
        np.testing.assert_allclose(got, (reward - mean) / (std + 1e-4), rtol=1e-5)
        np.testing.assert_allclose(got, sign * value, atol=1e-4)


def test_the_official_rule_wants_the_whole_batch_alike():
    for rewards in (REWARDS, np.repeat([0, 0, 1], 4).astype(np.float32), np.full(12, 0.5, np.float32)):
        got = official_virtual_normalize(jnp.asarray(rewards), 4)
        np.testing.assert_array_equal(got, group_normalize(jnp.asarray(rewards), 4, epsilon=1e-4))
    rollout, stats = batch(reward=0.0)
    metrics = VirtualOfficial().apply(rollout.reward, context(rollout, stats), ())[2]
    assert metrics["acr_before_virtual"].value() == 1 and metrics["acr_after_virtual"].value() == 0


def slow_smooth(visits, epsilon):
    """Advantages of the last visit, from all rewards that a prompt ever had, pooled by hand."""
    i, new = len(visits), [float(r) for r in visits[-1]]
    pooled = [float(r) for visit in visits for r in visit]
    (mean, std), (mean_all, std_all) = moments(new), moments(pooled)
    out = []
    for r in new:
        a = (r - mean) / (std + epsilon) if std else 0.0
        b = (r - mean_all) / (std_all + epsilon) if std_all else 0.0
        one, two = (i - 1) / i * a + b / i, a / i + (i - 1) / i * b
        out.append(one if abs(one) <= abs(two) else two)
    return out, (i, mean_all, std_all**2)


def test_smooth_standardisation_matches_pooled_rewards():
    """Merged moments are those of all rewards at once; also after visits without any spread."""
    rng = np.random.default_rng(0)
    visits = [rng.integers(0, 2, 8).astype(np.float32) for _ in range(6)]
    visits[1], visits[4] = np.zeros(8, np.float32), np.ones(8, np.float32)
    past = jnp.zeros((1, 3))
    for n in range(len(visits)):
        got, past = smooth_standardize(jnp.asarray(visits[n]), 8, past)
        expected, merged = slow_smooth(visits[: n + 1], 1e-6)
        np.testing.assert_allclose(got, expected, **CLOSE)
        np.testing.assert_allclose(past[0], merged, rtol=1e-5)
    assert np.any(got), "the last-but-one group is all right, and still teaches something"


def test_the_first_visit_is_grpo_with_the_population_deviation():
    rewards = jnp.asarray(np.random.default_rng(0).normal(size=24), jnp.float32)
    got, _ = smooth_standardize(rewards, 4, jnp.zeros((6, 3)))
    np.testing.assert_allclose(got, group_normalize(rewards, 4, ddof=0), **CLOSE)


@pytest.mark.parametrize("reward", [0.0, 0.95, 0.35, 1.0])
def test_rewards_that_never_differ_give_exactly_zero(reward):
    past = jnp.zeros((1, 3))
    for _ in range(7):
        got, past = smooth_standardize(jnp.full(8, reward), 8, past)
        assert not got.any()
        np.testing.assert_array_equal(past[0, 1:], np.array([reward, 0.0], np.float32))


def test_the_stage_keeps_the_moments_of_each_prompt():
    """A prompt that stands twice in a batch is visited twice; others are untouched."""
    stage, visits = Smooth(), {}
    state = stage.init(SPEC)
    rng = np.random.default_rng(0)
    for prompts in ([3, 5, 3], [5, 0, 8], [3, 3, 3]):
        rewards = rng.integers(0, 2, B).astype(np.float32)
        rollout, stats = batch(reward=rewards)
        ids = jnp.asarray(np.repeat(prompts, G), jnp.int32)
        rollout = dataclasses.replace(rollout, prompt_id=ids)
        got, state, metrics = stage.apply(rollout.reward, context(rollout, stats), state)
        for g, prompt in enumerate(prompts):
            mine = slice(g * G, (g + 1) * G)
            visits.setdefault(prompt, []).append(rewards[mine])
            np.testing.assert_allclose(got[mine], slow_smooth(visits[prompt], 1e-6)[0], **CLOSE)
    for prompt in range(SPEC.num_prompts):
        expected = slow_smooth(visits[prompt], 1e-6)[1] if prompt in visits else (0, 0, 0)
        np.testing.assert_allclose(state[prompt], expected, rtol=1e-5, atol=1e-7)
    assert metrics["visits"].value() == 4  # the third, fourth and fifth


SHARES = (
    "virtual threshold is a share of groups with 0 <= low <= threshold <= high <= 1, and rate is in [0, 1]; got low={}, "
    "threshold={}, high={}, rate={}."
)
REST = "virtual needs alpha > 0, epsilon >= 0 and 0 < anchor < r_max, got alpha={}, epsilon={}, anchor={}, r_max={}."
EPSILON = "epsilon is added to a standard deviation and is >= 0, got -1.0."


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: Virtual(threshold=0.95), SHARES.format(0.1, 0.95, 0.9, 0.01)),
        (lambda: Virtual(rate=2.0), SHARES.format(0.1, 0.5, 0.9, 2.0)),
        (lambda: Virtual(alpha=0.0), REST.format(0.0, 1e-6, 0.1, 1.0)),
        (lambda: Virtual(anchor=1.0), REST.format(0.5, 1e-6, 1.0, 1.0)),
        (lambda: VirtualOfficial(epsilon=-1.0), EPSILON),
        (lambda: Smooth(epsilon=-1.0), EPSILON),
    ],
)
def test_errors(make, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        make()


@pytest.mark.parametrize("stage", [Virtual(), VirtualOfficial(), Smooth()])
def test_groups_of_one_are_refused(stage):
    text = (
        f"advantage {stage.name!r} compares the responses of a group, and group_size=1 leaves nothing to compare: every "
        "advantage would be 0. Set batch.group_size to 2 or more."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        stage.check(dataclasses.replace(SPEC, group_size=1))
