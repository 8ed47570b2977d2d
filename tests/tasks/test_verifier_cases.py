"""Answers and verdicts from the tests of other projects: where we judge otherwise, docs/verifiers.md says why."""

import collections
import json
import pathlib
import re
import time

import pytest

from rlvr_jax.tasks.final_answer import after_hashes
from rlvr_jax.tasks.gsm8k import GSM8K
from rlvr_jax.tasks.maths import Math
from rlvr_jax.tasks.multiple_choice import chosen
from rlvr_jax.tasks.question_answering import QuestionAnswering
from rlvr_jax.tasks.tags import is_well_formed

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "verifiers.md").read_text(encoding="utf-8")


def tolerance(row):
    """How far off the project's test lets a number be: an error, one for each value, or a number of digits."""
    given = (row.get("options") or {}).get("precision", [])
    if isinstance(given, list):
        return [float(one) for one in given]
    return [10.0**-given if isinstance(given, int) else float(given)]


def maths(row):
    golds = row["gold"] if isinstance(row["gold"], list) else [row["gold"]]
    return any(
        Math().verify({"answer": gold, "tolerance": tolerance(row)}, row["pred"]).correct for gold in golds
    )


def answering(row):
    golds = row["gold"] if isinstance(row["gold"], list) else [row["gold"]]
    return QuestionAnswering(f1_weight=1.0).verify({"answers": golds}, row["pred"])


def reasoning_first(row):
    reasoning, closed, rest = row["pred"].rpartition("</think>")
    return bool(closed) and is_well_formed(f"{reasoning}</think><answer>{rest}</answer>")


JUDGES = {
    "math": maths,
    "math_after_think": maths,
    "answer_tag": maths,
    "gsm8k": lambda row: GSM8K().verify({"answer": row["gold"]}, row["pred"]).correct,
    "gsm8k_extract": lambda row: row["gold"] is not None and after_hashes(row["pred"]) == row["gold"],
    "choice": lambda row: chosen(row["gold"]) == chosen(row["pred"]) is not None,
    "string_match": lambda row: answering(row).correct,
    "token_f1": lambda row: answering(row).parts[1].value,
    "think_format": reasoning_first,
    "think_answer_format": lambda row: is_well_formed(row["pred"]),
}


@pytest.fixture(scope="module")
def judged(shared):
    """(source, whether we agree, CPU seconds) of each case."""
    lines = (shared / "data" / "reward_cases" / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    found = {}
    for row in map(json.loads, lines):
        start = time.process_time()
        verdict = JUDGES[row["kind"]](row)
        agree = verdict == pytest.approx(row["expected"] or 0.0, abs=1e-9)
        found[row["id"]] = row["source"], agree, time.process_time() - start
    return found


def test_every_case_where_we_judge_otherwise_is_explained(judged):
    explained = re.findall(r"^\| `([a-z0-9.-]+-\d+)` \| (.{20,}) \|$", PAGE, re.MULTILINE)
    assert len(judged) == 404
    assert {name for name, (_, agree, _) in judged.items() if not agree} == {name for name, _ in explained}
    assert len(set(explained)) == len(explained)


def test_the_page_says_how_often_we_agree(judged):
    counts = collections.defaultdict(lambda: [0, 0])
    for source, agree, _ in judged.values():
        counts[source][0] += agree
        counts[source][1] += 1
    told = {
        name: [int(a), int(b)]
        for name, a, b in re.findall(r"^\| (\S+/\S+) \| (\d+) of (\d+) \|$", PAGE, re.M)
    }
    assert told == dict(counts)


def test_no_case_takes_long(judged):
    slowest = max(judged, key=lambda name: judged[name][2])
    assert judged[slowest][2] < 5, slowest
