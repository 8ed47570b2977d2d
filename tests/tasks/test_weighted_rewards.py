"""Several weighted rewards: any callable, a count for what has no verdict, and correctness as the task alone says it."""

import asyncio
import dataclasses
import functools

import numpy as np
import pytest

from rlvr_jax.configfile import parse, parse_task, to_plain
from rlvr_jax.objective.masks import DropUniformGroups
from rlvr_jax.rollout.collect import collect
from rlvr_jax.rollout.judge import judging
from rlvr_jax.rollout.prompts import PromptBatch
from rlvr_jax.rollout.protocol import Samples
from rlvr_jax.tasks import Reason, Verdict
from rlvr_jax.tasks.arithmetic import Arithmetic
from rlvr_jax.tasks.mixture import Mixture
from rlvr_jax.tasks.prompted import Prompted
from rlvr_jax.tasks.rewards import Custom, Format, OfTask, Repetition, Rewarded

RECORD = {"id": "1-plus-2", "a": 1, "operation": "plus", "b": 2, "answer": "3"}
NOTHING = Verdict.of(Reason.WRONG)


def brief(record, completion, verdict):
    return -len(completion)


async def slow(record, completion, verdict):
    await asyncio.sleep(0)
    return 0.5


class Bonus:
    def __init__(self, worth):
        self.worth = worth

    def __call__(self, record, completion, verdict):
        return self.worth * verdict.correct


def scaled(record, completion, verdict, factor):
    return factor


CALLABLES = {
    "function": (brief, -1.0),
    "lambda": (lambda record, completion, verdict: record["a"], 1.0),
    "partial": (functools.partial(scaled, factor=3), 3.0),
    "object": (Bonus(2), 2.0),
    "async": (slow, 0.5),
}


@pytest.mark.parametrize("name", CALLABLES)
def test_any_callable_is_a_reward(name):
    function, expected = CALLABLES[name]
    task = Rewarded(Arithmetic(), (OfTask(), Custom(name, function, 0.25)))
    found = task.verify(RECORD, "3")
    assert found.reward == 1 + 0.25 * expected and found.correct
    assert [(p.name, p.value, p.weight) for p in found.parts] == [("task", 1.0, 1.0), (name, expected, 0.25)]


def test_any_callable_is_a_reward_in_a_process_and_in_a_running_loop():
    task = Rewarded(Arithmetic(), tuple(Custom(name, f, 1.0) for name, (f, _) in CALLABLES.items()))
    expected = sum(value for _, value in CALLABLES.values())

    async def notebook():
        return task.verify(RECORD, "3")

    assert asyncio.run(notebook()).reward == expected
    assert task.processes == 1  # somebody else's code
    with judging(task, workers=1) as judge:
        assert judge.verdicts([judge.submit(RECORD, "3")])[0].reward == expected


def test_a_reward_without_a_verdict_takes_the_answer_out():
    nothing = Custom("nothing", lambda *_: None)
    found = Rewarded(Arithmetic(), (OfTask(), nothing)).verify(RECORD, "3")
    assert found.reward is None and found.correct and [p.name for p in found.parts] == ["task"]


def test_a_reward_that_raises_is_an_error_and_not_a_wrong_answer():
    found = Rewarded(Arithmetic(), (OfTask(), Custom("broken", lambda *_: 1 / 0))).verify(RECORD, "3")
    assert found == Verdict(None, False, Reason.ERROR)


@pytest.mark.parametrize(
    "pattern, completion, expected",
    [
        (None, "<think>1 and 2</think> <answer>3</answer>", 1.0),
        (None, "3", 0.0),
        (r"it is \d+\.?", " it is 3.\n", 1.0),
        (r"it is \d+\.?", "so it is 3.", 0.0),
        (".*", "two\nlines", 1.0),
    ],
)
def test_format(pattern, completion, expected):
    assert Format(pattern=pattern)(RECORD, completion, NOTHING) == expected


@pytest.mark.parametrize(
    "completion, expected",
    [("", 0.0), ("a b", 0.0), ("a b c d", 0.0), ("a a a a", 1 / 3 - 1), ("a b a b a", 2 / 4 - 1)],
)
def test_repetition(completion, expected):
    assert Repetition(n=2)(RECORD, completion, NOTHING) == pytest.approx(expected)


def test_a_config_names_them():
    tree = {"name": "rewarded", "task": "arithmetic", "rewards": ["task", {"name": "format", "weight": 0.5}]}
    task = parse_task(tree)
    assert task == Rewarded(Arithmetic(), (OfTask(), Format(weight=0.5)))
    config = parse({"task": {**tree, "task": "maze"}})
    assert parse(to_plain(config)) == config
    assert "brief" in str(
        to_plain(dataclasses.replace(config, task=Rewarded(config.task, (Custom("b", brief),))))
    )


@pytest.mark.parametrize(
    "tree, said",
    [
        ({"rewards": []}, "name at least one, each once"),
        ({"rewards": ["task", "task"]}, "name at least one, each once"),
        ({"rewards": [{"name": "format", "pattern": "("}]}, "is no regular expression"),
        ({"rewards": [{"name": "repetition", "n": 0}]}, "an n-gram has 1 word or more"),
        ({"rewards": "task"}, "is a list of answer rewards"),
    ],
)
def test_what_makes_no_sense_is_refused(tree, said):
    with pytest.raises(ValueError, match=said):
        parse_task({"name": "rewarded", "task": "arithmetic", **tree})


class Letters:
    """A tokenizer of digits."""

    def decode(self, ids, skip_special_tokens=True):
        return "".join(str(i) for i in ids)


def collected(task, rows, truncated=()):
    """Answers that are given digit by digit, to two prompts of one group each."""
    count, width = len(rows), max(map(len, rows))
    tokens = np.zeros((count, width), np.int32)
    for row, digits in zip(tokens, rows, strict=True):
        row[: len(digits)] = list(map(int, digits))
    length = np.array([len(r) for r in rows], np.int32)
    cut = np.zeros(count, bool)
    cut[list(truncated)] = True
    mask = (np.arange(width) < length[:, None]).astype(np.float32)
    nothing = np.zeros(mask.shape, np.float32)
    samples = Samples(tokens, length, mask, cut, nothing, {}, np.zeros(count, np.int32))
    one = np.ones(2, np.int32)
    prompts = PromptBatch(one[:, None], one, np.arange(2, dtype=np.int32), 0 * one, one > 0, (RECORD, RECORD))
    return collect(task, Letters(), prompts, samples)


def test_figures_are_with_and_without_weight():
    task = Rewarded(Arithmetic(), (OfTask(weight=2.0), Custom("brief", brief, 0.1)))
    metrics = {k: v.value() for k, v in collected(task, ["3", "33", "3", "4"]).metrics.items()}
    assert metrics["rewards/task"] == 0.5 and metrics["rewards/task/weighted"] == 1.0
    assert metrics["rewards/brief"] == -1.25
    assert metrics["rewards/brief/weighted"] == pytest.approx(-0.125)
    assert metrics["reward/mean"] == pytest.approx(1.0 - 0.125)
    assert metrics["reward/correct"] == 0.5


def test_group_filters_look_at_correctness_and_not_at_the_shaped_reward():
    """All wrong, of different lengths, so of different rewards: still a group that teaches nothing."""
    task = Rewarded(Arithmetic(), (OfTask(), Custom("brief", brief, 0.1)))
    found = collected(task, ["4", "444", "3", "4"])
    assert len(set(found.rollout.reward[:2].tolist())) == 2
    right = found.rollout.correct.reshape(2, 2).sum(1)
    assert DropUniformGroups().keeps(right, np.array([2.0, 2.0])).tolist() == [False, True]


def test_rows_without_verdict_are_taken_out_and_counted():
    task = Rewarded(Arithmetic(), (Custom("sometimes", lambda r, text, v: None if text == "4" else 1.0),))
    found = collected(task, ["4", "4", "3", "4"])
    assert found.metrics["rollout/unjudged"].value() == 0.75
    assert found.rollout.valid.tolist() == [False, False, True, False]
    assert np.isfinite(found.rollout.reward).all()
    assert found.metrics["reward/mean"].value() == 1.0


def test_answers_that_were_cut_are_neither_wrong_nor_unparsable():
    found = collected(Arithmetic(), ["3", "4", "3", "4"], truncated=[0, 1])
    assert [v.reason for v in found.verdicts] == [
        Reason.CORRECT,
        Reason.TRUNCATED,
        Reason.CORRECT,
        Reason.WRONG,
    ]
    assert found.metrics["verdict/truncated"].value() == 0.25


def test_kinds_have_figures_of_their_own():
    @dataclasses.dataclass(frozen=True)
    class ByOperation(Arithmetic):
        def kind(self, record):
            return record["operation"]

    metrics = collected(ByOperation(), ["3", "4", "3", "4"]).metrics
    assert metrics["correct/plus"].value() == 0.5 and metrics["correct/plus"].count == 4


def test_what_a_task_loads_is_loaded_before_the_clock_of_a_verdict_runs(tmp_path):
    """Through whatever is around it."""

    @dataclasses.dataclass(frozen=True)
    class Heavy(Arithmetic):
        def prepare(self):
            (tmp_path / "loaded").touch()

    task = Rewarded(Prompted(Mixture((Heavy(),))), (OfTask(),))
    record = {"id": "arithmetic/1", "task": "arithmetic", "record": RECORD}
    with judging(task, workers=1) as judge:
        assert judge.verdicts([judge.submit(record, "3")])[0].correct
    assert (tmp_path / "loaded").exists()
