"""The collapse rate against a loop over groups."""

import dataclasses
import json
import statistics

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.analysis import Collapsed, CollapseRecord, advantage_collapse_rate


def by_loop(rewards, group_size, tau=1e-6):
    groups = [rewards[i : i + group_size] for i in range(0, len(rewards), group_size)]
    return sum(statistics.pstdev(g) < tau for g in groups) / len(groups)


@pytest.mark.parametrize("group_size", [1, 2, 4, 8])
@pytest.mark.parametrize("values", [(0.0, 1.0), (0.95,), (0.1, 0.1, 0.1, 0.7)])
def test_the_rate_is_that_of_a_loop_over_groups(group_size, values):
    rewards = np.random.default_rng(group_size).choice(values, size=64)
    assert float(advantage_collapse_rate(rewards, group_size)) == by_loop(rewards.tolist(), group_size)


def test_it_works_under_jit_and_on_both_kinds_of_arrays():
    rewards = np.array([1.0, 1.0, 0.0, 1.0, 0.35, 0.35, 0.0, 0.0])
    jitted = jax.jit(advantage_collapse_rate, static_argnums=1)
    assert float(jitted(jnp.array(rewards), 2)) == float(advantage_collapse_rate(rewards, 2)) == 0.75


def test_equal_rewards_that_floats_cannot_hold_count_as_equal():
    # lessons: the variance from E[x^2] - E[x]^2 of equal 0.95s is not 0; the centred form is, exactly
    assert float(advantage_collapse_rate(np.full(8, 0.95), 8, tau=1e-12)) == 1.0


def test_the_threshold_is_on_the_population_deviation():
    rewards = np.array([0.0, 0.2])  # population deviation 0.1, sample deviation 0.141
    assert float(advantage_collapse_rate(rewards, 2, tau=0.12)) == 1.0
    assert float(advantage_collapse_rate(rewards, 2, tau=0.09)) == 0.0


def test_groups_that_do_not_divide_the_rows_are_refused():
    with pytest.raises(ValueError, match="^6 rows are no whole number of groups of 4.$"):
        advantage_collapse_rate(np.zeros(6), 4)


# ---- counts by kind, and over a run ------------------------------------------------------------------------------


def counted_by_loop(rewards, correct, valid, size):
    """Each group looked at on its own."""
    out = dict.fromkeys(("groups", "all", "all_wrong", "all_right"), 0)
    for i in range(0, len(rewards), size):
        rows = [j for j in range(i, i + size) if valid[j]]
        if len(rows) < 2:
            continue
        out["groups"] += 1
        if statistics.pstdev(rewards[j] for j in rows) < 1e-6:
            right = sum(correct[j] > 0 for j in rows)
            out["all"] += 1
            out["all_wrong"] += right == 0
            out["all_right"] += right == len(rows)
    return out


@pytest.mark.parametrize("seed", range(5))
def test_counts_by_kind_are_those_of_a_loop_and_rejected_rows_have_no_part(seed):
    random = np.random.default_rng(seed)
    rewards = random.choice([0.0, 0.5, 1.0], 360).astype(np.float32)
    correct = (rewards > random.choice([0.0, 0.7], 360)).astype(np.float32)  # 0.5 is right in some rows
    valid = random.random(360) < 0.6
    rewards[~valid] = np.nan
    got = Collapsed.of(rewards, correct, valid, 3)
    expected = counted_by_loop(rewards, correct, valid, 3)
    assert dataclasses.asdict(got) == expected
    assert 0 < got.all_wrong + got.all_right < got.all < got.groups < 120
    assert got.rates() == {k: v / got.groups for k, v in expected.items() if k != "groups"}


def batch_of(wrong, right, mixed):
    return Collapsed(groups=wrong + right + mixed, all=wrong + right, all_wrong=wrong, all_right=right)


def test_running_rates_weigh_groups_and_the_early_rate_is_the_mean_of_the_first_hundred_steps():
    record = CollapseRecord()
    first = record.add(batch_of(wrong=3, right=1, mixed=0))
    assert (first["all"], first["running_all"], first["early"]) == (1.0, 1.0, 1.0)
    second = record.add(batch_of(wrong=0, right=0, mixed=12))  # dynamic sampling: three rounds
    assert second["all"] == 0.0
    assert second["running_all"] == 4 / 16 and second["running_all_wrong"] == 3 / 16
    assert second["running_all_right"] == 1 / 16
    assert second["early"] == 0.5
    for _ in range(98):
        hundredth = record.add(batch_of(wrong=0, right=0, mixed=4))
    later = record.add(batch_of(wrong=4, right=0, mixed=0))
    assert hundredth["early"] == later["early"] == pytest.approx(1 / 100)
    assert later["running_all"] > hundredth["running_all"]


def test_the_record_goes_through_json_and_goes_on():
    whole, first = CollapseRecord(), CollapseRecord()
    batches = [batch_of(i % 3, i % 2, 2) for i in range(7)]
    expected = [whole.add(b) for b in batches]
    for b in batches[:4]:
        first.add(b)
    second = CollapseRecord()
    second.set_state(json.loads(json.dumps(first.get_state())))
    assert [second.add(b) for b in batches[4:]] == expected[4:]
