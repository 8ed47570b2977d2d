"""Figures of an evaluation against loops over its answers; two evaluations against NumPy on their common problems."""

import dataclasses
import itertools

import numpy as np
import pytest

from rlvr_jax.analysis import distinct_n, majority_at_k, pass_at_k, self_bleu
from rlvr_jax.analysis.comparison import compare
from rlvr_jax.analysis.evaluation import DIVERSE, Answers, Evaluation, by_problem
from rlvr_jax.analysis.evaluation_plot import plot_evaluation

SAMPLES = 20


def answers(problem, seed, samples=SAMPLES, first=0):
    """Random ones; a problem's record does not depend on the seed."""
    random = np.random.default_rng([problem, seed, first])
    reasons = random.choice(
        ["correct", "wrong", "unparsable"], samples, p=[problem / 10, 0.8 - problem / 10, 0.2]
    )
    length = random.integers(1, 9, samples)
    return Answers(
        problem=problem,
        id=f"p-{problem}",
        record=f"r{problem}",
        kind={1: "odd", 2: None}.get(problem % 3, "even"),
        first=first,
        reasons=tuple(map(str, reasons)),
        lengths=tuple(map(int, length)),
        truncated=tuple(bool(n == 8) for n in length),
        said=tuple(
            {"correct": "7", "wrong": str(random.integers(3)), "unparsable": None}[r] for r in reasons
        ),
        variance=tuple(
            (float(v), None if v < 0.05 else float(v) / 2, None) for v in random.uniform(0, 0.25, samples)
        ),
        tokens=tuple(tuple(random.integers(0, 5, n).tolist()) for n in length[:DIVERSE]),
    )


PROBLEMS = [answers(i, seed=0) for i in range(7)]


def test_every_figure_is_one_of_the_answers():
    found = Evaluation.of(PROBLEMS, SAMPLES, (8, 1))
    plain, every = found.as_json(), [r for a in PROBLEMS for r in a.reasons]
    assert (plain["prompts"], plain["samples"], list(plain["pass_at_k"])) == (7, SAMPLES, ["1", "8"])
    for k in (1, 8):
        rate, vote = plain["pass_at_k"][str(k)], plain["majority_at_k"][str(k)]
        right = [a.reasons.count("correct") for a in PROBLEMS]
        assert rate["value"] == pytest.approx(np.mean([pass_at_k(SAMPLES, c, k) for c in right]))
        votes = [majority_at_k(a.said, [r == "correct" for r in a.reasons], k) for a in PROBLEMS]
        assert vote["value"] == pytest.approx(np.mean(votes))
        assert rate["low"] < rate["value"] < rate["high"] and vote["low"] < vote["value"] < vote["high"]
    assert plain["reasons"] == {name: every.count(name) for name in ("correct", "unparsable", "wrong")}
    lengths = [n for a in PROBLEMS for n in a.lengths]
    assert plain["truncated"] == pytest.approx(lengths.count(8) / len(lengths))
    assert plain["length"] == pytest.approx(
        {"mean": np.mean(lengths), "p50": np.median(lengths), "p95": np.percentile(lengths, 95)}
    )


def test_each_kind_has_its_rates():
    plain = Evaluation.of(PROBLEMS, SAMPLES, (1, 8)).as_json()["kinds"]
    for kind, members in (("even", (0, 3, 6)), ("odd", (1, 4))):  # 2 and 5 are of no kind
        alone = Evaluation.of([PROBLEMS[i] for i in members], SAMPLES, (1, 8)).as_json()
        assert plain[kind] == {"prompts": len(members), "pass_at_k": alone["pass_at_k"]}
    assert list(plain) == ["even", "odd"]
    assert Evaluation.of([PROBLEMS[2]], SAMPLES, (1,)).as_json()["kinds"] == {}


def test_diversity_is_that_of_the_first_answers():
    found = Evaluation.of(PROBLEMS, SAMPLES, (1,)).diversity()
    assert found["answers"] == 16 and all(len(a.tokens) == 16 for a in PROBLEMS)
    assert found["distinct_2"] == pytest.approx(np.mean([distinct_n(a.tokens, 2) for a in PROBLEMS]))
    assert found["self_bleu"] == pytest.approx(np.mean([self_bleu(a.tokens) for a in PROBLEMS]))
    thirds = [v for a in PROBLEMS for v in a.variance]
    assert found["bernoulli_variance"][0] == pytest.approx(np.mean([v[0] for v in thirds]))
    assert found["bernoulli_variance"][1] == pytest.approx(
        np.mean([v[1] for v in thirds if v[1] is not None])
    )
    assert found["bernoulli_variance"][2] is None
    few = Evaluation.of(PROBLEMS, 3, (1,))
    assert few.diversity()["answers"] == 3 and all(len(a.tokens) == 3 for a in few.answers)


def test_answers_of_which_nothing_is_known_do_not_vote():
    silent = [dataclasses.replace(a, said=(None,) * SAMPLES) for a in PROBLEMS]
    assert Evaluation.of(silent, SAMPLES, (1,)).votes is None
    assert Evaluation.of(silent, SAMPLES, (1,)).as_json()["majority_at_k"] is None


def test_shares_of_a_problem_become_one_in_their_order():
    parts = [answers(1, 0, 4), answers(0, 0, 4), answers(1, 0, 2, first=4)]
    found = by_problem(parts)
    assert list(found) == [1, 0] and found[1].count == 6
    assert found[1].reasons == parts[0].reasons + parts[2].reasons
    assert found[1].at_most(4) == parts[0] and found[0] == parts[1]
    with pytest.raises(ValueError) as error:
        by_problem([parts[0], answers(1, 0, 2, first=5)])
    assert str(error.value) == (
        "answers from sample 5 to problem 1 (record r1) do not follow those of problem 1 (r1), which end before sample 4."
    )
    with pytest.raises(ValueError) as error:
        Evaluation.of(found.values(), 6, (1,))
    assert str(error.value) == "problem p-0 has 4 answers of 6: sample the rest first."


# ---- two of them -------------------------------------------------------------------------------------------------


def result(problems, seed=0, samples=SAMPLES, **about):
    """What the command writes of them, as far as it is compared and drawn."""
    found = Evaluation.of([answers(i, seed, samples) for i in problems], samples, (1, 4))
    rows = [
        {"problem": a.problem, "record": a.record, "right": a.reasons.count("correct")} for a in found.answers
    ]
    task = {"name": "maze", "size": 7, "path": None}
    return {"task": task, "split": "test", **found.as_json(), "problems": rows, **about}


def test_differences_are_of_the_common_problems():
    first, second = result(range(6)), result(range(7, 1, -1), seed=1, samples=12)
    found = compare(first, second)
    assert (found.common, found.only_first, found.only_second) == (4, 2, 2)
    assert [d.k for d in found.differences] == [1, 4]
    right = [{p["record"]: p["right"] for p in r["problems"]} for r in (first, second)]
    for row in found.differences:
        before = np.array([pass_at_k(20, right[0][f"r{i}"], row.k) for i in (2, 3, 4, 5)])
        after = np.array([pass_at_k(12, right[1][f"r{i}"], row.k) for i in (2, 3, 4, 5)])
        gain = after - before
        assert (row.first, row.second) == pytest.approx((before.mean(), after.mean()))
        assert row.difference == pytest.approx(gain.mean())
        # all 4^4 resamples, and all 2^4 swaps: 10 000 draws of them lie within four standard deviations
        means = np.sort([np.mean(pick) for pick in itertools.product(gain, repeat=4)])
        assert means[int(256 * 0.015)] <= row.low <= means[int(256 * 0.035)]
        assert means[int(256 * 0.965)] <= row.high <= means[int(256 * 0.985)]
        swaps = [
            abs(np.mean(gain * s)) >= abs(gain.mean()) - 1e-12 for s in itertools.product((-1, 1), repeat=4)
        ]
        assert row.p_value == pytest.approx(np.mean(swaps), abs=4 * 0.5 / 100)


def test_an_evaluation_does_not_differ_from_itself():
    (row,) = compare(result(range(6)), result(range(6)), (12,)).differences
    assert (row.k, row.difference, row.low, row.high, row.p_value) == (12, 0.0, 0.0, 0.0, 1.0)
    assert compare(result(range(6)), result(range(6)), (12,)).as_json()["pass_at_k"]["12"]["p_value"] == 1.0


def test_a_record_that_stands_twice_is_two_problems_and_files_may_have_moved():
    first = result([3, 3, 4])
    moved = result([3, 4, 3], task={"name": "maze", "size": 7, "path": "elsewhere"})
    found = compare(first, moved, (1,))
    assert (found.common, found.only_first, found.only_second) == (3, 0, 0)


@pytest.mark.parametrize(
    "second, k, message",
    [
        (
            {"task": {"name": "maze", "size": 9, "path": None}},
            (),
            "the two evaluations are not of the same problems: task.size is 7 in the first and 9 in the second; compare "
            "evaluations of one task and split.",
        ),
        (
            {"split": "train"},
            (),
            "the two evaluations are not of the same problems: split is 'test' in the first and 'train' in the second; "
            "compare evaluations of one task and split.",
        ),
        (
            {"problems": [{"problem": 0, "record": "other", "right": 1}]},
            (),
            "the 3 problems of the first evaluation and the 1 of the second have none in common: evaluate both on the same "
            "records.",
        ),
        (
            {"samples": 8},
            (1, 12),
            "k=[1, 12]: name numbers in 1..8, the smaller number of samples (20 in the first evaluation, 8 in the second).",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(second, k, message):
    with pytest.raises(ValueError) as error:
        compare(result(range(3)), {**result(range(3)), **second}, k)
    assert str(error.value) == message


def test_the_file_is_a_picture(tmp_path):
    plot_evaluation(result(range(6)), tmp_path / "a.png", "run: maze")
    plot_evaluation(result([2], majority_at_k=None), tmp_path / "b.png", "run: maze")
    for name in ("a.png", "b.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
