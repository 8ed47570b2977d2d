r"""Maths problems whose answers are LaTeX or numbers (MATH, AIME, OlympiadBench, ...), judged with math-verify."""

import dataclasses
import functools
from collections.abc import Sequence

from rlvr_jax.registry import register
from rlvr_jax.tasks.base import Reason, Split, Task, Verdict
from rlvr_jax.tasks.expressions import load
from rlvr_jax.tasks.final_answer import LONGEST_ANSWER, boxed, final_answer
from rlvr_jax.tasks.latex import canonical
from rlvr_jax.tasks.records import RecordError, converted
from rlvr_jax.tasks.splits import read_split
from rlvr_jax.tasks.values import UnreadableReference, judged


def problem(name: str, split: Split, index: int, where: str, line: dict) -> dict:
    """A line as a record `id`, `question`, `answer` (text), and where the line has them `subject`, `tolerance`, `solution`.

    The question is in `problem` or `question`, after a `context` where there is one; an `answer` that is a list holds
    several values. `error` (OlympiadBench) is how far off a number may be: one, or several with commas between.

    Raises: RecordError naming the place, for a line without a question, without an answer, or with another `error`.
    """
    question = line.get("problem", line.get("question"))
    if not isinstance(question, str) or not question.strip():
        raise RecordError(f"{where}: there is no text in 'problem' or 'question', but {question!r}.")
    given = line["answer"]
    answer = ", ".join(map(str, given)) if isinstance(given, list) else str(given)
    if given is None:
        raise RecordError(f"{where}: field 'answer' is {given!r}; it has to be a number or LaTeX.")
    question = f"{line.get('context') or ''}\n{question}".strip()
    try:
        tolerance = [abs(float(part)) for part in str(line.get("error") or "").split(",") if part.strip()]
    except ValueError as error:
        raise RecordError(f"{where}: field 'error' is {line['error']!r}; it has to be a number.") from error
    return (
        {"id": str(line.get("id", f"{name}-{split}-{index}")), "question": question, "answer": answer}
        | ({"subject": str(line["subject"])} if line.get("subject") else {})
        | ({"tolerance": tolerance} if tolerance else {})
        | ({"solution": str(line["solution"])} if line.get("solution") else {})
    )


@register("task", "math")
@dataclasses.dataclass(frozen=True)
class Math(Task):
    r"""Problems with an answer in LaTeX, as words or as a number: MATH (Hendrycks et al., arXiv:2103.03874) and the like.

    What counts as the final answer says `final_answer.final_answer`; when two answers are the same, `values.equal`. An
    exception of the libraries that judge is `Reason.ERROR`, never a wrong answer; so is a reference that cannot be read (MATH
    has a few), and there is no reward then, unless an answer is written as it is.
    """

    path: str | None = None
    """Where the records are, with `problem` or `question` and `answer` (see `splits.read_split`). `None`: a sample of MATH."""
    test_path: str | None = None
    """Where the test records are, if elsewhere."""
    instruction: str = "Think step by step and put the final answer in \\boxed{}."

    def records(self, split: Split) -> Sequence[dict]:
        lines = read_split(self.path, self.test_path, self.name, split, ("answer",))
        return converted(lines, functools.partial(problem, self.name, split))

    def prompt(self, record: dict) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{record['question']}\n\n{self.instruction}".strip()}]

    def verify(self, record: dict, completion: str) -> Verdict:
        try:
            gold, found = record["answer"], final_answer(completion)
            if found and canonical(found) == canonical(gold[:LONGEST_ANSWER]):
                return Verdict.of(Reason.CORRECT)
            reason = judged(final_answer(gold) or gold, found, record.get("tolerance", ()))
        except UnreadableReference:
            return Verdict(None, False, Reason.ERROR)
        except Exception:  # what the libraries raise on a model's text is their fault, not the answer's
            return Verdict.of(Reason.ERROR)
        return Verdict.of(reason)

    @property
    def processes(self) -> int:
        return 2

    def prepare(self) -> None:
        """Load the verifier, before the clock of a worker's first verdict runs."""
        load()

    def kind(self, record: dict) -> str | None:
        return record.get("subject")

    def answer(self, record: dict, completion: str) -> str | None:
        found = final_answer(completion)
        return None if found is None else canonical(found)

    def demonstration(self, record: dict) -> str:
        """The worked solution, where there is one, and the answer in a box unless it has one already."""
        solution = record.get("solution", "").strip()
        return solution if boxed(solution) else f"{solution}\n\\boxed{{{record['answer']}}}".strip()
