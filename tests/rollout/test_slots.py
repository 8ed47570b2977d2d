"""The schedule of decode slots, against a scheduler in plain Python."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.rollout.slots import Board, Layout, occupancy, plan, rows_of, take

SCHEDULES = [
    (8, 4, 4, 1),
    (8, 4, 16, 1),
    (8, 4, 64, 1),
    (16, 4, 8, 8),
    (16, 4, 32, 4),
    (6, 3, 5, 2),
    (5, 7, 6, 1),
    (4, 1, 3, 2),
    (2, 2, 3, 2),
]
"""(prompts, group size, slots asked for, shards); among them groups of 1, of primes, and slots that fit nothing evenly."""

take_jitted = jax.jit(take, static_argnums=1)


def played(layout, length):
    """The row of each slot at each step (-1: free), by a scheduler that knows lists, and no arithmetic."""
    per_shard, blocks = layout.prompts // layout.shards, layout.blocks // layout.shards
    waiting = {p: list(range(layout.group_size)) for p in range(layout.prompts)}
    prompt, at_work = [None] * layout.blocks, [[None] * layout.share for _ in range(layout.blocks)]
    age, steps = np.zeros(len(length), int), []
    while any(waiting.values()) or any(row is not None for slots in at_work for row in slots):
        for block, slots in enumerate(at_work):
            shard = block // blocks
            mine = range(shard * per_shard, (shard + 1) * per_shard)
            if all(row is None for row in slots) and any(waiting[p] for p in mine):
                prompt[block] = max(mine, key=lambda p: len(waiting[p]))  # of equal ones the first
            for i, row in enumerate(slots):
                if row is None and prompt[block] is not None and waiting[prompt[block]]:
                    slots[i] = prompt[block] * layout.group_size + waiting[prompt[block]].pop(0)
        steps.append([-1 if row is None else row for slots in at_work for row in slots])
        for slots in at_work:
            for i, row in enumerate(slots):
                if row is not None:
                    age[row] += 1
                    if age[row] == length[row]:
                        slots[i] = None
    return np.array(steps)


def taken(layout, length):
    """The same by `take`."""
    board, age, steps = Board.empty(layout), np.zeros(len(length), int), []
    while True:
        board = take_jitted(board, layout)
        rows = np.asarray(rows_of(board, layout))
        if (rows < 0).all():
            return np.array(steps)
        steps.append(rows)
        age[rows[rows >= 0]] += 1
        done = (rows >= 0) & (age[rows] == length[rows])
        sample = np.where(done.reshape(board.sample.shape), np.int32(-1), board.sample)
        board = dataclasses.replace(board, sample=jnp.asarray(sample))


@pytest.mark.parametrize("prompts, group, slots, shards", SCHEDULES)
def test_take_is_the_plain_scheduler_and_takes_each_sample_once(prompts, group, slots, shards):
    layout = plan(prompts, group, slots, shards, "cpu")
    for seed in range(4):
        random = np.random.default_rng(seed)
        length = np.minimum(1 + random.geometric(0.3, prompts * group), 12)
        steps = taken(layout, length)
        np.testing.assert_array_equal(steps, played(layout, length))
        rows, counts = np.unique(steps[steps >= 0], return_counts=True)
        np.testing.assert_array_equal(rows, np.arange(prompts * group))
        np.testing.assert_array_equal(counts, length)  # at work as long as it is, and never twice
        step, slot = np.nonzero(steps >= 0)
        row = steps[step, slot]
        assert len(set(zip(row.tolist(), slot.tolist(), strict=True))) == len(
            rows
        )  # a row stays where it is,
        np.testing.assert_array_equal(  # in the shard of its prompt,
            row // (group * prompts // shards), slot // (layout.slots // shards)
        )
        prompt = np.where(steps >= 0, steps // group, -1).reshape(len(steps), layout.blocks, layout.share)
        assert all(
            len(set(block.tolist()) - {-1}) <= 1 for line in prompt for block in line
        )  # beside its own


@pytest.mark.parametrize("prompts, group, slots, shards", SCHEDULES[:6])
def test_occupancy_is_the_share_of_slot_steps_at_work(prompts, group, slots, shards):
    layout = plan(prompts, group, slots, shards, "cpu")
    length = 1 + np.random.default_rng(1).integers(0, 9, prompts * group)
    steps = played(layout, length)
    # One float32 division of whole numbers.
    assert occupancy(length, layout) == pytest.approx((steps >= 0).mean(), rel=1e-6)


def test_a_refilled_schedule_wastes_less_than_lockstep():
    """One row of a group is ten times as long as the others: lockstep waits, refill goes on."""
    length = np.tile([1, 1, 1, 10], 16)
    lockstep, refilled = plan(16, 4, 0, 1, "cpu"), plan(16, 4, 8, 1, "cpu")
    assert occupancy(length, lockstep) == pytest.approx(13 / 40) and occupancy(length, refilled) > 0.55


@pytest.mark.parametrize(
    "asked, layout",
    [
        ((8, 4, 0, 1, "cpu"), Layout(8, 4, 8, 4)),  # 32 rows are less than what suits a CPU: lockstep
        ((32, 4, 0, 1, "cpu"), Layout(32, 4, 32, 2)),  # 64 of 128 rows
        ((32, 4, 0, 1, "gpu"), Layout(32, 4, 32, 4)),
        ((32, 4, 0, 2, "cpu"), Layout(32, 4, 32, 4, 2)),  # the default is for a shard
        ((8, 4, 32, 1, "cpu"), Layout(8, 4, 8, 4)),
        ((8, 4, 31, 1, "cpu"), Layout(8, 4, 15, 2)),
        ((5, 7, 34, 1, "cpu"), Layout(5, 7, 34, 1)),  # no pairs in a group of 7
        ((8, 1, 3, 1, "cpu"), Layout(8, 1, 3, 1)),
        ((8, 4, 1, 1, "cpu"), Layout(8, 4, 1, 1)),  # one slot,
        ((8, 4, 1, 8, "cpu"), Layout(8, 4, 8, 1, 8)),  # and one for each shard
    ],
)
def test_the_plan_of_a_request(asked, layout):
    found = plan(*asked)
    assert found == layout
    assert found.refills == (found.slots < found.prompts * found.group_size)
    assert found.blocks % found.shards == 0 and found.group_size % found.share == 0
