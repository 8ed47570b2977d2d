"""Question answering: SQuAD's scores, what is taken for the answer, and the search tool that the prompt tells of."""

import json
import pathlib
import re

import pytest

from rlvr_jax import configfile, registry
from rlvr_jax.rollout.tools import RESULT, Search, Turns, find_call, result_text, stop_strings
from rlvr_jax.rollout.workers import Done
from rlvr_jax.tasks import Reason
from rlvr_jax.tasks.question_answering import (
    SAMPLE_CORPUS,
    QuestionAnswering,
    final_words,
    normalized,
    token_f1,
)
from rlvr_jax.tasks.records import RecordError


def judged(answers, completion, **weights):
    return QuestionAnswering(**weights).verify({"answers": answers}, completion)


@pytest.mark.parametrize(
    "gold, answer, f1",
    [
        ("the cat sat", "a cat sat", 1.0),  # articles do not count
        ("cat", "the cat sat down", 2 * (1 / 3) * 1 / (1 / 3 + 1)),
        ("a b c", "b c d", 2 * (2 / 3) * 1 / (2 / 3 + 1)),  # "a" is an article: of b c, and b c d
        ("no no", "no", 2 * 1 * 0.5 / 1.5),
        ("Paris", "London", 0.0),
        ("", "", 1.0),
        ("x", "", 0.0),
    ],
)
def test_f1_is_that_of_words_as_often_as_both_have_them(gold, answer, f1):
    assert token_f1(gold, answer) == pytest.approx(f1)


def test_squads_normalization():
    assert normalized("  The U.S.A., an   'Example'\n") == "usa example"


@pytest.mark.parametrize(
    "text, answer",
    [
        ("<answer> Paris </answer>", "Paris"),
        ("<answer>Rome</answer> or <answer>Paris</answer>", "Paris"),
        ("<think>Rome</think><answer>Paris</answer>", "Paris"),
        ("<think>Rome</think> Paris", "Paris"),
        ("<think>Rome", None),
        (r"It is \boxed{Paris}.", "Paris"),
        ("Paris", "Paris"),
        ("<search>q</search>\n<result>[1] <answer>Rome</answer></result>\n<answer>Paris</answer>", "Paris"),
        ("<answer>Paris</answer><result>[1] <answer>Rome</answer></result>", "Paris"),
        ("<answer>Paris</answer>\n<result>cut <answer>Rome</answer>", "Paris"),
    ],
)
def test_what_is_taken_for_the_answer(text, answer):
    assert final_words(text) == answer


@pytest.mark.parametrize(
    "answers, completion, reason",
    [
        (["Paris"], "<answer>paris!</answer>", Reason.CORRECT),
        (["Rome", "the city of Paris"], "<answer>City of Paris</answer>", Reason.CORRECT),
        (["Paris"], "<answer>Paris, France</answer>", Reason.WRONG),
        (["Paris"], "<answer>the</answer>", Reason.UNPARSABLE),
        (["Paris"], "", Reason.UNPARSABLE),
        (["Paris"], "Paris " * 2000, Reason.UNPARSABLE),
        (["yes"], "<answer>Yes.</answer>", Reason.CORRECT),
        (["yes"], "<answer>Yes, there is no doubt.</answer>", Reason.CORRECT),
        (["yes"], "<answer>The answer is yes</answer>", Reason.CORRECT),
        (["yes"], "<answer>It may be yes or no</answer>", Reason.WRONG),
        (["maybe"], "<answer>no</answer>", Reason.WRONG),
    ],
)
def test_verdicts(answers, completion, reason):
    assert judged(answers, completion).reason is reason


def test_the_reward_is_the_weighted_sum_of_its_parts():
    found = judged(["Paris, France"], "<answer>Paris</answer>", exact_weight=1.0, f1_weight=0.5)
    assert not found.correct and found.reward == pytest.approx(0.5 * 2 / 3)
    assert [(part.name, part.weight) for part in found.parts] == [("exact_match", 1.0), ("f1", 0.5)]
    assert judged(["Paris"], "Paris").reward == 1.0 and judged(["Paris"], "Rome").reward == 0.0
    for weights in ({"exact_weight": -1.0}, {"exact_weight": 0.0}):
        with pytest.raises(ValueError, match="weights are not negative, and one of them is over 0"):
            QuestionAnswering(**weights)


def test_the_prompt_tells_of_the_tool_as_the_sampler_takes_it():
    task = registry.build("task", "question_answering")
    tool = Search(SAMPLE_CORPUS, top=1)
    (message,) = task.prompt(task.records("train")[0])
    call = re.search("<search>.*?</search>", message["content"])[0]
    assert find_call(call, (tool,)).name == "search" and stop_strings((tool,)) == ("</search>",)
    assert f"<{RESULT}>" in message["content"] and "<answer>" in message["content"]
    assert "Answer yes, no or maybe." in message["content"]


def test_an_episode_with_a_search_finds_the_document_of_the_question():
    """Of the sample, by the words of the question alone, and the answer is judged behind what the tool gave."""
    task, tool = QuestionAnswering(), Search(SAMPLE_CORPUS, top=1)
    lines = pathlib.Path(SAMPLE_CORPUS).read_text(encoding="utf-8").splitlines()
    place = {json.loads(line)["id"]: index for index, line in enumerate(lines)}
    records = [*task.records("train"), *task.records("test")]
    found = [tool.hits(record["question"])[0][0] == place[record["doc_id"]] for record in records]
    assert sum(found) >= 0.9 * len(records)
    record = records[0]
    result = result_text(Done(tool(record["question"])), 2000)
    text = f"<search>{record['question']}</search>{result}{task.demonstration(record)}"
    assert task.verify(record, text).correct


def test_a_config_has_the_task_and_the_tool():
    config = configfile.parse(
        {
            "task": "question_answering",
            "model": {"path": "some/model"},
            "turns": {"tools": [{"name": "search", "corpus": SAMPLE_CORPUS}]},
            "sampling": {"max_new_tokens": 512},
        }
    )
    assert config.task == QuestionAnswering() and config.turns == Turns((Search(SAMPLE_CORPUS),))


def test_the_real_questions_are_read(shared):
    xquad = QuestionAnswering(path=str(shared / "data" / "qa_xquad" / "questions.jsonl")).records("train")
    pubmed = QuestionAnswering(path=str(shared / "data" / "qa_pubmedqa" / "questions.jsonl")).records("train")
    assert (len(xquad), len(pubmed)) == (1190, 1000)
    task = QuestionAnswering()
    assert all(task.verify(r, task.demonstration(r)).correct for r in [*xquad, *pubmed])
    assert "yes, no or maybe" not in task.prompt(xquad[0])[0]["content"]


def test_a_vote_is_for_normalized_words_or_a_judgement():
    answer = QuestionAnswering().answer
    assert answer({"answers": ["x"]}, "<answer>The U.S.A.!</answer>") == "usa"
    assert answer({"answers": ["no"]}, "Yes, it does.") == "yes" and answer({"answers": ["no"]}, "") is None


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"question": 3}, "field 'question' is 3; it has to be the text of the question."),
        ({"answer": []}, "field 'answer' is []; it has to be a text, or a list of texts."),
        (
            {"answer": ["x", "the"]},
            "field 'answer' is ['x', 'the']; it has to be a text, or a list of texts.",
        ),
    ],
)
def test_a_record_that_is_no_question_is_named(tmp_path, fields, message):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"question": "q", "answer": "x"} | fields) + "\n", encoding="utf-8")
    with pytest.raises(RecordError) as error:
        QuestionAnswering(path=str(tmp_path)).records("train")
    assert str(error.value) == f"{path}, line 1: {message}"
