"""Grade-school word problems (GSM8K) from JSON Lines, judged by math-verify."""

import dataclasses
import functools
import re
from collections.abc import Sequence

from rlvr_jax.registry import register
from rlvr_jax.tasks.answers import GROUPING, last_number
from rlvr_jax.tasks.base import Reason, Split, Task, Verdict, check_split
from rlvr_jax.tasks.expressions import load
from rlvr_jax.tasks.final_answer import LONGEST_ANSWER, boxed, last_value, spoken
from rlvr_jax.tasks.latex import canonical, number, plain, written
from rlvr_jax.tasks.records import RecordError, converted
from rlvr_jax.tasks.sources import read_records
from rlvr_jax.tasks.splits import SAMPLES
from rlvr_jax.tasks.values import judged


def final_number(completion: str) -> str | None:
    r"""What stands in the last \boxed{...} (and those listed with it), or without one the last number.

    Read is what is `spoken`; `None` where there is no number or box, and for a box of more than 1000 characters.
    """
    said = spoken(completion)
    if said is None:
        return None
    box = boxed(said)
    if box:
        return box[1] if len(box[1]) <= LONGEST_ANSWER else None
    value = last_value(GROUPING.sub(",", said))
    if value and re.search("[0-9]", value):  # 1/2 is not 2
        return value
    found = last_number(said)
    return None if found is None else format(found, "f")


def reference(text: str) -> str | None:
    """The number a solution ends in, after its last ####, or the number that is all of the text."""
    value = number(plain(text.rpartition("####")[2]))
    return None if value is None else written(value)


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
    record["answer"] = gold
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

    path: str | None = None
    """`None`: a sample of it."""
    instruction: str = "Think step by step and put the final number in \\boxed{}."

    def records(self, split: Split) -> Sequence[dict]:
        check_split(split)
        return read_gsm8k(self.path or str(SAMPLES / self.name), split)

    def prompt(self, record: dict) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{record['question']}\n\n{self.instruction}".strip()}]

    def verify(self, record: dict, completion: str) -> Verdict:
        try:
            return Verdict.of(judged(record["answer"], final_number(completion)))
        except Exception:  # what the libraries raise on a model's text is their fault, not the answer's
            return Verdict.of(Reason.ERROR)

    @property
    def processes(self) -> int:
        return 2

    def prepare(self) -> None:
        """Load the verifier, before the clock of a worker's first verdict runs."""
        load()

    def answer(self, record: dict, completion: str) -> str | None:
        found = final_number(completion)
        return None if found is None else canonical(found)

    def demonstration(self, record: dict) -> str:
        """The worked solution without its calculator marks, and the number in a box."""
        working = re.sub(r"<<[^<>]*>>", "", record.get("solution", "")).rpartition("####")[0].strip()
        return f"{working}\n\\boxed{{{record['answer']}}}".strip()
