"""Diversity of answers against counts by hand, BLEU written out, and loops over tokens."""

import collections
import math

import jax
import numpy as np
import pytest

from rlvr_jax.analysis import bernoulli_variance, distinct_n, self_bleu
from rlvr_jax.analysis.diversity import variance_by_response


def test_distinct_n_pools_the_answers_of_a_prompt():
    answers = [[1, 2, 3], [1, 2, 4], [5]]
    assert distinct_n(answers, 1) == 5 / 7
    assert distinct_n(answers, 2) == 3 / 4  # 12 23 12 24
    assert distinct_n(answers, 3) == 1.0
    assert math.isnan(distinct_n(answers, 4)) and math.isnan(distinct_n([], 1))
    assert distinct_n([[7, 7, 7, 7]], 2) == 1 / 3
    with pytest.raises(ValueError, match="n is 1 or more, got 0"):
        distinct_n(answers, 0)


def grams(tokens, n):
    return collections.Counter(zip(*(tokens[i:] for i in range(n)), strict=False))


def bleu(answer, references):
    """Papineni et al. (2002), section 2, with the nearest reference length and zero counts as 0.1."""
    logs = []
    for n in range(1, 5):
        mine = grams(answer, n)
        if not mine:
            break
        most = collections.Counter()
        for reference in references:
            most |= grams(reference, n)
        found = sum(min(count, most[gram]) for gram, count in mine.items())
        logs.append(math.log((found or 0.1) / mine.total()))
    nearest = min((abs(len(r) - len(answer)), len(r)) for r in references)[1]
    penalty = 1.0 if len(answer) >= nearest else math.exp(1 - nearest / len(answer))
    return penalty * math.exp(sum(logs) / len(logs))


def test_self_bleu_is_each_answer_against_the_others():
    random = np.random.default_rng(0)
    for size, words in ((3, 4), (6, 8), (5, 2)):
        answers = [random.integers(0, words, random.integers(1, 15)).tolist() for _ in range(size)]
        expected = np.mean([bleu(a, answers[:i] + answers[i + 1 :]) for i, a in enumerate(answers)])
        assert self_bleu(answers) == pytest.approx(expected, rel=1e-9)


def test_self_bleu_of_equal_and_of_missing_answers():
    assert self_bleu([[3, 1, 4, 1, 5]] * 3) == pytest.approx(1.0)
    assert self_bleu([[3], [3], []]) == pytest.approx(1.0)  # short: by the n-grams it has
    assert math.isnan(self_bleu([[1, 2, 3], []]))


variance = jax.jit(bernoulli_variance, static_argnums=2)


def test_bernoulli_variance_is_the_mean_over_thirds_then_over_responses():
    random = np.random.default_rng(1)
    logprob = np.log(random.uniform(0.01, 1, (5, 11))).astype(np.float32)
    mask = (random.random((5, 11)) < 0.8).astype(np.float32)  # with a tool's tokens between
    mask[3] = 0
    mask[4] = [1] + [0] * 10  # a single token: no middle and no end
    rows = np.full((5, 3), np.nan)
    for i in range(5):
        p = [math.exp(logprob[i, t]) for t in range(11) if mask[i, t]]
        for s in range(3):
            segment = [q * (1 - q) for t, q in enumerate(p) if math.floor(3 * t / len(p)) == s]
            rows[i, s] = np.mean(segment) if segment else np.nan
    # float32: a handful of roundings of numbers below 1/4
    np.testing.assert_allclose(variance_by_response(logprob, mask), rows, atol=1e-6)
    np.testing.assert_allclose(variance(logprob, mask, 3), np.nanmean(rows, 0), atol=1e-6)
    assert np.isnan(variance(logprob, mask * 0, 3)).all()
    with pytest.raises(ValueError, match="1 segment or more, got 0"):
        bernoulli_variance(logprob, mask, segments=0)


def test_bernoulli_variance_does_not_read_what_is_masked():
    logprob = np.full((5, 11), -0.5, np.float32)
    mask = np.zeros((5, 11), np.float32)
    mask[0, [0, 9]] = 1
    logprob[0, 1:4], logprob[1], logprob[0, 9] = np.nan, -np.inf, -1.0
    p = np.exp([-0.5, -1.0])
    # two tokens of three thirds: the first and the middle one
    np.testing.assert_allclose(variance(logprob, mask, 3), [*(p * (1 - p)), np.nan], atol=1e-7)


def test_a_response_has_a_segment_at_least():
    with pytest.raises(ValueError, match="1 segment or more, got 0"):
        bernoulli_variance(np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32), segments=0)
