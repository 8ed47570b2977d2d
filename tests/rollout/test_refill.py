"""Batches that are filled up: shapes stay, kept groups come first, what is over waits and comes back as it was."""

import dataclasses

import numpy as np
import pytest

from rlvr_jax.objective.masks import DropUniformGroups
from rlvr_jax.rollout.collect import Collected
from rlvr_jax.rollout.refill import Groups, Refill
from rlvr_jax.types import Rollout

P, G, T = 4, 3, 2


def round_of(right, first_id=0, width=5, rejected=()):
    """A round of len(right) groups, the first right[p] of whose G answers are right; ids count up, so groups can be told."""
    rows = len(right) * G
    correct = np.concatenate([np.arange(G) < n for n in right]).astype(np.float32)
    ids = np.repeat(np.arange(first_id, first_id + len(right)), G).astype(np.int32)
    mask = np.ones((rows, T), np.float32)
    mask[list(rejected)] = 0
    rollout = Rollout(
        prompt=np.repeat(ids[:, None] + 1, width, axis=1),
        prompt_length=np.full(rows, width, np.int32),
        tokens=np.arange(rows * T, dtype=np.int32).reshape(rows, T) + 100 * first_id,
        length=np.full(rows, T, np.int32),
        mask=mask,
        reward=correct - 0.25 * (np.arange(rows) % G),  # shaped: differs inside a uniform group
        correct=correct,
        prompt_id=ids,
        truncated=np.zeros(rows, bool),
    )
    return Collected(
        rollout=rollout,
        logprob=-rollout.tokens / 7,
        version=ids // 2,
        completions=(),
        verdicts=(),
        metrics={},
    )


MIXED = (DropUniformGroups(),)


def filled(*rounds, surplus=None, filters=MIXED):
    refill = Refill(filters, P, G, surplus)
    for each in rounds:
        refill.add(each)
    return refill.close()


def ids(groups):
    return groups.rollout.prompt_id[::G].tolist()


def test_without_filters_the_batch_is_the_round_as_it_was_collected():
    found = round_of([0, 3, 1, 2])
    got = filled(found, filters=())
    assert got.kept == P and got.surplus is None and not got.metrics
    for field in dataclasses.fields(Rollout):
        np.testing.assert_array_equal(
            getattr(got.groups.rollout, field.name), getattr(found.rollout, field.name)
        )
    np.testing.assert_array_equal(got.groups.logprob, found.logprob)


def test_groups_are_kept_by_raw_correctness_and_the_surplus_is_what_came_last():
    got = filled(round_of([0, 1, 3, 2]), round_of([1, 1, 0, 2], first_id=10))
    assert ids(got.groups) == [1, 3, 10, 11] and got.kept == P
    assert ids(got.surplus) == [13]
    shares = {name: mean.value() for name, mean in got.metrics.items()}
    assert shares == {
        "groups/kept": 1.0,
        "groups/from_last_step": 0.0,
        "groups/left_over": 0.25,
        "groups/rounds": 2.0,
    }


def test_rows_stay_together_with_their_log_probabilities():
    rounds = round_of([0, 1, 3, 2]), round_of([1, 1, 0, 2], first_id=10)
    got = filled(*rounds).groups
    where = {r.rollout.prompt_id[i]: (r, i) for r in rounds for i in range(0, P * G, G)}
    for row in range(0, P * G, G):
        found, at = where[got.rollout.prompt_id[row]]
        np.testing.assert_array_equal(got.rollout.tokens[row : row + G], found.rollout.tokens[at : at + G])
        np.testing.assert_array_equal(got.logprob[row : row + G], found.logprob[at : at + G])


def test_groups_that_are_left_out_fill_the_rest_where_rounds_end():
    got = filled(round_of([0, 0, 3, 3]), round_of([0, 1, 3, 0], first_id=10))
    assert got.kept == 1 and got.surplus is None
    assert ids(got.groups) == [11, 10, 12, 13]
    assert len(got.groups) == P * G
    assert got.metrics["groups/kept"].value() == 0.25


def test_the_surplus_of_one_step_comes_first_in_the_next():
    first = filled(round_of([1, 1, 1, 0]), round_of([1, 1, 1, 1], first_id=10))
    assert ids(first.surplus) == [11, 12, 13]
    second = filled(round_of([3, 2, 0, 2], first_id=20), surplus=first.surplus)
    assert ids(second.groups) == [11, 12, 13, 21] and ids(second.surplus) == [23]
    assert second.metrics["groups/from_last_step"].value() == 0.75


def test_a_batch_is_full_when_it_has_as_many_kept_groups_as_a_step_trains_on():
    refill = Refill(MIXED, P, G)
    for kept in (2, 4):
        refill.add(round_of([1, 0, 1, 3]))
        assert refill.count == kept and refill.full is (kept == P)
    assert refill.rounds == 2


def test_a_rejected_answer_does_not_keep_its_group():
    """Two right answers and a rejected wrong one are all right."""
    got = filled(round_of([2, 2, 0, 3], rejected=[2]))
    assert got.kept == 1 and ids(got.groups)[0] == 1


@pytest.mark.parametrize("widths", [(5, 8), (8, 5)])
def test_prompts_of_two_buckets_get_the_wider_one(widths):
    got = filled(round_of([0, 1, 3, 2], width=widths[0]), round_of([1, 1, 0, 2], 10, widths[1])).groups
    assert got.rollout.prompt.shape == (P * G, 8)
    for row, length, identity in zip(
        got.rollout.prompt, got.rollout.prompt_length, got.rollout.prompt_id, strict=True
    ):
        assert (row[:length] == identity + 1).all() and not row[length:].any()


def test_what_waits_goes_into_a_checkpoint_and_comes_back():
    surplus = filled(round_of([1, 1, 1, 0]), round_of([1, 1, 1, 1], first_id=10)).surplus
    back = Groups.from_arrays(surplus.as_arrays())
    for name, value in surplus.as_arrays().items():
        got = back.as_arrays()[name]
        assert got.dtype == value.dtype
        np.testing.assert_array_equal(got, value)
    assert Groups.from_arrays({}) is None
