"""Mixtures: each record knows its task, and weights hold in the order of records and of prompts."""

import dataclasses
import itertools
import json
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax.config import Config
from rlvr_jax.configfile import override, parse, parse_task, to_plain
from rlvr_jax.rollout.order import draw, endless_indices
from rlvr_jax.tasks import Reason, Task, Verdict
from rlvr_jax.tasks.arithmetic import Arithmetic
from rlvr_jax.tasks.maze import Maze
from rlvr_jax.tasks.mixture import MixedRecords, Mixture, whole


@dataclasses.dataclass(frozen=True)
class Letters(Task):
    """Prompts of one letter, `size` of them; right is the letter doubled."""

    name = "letters"
    letter: str = "a"
    size: int = 3

    def records(self, split):
        return [{"id": f"{self.letter}{i}", "task": "its own"} for i in range(self.size)]

    def prompt(self, record):
        return self.letter

    def verify(self, record, completion):
        assert record["task"] == "its own"
        return Verdict.of(Reason.CORRECT if completion == 2 * self.letter else Reason.WRONG)

    def answer(self, record, completion):
        assert record["task"] == "its own"
        return completion

    def vocabulary(self):
        return ("a", self.letter)

    def demonstration(self, record):
        return 2 * self.letter


ABC = Mixture((Letters("a", 2), Letters("b", 5), Letters("c", 1)), (1.0, 0.5, 2.0))


def test_each_record_goes_to_its_task():
    records = ABC.records("train")
    assert len(records) == 8
    assert Counter(record["task"] for record in records) == {"letters": 2, "letters-2": 5, "letters-3": 1}
    assert len({record["id"] for record in records}) == 8
    for record in records:
        letter = record["id"].split("/")[1][0]
        assert ABC.prompt(record) == letter and ABC.demonstration(record) == 2 * letter
        assert ABC.answer(record, "7") == "7"
        assert ABC.verify(record, 2 * letter).correct and not ABC.verify(record, letter).correct
    assert ABC.vocabulary() == ("a", "b", "c")
    assert pickle.loads(pickle.dumps(ABC)).verify(records[0], "x").reason is Reason.WRONG
    assert list(pickle.loads(pickle.dumps(records))) == list(records)
    json.dumps(list(records))


def test_one_task_without_words_needs_a_pretrained_tokenizer():
    assert Mixture((Letters(), Arithmetic())).vocabulary() is None


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    weights=st.lists(st.integers(1, 9), min_size=4, max_size=4),
)
@settings(max_examples=50, deadline=None)
def test_the_first_records_are_mixed_by_weight_until_one_task_ends(sizes, weights):
    weights = tuple(weights[: len(sizes)])
    parts = [(str(k), [{"id": i} for i in range(size)]) for k, size in enumerate(sizes)]
    records = MixedRecords(parts, weights)
    tasks = [int(record["task"]) for record in records]
    assert sorted(record["id"] for record in records) == sorted(
        f"{k}/{i}" for k, size in enumerate(sizes) for i in range(size)
    )
    share = np.array(weights) / sum(weights)
    for n in range(1, len(tasks) + 1):
        counts = np.bincount(tasks[:n], minlength=len(sizes))
        if (counts == sizes).any():
            break
        assert (abs(counts - n * share) <= (1 + len(sizes)) / 2 + 1e-9).all()
    for k, size in enumerate(sizes):
        assert [records[i]["record"]["id"] for i in records.places(k)] == list(range(size))


def test_a_rare_task_comes_in_the_middle_of_its_share():
    parts = [(str(k), [{"id": i} for i in range(6)]) for k in range(2)]
    assert "".join(record["task"] for record in MixedRecords(parts, (1, 5)))[:6] == "110111"


@pytest.mark.parametrize(
    "weights, expected",
    [
        ((0.1, 0.25), (2, 5)),
        ((3, 3.0), (1, 1)),
        ((1e-3, 1), (1, 1000)),
        ((7473, 1319), (7473, 1319)),
        ((0.7, 0.2, 0.1), (7, 2, 1)),
    ],
)
def test_weights_are_taken_as_they_are_written(weights, expected):
    assert whole(weights) == expected


@given(weights=st.lists(st.integers(1, 30), min_size=1, max_size=5), blocks=st.integers(1, 3), at=st.data())
@settings(max_examples=50, deadline=None)
def test_draws_are_exact_over_each_block_and_near_in_between(weights, blocks, at):
    total = sum(weights)
    seen: list[Counter[int]] = [Counter()]
    for index in range(blocks * total):
        which, earlier = draw(index, weights)
        assert earlier == seen[-1][which]  # a sequence is read in its order, without a gap
        seen.append(seen[-1] + Counter({which: 1}))
    for block in range(1, blocks + 1):
        assert seen[block * total] == Counter(dict(enumerate(block * w for w in weights)))
    n = at.draw(st.integers(0, blocks * total))
    for k, weight in enumerate(weights):
        assert abs(seen[n][k] - n * weight / total) < len(weights)


def test_training_draws_by_weight_and_each_task_has_epochs_of_its_own():
    records = ABC.records("train")
    indices = endless_indices(records, seed=3, shuffle=True)
    drawn = [records[int(next(indices))] for _ in range(7 * 20)]
    counts = Counter(record["task"] for record in drawn)
    assert counts == {"letters": 40, "letters-2": 20, "letters-3": 80}  # 1 : 0.5 : 2
    for label, size in (("letters", 2), ("letters-2", 5), ("letters-3", 1)):
        ids = [record["id"] for record in drawn if record["task"] == label]
        epochs = [tuple(ids[i : i + size]) for i in range(0, len(ids), size)]
        assert all(len(set(epoch)) == size for epoch in epochs)
        assert size < 3 or len(set(epochs)) > 1


def test_without_weights_an_epoch_of_all_is_an_epoch_of_each():
    records = Mixture(ABC.tasks).records("train")
    assert records.weights == (2, 5, 1)
    indices = endless_indices(records, seed=0, shuffle=True)
    for _ in range(3):
        assert sorted(int(next(indices)) for _ in range(8)) == list(range(8))


def test_equally_long_tasks_are_not_in_the_same_order():
    records = Mixture((Letters("a", 40), Letters("b", 40))).records("train")
    indices = endless_indices(records, seed=0, shuffle=True)
    drawn = [records[int(next(indices))]["id"] for _ in range(80)]
    a, b = ([i.rpartition("/")[2][1:] for i in drawn if f"/{k}" in i] for k in "ab")
    assert sorted(a) == sorted(b) and a != b


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"tasks": ()}, "mixture tasks=(): name at least one task."),
        (
            {"tasks": (ABC,)},
            "mixture tasks hold a mixture: name its tasks here, with their weights.",
        ),
        (
            {"tasks": (Letters(), Letters("b")), "weights": (1.0,)},
            "mixture weights=(1.0,): give one to each of letters, letters-2, or none at all.",
        ),
        (
            {"tasks": (Letters(),), "weights": (0.0,)},
            "mixture weights=(0.0,): a weight is a positive number.",
        ),
        (
            {"tasks": (Letters(),), "weights": (float("nan"),)},
            "mixture weights=(nan,): a weight is a positive number.",
        ),
    ],
)
def test_impossible_mixtures_are_refused(fields, message):
    with pytest.raises(ValueError) as error:
        Mixture(**fields)
    assert str(error.value) == message


def test_a_mixture_with_an_empty_task_is_refused_when_it_is_ordered():
    records = Mixture((Letters(), Letters("b", 0))).records("train")
    with pytest.raises(ValueError) as error:
        endless_indices(records, seed=0, shuffle=True)
    assert str(error.value) == "task 'letters-2' of the mixture has no records; leave it out."


# ---- as config ---------------------------------------------------------------------------------------------------

TREE = {
    "name": "mixture",
    "tasks": ["maze", {"name": "maze", "size": 11}, {"name": "prompted", "task": "maze", "system": "Hi"}],
    "weights": [1, "0.5", 2],
}


def test_a_mixture_is_written_in_a_config_and_comes_back():
    config = parse({"task": TREE})
    task = config.task
    assert isinstance(task, Mixture) and task.weights == (1.0, 0.5, 2.0)
    assert task.tasks[:2] == (Maze(), Maze(size=11)) and task.tasks[2].task == Maze()
    assert task == parse_task(TREE)
    assert parse(to_plain(config)) == config
    assert isinstance(config, Config)


def test_fields_of_a_task_in_a_mixture_are_set_by_its_name():
    tree = override({"task": {"name": "mixture", "tasks": ["maze"]}}, ["--task.tasks.maze.size", "9"])
    assert parse(tree).task.tasks == (Maze(size=9),)


@pytest.mark.parametrize(
    "tasks, message",
    [
        ("maze", "task.tasks is a list of tasks, got 'maze'."),
        ([3], "task.tasks is a name, or a mapping with `name` and its fields; got 3."),
        (["mase"], "no task called 'mase'. Did you mean 'maze'?"),
    ],
)
def test_tasks_that_are_none_are_refused(tasks, message):
    with pytest.raises(ValueError) as error:
        parse({"task": {"name": "mixture", "tasks": tasks}})
    assert str(error.value).startswith(message)


def test_default_tasks_hold_records_of_both_splits():
    for split, task in itertools.product(("train", "test"), (Mixture(),)):
        assert {record["task"] for record in task.records(split)[:50]} == {"arithmetic", "arithmetic-2"}
