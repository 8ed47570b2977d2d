"""Answers between tags, and when a text is of that form."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax.tasks.base import Reason
from rlvr_jax.tasks.tags import POINTS, is_well_formed, last_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 7 </answer>", "7"),
        ("<answer>1</answer><answer>2</answer>", "2"),
        ("<answer>1</answer> and <answer>2", "1"),
        ("<answer>1 <answer>2</answer>", "2"),
        ("<answer></answer>", ""),
        ("</answer><answer>", None),
        ("<answer>7", None),
        ("7</answer>", None),
        ("7", None),
        ("", None),
    ],
)
def test_the_last_closed_answer(text, answer):
    assert last_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "well_formed"),
    [
        ("<think>a\nb</think>\n<answer>7</answer>", True),
        (" <think></think><answer></answer>\n", True),
        ("<think>a < b, <b>c</b></think> <answer>x < y</answer>", True),
        ("the prompt ends with the opening</think><answer>7</answer>", True),
        ("<answer>7</answer>", False),
        ("<think>a</think>", False),
        ("<think>a</think> so <answer>7</answer>", False),
        ("<think>a</think><answer>7</answer> indeed", False),
        ("<answer>7</answer><think>a</think>", False),
        ("<think>a<answer>7</think></answer>", False),
        ("<think>a</think><think>b</think><answer>7</answer>", False),
        ("<think>a</think><answer>6</answer><answer>7</answer>", False),
        ("", False),
    ],
)
def test_the_form_is_one_reasoning_and_then_one_answer(text, well_formed):
    assert is_well_formed(text) is well_formed


def test_points_are_what_their_sources_say():
    # Logic-RL, section 2.3: format 1 or -1, answer 2, -1.5 or -2
    right, plain = "<think>a</think><answer>7</answer>", "7"
    table = [
        (Reason.CORRECT, right, 3),
        (Reason.WRONG, right, -0.5),
        (Reason.WRONG, plain, -2.5),
        (Reason.UNPARSABLE, plain, -3),
    ]
    for reason, text, reward in table:
        verdict = POINTS["logic_rl"].verdict(reason, text, 1.0)
        assert verdict.reward == reward == sum(part.value * part.weight for part in verdict.parts)
        assert verdict.correct == (reason is Reason.CORRECT)
    assert POINTS["binary"].verdict(Reason.CORRECT, plain, 0.0).parts == ()


TAGS = ["<think>", "</think>", "<answer>", "</answer>", "<", "a", "\n"]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(TAGS), max_size=8).map("".join))
def test_any_order_of_tags_is_read(text):
    answer = last_answer(text)
    assert answer is None or f"<answer>{answer}</answer>" in "".join(text.split()) or answer in text
    if is_well_formed(text):
        assert answer is not None and text.count("</think>") == 1


@pytest.mark.parametrize("tag", TAGS)
def test_long_babble_is_read_in_no_time(tag):
    start = time.perf_counter()
    for text in (tag * 50_000, f"<think>{tag * 50_000}</think><answer></answer>"):
        last_answer(text)
        is_well_formed(text)
    assert time.perf_counter() - start < 1
