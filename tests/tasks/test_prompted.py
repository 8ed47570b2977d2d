"""A system message and examples before any task's question."""

import dataclasses

import pytest

from rlvr_jax.tasks.arithmetic import Arithmetic
from rlvr_jax.tasks.maze import Maze
from rlvr_jax.tasks.prompted import Prompted

SMALL = Arithmetic(max_operand=9, instruction="")


@dataclasses.dataclass(frozen=True)
class WithSystem(Arithmetic):
    """Has a system message of its own."""

    def prompt(self, record):
        return [{"role": "system", "content": "Count."}, *super().prompt(record)]


@dataclasses.dataclass(frozen=True)
class Silent(Arithmetic):
    """Has no demonstrations."""

    def demonstration(self, record):
        return None


def message(role, content):
    return {"role": role, "content": content}


def asked(record):
    return message("user", f"What is {record['a']} {record['operation']} {record['b']}?")


def test_the_examples_are_turns_before_the_question():
    train, record = SMALL.records("train"), SMALL.records("test")[0]
    expected = [message("system", "Be brief.")]
    for shown in train[:2]:
        expected += [asked(shown), message("assistant", shown["answer"])]
    assert Prompted(SMALL, "Be brief.", 2).prompt(record) == [*expected, asked(record)]
    assert Prompted(SMALL).prompt(record) == SMALL.prompt(record)


def test_a_record_is_not_its_own_example():
    train = SMALL.records("train")
    shown = [m["content"] for m in Prompted(SMALL, shots=2).prompt(train[0]) if m["role"] == "user"]
    assert shown == [asked(train[i])["content"] for i in (1, 2, 0)]


def test_there_is_one_system_message():
    record = SMALL.records("test")[0]
    messages = Prompted(WithSystem(9), "Be brief.", 1).prompt(record)
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user"]
    assert messages[0]["content"] == "Count.\n\nBe brief."


def test_raw_text_stays_raw_text():
    maze = Maze(size=5, test_size=1)
    record, shown = maze.records("test")[0], maze.records("train")[0]
    assert Prompted(maze, "Walk.", 1).prompt(record) == "\n\n".join(
        ["Walk.", f"{maze.prompt(shown)} {maze.demonstration(shown)}", maze.prompt(record)]
    )
    assert set(Prompted(maze, "Walk .").vocabulary()) == {*maze.vocabulary(), "Walk", "."}


def test_everything_else_is_the_task_s():
    task, record = Prompted(SMALL, "Be brief."), SMALL.records("test")[0]
    assert list(task.records("test")) == list(SMALL.records("test"))
    assert task.verify(record, record["answer"]).correct
    assert task.demonstration(record) == record["answer"] and task.answer(record, "it is 7.0") == "7"
    assert task.vocabulary() is None


def test_what_cannot_be_shown_is_refused():
    with pytest.raises(ValueError) as error:
        Prompted(SMALL, shots=-1)
    assert str(error.value) == "prompted shots=-1: that many examples are shown, 0 or more."
    with pytest.raises(ValueError) as error:
        Prompted(Silent(9), shots=1).prompt(SMALL.records("test")[0])
    assert str(error.value) == (
        "prompted shots=1: task 'arithmetic' has no 1 training records with demonstrations to show; show fewer."
    )
