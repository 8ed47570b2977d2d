"""The collapse rate against a loop over groups."""

import statistics

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.analysis import advantage_collapse_rate


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
