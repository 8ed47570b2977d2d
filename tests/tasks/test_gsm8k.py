"""GSM8K: both forms of the files, and a table of answers with the verdicts that a teacher would give."""

import concurrent.futures
import functools
import json
import logging
import threading
import time

import math_verify
import pytest

from rlvr_jax import registry
from rlvr_jax.tasks import Reason
from rlvr_jax.tasks.gsm8k import GSM8K
from rlvr_jax.tasks.records import RecordError


def verdict(answer, completion):
    return GSM8K().verify({"answer": answer}, completion).reason


@pytest.mark.parametrize(
    "answer, completion, reason",
    [
        # the last box, whatever else stands there
        ("18", r"So \boxed{18}.", Reason.CORRECT),
        ("18", r"First \boxed{1}, then \boxed{18}", Reason.CORRECT),
        ("18", r"First \boxed{18}, then \boxed{1}", Reason.WRONG),
        ("18", r"\boxed{18} and 20 is not it", Reason.CORRECT),
        ("18", r"18 it is: \boxed{20}", Reason.WRONG),
        ("18", r"\boxed{18", Reason.CORRECT),
        # no box: the last number
        ("18", "The answer is 18.", Reason.CORRECT),
        ("18", "18 eggs, 3 eaten", Reason.WRONG),
        ("18", "#### 18", Reason.CORRECT),
        ("18", "16-3-4=9, 9*2=18", Reason.CORRECT),
        # signs
        ("-3", "Therefore the answer is -3", Reason.CORRECT),
        ("-3", r"\boxed{-3}", Reason.CORRECT),
        ("-3", "\\boxed{\u22123}", Reason.CORRECT),
        ("-3", "Therefore the answer is 3", Reason.WRONG),
        ("3", r"\boxed{-3}", Reason.WRONG),
        ("7", "+7", Reason.CORRECT),
        ("-5", r"\boxed{-\$5}", Reason.CORRECT),
        ("-5", "He is at -$5.", Reason.CORRECT),
        ("5", "From $10-$5", Reason.CORRECT),
        # thousands separators and decimals
        ("70000", "$70,000", Reason.CORRECT),
        ("70000", r"\boxed{70,000}", Reason.CORRECT),
        ("70000", r"\boxed{70{,}000.00}", Reason.CORRECT),
        ("70000", r"\boxed{70\,000}", Reason.CORRECT),
        ("70000", r"\boxed{\$70{,}000 \text{ dollars}}", Reason.CORRECT),
        ("70000", r"\boxed{70,00}", Reason.WRONG),
        ("3.5", r"\boxed{3.50}", Reason.CORRECT),
        ("0.5", "It is .5", Reason.CORRECT),
        # units
        ("18", r"\boxed{18 \text{ dollars}}", Reason.CORRECT),
        ("18", r"\boxed{18 dollars}", Reason.CORRECT),
        ("18", r"\boxed{18cm}", Reason.CORRECT),
        ("18", r"\boxed{18\%}", Reason.CORRECT),
        ("18", r"\boxed{18^\circ}", Reason.CORRECT),
        ("18", r"\boxed{\text{18 apples}}", Reason.CORRECT),
        ("18", "\\boxed{\u20ac18}", Reason.CORRECT),
        ("18", r"\boxed{18x}", Reason.WRONG),
        ("18", r"\boxed{18 \text{ or } 19}", Reason.WRONG),
        ("18", r"\boxed{18 dollars and 20 cents}", Reason.WRONG),
        # expressions
        ("18", r"\boxed{\frac{36}{2}}", Reason.CORRECT),
        ("18", r"\boxed{36 \div 2}", Reason.CORRECT),
        ("18", r"\boxed{9 + 9}", Reason.CORRECT),
        ("18", r"\boxed{x = 18}", Reason.CORRECT),
        ("0.5", r"\boxed{\frac{1}{2}}", Reason.CORRECT),
        ("18", r"\boxed{\frac{37}{2}}", Reason.WRONG),
        ("18", r"\boxed{3^2 \times 2}", Reason.CORRECT),
        ("18", r"\boxed{\frac{1}{0}}", Reason.WRONG),
        # nothing to judge
        ("18", "", Reason.UNPARSABLE),
        ("18", "I do not know.", Reason.UNPARSABLE),
        ("18", r"\boxed{}", Reason.UNPARSABLE),
        ("18", r"It is 18: \boxed{\frac{}{}}", Reason.UNPARSABLE),
        ("18", "1" * 5000, Reason.UNPARSABLE),
        ("18", r"\boxed{" + "1" * 5000 + "}", Reason.UNPARSABLE),
    ],
)
def test_verdicts(answer, completion, reason):
    assert verdict(answer, completion) is reason


def test_an_expression_that_would_never_end_is_not_evaluated():
    start = time.process_time()
    assert verdict("18", r"\boxed{9^{9^{9^{9}}}}") is Reason.UNPARSABLE
    assert (
        time.process_time() - start < 2
    )  # the parser's first call included; it takes hours to evaluate this


def test_the_same_verdict_in_any_thread():
    expected = {r"\boxed{18}": Reason.CORRECT, r"\boxed{\frac{1}{3}}": Reason.WRONG, "18": Reason.CORRECT}
    assert threading.current_thread() is threading.main_thread()
    for completion, reason in expected.items():
        assert verdict("18", completion) is reason
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: verdict("18", text), list(expected) * 8))
    assert found == list(expected.values()) * 8


@pytest.mark.parametrize("broken, box", [("parse", r"9 + 8 + 1"), ("verify", r"\{18, 19\}")])
def test_a_failing_verifier_is_an_error_and_not_a_wrong_answer(monkeypatch, broken, box):
    def fail(*args, **kwargs):
        raise RuntimeError("out of order")

    monkeypatch.setattr(math_verify, broken, fail)
    judged = GSM8K().verify({"answer": "18"}, rf"\boxed{{{box}}}")
    assert (judged.reward, judged.correct, judged.reason) == (0.0, False, Reason.ERROR)


def test_the_verifier_does_not_warn_about_its_time_limits(caplog):
    with caplog.at_level(logging.WARNING):
        assert verdict("18", r"\boxed{9 + 7 + 2}") is Reason.CORRECT
    assert not caplog.records


def test_what_is_counted_in_a_vote():
    answer = functools.partial(GSM8K().answer, {})
    assert (
        answer(r"\boxed{18.00}") == answer("So it is $18.") == answer(r"\boxed{18 \text{ dollars}}") == "18"
    )
    assert answer(r"\boxed{\frac{1}{2}}") == answer("0.5") == "0.5"
    assert answer(r"\boxed{\frac{2}{3}}") == "2/3"
    assert answer("none") is None


def test_the_real_files_are_read_and_their_solutions_are_right(shared):
    task = GSM8K(path=str(shared / "data" / "gsm8k"))
    train, test = task.records("train"), task.records("test")
    assert (len(train), len(test)) == (7473, 1319)
    assert not {r["question"] for r in train} & {r["question"] for r in test}
    for record in [*train[:60], *test[:60]]:
        assert task.verify(record, task.demonstration(record)).correct
        assert "<<" not in task.demonstration(record)
    assert test[0]["id"] == "gsm8k-test-0" and test[0]["answer"] == "18"


def write(folder, *lines):
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return GSM8K(path=str(folder))


def test_the_published_form_of_the_files_is_read_too(tmp_path):
    solution = "He has 2*35000=<<2*35000=70000>>70000.\n#### 70,000"
    (record,) = write(tmp_path, {"question": "How much?", "answer": solution}).records("train")
    assert record == {
        "id": "gsm8k-train-0",
        "question": "How much?",
        "answer": "70000",
        "solution": solution,
    }
    assert GSM8K().demonstration(record) == "He has 2*35000=70000.\n\\boxed{70000}"


def test_a_record_without_a_solution_is_demonstrated_by_its_answer(tmp_path):
    task = write(tmp_path, {"question": "How much?", "answer": -3}, {"question": "?", "answer": "$1,000"})
    records = task.records("train")
    assert [r["answer"] for r in records] == ["-3", "1000"]
    assert task.demonstration(records[0]) == r"\boxed{-3}"


@pytest.mark.parametrize(
    "line, message",
    [
        (
            {"question": "q", "answer": "It is #### "},
            "field 'answer' has no number, neither alone nor after '####': 'It is #### '.",
        ),
        (
            {"question": "q", "answer": "about five"},
            "field 'answer' has no number, neither alone nor after '####': 'about five'.",
        ),
        (
            {"question": " ", "answer": "5"},
            "field 'question' is ' '; it has to be the text of the problem.",
        ),
        (
            {"question": 5, "answer": "5"},
            "field 'question' is 5; it has to be the text of the problem.",
        ),
        ({"problem": "q", "answer": "5"}, "field 'question' is missing; there are problem, answer."),
    ],
)
def test_a_record_that_is_no_problem_is_named(tmp_path, line, message):
    task = write(tmp_path, {"question": "q", "answer": "5"}, line)
    with pytest.raises(RecordError) as error:
        task.records("train")
    assert str(error.value) == f"{tmp_path / 'train.jsonl'}, line 2: {message}"


def test_the_prompt_is_one_user_message():
    record = {"question": "How many?", "answer": "3"}
    assert GSM8K().prompt(record) == [
        {
            "role": "user",
            "content": "How many?\n\nThink step by step and put the final number in \\boxed{}.",
        }
    ]
    assert GSM8K(instruction="").prompt(record) == [{"role": "user", "content": "How many?"}]
    assert registry.build("task", "gsm8k").vocabulary() is None
