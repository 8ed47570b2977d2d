"""Multiple choice: which letter a text chooses, and how questions are read."""

import json

import pytest

from rlvr_jax import registry
from rlvr_jax.tasks import Reason
from rlvr_jax.tasks.multiple_choice import MultipleChoice, chosen
from rlvr_jax.tasks.records import RecordError

RECORD = {"question": "Capital?", "options": ["Paris", "Berlin", "1/2", "All of the above"], "answer": "B"}


@pytest.mark.parametrize(
    "text, letter",
    [
        (r"\boxed{C}", "C"),
        (r"\boxed{\text{C}}", "C"),
        (r"\boxed{(c)}", "C"),
        (r"\boxed{\textbf{(C) Paris}}", "C"),
        (r"\boxed{C. Paris}", "C"),
        (r"A seems right, but \boxed{C}. The answer is in the box.", "C"),
        (r"\boxed{A, B}", None),
        (r"\boxed{}", None),
        ("The answer is (C).", "C"),
        ("The answer is **(C) Berlin**", "C"),
        ("Answer:\n\nC", "C"),
        ("the answer is (a)", "A"),
        ("The answer is A because it is", "A"),
        ("The answer is a prime number, so B", "B"),
        ("The answer is not A but B", "B"),
        ("The answer is A or B.", None),
        ("The answer: D, it doesn't make sense for it to be A", "D"),
        ("Answer: A. No. Answer: B.", "B"),
        ("So, the choice is: $\\boxed{\\text{E}}$", "E"),
        ("Therefore, the correct answer is option C.", "C"),
        ("\u7b54\u6848\uff1aC", "C"),
        ("r\u00e9ponse est C non A", "C"),
        ("C", "C"),
        ("c.", "C"),
        ("C) because", "C"),
        ("D. it can't be A or B", "D"),
        ("B\u4e0d\u662f A", "B"),
        ("A or B", None),
        ("It's not A, therefore I think it's B", "B"),
        ("It is C, not B.", "C"),
        ("A cat is a cat. So D", "D"),
        ("A cat is an animal.", None),
        ("I am not sure.", None),
        ("", None),
        ("<think>A</think>B", "B"),
        ("<think>A", None),
        ("A <answer>J</answer>", "J"),
    ],
)
def test_which_letter_is_chosen(text, letter):
    assert chosen(text) == letter


@pytest.mark.parametrize(
    "text, reason",
    [
        (r"\boxed{B}", Reason.CORRECT),
        (r"\boxed{A}", Reason.WRONG),
        (r"\boxed{E}", Reason.UNPARSABLE),  # there are four options
        ("Berlin", Reason.CORRECT),
        ("The answer is Berlin.", Reason.CORRECT),
        (r"\boxed{\text{berlin}}", Reason.CORRECT),
        ("Paris", Reason.WRONG),
        (r"\boxed{0.5}", Reason.WRONG),
        ("Rome", Reason.UNPARSABLE),
    ],
)
def test_the_text_of_an_option_chooses_it(text, reason):
    assert MultipleChoice().verify(RECORD, text).reason is reason


def test_two_options_of_one_text_are_chosen_by_letter_alone():
    record = {"options": ["1", "1.0", "2"], "answer": "A"}
    assert MultipleChoice().verify(record, r"\boxed{1}").reason is Reason.UNPARSABLE
    assert MultipleChoice().verify(record, r"\boxed{A}").reason is Reason.CORRECT


def test_the_sample_and_the_prompt():
    task = registry.build("task", "multiple_choice")
    train, test = task.records("train"), task.records("test")
    assert len(train) > 40 and len(test) > 20 and not {r["id"] for r in train} & {r["id"] for r in test}
    assert all(task.verify(r, task.demonstration(r)).correct for r in [*train, *test])
    assert task.kind(train[0]) == train[0]["category"]
    assert MultipleChoice(instruction="Choose.").prompt(RECORD) == [
        {"role": "user", "content": "Capital?\n\nA. Paris\nB. Berlin\nC. 1/2\nD. All of the above\n\nChoose."}
    ]


def test_mmlu_pro_is_read_from_its_file(shared):
    task = MultipleChoice(path=str(shared / "data" / "mmlu_pro" / "sample.jsonl"))
    records = task.records("train")
    assert len(records) == 560
    for record in records[::10]:
        right = record["options"]["ABCDEFGHIJ".index(record["answer"])]
        assert task.verify(record, f"The answer is ({record['answer']}) {right}.").correct
        assert task.verify(record, f"\\boxed{{{record['answer']}. {right}}}").correct


def test_a_vote_is_for_a_letter_however_it_is_said():
    answer = MultipleChoice().answer
    assert (
        answer(RECORD, r"\boxed{B}")
        == answer(RECORD, "It is Berlin: (B).")
        == answer(RECORD, "Berlin")
        == "B"
    )
    assert answer(RECORD, "Rome") is None


def write(folder, *lines):
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return MultipleChoice(path=str(folder)).records("train")


def test_an_answer_is_a_letter_a_place_or_a_text(tmp_path):
    lines = [{"question": "q", "options": ["x", "y", 3], "answer": a} for a in ("B", 1, "y", "3")]
    assert [record["answer"] for record in write(tmp_path, *lines)] == ["B", "B", "B", "C"]


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"question": ""}, "field 'question' is ''; it has to be the text of the question."),
        ({"options": ["x"]}, "field 'options' is ['x']; it has to be a list of 2 to 26."),
        (
            {"answer": "C"},
            "field 'answer' is 'C'; it has to be a letter of AB, the place of an option, or its text.",
        ),
        (
            {"answer": 2},
            "field 'answer' is 2; it has to be a letter of AB, the place of an option, or its text.",
        ),
    ],
)
def test_a_record_that_is_no_question_is_named(tmp_path, fields, message):
    with pytest.raises(RecordError) as error:
        write(tmp_path, {"question": "q", "options": ["x", "y"], "answer": "A"} | fields)
    assert str(error.value) == f"{tmp_path / 'train.jsonl'}, line 1: {message}"
