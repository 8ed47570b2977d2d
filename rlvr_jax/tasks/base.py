"""What a task is: records, a prompt for each, and a verifier that says why."""

import abc
import dataclasses
import enum
from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

Split: TypeAlias = Literal["train", "test"]
Prompt: TypeAlias = str | list[dict[str, str]]
"""Raw text, or chat messages `{"role": ..., "content": ...}`, without special tokens: rendering adds them."""


class Reason(enum.StrEnum):
    """Why a verdict is what it is. A verifier that failed is never counted as a wrong answer.

    `TRUNCATED`: not correct, and the answer was cut at the token limit; given by who knows the limit, not by a verifier.
    """

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSABLE = "unparsable"
    TRUNCATED = "truncated"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclasses.dataclass(frozen=True)
class Part:
    """One of several rewards of an answer: without its weight, and the weight."""

    name: str
    value: float
    weight: float


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The reward of one answer, its yes or no, and the reason.

    A reward of `None` is no verdict: the answer is taken out of its group, and counted. Where the reward is a sum of
    weighted ones, `parts` are these.
    """

    reward: float | None
    correct: bool
    reason: Reason
    parts: tuple[Part, ...] = ()

    def __post_init__(self):
        if self.correct != (self.reason is Reason.CORRECT):
            raise ValueError(
                f"correct={self.correct} contradicts reason={self.reason.value!r}: "
                "an answer is correct exactly when its reason is 'correct'."
            )

    @classmethod
    def of(cls, reason: Reason) -> "Verdict":
        """The binary reward: 1 for a correct answer, 0 for all else."""
        correct = reason is Reason.CORRECT
        return cls(reward=float(correct), correct=correct, reason=reason)


class Task(abc.ABC):
    """A family of problems with verifiable answers: a frozen dataclass, registered in the slot "task".

    Records are JSON-able dicts, so that a rollout can be written next to the record that it answers.
    """

    name: ClassVar[str] = "?"
    """Given by `register`."""

    @abc.abstractmethod
    def records(self, split: Split) -> Sequence[dict]:
        """Random access, deterministic and picklable. No record of "test" is one of "train"."""

    @abc.abstractmethod
    def prompt(self, record: dict) -> Prompt:
        """Raw text (no BOS: rendering adds it exactly once) or chat messages."""

    @abc.abstractmethod
    def verify(self, record: dict, completion: str) -> Verdict:
        """Judge any text, the empty one included. Never raises on account of the completion."""

    @property
    def processes(self) -> int:
        """Worker processes that judge answers where the config names no number: more than 0 for a verifier that may never come
        back, or that somebody else wrote."""
        return 0

    def prepare(self) -> None:  # noqa: B027  (most have nothing to load)
        """Load what `verify` needs, once: a worker process calls this before the time of a verdict begins."""

    def check(self) -> None:  # noqa: B027  (most can judge anywhere)
        """Raise where this machine cannot judge the task's answers."""

    def kind(self, record: dict) -> str | None:
        """Of which kind a record is, where figures are wanted for each kind apart."""
        return None

    def answer(self, record: dict, completion: str) -> str | None:
        """What a completion answers, for a vote among several: equal answers are equal texts. `None` where it has none, and
        for every completion of a task that cannot tell. Never raises on account of the completion."""
        return None

    def vocabulary(self) -> tuple[str, ...] | None:
        """All words of prompts and answers, no specials; `None` where a pretrained tokenizer is needed."""
        return None

    def demonstration(self, record: dict) -> str | None:
        """A right answer for the supervised warm-up; `None` where the records have none."""
        return None


class Around(Task):
    """A task that changes something of another one, its field `task`, and leaves the rest as it is."""

    task: Task

    def records(self, split: Split) -> Sequence[dict]:
        return self.task.records(split)

    def prompt(self, record: dict) -> Prompt:
        return self.task.prompt(record)

    def verify(self, record: dict, completion: str) -> Verdict:
        return self.task.verify(record, completion)

    @property
    def processes(self) -> int:
        return self.task.processes

    def prepare(self) -> None:
        self.task.prepare()

    def check(self) -> None:
        self.task.check()

    def kind(self, record: dict) -> str | None:
        return self.task.kind(record)

    def answer(self, record: dict, completion: str) -> str | None:
        return self.task.answer(record, completion)

    def vocabulary(self) -> tuple[str, ...] | None:
        return self.task.vocabulary()

    def demonstration(self, record: dict) -> str | None:
        return self.task.demonstration(record)


def check_split(split: str) -> None:
    """Raises ValueError for anything but "train" and "test"."""
    if split not in ("train", "test"):
        raise ValueError(f"no split called {split!r}; a task has 'train' and 'test'.")
