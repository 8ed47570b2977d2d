"""The task of verifiable instructions: records, the two modes and the two rewards."""

import json
import pickle
import sys
import time

import pytest

from rlvr_jax import registry
from rlvr_jax.rollout.workers import Prepares
from rlvr_jax.tasks import Reason
from rlvr_jax.tasks.instruction_checks import CONSTRAINTS
from rlvr_jax.tasks.instructions import Instructions
from rlvr_jax.tasks.records import RecordError

RECORD = {
    "id": "by-hand",
    "prompt": "Write two words without a comma, and quote them.",
    "constraints": [
        {"name": "punctuation:no_comma", "arguments": {}},
        {"name": "startend:quotation", "arguments": {}},
        {"name": "length_constraints:number_words", "arguments": {"num_words": 2, "relation": "at least"}},
    ],
}


def test_the_sample_has_every_constraint_in_both_splits_and_no_record_in_two():
    task = Instructions()
    splits = {split: task.records(split) for split in ("train", "test")}
    for records in splits.values():
        assert {each["name"] for r in records for each in r["constraints"]} == set(CONSTRAINTS)
        assert pickle.loads(pickle.dumps(records)) == records
        json.dumps(records[0])
        assert task.prompt(records[0]) == [{"role": "user", "content": records[0]["prompt"]}]
    assert not {r["prompt"] for r in splits["train"]} & {r["prompt"] for r in splits["test"]}


@pytest.mark.parametrize(
    ("text", "reward", "share", "reason"),
    [
        ('"two words"', 1, 1, Reason.CORRECT),
        ('<think>a, b</think>\n"two words"', 1, 1, Reason.CORRECT),
        ("two words", 0, 2 / 3, Reason.WRONG),
        ("a, b", 0, 1 / 3, Reason.WRONG),
        ("", 0, 0, Reason.UNPARSABLE),
        ("<think>a b</think>", 0, 0, Reason.UNPARSABLE),
        ('<think>"two words"', 0, 0, Reason.UNPARSABLE),
        ("a" * 20_001, 0, 0, Reason.UNPARSABLE),
    ],
)
def test_rewards_for_all_constraints_and_for_the_share_of_them(text, reward, share, reason):
    verdict = Instructions().verify(RECORD, text)
    assert (verdict.reward, verdict.reason, verdict.parts) == (reward, reason, ())
    verdict = Instructions(reward="share").verify(RECORD, text)
    assert verdict.reward == pytest.approx(share) and verdict.reason == reason
    assert sum(part.value * part.weight for part in verdict.parts) == pytest.approx(share)


def test_a_loose_answer_may_have_a_first_line_and_asterisks_too_many():
    text = 'Sure, here it is:\n*"two words"*'
    assert not Instructions().verify(RECORD, text).correct
    assert Instructions(mode="loose").verify(RECORD, text).correct
    assert (
        not Instructions(mode="loose").verify(RECORD, 'Sure, here:\n"two, words"\n"more, words"\n.').correct
    )


def test_workers_can_load_the_models_before_the_clock_runs():
    task = Instructions()
    assert isinstance(task, Prepares)
    task.prepare()
    assert {"punkt", "py3langid"} <= set(sys.modules)


def test_a_record_from_a_file_of_rollouts_is_judged_alike():
    task = Instructions()
    for record in task.records("test")[:40]:
        copy = json.loads(json.dumps(record))
        for text in ("Plain text. And more, with a comma.", '"X"', "* a\n* b"):
            assert task.verify(record, text) == task.verify(copy, text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt": "", "instruction_id_list": ["punctuation:no_comma"]}, "field 'prompt' is ''"),
        (
            {"prompt": "x", "instruction_id_list": []},
            "line 1: field 'instruction_id_list' is \\[\\] with 0 'kwargs'",
        ),
        (
            {"prompt": "x", "instruction_id_list": ["a:b"], "kwargs": [{}, {}]},
            "with 2 'kwargs'; a request has one",
        ),
        ({"prompt": "x", "instruction_id_list": ["a:b"]}, "line 1: no constraint called 'a:b'"),
        (
            {"prompt": "x", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{"n": 1}]},
            "takes no arguments, got n",
        ),
    ],
)
def test_a_broken_line_is_an_error_that_says_where(tmp_path, line, message):
    (tmp_path / "train.jsonl").write_text(json.dumps(line))
    with pytest.raises(RecordError, match=message):
        Instructions(path=str(tmp_path)).records("train")


def test_all_of_ifeval_is_read_and_judged(shared, tmp_path):
    (tmp_path / "test.jsonl").write_bytes((shared / "data" / "ifeval" / "ifeval.jsonl").read_bytes())
    records = Instructions(path=str(tmp_path)).records("test")
    assert len(records) == 541 and sum(len(r["constraints"]) for r in records) == 834
    texts = ("", "A short answer.", "A sentence of some words, and a *mark*.\n\n- a line\n" * 40)
    for mode in ("strict", "loose"):
        task = registry.build("task", "instructions", mode=mode)
        reasons = {
            task.verify(record, text).reason for record in records for text in texts[: 2 + (mode == "strict")]
        }
        assert reasons == {Reason.UNPARSABLE, Reason.WRONG, Reason.CORRECT}


@pytest.mark.parametrize("piece", ["A. \n", "? *", "*\n"])
def test_the_worst_long_text_is_judged_in_a_second(piece):
    constraint = {
        "name": "length_constraints:number_sentences",
        "arguments": {"num_sentences": 99_999, "relation": "at least"},
    }
    start = time.perf_counter()
    verdict = Instructions(mode="loose").verify({"constraints": [constraint]}, (piece * 20_000)[:20_000])
    assert verdict.reason is Reason.WRONG and time.perf_counter() - start < 1.5  # twice what it takes
