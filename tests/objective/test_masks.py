"""Masks against loops over their definitions."""

import dataclasses
import re

import jax.numpy as jnp
import numpy as np
import pytest
from toys import SPEC, B, T, batch, context

from rlvr_jax.objective import Objective, chain
from rlvr_jax.objective.masks import DropTruncated, DropUniformGroups
from rlvr_jax.objective.rewards import Overlong
from rlvr_jax.registry import build
from rlvr_jax.types import BatchSpec


def test_drop_truncated_matches_a_loop():
    rollout, stats = batch()
    got = np.asarray(DropTruncated().transform(rollout.mask, context(rollout, stats)))
    assert 0 < rollout.truncated.sum() < B
    for i in range(B):
        for t in range(T):
            assert got[i, t] == (0 if rollout.truncated[i] else rollout.mask[i, t])


@pytest.mark.parametrize("seed", range(4))
def test_drop_uniform_groups_matches_a_loop(seed):
    correct = np.random.default_rng(seed).integers(0, 2, B)
    correct[4:8] = seed % 2
    rollout, stats = batch(reward=correct)
    got = np.asarray(DropUniformGroups().transform(rollout.mask, context(rollout, stats)))
    for first in range(0, B, 4):
        right = sum(correct[first : first + 4])
        for i in range(first, first + 4):
            np.testing.assert_array_equal(got[i], rollout.mask[i] if 0 < right < 4 else 0 * rollout.mask[i])


def test_an_all_wrong_group_is_dropped_although_its_shaped_rewards_differ():
    """Filtering on the shaped reward keeps all-wrong groups of unequal lengths, and the policy collapses to short answers."""
    mask = np.arange(T) < np.array([1, 2, 3, 5] * 3)[:, None]
    rollout, stats = batch(reward=[0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 0, 1], mask=mask)
    objective = Objective(reward=chain(Overlong(max_length=T, buffer=T - 1)), mask=chain(DropUniformGroups()))
    credit, _, metrics = objective.credit(rollout, stats, SPEC, objective.init(SPEC))
    assert not credit.mask[:8].any() and not credit.advantage[:8].any()
    np.testing.assert_array_equal(credit.mask[8:], rollout.mask[8:])
    assert metrics["mask/kept"].total == rollout.mask[8:].sum()
    assert metrics["mask/kept"].count == rollout.mask.sum()


def test_dropped_rows_still_count_in_the_statistics_of_their_group():
    rollout, stats = batch(reward=[1, 0, 0, 0] * 3)
    rollout = dataclasses.replace(rollout, truncated=jnp.arange(B) % 4 == 3)
    plain, dropping = Objective(), Objective(mask=chain(DropTruncated()))
    kept = ~np.asarray(rollout.truncated)
    a, b = (o.credit(rollout, stats, SPEC, o.init(SPEC))[0].advantage for o in (plain, dropping))
    np.testing.assert_array_equal(a[kept], b[kept])
    assert not b[~kept].any()


def test_groups_of_one_are_refused_because_all_of_them_are_uniform():
    text = (
        "mask 'drop_uniform_groups' keeps groups with right and wrong responses, and group_size=1 has none: nothing would "
        "be trained. Set batch.group_size to 2 or more."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        DropUniformGroups().check(BatchSpec(groups=4, group_size=1, length=5, num_prompts=4))


def test_a_rejected_response_does_not_make_a_uniform_group_mixed():
    """Three right answers and a rejected one are all right, whatever the rejected row's verdict was."""
    mask = np.ones((B, T))
    mask[[3, 7]] = 0
    rollout, stats = batch(reward=[1, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1], mask=mask)
    got = np.asarray(DropUniformGroups().transform(rollout.mask, context(rollout, stats)))
    assert not got[:4].any()
    np.testing.assert_array_equal(got[4:], mask[4:])


@pytest.mark.parametrize("stage", ["virtual", "virtual_official"])
def test_a_filter_and_a_stage_that_lives_off_uniform_groups_are_not_composed(stage):
    text = (
        f"advantage '{stage}' learns from groups whose answers are all right or all wrong, and mask "
        "'drop_uniform_groups' leaves them out: take one of the two."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        Objective(advantage=chain(build("advantage", stage)), mask=chain(DropUniformGroups()))
