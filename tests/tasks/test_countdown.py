"""Countdown: expressions by hand, arithmetic against Python's own, and problems against the rules of the game."""

import fractions
import itertools
import json
import pickle
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax.models.tokenizer import render, word_tokenizer
from rlvr_jax.tasks import Reason, countdown
from rlvr_jax.tasks.countdown import Countdown, NotArithmetic, is_held_out, value

RECORD = {"id": "by-hand", "numbers": [3, 8, 8, 3], "target": 24, "solution": "8 / ( 3 - ( 8 / 3 ) )"}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("8 / (3 - 8 / 3)", Reason.CORRECT),  # 24 in fractions only; in floats it is 23.99999999999999
        ("8 ÷ (3 − 8÷3) = 24", Reason.CORRECT),
        ("8/(3-8/3)=48/2", Reason.CORRECT),
        ("8 / (3 - 8 / 3) = 25", Reason.WRONG),
        ("8 + 8 + 3 + 3", Reason.WRONG),
        ("8 * 3", Reason.WRONG),
        ("8 * 3 * (8 / 8)", Reason.WRONG),
        ("24", Reason.WRONG),
        ("-(3 - 3 - 8 * -8)", Reason.WRONG),
        ("8 / (3 - 3) + 8", Reason.UNPARSABLE),
        ("8 ** 3 + 8 - 3", Reason.UNPARSABLE),
        ("8 // 3 + 8 - 3", Reason.UNPARSABLE),
        ("8(3)(8)(3)", Reason.UNPARSABLE),
        ("eight times three", Reason.UNPARSABLE),
        ("", Reason.UNPARSABLE),
        ("()", Reason.UNPARSABLE),
        ("8 3", Reason.UNPARSABLE),
        ("08 * 3", Reason.UNPARSABLE),
        ("+8", Reason.UNPARSABLE),
        ("= 24", Reason.UNPARSABLE),
        ("__import__('os')", Reason.UNPARSABLE),
        ("1" + "0" * 150, Reason.WRONG),
        ("9" * 100_000, Reason.UNPARSABLE),
        ("(" * 100 + "8" + ")" * 100, Reason.UNPARSABLE),
        ("9**9**9**9", Reason.UNPARSABLE),
    ],
)
def test_answers_by_hand(answer, reason):
    start = time.perf_counter()
    verdict = Countdown().verify(RECORD, f"<think>8 * 3</think>\n<answer> {answer} </answer>")
    assert (verdict.reason, verdict.reward) == (reason, float(reason is Reason.CORRECT))
    assert time.perf_counter() - start < 1


def test_the_last_closed_answer_counts_and_an_answer_without_tags_is_none():
    task, right = Countdown(), "<answer>8 / (3 - 8 / 3)</answer>"
    assert task.verify(RECORD, f"<answer>1</answer> no: {right}").correct
    assert not task.verify(RECORD, f"{right} or <answer>1</answer>").correct
    assert task.verify(RECORD, f"{right} <answer>1").correct
    assert task.verify(RECORD, "8 / (3 - 8 / 3)").reason is Reason.UNPARSABLE


def test_some_of_the_numbers_suffice_where_all_are_not_asked_for():
    for answer, some, every in (
        ("8 * 3", True, False),
        ("8 * 3 * 1", False, False),
        ("3 * 3 * 3 - 3", False, False),
    ):
        text = f"<answer>{answer}</answer>"
        assert Countdown(use="some").verify(RECORD, text).correct is some
        assert Countdown(use="all").verify(RECORD, text).correct is every


def test_the_format_is_a_part_of_the_reward_and_not_of_being_correct():
    task = Countdown(format_reward=0.1)
    answer = "<answer>8 / (3 - 8 / 3)</answer>"
    for text, reward in (
        (answer, 1.0),
        (f"<think>x</think>{answer}", 1.1),
        ("<think></think><answer>1</answer>", 0.1),
        ("", 0.0),
    ):
        verdict = task.verify(RECORD, text)
        assert verdict.reward == pytest.approx(reward) and verdict.correct == (reward >= 1)
        assert [(part.name, part.weight) for part in verdict.parts] == [("answer", 1.0), ("format", 0.1)]


def expressions(depth=3):
    number = st.integers(0, 10**6).map(str)

    def both(inner):
        return st.tuples(inner, st.sampled_from("+-*/"), inner).map("({0[0]} {0[1]} {0[2]})".format)

    return st.recursive(number, lambda inner: both(inner) | inner.map(lambda x: f"-{x}"), max_leaves=2**depth)


@settings(max_examples=80, deadline=None)
@given(expressions())
def test_values_are_those_of_exact_fractions(text):
    exact = re.sub(r"\d+", lambda found: f"F({found[0]})", text)
    try:
        expected = eval(exact, {"F": fractions.Fraction, "__builtins__": {}})
    except ZeroDivisionError:
        with pytest.raises(NotArithmetic):
            value(text)
    else:
        assert value(text) == (expected, [int(n) for n in re.findall(r"\d+", text)])


def reachable(numbers):
    """All values of expressions that use every number, by joining every pair in every way."""
    if len(numbers) == 1:
        return {numbers[0]}
    found = set()
    for i, j in itertools.permutations(range(len(numbers)), 2):
        rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
        a, b = numbers[i], numbers[j]
        for joined in [a + b, a - b, a * b, *([a / b] if b else [])]:
            found |= reachable([joined, *rest])
    return found


def test_problems_can_be_solved_by_the_rules_and_demonstrations_do():
    task = Countdown(test_size=40)
    for split in ("train", "test"):
        for index, record in enumerate(task.records(split)[:40]):
            assert len(record["numbers"]) == 3 + index % 2
            assert all(1 <= n <= 99 for n in record["numbers"]) and 1 <= record["target"] <= 99
            if len(record["numbers"]) == 3:
                assert record["target"] in reachable([fractions.Fraction(n) for n in record["numbers"]])
            assert task.verify(record, task.demonstration(record)).correct
            assert is_held_out(record["numbers"][::-1], record["target"]) == (split == "test")


def test_test_problems_differ_from_each_other_and_from_training_ones_whatever_the_seeds():
    def key(r):
        return (r["target"], *sorted(r["numbers"]))

    small = {"largest_number": 12, "largest_target": 30, "numbers": (3,)}
    test = [key(r) for r in Countdown(**small, seed=1, test_size=100).records("test")]
    train = {key(r) for r in Countdown(**small, seed=2).records("train")[:400]}
    assert len(set(test)) == 100 and not set(test) & train


def test_a_record_is_a_function_of_seed_and_index():
    records = Countdown(train_size=50).records("train")
    assert records[17] == pickle.loads(pickle.dumps(records))[17] == Countdown().records("train")[17]
    assert records[17] != Countdown(seed=1).records("train")[17]
    assert len(records) == 50 and json.loads(json.dumps(records[17])) == records[17]


def test_a_scratch_model_has_every_word_and_can_learn_the_demonstrations():
    task = Countdown(style="words", largest_number=20, largest_target=50, format_reward=0.5, test_size=20)
    tokenizer = word_tokenizer(task.vocabulary())
    for record in task.records("test"):
        assert render(tokenizer, task.prompt(record))
        answer = task.demonstration(record)
        steps = tokenizer(answer, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(steps) == answer and task.verify(record, answer).reward == 1.5
    assert Countdown().vocabulary() is None


def test_the_chat_prompt_says_the_rules():
    for use, rule in (
        ("all", "have to use each number exactly once"),
        ("some", "may use each number at most once"),
    ):
        (message,) = Countdown(use=use).prompt(RECORD)
        assert "Using the numbers 3, 8, 8, 3, write an expression that equals 24." in message["content"]
        assert rule in message["content"] and "<answer>" in message["content"]


def test_equal_values_are_equal_answers():
    task = Countdown()
    assert (
        task.answer({}, "<answer>8 * 3</answer>") == task.answer({}, "<answer>(8 + 16) = 24</answer>") == "24"
    )
    assert task.answer({}, "<answer>8 / 3</answer>") == "8/3"
    assert task.answer({}, "8 * 3") is None and task.answer({}, "<answer>1 / 0</answer>") is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"numbers": (1,)}, "^countdown numbers=\\(1,\\): name one or more counts in 2..6.$"),
        ({"numbers": ()}, "name one or more counts"),
        ({"largest_number": 3}, "^countdown largest_number is in 9..100000, got 3.$"),
        ({"test_size": 0}, "^countdown test_size is 1 or more, got 0; raise it.$"),
    ],
)
def test_fields_that_make_no_sense_say_so(fields, message):
    with pytest.raises(ValueError, match=message):
        Countdown(**fields)


def test_ranges_without_enough_problems_end_with_an_error(monkeypatch):
    monkeypatch.setattr(countdown, "MOST_DRAWS", 100)
    with pytest.raises(
        ValueError, match="^of 100 draws of 2 numbers up to 100000, none gave a target up to 9 that"
    ):
        Countdown(numbers=(2,), largest_number=100_000, largest_target=9).records("train")
    with pytest.raises(
        ValueError, match="^countdown test_size=20: 2000 draws gave [0-9]+ different problems to hold out"
    ):
        Countdown(numbers=(2,), largest_number=9, largest_target=9, test_size=20).records("test")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60) | st.text(alphabet="0123456789+-*/()= \n", max_size=60))
def test_any_text_is_judged(completion):
    task = Countdown(format_reward=1.0)
    for text in (completion, f"<answer>{completion}</answer>"):
        task.verify(RECORD, text)
        task.answer({}, text)
