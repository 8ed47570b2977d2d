"""pass@k against all subsets, exact fractions and simulation; the interval against the normal one."""

import fractions
import itertools
import math

import numpy as np
import pytest

from rlvr_jax.analysis import bootstrap_interval, pass_at_k


def over_all_subsets(n, c, k):
    answers = [1] * c + [0] * (n - c)
    subsets = list(itertools.combinations(answers, k))
    return sum(any(subset) for subset in subsets) / len(subsets)


@pytest.mark.parametrize("n", range(1, 9))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(n):
    for c in range(n + 1):
        for k in range(1, n + 1):
            # up to 8 factors, each rounded to 2^-53: 1e-14 is far above, and far below any wrong count
            assert pass_at_k(n, c, k) == pytest.approx(over_all_subsets(n, c, k), abs=1e-14)


@pytest.mark.parametrize("n, c, k", [(2048, 1, 2048), (2048, 1, 256), (2048, 3, 1024), (10_000, 5000, 64)])
def test_large_counts_keep_their_digits(n, c, k):
    exact = float(1 - fractions.Fraction(math.comb(n - c, k), math.comb(n, k)))
    # at most 5000 factors, each off by 2^-53: 6e-13
    assert pass_at_k(n, c, k) == pytest.approx(exact, abs=1e-12)


def test_pass_at_k_is_unbiased_for_the_chance_of_k_samples():
    p, n, k = 0.2, 6, 3
    expected = sum(
        math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k)  # over the law of c
        for c in range(n + 1)
    )
    assert expected == pytest.approx(1 - (1 - p) ** k, abs=1e-14)


def test_arrays_and_scalars_broadcast():
    table = pass_at_k(np.array([8, 16]), np.array([[1], [4]]), 2)
    assert table.shape == (2, 2)
    assert table.tolist() == [
        [pass_at_k(8, 1, 2), pass_at_k(16, 1, 2)],
        [pass_at_k(8, 4, 2), pass_at_k(16, 4, 2)],
    ]
    assert isinstance(pass_at_k(8, 1, 2), float)
    assert pass_at_k(8, [0, 8], 1).tolist() == [0.0, 1.0]
    assert pass_at_k(np.float32(8), np.float32(2), 1) == pytest.approx(0.25)


@pytest.mark.parametrize(
    "n, c, k, message",
    [
        (
            4,
            5,
            1,
            "pass@k with n=4, c=5, k=1; the rule is 0 <= c <= n: not more right answers than answers.",
        ),
        (
            4,
            -1,
            1,
            "pass@k with n=4, c=-1, k=1; the rule is 0 <= c <= n: not more right answers than answers.",
        ),
        (
            [8, 4],
            [1, 2],
            8,
            "pass@k with n=4, c=2, k=8; the rule is 1 <= k <= n: sample at least k answers for each prompt.",
        ),
        (
            4,
            2,
            0,
            "pass@k with n=4, c=2, k=0; the rule is 1 <= k <= n: sample at least k answers for each prompt.",
        ),
        (4, 1.5, 1, "pass@k counts answers: c is a whole number, got 1.5."),
    ],
)
def test_impossible_counts_are_refused(n, c, k, message):
    with pytest.raises(ValueError) as error:
        pass_at_k(n, c, k)
    assert str(error.value) == message


def test_the_interval_of_a_mean_is_near_the_normal_one():
    values = np.random.default_rng(1).random(400)
    low, high = bootstrap_interval(values, seed=3)
    half = 1.959964 * values.std() / 20
    # 10 000 draws: the quantile's own error is about 0.03 of a standard error; 0.1 of one allows for skew too
    slack = 0.1 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=slack)
    assert high == pytest.approx(values.mean() + half, abs=slack)


def test_the_interval_is_the_quantiles_over_all_resamples_of_three_prompts():
    values = np.array([0.0, 0.25, 1.0])
    means = sorted(sum(pick) / 3 for pick in itertools.product(values, repeat=3))
    low, high = bootstrap_interval(values, level=0.8, draws=20_000)
    # 10 % of the 27 resamples lie strictly inside the step of the second value, far from its edges
    assert low == pytest.approx(means[2]) and high == pytest.approx(means[24])


def test_the_interval_depends_on_seed_and_level_only():
    values = np.array([0.1, 0.5, 0.2, 0.9])
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(values, seed=1)
    assert bootstrap_interval(values, seed=1, draws=500) != bootstrap_interval(values, seed=2, draws=500)
    narrow, wide = bootstrap_interval(values, level=0.5), bootstrap_interval(values, level=0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    assert bootstrap_interval(np.full(5, 0.25)) == (0.25, 0.25)


def test_draws_in_chunks_are_all_there():
    values = np.random.default_rng(0).random(300_000)
    low, high = bootstrap_interval(values, draws=7)
    assert low < values.mean() < high


@pytest.mark.parametrize(
    "values, fields, message",
    [
        ([], {}, "a bootstrap interval needs finite values, at least one; got []."),
        ([0.5, float("nan")], {}, "a bootstrap interval needs finite values, at least one; got [0.5, nan]."),
        (
            [0.5],
            {"level": 95.0},
            "level=95.0: the share of means inside the interval lies between 0 and 1, as 0.95.",
        ),
        ([0.5], {"draws": 0}, "draws=0: at least one resample; 10000 is usual."),
    ],
)
def test_impossible_intervals_are_refused(values, fields, message):
    with pytest.raises(ValueError) as error:
        bootstrap_interval(np.array(values), **fields)
    assert str(error.value) == message
