"""Grade-school word problems (GSM8K) from JSON Lines, judged by math-verify."""

import dataclasses
import decimal
import functools
import logging
import re
from collections.abc import Sequence
from typing import Any

from rlvr_jax.registry import register
from rlvr_jax.tasks.answers import amount, last_boxed, last_number
from rlvr_jax.tasks.base import Reason, Split, Task, Verdict, check_split
from rlvr_jax.tasks.records import RecordError, converted
from rlvr_jax.tasks.sources import read_records

_HARMLESS = frozenset(
    "frac dfrac tfrac cfrac text textbf textit textnormal mathrm mathbf mbox "
    "left right cdot times div sqrt approx quad circ".split()
)
LONGEST_EXPRESSION = 64
DEEPEST_EXPRESSION = 4


def is_tame(expression: str) -> bool:
    r"""Whether an expression is sure to be evaluated in no time.

    9^{9^{9}}, 99999999!, sums, integrals or thirty nested brackets keep the verifier busy for hours, and no
    signal or thread can stop it. So: short, shallow, no factorial, powers only of a literal below 100 and
    not of each other.
    """
    bare = expression.replace(r"\!", "")
    powers = re.findall(r"\^", bare)
    plain_powers = re.findall(
        r"\^(?:[0-9](?![0-9])|\{\s*-?[0-9]{1,2}\s*\}|\\circ|\{\s*\\circ\s*\})(?!\s*\^)", bare
    )
    depth = deepest = 0
    for letter in bare:
        depth += (letter in "([{") - (letter in ")]}")
        deepest = max(deepest, depth)
    return (
        len(expression) <= LONGEST_EXPRESSION
        and deepest <= DEEPEST_EXPRESSION
        and "!" not in bare
        and "**" not in bare
        and len(powers) == len(plain_powers) <= 2
        and _HARMLESS.issuperset(re.findall(r"\\([A-Za-z]+)", bare))
    )


@functools.cache
def _math_verify() -> Any:
    """The module, told not to warn that its own time limits are off (`is_tame` stands in their place)."""
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return math_verify


def _parse(text: str) -> list:
    # Its time limits are SIGALRM, which Python allows in the main thread only: in a worker thread every
    # answer would fail. Without them an answer gets the same verdict everywhere.
    return _math_verify().parse(text, parsing_timeout=None, raise_on_error=True, fallback_mode="no_fallback")


def judge(gold: decimal.Decimal, completion: str) -> Reason:
    r"""Whether the final answer equals a number: the last \boxed{...}, or without one the last number.

    Units, currency signs, percent signs and thousands separators do not count. A box without a number in
    it, or with an expression that is not tame, is unparsable.
    """
    content = last_boxed(completion)
    number = last_number(completion) if content is None else amount(content)
    if number is not None:
        answer = _parse(format(number, "f"))
    elif content is not None and is_tame(content):
        answer = _parse(rf"\boxed{{{content}}}")
    else:
        answer = []
    if not answer:
        return Reason.UNPARSABLE
    equal = _math_verify().verify(
        _parse(format(gold, "f")), answer, timeout_seconds=None, raise_on_error=True
    )
    return Reason.CORRECT if equal else Reason.WRONG


def reference(text: str) -> decimal.Decimal | None:
    """The number a solution ends in, after its last ####, or the number that is all of the text."""
    after = text.rpartition("####")[2].strip()
    return amount(after) if after else None


def read_gsm8k(path: str, split: Split) -> Sequence[dict]:
    """Records `id`, `question`, `answer` (digits only), and `solution` where the file has the worked answer.

    Two forms of records are read: the published one, whose `answer` is the worked solution with `#### 18` at
    its end, and one with the number alone in `answer` and the working, if any, in `solution`.

    Raises: RecordError naming file and line.
    """
    records = read_records(path, split, ("question", "answer"))
    return converted(records, functools.partial(_problem, split))


def _problem(split: Split, index: int, where: str, line: dict) -> dict:
    question, answer = line["question"], str(line["answer"])
    if not isinstance(question, str) or not question.strip():
        raise RecordError(f"{where}: field 'question' is {question!r}; it has to be the text of the problem.")
    gold = reference(answer)
    if gold is None:
        raise RecordError(
            f"{where}: field 'answer' has no number, neither alone nor after '####': {answer[-40:]!r}."
        )
    record = {"id": str(line.get("id", f"gsm8k-{split}-{index}")), "question": question}
    record["answer"] = format(gold, "f")
    working = line.get("solution", answer if "####" in answer else None)
    return record | ({"solution": str(working)} if working else {})


@register("task", "gsm8k")
@dataclasses.dataclass(frozen=True)
class GSM8K(Task):
    """GSM8K (Cobbe et al., arXiv:2110.14168) from `path`: a folder with train.jsonl and test.jsonl, either of which may
    be gzipped, or whatever else `sources.read_records` reads.

    Chat messages: the question and, after an empty line, the instruction. Reading is strict: a broken line is an
    error. An exception of the verifier is `Reason.ERROR`, never a wrong answer.
    """

    path: str = "data/gsm8k"
    instruction: str = "Think step by step and put the final number in \\boxed{}."

    def records(self, split: Split) -> Sequence[dict]:
        check_split(split)
        return read_gsm8k(self.path, split)

    def prompt(self, record: dict) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{record['question']}\n\n{self.instruction}".strip()}]

    def verify(self, record: dict, completion: str) -> Verdict:
        try:
            return Verdict.of(judge(decimal.Decimal(record["answer"]), completion))
        except (
            Exception
        ):  # what the verifier's libraries raise on a model's text is their fault, not the answer's
            return Verdict.of(Reason.ERROR)

    def demonstration(self, record: dict) -> str:
        """The worked solution without its calculator marks, and the number in a box."""
        working = re.sub(r"<<[^<>]*>>", "", record.get("solution", "")).rpartition("####")[0].strip()
        return f"{working}\n\\boxed{{{record['answer']}}}".strip()
