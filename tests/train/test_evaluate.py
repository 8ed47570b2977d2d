"""Held-out pass@k: every prompt once, only the answers asked for, whatever the shape of the batches."""

import dataclasses
import itertools
import shutil

import jax
import numpy as np
import pytest
from tiny_task import RIGHT, Vowels

from rlvr_jax.analysis import majority_at_k
from rlvr_jax.analysis.evaluation import Answers, Evaluation
from rlvr_jax.config import HeldOutSampling
from rlvr_jax.configfile import parse
from rlvr_jax.rollout.collect import decode
from rlvr_jax.rollout.judge import Judge
from rlvr_jax.rollout.prompts import evaluation_batches
from rlvr_jax.rollout.workers import Workers
from rlvr_jax.tasks import Reason, Verdict
from rlvr_jax.train import evaluate as evaluate_module
from rlvr_jax.train.evaluate import (
    EVALUATION_SEED_OFFSET,
    Asked,
    check_held_out,
    evaluate,
    load_evaluations,
    save_evaluation,
)
from rlvr_jax.train.evaluation_folder import (
    ANSWERS,
    RESULT,
    SETTINGS,
    EvaluationFolder,
    evaluate_into,
    read_result,
    settings_of,
)
from rlvr_jax.train.metrics import read_rows
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
        judge = Judge(program.config.task, workers, batch_deadline=60.0)
        return evaluate(
            program, params, judge, **{"prompts": PROMPTS, "samples": SAMPLES, "k": (1, 2, 4), **fields}
        )


@pytest.fixture(scope="module")
def answers(pairs):
    """The reference: [prompt, sample] verdicts, lengths and texts, each prompt sampled and judged without `evaluate`.

    A batch is one prompt four times over, each time with the next two of its samples: the noise goes by identity.
    """
    program, params = pairs
    task = program.config.task
    verdicts, lengths, said = [], [], []
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
        mine = [task.verify(record, text) for text in texts]
        cut = Verdict.of(Reason.TRUNCATED)  # neither wrong nor unparsable: it was not done
        verdicts.append(
            [cut if c and not v.correct else v for v, c in zip(mine, found.truncated, strict=True)]
        )
        lengths.append(found.length)
        said.append(texts)
    return np.array(verdicts, object), np.array(lengths), said


def brute_force(right, k):
    """The share of all subsets of k answers that hold a right one; over prompts the mean."""
    subsets = [[any(chosen) for chosen in itertools.combinations(row, k)] for row in right]
    return np.mean([np.mean(found) for found in subsets])


def correct(verdicts):
    return np.array([[v.correct for v in row] for row in verdicts])


def test_seven_prompts_in_batches_of_four_are_all_scored_once(pairs, answers):
    verdicts, lengths, _ = answers
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
    verdicts, lengths, _ = answers
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


@dataclasses.dataclass(frozen=True)
class Votes(Vowels):
    """Right are the letters that are wrong there; an answer says its first word."""

    def verify(self, record, completion):
        found = super().verify(record, completion)
        other = {Reason.CORRECT: Reason.WRONG, Reason.WRONG: Reason.CORRECT}
        return Verdict.of(other.get(found.reason, found.reason))

    def answer(self, record, completion):
        return completion.split()[0] if completion.split() else None


def test_another_task_is_asked_and_judged_and_its_answers_vote(pairs, answers):
    texts = [row[:SAMPLES] for row in answers[2]]
    assert run(*pairs).votes is None
    found = run(*pairs, task=Votes())
    said = [[text.split()[0] if text.split() else None for text in row] for row in texts]
    assert [list(a.said) for a in found.answers] == said
    right = [[s is not None and s not in RIGHT for s in row] for row in said]
    np.testing.assert_array_equal([a.correct for a in found.answers], right)
    for rate in found.votes:
        expected = [majority_at_k(s, r, rate.k) for s, r in zip(said, right, strict=True)]
        np.testing.assert_allclose(rate.value, np.mean(expected), rtol=1e-12)


def test_held_out_answers_may_be_drawn_otherwise_than_in_training(pairs):
    greedy = HeldOutSampling(temperature=0.0, max_new_tokens=2).over(pairs[0].config.sampling)
    found = run(*pairs, sampling=greedy)
    assert all(len(set(a.tokens)) == 1 and max(a.lengths) <= 2 for a in found.answers)
    assert any(len(set(a.tokens)) > 1 for a in run(*pairs).answers)


def test_thirds_and_tokens_are_those_of_the_samples(pairs, answers):
    """Of the first prompt: what the sampler gave, special tokens left out; p(1-p) of each token in its third."""
    program, params = pairs
    (batch,) = evaluation_batches(Vowels(), program.tokenizer, "test", 4, 4, max_prompt_tokens=16)
    with jax.set_mesh(program.mesh):
        program.sampler.push(params, version=0)
        samples = program.sample_batch(batch, step=0, seed=EVALUATION_SEED_OFFSET)
    found = run(*pairs, samples=2, k=(1,)).answers[0]
    for row in range(2):
        n = samples.length[row]
        assert program.tokenizer.decode(list(found.tokens[row])) == answers[2][0][row]
        p = np.exp(samples.logprob[row, :n].astype(float))
        for third in range(3):
            mine = [p[t] * (1 - p[t]) for t in range(n) if 3 * t // n == third]
            expected = np.mean(mine) if mine else None
            # kept with six decimals
            assert found.variance[row][third] == (
                None if expected is None else pytest.approx(expected, abs=1e-6)
            )


def test_evaluating_compiles_nothing_beyond_the_training_sampler(pairs):
    run(*pairs)
    assert dict(pairs[0].traces) == {"weights": 1, "prefill": 1, "start": 1, "advance": 1}


def test_progress_counts_rounds(pairs):
    seen = []
    run(*pairs, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_answers_are_judged_while_the_next_ones_are_sampled(pairs, monkeypatch):
    events, ask = [], evaluate_module.ask

    def noted(*args):
        number = sum("ask" in event for event in events)
        events.append(f"ask {number}")
        judged = ask(*args)
        return lambda: events.append(f"judged {number}") or judged()

    monkeypatch.setattr(evaluate_module, "ask", noted)
    run(*pairs)
    turns = ["ask 1", "judged 0", "ask 2", "judged 1", "ask 3", "judged 2"]
    assert events == ["ask 0", *turns, "judged 3"]


def answers_of(problem, correct, said=None, first=0):
    """Answers of one token each."""
    n = len(correct)
    return Answers(
        problem=problem,
        id=f"p{problem}",
        record=f"r{problem}",
        kind=None,
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


@pytest.mark.parametrize(
    "evaluation, message",
    [
        (
            {"sampling": {"max_new_tokens": 6}},
            "evaluation.sampling.max_new_tokens=6 is more than sampling.max_new_tokens=5, for which there is room: raise that, "
            "or evaluate with `rlvr-jax eval`.",
        ),
        ({"sampling": {"top_p": 2}}, "evaluation.sampling.top_p is a probability mass in (0, 1], got 2.0."),
        (
            {"task": {"name": "maze", "size": 7, "test_size": 2}, "prompts": 3},
            "evaluation.prompts=3, but task 'maze' holds out 2 records: ask for fewer.",
        ),
        (
            {"task": "arithmetic"},
            "a model from scratch knows the words of task 'maze' alone, and evaluation.task 'arithmetic' has others: leave it "
            "out, or set model.path instead of model.scratch.",
        ),
    ],
)
def test_an_evaluation_that_the_run_cannot_make_is_refused_before_it_starts(evaluation, message):
    with pytest.raises(ValueError) as error:
        check_held_out(parse({**TREE, "evaluation": {"prompts": 1, **evaluation}}))
    assert str(error.value) == message
    check_held_out(
        parse(
            {**TREE, "evaluation": {"prompts": 2, "task": {"name": "maze_exact", "size": 7, "test_size": 2}}}
        )
    )


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


# ---- in a folder -------------------------------------------------------------------------------------------------


class Recorder:
    """A sampler that notes which samples of which prompts it was asked for, those that only fill up left out."""

    def __init__(self, sampler):
        self.sampler, self.asked = sampler, []

    def push(self, params, version):
        self.sampler.push(params, version)

    def sample(self, request, on_row):
        g = request.group_size
        for row in np.flatnonzero(request.overrides["max_new_tokens"] > 1):
            self.asked.append(
                (int(request.batch.prompt_id[row // g]), int(request.first_sample[row // g] + row % g))
            )
        return self.sampler.sample(request, on_row)


def evaluated(pairs, path, *, samples=SAMPLES, prompts=PROMPTS, requests=None, task=None):
    """(what was sampled, the evaluation), in a folder, with a stop before request number `requests`."""
    program = dataclasses.replace(pairs[0], sampler=Recorder(pairs[0].sampler))
    asked = Asked.of(program, prompts, samples, task)
    settings = settings_of(program, pairs[1], asked, "test")
    left = iter(range(requests if requests is not None else 1000))
    with jax.set_mesh(program.mesh), Workers(0, 1.0) as workers, EvaluationFolder(path, settings) as folder:
        judge = Judge(asked.task, workers, batch_deadline=60.0)
        stop = lambda: next(left, None) is None  # noqa: E731
        found = evaluate_into(folder, program, pairs[1], judge, asked, (1, samples), stop=stop)
        if found is not None:
            folder.finish(
                found, {"policy": "x", "task": settings["task"], "split": "test", "step": None}, "x"
            )
    return program.sampler.asked, found


EVERY = [(prompt, sample) for prompt in range(PROMPTS) for sample in range(SAMPLES)]
FILES = (ANSWERS, RESULT, SETTINGS)


@pytest.fixture(scope="module")
def whole(pairs, tmp_path_factory):
    """The folder of an evaluation that was never stopped."""
    path = tmp_path_factory.mktemp("whole") / "evaluation"
    asked, found = evaluated(pairs, path)
    assert asked == EVERY and found.as_json() == run(*pairs, k=(1, 4)).as_json()
    return path


def test_a_stopped_evaluation_goes_on_and_leaves_the_same_bytes(pairs, whole, tmp_path):
    first, nothing = evaluated(pairs, tmp_path / "e", requests=1)
    assert nothing is None and first == EVERY[:8] and not (tmp_path / "e" / RESULT).exists()
    with pytest.raises(ValueError, match="is not finished: go on with it"):
        read_result(tmp_path / "e")
    second, _ = evaluated(pairs, tmp_path / "e", requests=2)
    third, found = evaluated(pairs, tmp_path / "e")
    assert first + second + third == EVERY and found is not None
    for name in FILES:
        assert (tmp_path / "e" / name).read_bytes() == (whole / name).read_bytes(), name
    again, same = evaluated(pairs, tmp_path / "e")
    assert again == [] and same.as_json() == found.as_json()
    assert read_result(tmp_path / "e") == read_result(whole / RESULT)


def test_a_line_that_was_cut_short_is_sampled_again(pairs, whole, tmp_path):
    evaluated(pairs, tmp_path / "e", requests=2)
    lines = (tmp_path / "e" / ANSWERS).read_bytes()
    (tmp_path / "e" / ANSWERS).write_bytes(lines[:-20])
    asked, _ = evaluated(pairs, tmp_path / "e")
    assert asked == EVERY[14:]  # the last share of two answers
    lost, kept = ([line | {"step": 0} for line in read_rows(e / ANSWERS)] for e in (tmp_path / "e", whole))
    assert lost == kept
    assert (tmp_path / "e" / RESULT).read_bytes() == (whole / RESULT).read_bytes()


def test_more_samples_and_prompts_are_added_to_those_that_are_there(pairs, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "e")
    asked, found = evaluated(pairs, tmp_path / "e", samples=6, prompts=8)
    expected = [(prompt, sample) for prompt in range(8) for sample in range(6)]
    assert sorted(asked) == sorted(set(expected) - set(EVERY)) and len(asked) == len(set(asked))
    assert found.as_json() == run(*pairs, samples=6, prompts=8, k=(1, 6)).as_json()
    fewer, found = evaluated(pairs, tmp_path / "e", samples=2, prompts=3)
    assert fewer == [] and found.as_json() == run(*pairs, samples=2, prompts=3, k=(1, 2)).as_json()


def test_another_record_in_the_place_of_one_that_was_answered_is_refused(pairs, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "e")
    text = (tmp_path / "e" / ANSWERS).read_text()
    record = read_rows(whole / ANSWERS)[-1]["record"]
    (tmp_path / "e" / ANSWERS).write_text(text.replace(record, "1-of-other-data"))
    with pytest.raises(ValueError) as error:
        evaluated(pairs, tmp_path / "e")
    assert str(error.value) == (
        f"problem 6 is not the record that was answered in {tmp_path / 'e'}: go back to its data, or name another folder "
        "with --output."
    )
