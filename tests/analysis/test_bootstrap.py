"""Intervals over prompts cover what they should; p-values against all ways to swap two results."""

import itertools

import numpy as np
import pytest

from rlvr_jax.analysis import bootstrap_interval, pass_at_k, swap_p_value


@pytest.mark.parametrize("k, n", [(1, 8), (4, 16)])
def test_intervals_cover_the_pass_rate_of_all_problems_19_times_in_20(k, n):
    """Problems whose chance is Beta(1, 2), so that pass@k of all is 1 - E(1-p)^k = 1 - 2/(2+k)."""
    random, trials, problems = np.random.default_rng(k), 400, 60
    truth, inside = 1 - 2 / (2 + k), 0
    for seed in range(trials):
        right = random.binomial(n, random.beta(1, 2, problems))
        low, high = bootstrap_interval(np.asarray(pass_at_k(n, right, k)), draws=500, seed=seed)
        inside += low <= truth <= high
    # 400 trials count 0.95 with a standard deviation of 0.011, and a percentile interval of 60 values is up to 0.015 too
    # narrow. With the answers taken for 480 independent ones (k=1) it would be 0.6 times as wide and cover 0.76.
    assert 0.95 - 0.015 - 3 * 0.011 < inside / trials < 0.95 + 3 * 0.011


def test_p_values_count_the_swaps():
    differences = np.array([0.5, 0.25, -0.125, 0.75, 0.0, 0.25])
    means = [abs(np.mean(differences * signs)) for signs in itertools.product((-1, 1), repeat=6)]
    exact = np.mean([m >= abs(differences.mean()) - 1e-12 for m in means])
    draws = 20_000
    # a share of 20 000 draws, by four of its standard deviations
    assert swap_p_value(differences, draws=draws) == pytest.approx(exact, abs=4 * (exact / draws) ** 0.5)


def test_few_problems_prove_nothing_and_many_do():
    assert swap_p_value(np.array([1.0, 1.0])) == pytest.approx(0.5, abs=0.03)
    assert swap_p_value(np.zeros(9)) == 1.0
    assert swap_p_value(np.full(40, 0.1)) == pytest.approx(
        1e-4, rel=0.01
    )  # none of 10 000 draws: the one found
    assert swap_p_value(np.array([0.1, -0.3, 0.4]), seed=1) == swap_p_value(
        np.array([-0.1, 0.3, -0.4]), seed=1
    )


def test_p_values_of_no_difference_are_uniform():
    random = np.random.default_rng(0)
    values = [swap_p_value(random.standard_normal(12), draws=199, seed=i) for i in range(400)]
    # 400 counts of 0.05 have a standard deviation of 0.011
    assert 0.05 - 3 * 0.011 < np.mean(np.array(values) <= 0.05) < 0.05 + 3 * 0.011


def test_impossible_p_values_are_refused():
    with pytest.raises(ValueError) as error:
        swap_p_value(np.array([]))
    assert str(error.value) == "a p-value needs finite values, at least one; got []."
    with pytest.raises(ValueError) as error:
        swap_p_value(np.array([0.5]), draws=0)
    assert str(error.value) == "draws=0: at least one resample; 10000 is usual."
