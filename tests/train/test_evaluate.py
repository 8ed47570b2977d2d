"""Held-out pass@k: every prompt once, only the answers asked for, whatever the shape of the batches."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from tiny_task import Vowels

from rlvr_jax.analysis import majority_at_k
from rlvr_jax.analysis.evaluation import Answers, Evaluation, Rate
from rlvr_jax.configfile import parse
from rlvr_jax.rollout.collect import decode
from rlvr_jax.rollout.prompts import evaluation_batches
from rlvr_jax.rollout.workers import Judge, Workers
from rlvr_jax.train.evaluate import (
    EVALUATION_SEED_OFFSET,
    check_held_out,
    evaluate,
    load_evaluations,
    save_evaluation,
)
from rlvr_jax.train.program import assemble

PROMPTS, SAMPLES = 7, 4
TREE = {
    "model": {"scratch": {"num_layers": 2, "dim": 16, "num_heads": 4, "num_kv_heads": 2, "mlp_dim": 24}},
    "sampling": {"max_new_tokens": 5},
    "prompts": {"max_tokens": 16},
    "mesh": {"data": 4, "tensor": 2},
}


def config(prompts=4, group_size=2, **sections):
    tree = {**TREE, "batch": {"prompts": prompts, "group_size": group_size}, **sections}
    return dataclasses.replace(parse(tree), task=Vowels())


@pytest.fixture(scope="module")
def pairs():
    """A program whose groups have two rows, and its parameters."""
    program = assemble(config(), num_prompts=40)
    with jax.set_mesh(program.mesh):
        return program, program.fresh_state().params


def run(program, params, **fields):
    with jax.set_mesh(program.mesh), Workers(0, 1.0) as workers:
        judge = Judge(program.config.task, workers)
        return evaluate(
            program, params, judge, **{"prompts": PROMPTS, "samples": SAMPLES, "k": (1, 2, 4), **fields}
        )


@pytest.fixture(scope="module")
def answers(pairs):
    """The reference: [prompt, sample] verdicts and lengths, each prompt sampled and judged without `evaluate`.

    A batch is one prompt four times over, each time with the next two of its samples: the noise goes by identity.
    """
    program, params = pairs
    task = program.config.task
    verdicts, lengths = [], []
    for record, index in zip(task.records("test")[:PROMPTS], range(PROMPTS), strict=True):
        (alone,) = evaluation_batches(task, program.tokenizer, "test", 1, index + 1, max_prompt_tokens=16)[
            index:
        ]
        batch = dataclasses.replace(
            alone,
            tokens=np.repeat(alone.tokens, 4, 0),
            length=np.repeat(alone.length, 4),
            prompt_id=np.repeat(alone.prompt_id, 4),
            occurrence=np.arange(4, dtype=np.int32),
            valid=np.ones(4, bool),
            records=alone.records * 4,
        )
        with jax.set_mesh(program.mesh):
            program.sampler.push(params, version=0)
            found = program.sample_batch(batch, step=0, seed=EVALUATION_SEED_OFFSET)
        texts = decode(program.tokenizer, found.tokens, found.length)
        verdicts.append([task.verify(record, text) for text in texts])
        lengths.append(found.length)
    return np.array(verdicts, object), np.array(lengths)


def brute_force(right, k):
    """The share of all subsets of k answers that hold a right one; over prompts the mean."""
    subsets = [[any(chosen) for chosen in itertools.combinations(row, k)] for row in right]
    return np.mean([np.mean(found) for found in subsets])


def correct(verdicts):
    return np.array([[v.correct for v in row] for row in verdicts])


def test_seven_prompts_in_batches_of_four_are_all_scored_once(pairs, answers):
    verdicts, lengths = answers
    found = run(*pairs)
    right = correct(verdicts)[:, :SAMPLES]
    assert 0 < right.mean() < 1
    assert [a.problem for a in found.answers] == list(range(PROMPTS))
    assert [a.id for a in found.answers] == [f"test-{i}" for i in range(PROMPTS)]
    np.testing.assert_array_equal([a.correct for a in found.answers], right)
    np.testing.assert_array_equal([a.lengths for a in found.answers], lengths[:, :SAMPLES])
    for rate in found.rates:
        np.testing.assert_allclose(rate.value, brute_force(right, rate.k), rtol=1e-12)
        assert 0 <= rate.low <= rate.value <= rate.high <= 1
    plain = found.as_json()
    np.testing.assert_allclose(
        [plain["length"][name] for name in ("mean", "p50", "p95")],
        [lengths[:, :SAMPLES].mean(), *np.percentile(lengths[:, :SAMPLES], [50, 95])],
    )
    reasons = [v.reason.value for v in verdicts[:, :SAMPLES].ravel()]
    assert plain["reasons"] == {name: reasons.count(name) for name in sorted(set(reasons))}
    assert found.samples == SAMPLES and [r.k for r in found.rates] == [1, 2, 4]


def test_surplus_answers_of_the_last_round_are_not_counted(pairs, answers):
    verdicts, lengths = answers
    found = run(*pairs, samples=3, k=(1, 3))
    right = correct(verdicts)[:, :3]
    np.testing.assert_array_equal([a.correct for a in found.answers], right)
    np.testing.assert_allclose(found.rates[1].value, brute_force(right, 3), rtol=1e-12)
    assert sum(found.as_json()["reasons"].values()) == PROMPTS * 3
    np.testing.assert_allclose(found.as_json()["length"]["mean"], lengths[:, :3].mean())


def test_the_result_does_not_depend_on_the_shape_of_the_batches(pairs):
    """Four answers in two rounds of two, or in one of four, over other prompts side by side."""
    program = assemble(config(prompts=8, group_size=4), num_prompts=40)
    assert run(program, pairs[1]).as_json() == run(*pairs).as_json()


def test_evaluating_compiles_nothing_beyond_the_training_sampler(pairs):
    run(*pairs)
    assert dict(pairs[0].traces) == {"weights": 1, "prefill": 1, "start": 1, "advance": 1}


def test_progress_counts_rounds(pairs):
    seen = []
    run(*pairs, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def answers_of(problem, correct, said=None, first=0):
    """Answers of one token each."""
    n = len(correct)
    return Answers(
        problem=problem,
        id=f"p{problem}",
        record=f"r{problem}",
        first=first,
        reasons=tuple("correct" if right else "wrong" for right in correct),
        lengths=(1,) * n,
        truncated=(False,) * n,
        said=tuple(said or [None] * n),
        variance=((0.25, None, None),) * n,
        tokens=((1,),) * n,
    )


def test_pass_rates_are_unbiased_over_all_counts():
    """Right answers of 5: against all subsets, for every k."""
    right = np.array([0, 1, 2, 3, 4, 5])
    table = [[i < n for i in range(5)] for n in right]
    for k in range(1, 6):
        found = Evaluation.of([answers_of(i, row) for i, row in enumerate(table)], 5, (k,))
        np.testing.assert_allclose(found.rates[0].value, brute_force(table, k), rtol=1e-12)


def test_more_held_out_prompts_than_there_are_is_an_error():
    too_many = {"prompts": 65, "samples": 4, "k": [1]}
    maze = parse({**TREE, "task": {"name": "maze", "test_size": 64}, "evaluation": too_many})
    with pytest.raises(ValueError) as error:
        check_held_out(maze)
    assert str(error.value) == "evaluation.prompts=65, but task 'maze' holds out 64 records: ask for fewer."
    check_held_out(dataclasses.replace(maze, evaluation=dataclasses.replace(maze.evaluation, prompts=64)))


def test_evaluations_are_kept_by_step_and_later_ones_are_replaced(tmp_path):
    def at(right):
        return Evaluation.of([answers_of(i, [j < n for j in range(4)]) for i, n in enumerate(right)], 4, (1,))

    assert load_evaluations(tmp_path) == {}
    for step, right in ((0, [0, 1]), (5, [1, 1]), (9, [4, 4]), (5, [2, 2])):  # resumed at 5 after a look at 9
        save_evaluation(tmp_path, step, at(right))
    found = load_evaluations(tmp_path)
    assert list(found) == [0, 5] and found == {0: at([0, 1]).as_json(), 5: at([2, 2]).as_json()}
    assert found[5]["pass_at_k"]["1"]["value"] == 0.5
    assert [p.name for p in tmp_path.iterdir()] == ["evaluations.jsonl"]
