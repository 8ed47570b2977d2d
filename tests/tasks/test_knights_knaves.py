"""Puzzles against brute force over plain truth values, and answers written by hand."""

import dataclasses
import itertools
import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax.models.tokenizer import render, word_tokenizer
from rlvr_jax.tasks import Reason, knights_knaves_puzzles
from rlvr_jax.tasks.knights_knaves import KnightsKnaves
from rlvr_jax.tasks.knights_knaves_puzzles import FORMS, is_held_out, solutions, text, words
from rlvr_jax.tasks.records import RecordError

RECORD = {
    "id": "by-hand",
    "prompt": "Ada says: Ben is a knave. Ben says: Ada is a knight and Ben is a knight. Who is what?",
    "names": ["Ada", "Ben"],
    "statements": [["lying", 1], ["and", ["telling-truth", 0], ["telling-truth", 1]]],
    "solution": [True, False],
}
RIGHT = "<think>\nSuppose Ben is a knight.\n</think>\n<answer>\n(1) Ada is a knight\n(2) Ben is a knave\n</answer>"


def is_true(statement, knights):
    kind, *rest = statement
    if kind == "telling-truth":
        return knights[rest[0]]
    if kind == "lying":
        return not knights[rest[0]]
    values = [is_true(each, knights) for each in rest]
    return {
        "not": lambda: not values[0],
        "and": lambda: all(values),
        "or": lambda: any(values),
        "->": lambda: (not values[0]) or values[1],
        "<=>": lambda: values[0] == values[1],
    }[kind]()


def all_solutions(statements):
    worlds = itertools.product([False, True], repeat=len(statements))
    return [
        list(world)
        for world in worlds
        if all(is_true(s, world) == knight for s, knight in zip(statements, world, strict=True))
    ]


def test_new_puzzles_have_the_one_solution_that_brute_force_finds():
    task = KnightsKnaves(test_size=35)
    for split in ("train", "test"):
        for index, record in enumerate(task.records(split)[:35]):
            assert len(record["names"]) == len(set(record["names"])) == 2 + index % 7
            assert all_solutions(record["statements"]) == [record["solution"]]
            assert is_held_out(record["statements"]) == (split == "test")


def test_the_solver_finds_all_solutions_and_none():
    twins = [["telling-truth", 1], ["telling-truth", 0]]
    assert sorted(solutions(twins)) == [[False, False], [True, True]]
    assert solutions([["lying", 0], ["lying", 0]]) == []
    nested = [
        ["not", ["or", ["lying", 1], ["<=>", ["lying", 2], ["telling-truth", 0]]]],
        ["lying", 2],
        ["->", ["lying", 0], ["telling-truth", 1]],
    ]
    assert sorted(solutions(nested)) == all_solutions(nested)


@pytest.mark.parametrize(
    "statement",
    [["lying", 2], ["lying", -1], ["xor", ["lying", 0], ["lying", 1]], ["not"], ["lying", "0"], []],
)
def test_what_is_no_statement_says_so(statement):
    with pytest.raises(ValueError, match="is no statement about 2 people.$"):
        solutions([statement, ["lying", 0]])


def test_the_solver_agrees_with_every_record_of_another_generator(shared):
    task = KnightsKnaves(path=str(shared / "data" / "knights_knaves"))
    splits = {split: task.records(split) for split in ("train", "test")}  # reading them compares
    assert {split: len(records) for split, records in splits.items()} == {"train": 1574, "test": 330}
    for record in splits["test"]:
        assert task.verify(record, task.demonstration(record)).correct
        assert solutions(record["statements"]) == [record["solution"]]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (["telling-truth", 0], "Ada is a knight"),
        (["not", ["lying", 1]], "Ben is not a knave"),
        (["->", ["lying", 0], ["telling-truth", 1]], "if Ada is a knave then Ben is a knight"),
        (["<=>", ["lying", 0], ["lying", 1]], "Ada is a knave if and only if Ben is a knave"),
        (["or", ["lying", 0], ["telling-truth", 2]], "Ada is a knave or Eve is a knight"),
        (["and", ["lying", 2], ["lying", 0], ["lying", 1]], "Eve, Ada and Ben are all knaves"),
        (
            ["not", ["and", ["lying", 0], ["lying", 1]]],
            "it is not so that (Ada is a knave and Ben is a knave)",
        ),
        (["or", ["not", ["lying", 0]], ["lying", 1]], "(Ada is not a knave) or Ben is a knave"),
    ],
)
def test_statements_in_english(statement, expected):
    assert text(words(statement, ["Ada", "Ben", "Eve"])) == expected


def test_every_form_is_said_and_one_alone_can_be_asked_for():
    def form(statement):
        kinds = {each[0] for each in statement[1:] if isinstance(each, list)}
        if len(statement) > 3:
            assert statement[0] == "and" and len(kinds) == 1
            return "all"
        names = {"->": "implication", "<=>": "equivalence", "not": "negation", "and": "and", "or": "or"}
        return names.get(statement[0], "assertion")

    records = KnightsKnaves().records("train")[:100]
    assert {form(s) for r in records for s in r["statements"]} == set(FORMS)
    records = KnightsKnaves(forms=("or", "all"), people=(2, 4)).records("train")[:40]
    assert {form(s) for r in records for s in r["statements"]} == {"or", "all"}


@pytest.mark.parametrize("people", [2, 3, 5])
def test_a_puzzle_s_split_does_not_change_when_people_and_operands_change_places(people):
    for record in KnightsKnaves(people=(people,), test_size=20).records("test"):
        statements = record["statements"]

        def renamed(statement):
            kind, *rest = statement
            if kind in ("telling-truth", "lying"):
                return [kind, people - 1 - rest[0]]
            moved = [renamed(each) for each in rest]
            return [kind, *(moved if kind == "->" else moved[::-1])]

        assert is_held_out([renamed(s) for s in reversed(statements)])


def test_the_splits_share_no_statements_whatever_the_seeds():
    test = KnightsKnaves(seed=3, test_size=60).records("test")
    keys = {json.dumps(r["statements"]) for r in test}
    assert len(keys) == len(test) == 60
    train = KnightsKnaves(seed=4).records("train")
    assert not keys & {json.dumps(train[i]["statements"]) for i in range(100)}


def test_a_record_is_a_function_of_seed_and_index():
    records = KnightsKnaves(train_size=50).records("train")
    assert records[17] == pickle.loads(pickle.dumps(records))[17] == KnightsKnaves().records("train")[17]
    assert records[17] != KnightsKnaves(seed=1).records("train")[17]
    assert len(records) == 50 and json.loads(json.dumps(records[17])) == records[17]


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        (RIGHT, Reason.CORRECT),
        ("<answer>Ada: **knight**, Ben: knave</answer>", Reason.CORRECT),
        ("CONCLUSION:\n(1) ada is a KNIGHT\n(2) **Ben** is a **knave**.", Reason.CORRECT),
        ("Suppose Ada is a knave. </think> Ada is a knight, Ben is a knave.", Reason.CORRECT),
        (
            "<answer>Ada is a knave</answer> no: <answer>Ada is a knight. Ben is a knave.</answer>",
            Reason.CORRECT,
        ),
        ("<answer>Ada is a knight. Ben is a knight.</answer>", Reason.WRONG),
        ("<answer>Ada is a knave. Ben is a knave.</answer>", Reason.WRONG),
        ("<answer>Ada is a knight.</answer>", Reason.UNPARSABLE),
        ("<answer>Ada is a knight. Ben is a knave or Ben is a knight.</answer>", Reason.UNPARSABLE),
        ("<answer>Ada is a knight. Ben is not a knight.</answer>", Reason.UNPARSABLE),
        ("<answer>Adam is a knight. Ben is a knave.</answer>", Reason.UNPARSABLE),
        ("knight knave", Reason.UNPARSABLE),
        ("", Reason.UNPARSABLE),
    ],
)
def test_answers_by_hand(completion, reason):
    verdict = KnightsKnaves().verify(RECORD, completion)
    assert (verdict.reason, verdict.reward, verdict.parts) == (reason, float(reason is Reason.CORRECT), ())


WRONG = RIGHT.replace("knave\n<", "knight\n<")
LOOSE = "Ada is a knight. Ben is a knave."


@pytest.mark.parametrize(
    ("points", "weight", "completion", "reward"),
    [
        ("binary", 0.5, RIGHT, 1.5),
        ("binary", 0.5, WRONG, 0.5),
        ("binary", 0.5, LOOSE, 1.0),
        ("binary", 0.5, "", 0.0),
        ("logic_rl", 1.0, RIGHT, 3.0),
        ("logic_rl", 1.0, WRONG, -0.5),
        ("logic_rl", 1.0, LOOSE, 1.0),
        ("logic_rl", 1.0, "", -3.0),
        ("logic_rl", 0.0, "", -2.0),
    ],
)
def test_the_format_is_a_part_of_the_reward_and_not_of_being_correct(points, weight, completion, reward):
    task = KnightsKnaves(points=points, format_reward=weight)
    verdict = task.verify(RECORD, completion)
    assert verdict.reward == reward
    assert verdict.correct == KnightsKnaves().verify(RECORD, completion).correct
    if weight:
        assert sum(part.value * part.weight for part in verdict.parts) == reward
        assert [part.name for part in verdict.parts] == ["answer", "format"]


def test_a_scratch_model_has_every_word_and_can_learn_the_demonstrations():
    task = KnightsKnaves(style="words", format_reward=0.5, test_size=14)
    tokenizer = word_tokenizer(task.vocabulary())
    for record in task.records("test"):
        assert render(tokenizer, task.prompt(record))
        answer = task.demonstration(record)
        assert tokenizer.decode(tokenizer(answer)["input_ids"], skip_special_tokens=True) == answer
        assert task.verify(record, answer).reward == 1.5
    assert KnightsKnaves().vocabulary() is None


def test_the_chat_prompt_says_who_says_what_and_how_to_answer():
    task = KnightsKnaves(format_reward=1.0)
    for record in task.records("train")[:20]:
        (message,) = task.prompt(record)
        for name, statement in zip(record["names"], record["statements"], strict=True):
            assert f"{name} says: {text(words(statement, record['names']))}." in message["content"]
        assert "(1) Ada is a knight" in message["content"]
        assert task.verify(record, task.demonstration(record)).reward == 2.0


def test_equal_answers_have_equal_texts():
    task = KnightsKnaves()
    assert (
        task.answer({}, RIGHT)
        == task.answer({}, "Ben is a knave, and Ada is a knight")
        == "ada: knight, ben: knave"
    )
    assert task.answer({}, "no idea") is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"people": (1, 3)}, "^knights_knaves people=\\(1, 3\\): name one or more numbers in 2..8.$"),
        ({"people": ()}, "name one or more numbers"),
        ({"forms": ("andd",)}, "^no form of statement called 'andd'. Did you mean 'and'?"),
        ({"forms": ("all",)}, "name at least one besides 'all'"),
        ({"test_size": 0}, "^knights_knaves test_size is 1 or more, got 0; raise it.$"),
        ({"seed": -1}, "^knights_knaves seed is 0 or more, got -1; raise it.$"),
    ],
)
def test_fields_that_make_no_sense_say_so(fields, message):
    with pytest.raises(ValueError, match=message):
        KnightsKnaves(**fields)


def test_forms_and_sizes_that_no_puzzle_satisfies_end_with_an_error(monkeypatch):
    monkeypatch.setattr(knights_knaves_puzzles, "MOST_DRAWS", 500)
    # of "X is a knight" and "X is a knave" alone, turning everybody round is always another solution
    with pytest.raises(
        ValueError, match="^of 500 puzzles of 2 people with the forms assertion, negation, none has exactly"
    ):
        KnightsKnaves(people=(2,), forms=("assertion", "negation")).records("train")
    with pytest.raises(
        ValueError, match="^knights_knaves test_size=500: of 2 people there are no more than "
    ):
        KnightsKnaves(people=(2,), forms=("and",), test_size=500).records("test")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"solution": [True]}, "line 1: 1 solutions for the names"),
        ({"names": ["Ada", "ada"]}, "each person has one.$"),
        ({"names": ["Ada", "Old Ben"]}, "a name is one word"),
        (
            {"solution": [False, True]},
            "its statements have the solutions \\[\\[True, False\\]\\], and not \\[False, True\\] alone",
        ),
        (
            {"statements": [["lying", 5], ["lying", 0]]},
            "line 1: \\['lying', 5\\] is no statement about 2 people.",
        ),
    ],
)
def test_a_record_that_is_no_puzzle_is_an_error_that_says_where(tmp_path, change, message):
    (tmp_path / "train.jsonl").write_text(json.dumps(RECORD | change))
    with pytest.raises(RecordError, match=message):
        KnightsKnaves(path=str(tmp_path)).records("train")


def test_records_without_statements_are_judged_but_not_asked_in_words(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({k: v for k, v in RECORD.items() if k != "statements"}))
    task = KnightsKnaves(path=str(tmp_path))
    (record,) = task.records("train")
    assert task.verify(record, task.demonstration(record)).correct
    with pytest.raises(
        RecordError, match="style 'words' asks with the 'statements', and this record has none.$"
    ):
        dataclasses.replace(task, style="words").records("train")


PIECES = ["Ada", "Ben", " is a ", "knight", "knave", "<answer>", "</answer>", "<think>", "</think>", "\n"]


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80) | st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_is_judged(completion):
    for points, weight in (("binary", 0.0), ("logic_rl", 1.0)):
        KnightsKnaves(points=points, format_reward=weight).verify(RECORD, completion)
    KnightsKnaves().answer({}, completion)


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "'",
        "Ada is ",
        "<answer>",
        "<think>",
        "<think></think>",
        "</answer>",
        "conclusion ",
        "Ada * ",
        "<",
    ],
)
def test_long_babble_is_judged_in_no_time(piece):
    verdict = KnightsKnaves(format_reward=1.0).verify(RECORD, piece * 30_000)
    assert verdict.reason is Reason.UNPARSABLE
