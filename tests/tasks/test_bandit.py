"""A bandit by hand, its odds, and that a model from scratch can play it."""

import collections
import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax.models.tokenizer import render, word_tokenizer
from rlvr_jax.tasks import Reason
from rlvr_jax.tasks.bandit import Bandit

RECORD = {"id": "by-hand", "context": 0}


def test_every_action_is_rewarded_as_the_table_of_right_ones_says():
    task = Bandit(actions=20, correct=5, contexts=3, wrong_reward=-1.0)
    tables = []
    for record in task.records("train"):
        verdicts = [task.verify(record, f"action-{i}") for i in range(20)]
        right = {i for i, verdict in enumerate(verdicts) if verdict.correct}
        assert right == set(task.right(record)) and len(right) == 5
        assert {v.reward for v in verdicts if v.correct} == {1.0}
        assert {(v.reward, v.reason) for v in verdicts if not v.correct} == {(-1.0, Reason.WRONG)}
        assert task.verify(record, task.demonstration(record)).correct
        tables.append(frozenset(right))
    assert len(set(tables)) == 3


def test_right_actions_are_drawn_evenly():
    count = collections.Counter(
        action for seed in range(1000) for action in Bandit(actions=10, correct=3, seed=seed).right(RECORD)
    )
    # each is right with odds 3/10: 300 of 1000, four standard deviations of a binomial around it
    assert all(abs(count[action] - 300) < 4 * (1000 * 0.3 * 0.7) ** 0.5 for action in range(10))


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "action-",
        "action-64",
        "action--1",
        "action-01",
        "action-٣",
        "action-1 action-2",
        "action",
        "1",
        "Action-1",
        "action-" + "9" * 9999,
    ],
)
def test_what_is_no_action_is_unparsable_and_costs_what_a_wrong_one_does(completion):
    verdict = Bandit(wrong_reward=-1.0).verify(RECORD, completion)
    assert (verdict.reward, verdict.reason) == (-1.0, Reason.UNPARSABLE)
    assert Bandit().answer({}, completion) is None


def test_a_model_from_scratch_has_a_token_for_each_context_and_action():
    task = Bandit(contexts=2)
    tokenizer = word_tokenizer(task.vocabulary())
    assert len(task.vocabulary()) == len(set(task.vocabulary())) == 66
    for record in task.records("test"):
        assert len(render(tokenizer, task.prompt(record))) == 2  # one, and what a text begins with
        (token,) = tokenizer(task.demonstration(record), add_special_tokens=False)["input_ids"]
        assert task.verify(record, tokenizer.decode([token])).correct


def test_records_are_plain_and_both_splits_ask_in_all_contexts():
    task = Bandit(contexts=4)
    for split in ("train", "test"):
        records = task.records(split)
        assert json.loads(json.dumps(records)) == pickle.loads(pickle.dumps(records)) == records
        assert [r["context"] for r in records] == [0, 1, 2, 3]
    assert not {r["id"] for r in task.records("train")} & {r["id"] for r in task.records("test")}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"actions": 1}, "^bandit correct=8 of actions=1: at least one action is right, and one wrong.$"),
        ({"correct": 0}, "^bandit correct=0 of actions=64"),
        ({"correct": 64}, "^bandit correct=64 of actions=64"),
        ({"contexts": 0}, "^bandit contexts is 1 or more, got 0; raise it.$"),
        ({"seed": -1}, "^bandit seed is 0 or more, got -1; raise it.$"),
    ],
)
def test_fields_that_make_no_sense_say_so(fields, message):
    with pytest.raises(ValueError, match=message):
        Bandit(**fields)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30) | st.text(alphabet="action-0123456789 ", max_size=12))
def test_any_text_is_judged(completion):
    Bandit().verify(RECORD, completion)
