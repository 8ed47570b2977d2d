"""A task for tiny models: prompts of two lengths, and answers of which about a half are right by chance."""

import dataclasses
import itertools
import time

from rlvr_jax.tasks import Reason, Task, Verdict

WORDS = tuple("abcdefghijklmnopqrstuvwxyz")
RIGHT = frozenset(WORDS[::2])


@dataclasses.dataclass(frozen=True)
class Vowels(Task):
    """Right is an answer whose first word stands at an even place of the alphabet. `long` words stand in every odd prompt."""

    size: int = 40
    long: int = 3

    def records(self, split):
        shift = 0 if split == "train" else 7
        return [{"id": f"{split}-{i}", "number": i + shift} for i in range(self.size)]

    def prompt(self, record):
        number = record["number"]
        return " ".join(
            WORDS[(number + i * i) % 26] for i in range(self.long if number % 2 else 2 + number % 3)
        )

    def verify(self, record, completion):
        words = completion.split()
        if not words:
            return Verdict.of(Reason.UNPARSABLE)
        return Verdict.of(Reason.CORRECT if words[0] in RIGHT else Reason.WRONG)

    def vocabulary(self):
        return WORDS

    def demonstration(self, record):
        return " ".join(WORDS[(record["number"] + i) % 26] for i in range(1 + record["number"] % 4))


@dataclasses.dataclass(frozen=True)
class Stuck(Vowels):
    """Never done with an answer that begins with one of four letters."""

    def verify(self, record, completion):
        if completion[:1] in {"a", "b", "c", "d"}:
            for _ in itertools.count():
                time.sleep(0.01)
        return super().verify(record, completion)
