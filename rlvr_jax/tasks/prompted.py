"""Any task with a system message and worked examples before the question."""

import dataclasses
import functools

from rlvr_jax.registry import register
from rlvr_jax.tasks.arithmetic import Arithmetic
from rlvr_jax.tasks.base import Around, Prompt, Task


@register("task", "prompted")
@dataclasses.dataclass(frozen=True)
class Prompted(Around):
    """A task whose prompts are opened by a system message, and by `shots` questions with their answers.

    The examples are the first training records and their demonstrations, as turns of the user and the assistant; a
    record is never its own example. A task that asks in raw text gets all of it as text before its own, apart by empty
    lines. A system message that the task has itself comes first, and `system` after it, in one message.

    Raises: ValueError for negative shots; on asking, where the task has no demonstration to show.
    """

    task: Task = Arithmetic()
    system: str = ""
    shots: int = 0

    def __post_init__(self):
        if self.shots < 0:
            raise ValueError(f"prompted shots={self.shots}: that many examples are shown, 0 or more.")

    @functools.cached_property
    def _candidates(self) -> tuple[dict, ...]:
        """One more than are shown: one of them may be the record that is asked about."""
        return tuple(self.task.records("train")[: self.shots + 1]) if self.shots else ()

    def _examples(self, record: dict) -> list[tuple[Prompt, str]]:
        others = [each for each in self._candidates if each != record][: self.shots]
        found = [(self.task.prompt(each), self.task.demonstration(each)) for each in others]
        if len(found) < self.shots or not all(answer for _, answer in found):
            raise ValueError(
                f"prompted shots={self.shots}: task {self.task.name!r} has no {self.shots} training records with "
                "demonstrations to show; show fewer."
            )
        return [(question, answer) for question, answer in found if answer]

    def prompt(self, record: dict) -> Prompt:
        asked, examples = self.task.prompt(record), self._examples(record)
        if isinstance(asked, str):
            shown = [f"{question} {answer}" for question, answer in examples]
            return "\n\n".join([*([self.system] if self.system else []), *shown, asked])
        own, turns = _split_system(asked)
        system = "\n\n".join(filter(None, (own, self.system)))
        opening = [{"role": "system", "content": system}] if system else []
        shown = [
            message
            for question, answer in examples
            for message in (*_split_system(question)[1], {"role": "assistant", "content": answer})
        ]
        return [*opening, *shown, *turns]

    def vocabulary(self) -> tuple[str, ...] | None:
        words = self.task.vocabulary()
        return None if words is None else tuple(dict.fromkeys((*words, *self.system.split())))


def _split_system(prompt: Prompt) -> tuple[str, list[dict[str, str]]]:
    """The text of a system message at the start, and the other messages."""
    messages = list(prompt) if not isinstance(prompt, str) else [{"role": "user", "content": prompt}]
    if messages and messages[0]["role"] == "system":
        return messages[0]["content"], messages[1:]
    return "", messages
