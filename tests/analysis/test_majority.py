"""majority@k against all subsets, and where the answer is known."""

import collections
import itertools

import numpy as np
import pytest

from rlvr_jax.analysis import majority_at_k, pass_at_k


def over_all_subsets(answers, correct, k):
    """Each subset votes: the share of right answers among what was said most often; nothing said is lost."""
    share = {a: np.mean([correct[i] for i, b in enumerate(answers) if b == a]) for a in set(answers) - {None}}
    outcomes = []
    for chosen in itertools.combinations(range(len(answers)), k):
        votes = collections.Counter(answers[i] for i in chosen if answers[i] is not None)
        first = [a for a in votes if votes[a] == max(votes.values())]
        outcomes.append(np.mean([share[a] for a in first]) if first else 0.0)
    return np.mean(outcomes)


@pytest.mark.parametrize("seed", range(12))
def test_majority_at_k_is_the_share_of_subsets_whose_vote_is_right(seed):
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 10))
    answers = [[*"abcd", None][i] for i in random.integers(0, 5, n)]
    correct = [
        a == "a" or (a == "b" and bool(random.random() < 0.5)) for a in answers
    ]  # b is judged both ways
    for k in range(1, n + 1):
        # a Fourier transform of ten numbers of size 1 is off by some 2^-52
        assert majority_at_k(answers, correct, k) == pytest.approx(
            over_all_subsets(answers, correct, k), abs=1e-13
        )


def test_one_vote_is_pass_at_1_and_all_votes_are_the_mode():
    answers = ["7"] * 100 + ["8"] * 99 + [str(i) for i in range(20, 60)] + [None] * 17
    right = [a == "7" for a in answers]
    assert majority_at_k(answers, right, 1) == pytest.approx(pass_at_k(256, 100, 1), abs=1e-13)
    assert majority_at_k(answers, right, 256) == pytest.approx(1.0, abs=1e-13)
    assert majority_at_k(answers, [a == "8" for a in answers], 256) == pytest.approx(0.0, abs=1e-13)
    tied = majority_at_k(["7", "7", "8", "8", None], [True, True, False, False, False], 5)
    assert tied == pytest.approx(0.5, abs=1e-13)


def test_a_vote_among_64_of_256_against_drawn_subsets():
    answers = np.array(["7"] * 80 + ["8"] * 76 + ["9"] * 60 + [str(i) for i in range(20, 60)])
    random, draws = np.random.default_rng(0), 4000
    ids = np.unique(answers, return_inverse=True)[1]
    drawn = random.permuted(np.tile(ids, (draws, 1)), axis=1)[:, :64]
    votes = (drawn[..., None] == np.arange(ids.max() + 1)).sum(1)
    first = votes == votes.max(1, keepdims=True)
    wins = first[:, ids[0]] / first.sum(1)
    error = wins.std() / draws**0.5
    exact = majority_at_k(answers.tolist(), (answers == "7").tolist(), 64)
    assert abs(exact - wins.mean()) < 4 * error and 0.4 < exact < 0.7


def test_nothing_said_is_lost():
    assert majority_at_k([None, None], [False, False], 2) == 0.0
    assert majority_at_k([None, "a"], [False, True], 1) == pytest.approx(0.5, abs=1e-13)


@pytest.mark.parametrize(
    "n, verdicts, k, message",
    [
        (2, 2, 3, "majority@k with n=2, k=3; the rule is 1 <= k <= n: sample at least k answers."),
        (2, 2, 0, "majority@k with n=2, k=0; the rule is 1 <= k <= n: sample at least k answers."),
        (2, 1, 1, "majority@k got 2 answers and 1 verdicts: give one verdict for each."),
    ],
)
def test_impossible_votes_are_refused(n, verdicts, k, message):
    with pytest.raises(ValueError) as error:
        majority_at_k(["a"] * n, [True] * verdicts, k)
    assert str(error.value) == message
