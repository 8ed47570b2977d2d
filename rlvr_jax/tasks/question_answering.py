"""Questions with short answers in words, over a collection of documents that a model can search."""

import collections
import dataclasses
import functools
import re
import string
from collections.abc import Sequence

from rlvr_jax.registry import register
from rlvr_jax.tasks.base import Part, Reason, Split, Task, Verdict
from rlvr_jax.tasks.final_answer import boxed, spoken
from rlvr_jax.tasks.records import RecordError, converted
from rlvr_jax.tasks.splits import SAMPLES, read_split
from rlvr_jax.tasks.tags import last_answer

SAMPLE_CORPUS = str(SAMPLES / "question_answering" / "corpus.jsonl")
"""The documents that the sample's questions are about: for the `corpus` of the tool "search"."""

SEARCH = (
    "You can search a collection of documents: write <search>your query</search>, and what is found comes back between "
    "<result> and </result>. When you know the answer, write it alone between <answer> and </answer>."
)
JUDGEMENTS = ("yes", "no", "maybe")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_RESULT = re.compile(r"<result>.*?(?:</result>|\Z)", re.DOTALL)
LONGEST_ANSWER = 10_000
"""Characters. What is longer is no short answer."""


def normalized(text: str) -> str:
    """Small letters, no punctuation, no articles, single spaces.

    Source: `normalize_answer` of SQuAD's evaluation script (Rajpurkar et al., arXiv:1606.05250).
    """
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def token_f1(gold: str, answer: str) -> float:
    """2 P R / (P + R), precision and recall of the words that two normalized texts share, each as often as in both.

    1 where both are empty and 0 where one is. Source: SQuAD's evaluation script.
    """
    ours, theirs = normalized(gold).split(), normalized(answer).split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    return 2 * shared / (len(ours) + len(theirs))


def final_words(text: str) -> str | None:
    r"""What a text answers: its last <answer>, else its last \boxed{...}, else all of it; after the reasoning.

    What tools gave, between <result> and </result>, is taken out before. `None` where the reasoning has no end.
    """
    own = _RESULT.sub(" ", text)
    said = spoken(own)
    if said is None:
        return None
    box = None if last_answer(own) else boxed(said)
    return (box[1] if box else said).strip()


def judgement(answer: str) -> str:
    """Yes, no or maybe, where a normalized answer begins with it or says just one of them; else the answer."""
    said = answer.split()
    found = {word for word in said if word in JUDGEMENTS}
    if said and said[0] in JUDGEMENTS:
        return said[0]
    return found.pop() if len(found) == 1 else answer


def read_record(split: Split, index: int, where: str, line: dict) -> dict:
    """A line as a record `id`, `question`, `answers` (each of which is right), and `doc_id` where there is one.

    Raises: RecordError naming the place, for no question, and no answer with a letter or digit in it.
    """
    question, answer = line["question"], line["answer"]
    if not isinstance(question, str) or not question.strip():
        raise RecordError(
            f"{where}: field 'question' is {question!r}; it has to be the text of the question."
        )
    answers = [str(each) for each in (answer if isinstance(answer, list) else [answer])]
    if not answers or not all(map(normalized, answers)):
        raise RecordError(f"{where}: field 'answer' is {answer!r}; it has to be a text, or a list of texts.")
    record_id = str(line.get("id", f"question_answering-{split}-{index}"))
    record = {"id": record_id, "question": question, "answers": answers}
    return record | ({"doc_id": line["doc_id"]} if line.get("doc_id") else {})


@register("task", "question_answering")
@dataclasses.dataclass(frozen=True)
class QuestionAnswering(Task):
    """Questions whose answers are a few words, or yes, no and maybe (PubMedQA, SQuAD, ...), with a search tool or without.

        reward = exact_weight [answer is one of the right ones] + f1_weight max_i F1(right one i, answer)

    after SQuAD's normalization. It goes with the tool "search" of a config's `turns`, of which the instruction tells; the
    sample's documents are in `SAMPLE_CORPUS`. Without tools, write another instruction.

    Raises: ValueError for negative weights and for two of 0.
    """

    path: str | None = None
    """Where the records are, with `question` and `answer` (see `splits.read_split`). `None`: a sample of PubMedQA."""
    test_path: str | None = None
    """Where the test records are, if elsewhere."""
    instruction: str = SEARCH
    exact_weight: float = 1.0
    f1_weight: float = 0.0

    def __post_init__(self):
        weights = (self.exact_weight, self.f1_weight)
        if not all(0 <= weight < float("inf") for weight in weights) or not any(weights):
            raise ValueError(
                f"question_answering exact_weight={self.exact_weight}, f1_weight={self.f1_weight}: weights are not "
                "negative, and one of them is over 0."
            )

    def records(self, split: Split) -> Sequence[dict]:
        lines = read_split(self.path, self.test_path, self.name, split, ("question", "answer"))
        return converted(lines, functools.partial(read_record, split))

    def prompt(self, record: dict) -> list[dict[str, str]]:
        form = " Answer yes, no or maybe." if _is_judgement(record) else ""
        return [{"role": "user", "content": f"{record['question']}{form}\n\n{self.instruction}".strip()}]

    def verify(self, record: dict, completion: str) -> Verdict:
        """Empty, longer than 10 000 characters, or without an end of its reasoning: unparsable."""
        answer = self.answer(record, completion)
        if answer is None:
            return self._verdict(Reason.UNPARSABLE, 0.0)
        right = any(normalized(gold) == answer for gold in record["answers"])
        f1 = max(token_f1(gold, answer) for gold in record["answers"])
        return self._verdict(Reason.CORRECT if right else Reason.WRONG, f1)

    def _verdict(self, reason: Reason, f1: float) -> Verdict:
        correct = reason is Reason.CORRECT
        parts = (Part("exact_match", float(correct), self.exact_weight), Part("f1", f1, self.f1_weight))
        return Verdict(sum(part.weight * part.value for part in parts), correct, reason, parts)

    def answer(self, record: dict, completion: str) -> str | None:
        """The answer after SQuAD's normalization."""
        told = final_words(completion)
        if told is None or len(told) > LONGEST_ANSWER:
            return None
        told = normalized(told)
        return (judgement(told) if _is_judgement(record) else told) or None

    def demonstration(self, record: dict) -> str:
        return f"<answer>{record['answers'][0]}</answer>"


def _is_judgement(record: dict) -> bool:
    return all(answer.lower() in JUDGEMENTS for answer in record["answers"])
