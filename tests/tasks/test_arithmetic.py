"""Arithmetic: splits that share no pair of numbers, and a verifier that reads numbers as people do."""

import decimal
import pickle

import numpy as np
import pytest

from rlvr_jax import registry
from rlvr_jax.tasks import Reason
from rlvr_jax.tasks.answers import last_number
from rlvr_jax.tasks.arithmetic import Arithmetic


def pairs(task, split):
    return {tuple(sorted((r["a"], r["b"]))) for r in task.records(split)}


def test_the_splits_are_all_questions_and_share_no_pair():
    task = Arithmetic(max_operand=40, operations=("plus", "minus", "times"))
    train, test = pairs(task, "train"), pairs(task, "test")
    assert not train & test
    assert train | test == {(a, b) for a in range(41) for b in range(a, 41)}
    assert len(task.records("train")) + len(task.records("test")) == 41 * 41 * 3
    # 861 pairs, each held out with chance 1/8: 107.6 with a standard deviation of 9.7
    assert abs(len(test) - 861 / 8) < 4 * 9.7


def test_a_pair_keeps_its_split_in_other_ranges_and_operations():
    small, large = Arithmetic(max_operand=10), Arithmetic(max_operand=60, operations=("times",))
    assert pairs(small, "test") <= pairs(large, "test")
    assert not pairs(small, "test") & pairs(large, "train")


def test_every_question_is_there_once_and_its_answer_is_right():
    task = Arithmetic(max_operand=12, operations=("plus", "minus", "times"))
    signs = {"plus": "+", "minus": "-", "times": "*"}
    seen = set()
    for record in [*task.records("train"), *task.records("test")]:
        expected = {
            "+": record["a"] + record["b"],
            "-": record["a"] - record["b"],
            "*": record["a"] * record["b"],
        }[signs[record["operation"]]]
        assert record["answer"] == str(expected)
        seen.add((record["a"], record["operation"], record["b"]))
    assert len(seen) == 13 * 13 * 3


def test_the_first_records_are_a_sample_and_not_the_small_numbers():
    first = [record["a"] for record in Arithmetic().records("test")[:100]]
    # uniform on 0..99: mean 49.5, standard deviation of the mean of 100 is 2.9
    assert abs(np.mean(first) - 49.5) < 4 * 2.9


def test_records_are_deterministic_picklable_and_indexed_like_a_list():
    records = Arithmetic().records("train")
    again = pickle.loads(pickle.dumps(Arithmetic().records("train")))
    assert records[5] == again[5] == records[5 - len(records)] == records[np.int64(5)] == records[3:9][2]
    with pytest.raises(IndexError):
        records[len(records)]


def test_the_prompt_is_one_user_message():
    record = {"a": 27, "operation": "plus", "b": 45, "answer": "72"}
    assert Arithmetic().prompt(record) == [
        {"role": "user", "content": "What is 27 plus 45? Answer with the number only."}
    ]
    assert Arithmetic(instruction="").prompt(record) == [{"role": "user", "content": "What is 27 plus 45?"}]


@pytest.mark.parametrize(
    "answer, completion, reason",
    [
        ("72", "72", Reason.CORRECT),
        ("72", "27 plus 45 is 72.", Reason.CORRECT),
        ("72", "**72**", Reason.CORRECT),
        ("72", "The answer is 72.0", Reason.CORRECT),
        ("72", "27+45=72", Reason.CORRECT),
        ("72", "$72", Reason.CORRECT),
        ("72", r"\boxed{72}", Reason.CORRECT),
        ("72", "+72", Reason.CORRECT),
        ("72", "072", Reason.CORRECT),
        ("72", "72 apples, or 73", Reason.WRONG),
        ("72", "-72", Reason.WRONG),
        ("72", "7 2", Reason.WRONG),
        ("72", "7.2", Reason.WRONG),
        ("-18", "27 minus 45 is -18", Reason.CORRECT),
        ("-18", "27-45 = \u221218", Reason.CORRECT),
        ("-18", "It is 18", Reason.WRONG),
        ("-18", "45-18", Reason.WRONG),
        ("4455", "99 times 45 equals 4,455.", Reason.CORRECT),
        ("4455", "4,45,5", Reason.WRONG),
        ("1234567", "1,234,567", Reason.CORRECT),
        ("0", "0", Reason.CORRECT),
        ("0", "-0", Reason.CORRECT),
        ("72", "seventy-two", Reason.UNPARSABLE),
        ("72", "", Reason.UNPARSABLE),
        ("72", "x72", Reason.UNPARSABLE),
        ("72", "9" * 5000, Reason.UNPARSABLE),
        ("72", "\u0667\u0662", Reason.UNPARSABLE),
    ],
)
def test_verdicts(answer, completion, reason):
    assert Arithmetic().verify({"answer": answer}, completion).reason is reason


def test_demonstrations_are_right():
    task = Arithmetic(operations=("plus", "minus", "times"))
    for split in ("train", "test"):
        for record in task.records(split)[:200]:
            assert task.verify(record, task.demonstration(record)).correct
    assert task.vocabulary() is None


@pytest.mark.parametrize(
    "text, number",
    [
        ("3, 4, 5", "5"),
        ("(1,2,3)", "3"),
        ("1,234.50 dollars", "1234.50"),
        ("12,34", "34"),
        ("a .5", "0.5"),
        ("5-3", "3"),
        ("x = -3", "-3"),
        ("AB12", None),
    ],
)
def test_the_last_number(text, number):
    assert last_number(text) == (None if number is None else decimal.Decimal(number))


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"max_operand": 0}, "arithmetic max_operand=0: operands go from 0 to a number in 1..2000."),
        ({"max_operand": 2001}, "arithmetic max_operand=2001: operands go from 0 to a number in 1..2000."),
        (
            {"operations": ("plsu",)},
            "no arithmetic operation called 'plsu'. Did you mean 'plus'? Known: plus, minus, times.",
        ),
        ({"operations": ()}, "arithmetic operations=(): name at least one of plus, minus, times, each once."),
        (
            {"operations": ("plus", "plus")},
            "arithmetic operations=('plus', 'plus'): name at least one of plus, minus, times, each once.",
        ),
    ],
)
def test_impossible_fields_are_refused(fields, message):
    with pytest.raises(ValueError) as error:
        registry.build("task", "arithmetic", **fields)
    assert str(error.value) == message


def test_equal_numbers_are_one_vote():
    task = Arithmetic()
    for same in (["7", "It is 7.", "7.0", "-3, so 07"], ["-0", "0.00"], ["1,000", "1000.0"], ["0.50", ".5"]):
        assert len({task.answer({}, text) for text in same}) == 1, same
    assert task.answer({}, "none") is None and task.answer({}, "") is None
    long = "9" * 60  # more digits than the 28 of decimal's arithmetic
    assert task.answer({}, long + "1") == long + "1" != task.answer({}, long + "2")
    assert task.answer({}, "-12.50") == "-12.5" and task.answer({}, "100") == "100"
