"""The report about a data set: every fault is planted, and found with its record; a clean set has none."""

import dataclasses
import io
import json

import numpy as np
import pytest
from rich.console import Console

from rlvr_jax.analysis.data_check import check_data, histogram, spread
from rlvr_jax.analysis.data_report import report, show, shown
from rlvr_jax.models.tokenizer import render, word_tokenizer
from rlvr_jax.tasks import Reason, Task, Verdict
from rlvr_jax.tasks.mixture import Mixture

WORDS = tuple("abcdefghijklmnopqrstuvwxyz")
CLEAN = {
    "train": [("a b", "1"), ("b c d", "2"), ("c", "3")],
    "test": [("d", "4"), ("e f", "5")],
}


@dataclasses.dataclass(frozen=True)
class Given(Task):
    """Questions and answers as given; the verifier takes digits alone, and a broken one nothing."""

    name = "given"
    pairs: tuple = ()
    test_pairs: tuple = ()
    prefix: str = ""
    broken: bool = False

    def records(self, split):
        pairs = self.pairs if split == "train" else self.test_pairs
        return [{"id": f"{split}-{i}", "question": q, "answer": a} for i, (q, a) in enumerate(pairs)]

    def prompt(self, record):
        return f"{self.prefix}{record['question']}"

    def verify(self, record, completion):
        return Verdict.of(Reason.CORRECT if completion.isdigit() else Reason.WRONG)

    def check(self):
        if self.broken:
            raise RuntimeError("no sandbox here")

    def demonstration(self, record):
        return record["answer"]


def given(train=CLEAN["train"], test=CLEAN["test"], **fields):
    return Given(tuple(train), tuple(test), **fields)


def check(task, tokenizer=None, max_tokens=None, too_long="error", **fields):
    found = check_data(task, tokenizer, max_tokens=max_tokens, too_long=too_long, **fields)
    return json.loads(json.dumps(found))


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer(WORDS)


def test_a_clean_set_has_figures_and_no_problems(tokenizer):
    seen = []
    found = check(given(), tokenizer, 64, progress=lambda *each: seen.append(each))
    assert found["problems"] == found["notes"] == []
    assert seen == [(n, 5) for n in range(1, 6)]
    train = found["splits"]["train"]
    lengths = [len(render(tokenizer, q)) for q, _ in CLEAN["train"]]
    assert train["records"] == train["looked_at"] == train["judged"] == 3
    assert train["length"] == {
        "min": min(lengths),
        "mean": np.mean(lengths),
        "p50": np.percentile(lengths, 50),
        "p90": np.percentile(lengths, 90),
        "p99": np.percentile(lengths, 99),
        "max": max(lengths),
    }
    assert train["over_limit"] == 0 and train["histogram"] == [[16, 3]] and found["unit"] == "tokens"
    assert list(found["splits"]) == ["train", "test"]


@pytest.mark.parametrize(
    "task, problem",
    [
        (given(test=()), "test has no records."),
        (
            given(train=[("a", "1"), ("A ", "2")]),
            "train: 1 records repeat a prompt with another answer, train-1 that of train-0.",
        ),
        (
            given(train=[("a", "1"), ("b", "")]),
            "train: 1 records have no answer.",
        ),
        (
            given(test=[("a x", "1"), ("b", "two")]),
            "test: the verifier does not accept 1 of 2 demonstrations, that of test-1 first (wrong).",
        ),
        (
            given(test=[("x", "1"), ("C", "1")]),
            "1 test prompts are training prompts, test-1 is train-2.",
        ),
    ],
)
def test_each_fault_is_a_problem_with_its_record(task, problem):
    assert check(task)["problems"] == [problem]


def test_prompts_over_the_limit_are_a_problem_where_they_end_a_run(tokenizer):
    task = given(train=[("a", "1"), ("a b c d", "2")])
    assert check(task, tokenizer, 4)["problems"] == [
        "train: 1 prompts have more than prompts.max_tokens=4 tokens, which ends a run; raise the limit, or set "
        "prompts.too_long to 'drop' or 'cut_left'."
    ]
    for too_long, what in (("drop", "are dropped"), ("cut_left", "lose their beginning")):
        found = check(task, tokenizer, 4, too_long)
        assert found["problems"] == [] and found["notes"] == [
            f"train: 1 prompts over prompts.max_tokens {what}."
        ]


def test_prompts_that_cannot_be_rendered_are_a_problem(tokenizer):
    (problem,) = check(given(train=[("a", "1"), ("outside", "2")]), tokenizer, 64)["problems"]
    assert problem.startswith(
        "train: 1 prompts cannot be rendered, train-1 first: 'outside' cannot be tokenised: is every word in"
    )


def test_repeated_prompts_with_the_same_answer_are_noted():
    found = check(given(train=[("a", "1"), ("b", "2"), (" A", "1"), ("a", "1")]))
    assert found["problems"] == [] and found["splits"]["train"]["duplicates"] == 2
    assert found["notes"] == ["train: 2 records repeat a prompt, train-2 that of train-0."]


def test_records_whose_answers_cannot_be_judged_here_are_noted():
    found = check(given(broken=True))
    assert found["problems"] == [] and found["splits"]["train"]["judged"] == 0
    assert found["notes"][0] == "train: no demonstration was judged: no sandbox here"


def test_an_instruction_does_not_make_prompts_alike():
    ask = " ".join(f"i{i}" for i in range(20)) + " "
    assert check(given(prefix=ask))["overlap"] == {"exact": 0, "examples": [], "ngram": 0, "n": 13}
    tasks = given(prefix=ask), given(prefix=ask[::-1], train=[("x", "1"), ("z", "2")], test=[("y", "1")])
    assert check(Mixture(tasks))["overlap"]["ngram"] == 0


def test_words_that_a_test_prompt_shares_with_training_are_noted():
    phrase = " ".join(f"w{i}" for i in range(13))
    found = check(given(train=[(f"a {phrase} b", "1"), ("c", "2")], test=[(f"d {phrase}", "1"), ("e", "2")]))
    assert found["overlap"]["ngram"] == 1 and found["problems"] == []
    assert found["notes"] == [
        "1 test prompts share 13 words in a row with a training prompt (words that more than 10 training prompts share do "
        "not count)."
    ]


def test_a_part_of_a_large_set_is_evenly_spread():
    task = given(train=[(f"{i} x", "1") for i in range(100)])
    found = check(task, most=11)
    assert found["splits"]["train"]["looked_at"] == 11 and found["splits"]["train"]["records"] == 100
    assert found["notes"] == ["train: looked at 11 of 100 records, evenly spread."]
    assert spread(100, 11) == [0, 10, 20, 30, 40, 50, 59, 69, 79, 89, 99]
    assert list(spread(3, 0)) == list(spread(3, 3)) == [0, 1, 2]


def test_the_histogram_holds_every_length_once():
    lengths = np.array([17, 32, 33, 64, 65, 500])
    assert histogram(lengths) == [(32, 2), (64, 2), (128, 1), (256, 0), (512, 1)]
    assert histogram(np.array([], int)) == []


def printed(found):
    out = io.StringIO()
    Console(file=out, width=200).print(found)
    return out.getvalue()


def test_the_report_says_all_of_it(tokenizer):
    task = given(train=[("a", "1"), ("A", "x"), ("b c d", "")], test=[("a", "1")])
    text = printed(report(check(task, tokenizer, 3)))
    for line in check(task, tokenizer, 3)["problems"]:
        assert f"problem: {line}" in text
    rows = {line.split("│")[1].strip(): line.split("│")[2:4] for line in text.splitlines() if "│" in line}
    figures = {title: [part.strip() for part in parts] for title, parts in rows.items()}
    assert figures["records"] == ["3", "1"]
    assert figures["of them repeat a prompt"] == ["1", "0"]
    assert figures["answer missing or empty"] == ["1", "0"]
    assert figures["prompts over 3 tokens"] == ["1", "0"]
    assert figures["in train, whole"] == ["", "1"]
    printed(report(check(given(train=(), test=()))))


def test_records_are_shown_as_the_model_gets_them(tokenizer):
    (first,) = show(given(), tokenizer, "test", 1)
    assert first == {
        "id": "test-0",
        "prompt": tokenizer.decode(render(tokenizer, "d")),
        "tokens": 2,
        "demonstration": "4",
        "record": {"id": "test-0", "question": "d", "answer": "4"},
    }
    assert first["prompt"].startswith(tokenizer.bos_token)
    assert [each["id"] for each in show(given(), None, "train", 9)] == ["train-0", "train-1", "train-2"]
    assert "demonstration: 4" in printed(shown([first]))
