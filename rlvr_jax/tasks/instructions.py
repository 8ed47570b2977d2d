"""Following verifiable instructions (IFEval): requests with constraints that a program can check."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

from rlvr_jax.registry import register
from rlvr_jax.tasks.base import Part, Reason, Split, Task, Verdict
from rlvr_jax.tasks.final_answer import after_reasoning
from rlvr_jax.tasks.instruction_checks import arguments, follows, load_models, variants
from rlvr_jax.tasks.records import RecordError, converted
from rlvr_jax.tasks.sources import read_records
from rlvr_jax.tasks.splits import SAMPLES

LONGEST_ANSWER = 20_000
"""Characters, three times what IFEval asks for at the most: the sentences of the eight loose variants are counted in a
second."""


def read_record(split: Split, index: int, where: str, line: dict[str, Any]) -> dict[str, Any]:
    """A line of IFEval's file as a record `id`, `prompt`, `constraints`: a name and arguments for each.

    Raises: RecordError for a request without constraints, an unknown one, and arguments that do not fit.
    """
    prompt, names = line["prompt"], line["instruction_id_list"]
    kwargs = line.get("kwargs") or [{}] * len(names or ())
    if not isinstance(prompt, str) or not prompt.strip():
        raise RecordError(f"{where}: field 'prompt' is {prompt!r}; it has to be the text of the request.")
    if not isinstance(names, list) or not names or len(kwargs) != len(names):
        raise RecordError(
            f"{where}: field 'instruction_id_list' is {names!r} with {len(kwargs)} 'kwargs'; a request has one constraint "
            "or more, and arguments ({} for none) for each."
        )
    try:
        constraints = [
            {"name": name, "arguments": arguments(where, name, given or {})}
            for name, given in zip(names, kwargs, strict=True)
        ]
    except ValueError as error:
        raise RecordError(str(error)) from error
    record_id = str(line.get("id", line.get("key", f"instructions-{split}-{index}")))
    return {"id": record_id, "prompt": prompt, "constraints": constraints}


@register("task", "instructions")
@dataclasses.dataclass(frozen=True)
class Instructions(Task):
    """Requests whose constraints are checked by a program: IFEval (Zhou et al., arXiv:2311.07911) and files like it.

    `path` holds the splits with IFEval's fields `prompt`, `instruction_id_list` and `kwargs`; `None` is a sample of it.
    An answer is correct where it fulfils every constraint. Reasoning, up to </think>, is not part of it.
    """

    path: str | None = None
    mode: Literal["strict", "loose"] = "strict"
    """`loose`: a constraint is followed, too, where the answer fulfils it without its first line, its last, or asterisks."""
    reward: Literal["all", "share"] = "all"
    """1 for an answer that fulfils every constraint and 0 for any other; or the share of the constraints it fulfils."""

    def records(self, split: Split) -> Sequence[dict]:
        lines = read_records(self.path or str(SAMPLES / self.name), split, ("prompt", "instruction_id_list"))
        return converted(lines, functools.partial(read_record, split))

    def prepare(self) -> None:
        """Load what checks need before the clock of a worker runs."""
        load_models()

    def prompt(self, record: dict) -> list[dict[str, str]]:
        return [{"role": "user", "content": record["prompt"]}]

    def followed(self, record: dict, text: str) -> list[bool]:
        """For each constraint, whether the text follows it."""
        texts = variants(text) if self.mode == "loose" else (text,)
        return [
            any(follows(each["name"], each["arguments"], text) for text in texts)
            for each in record["constraints"]
        ]

    def verify(self, record: dict, completion: str) -> Verdict:
        """Empty, longer than 20 000 characters, or with a <think> that does not end: unparsable."""
        text = after_reasoning(completion)
        if not text or not text.strip() or len(text) > LONGEST_ANSWER:
            return Verdict.of(Reason.UNPARSABLE)
        try:
            followed = self.followed(record, text)
        except Exception:  # what a library raises on a model's text is its own fault, not the answer's
            return Verdict.of(Reason.ERROR)
        reason = Reason.CORRECT if all(followed) else Reason.WRONG
        if self.reward == "all":
            return Verdict.of(reason)
        parts = tuple(
            Part(each["name"], float(one), 1 / len(followed))
            for each, one in zip(record["constraints"], followed, strict=True)
        )
        return Verdict(sum(followed) / len(followed), all(followed), reason, parts)
