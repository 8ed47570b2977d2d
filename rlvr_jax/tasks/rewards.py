"""Several weighted rewards for an answer, in place of the one of its task: named ones, and any function.

    Rewarded(Arithmetic(), rewards=(OfTask(), Format(weight=0.2), Custom("brief", lambda record, text, verdict: -len(text), 1e-3)))

A reward is a function of record, completion and the task's verdict. It may be `async`; `None` from it is no verdict on the
answer, which is then taken out of its group. Whether an answer is correct stays what the task says, and that alone is what
group filters and pass@k look at.
"""

import abc
import asyncio
import concurrent.futures
import dataclasses
import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeAlias

from rlvr_jax.registry import register
from rlvr_jax.tasks.arithmetic import Arithmetic
from rlvr_jax.tasks.base import Around, Part, Reason, Task, Verdict
from rlvr_jax.tasks.tags import is_well_formed

Function: TypeAlias = Callable[[dict, str, Verdict], float | None | Awaitable[float | None]]


class AnswerReward(abc.ABC):
    """One of the rewards of an answer: a frozen dataclass with a `weight`, registered in the slot "answer_reward"."""

    name: ClassVar[str]
    """Given by `register`; figures carry it."""
    weight: float

    @abc.abstractmethod
    def __call__(self, record: dict, completion: str, verdict: Verdict) -> Any:
        """The reward without its weight (a number, `None`, or an awaitable of one)."""


@register("answer_reward", "task")
@dataclasses.dataclass(frozen=True)
class OfTask(AnswerReward):
    """What the task itself gives."""

    weight: float = 1.0

    def __call__(self, record: dict, completion: str, verdict: Verdict) -> float | None:
        return verdict.reward


@register("answer_reward", "format")
@dataclasses.dataclass(frozen=True)
class Format(AnswerReward):
    """1 where the whole answer matches a regular expression (white space around it apart), else 0.

    Without a `pattern`: where it is <think>...</think> and then <answer>...</answer>. Raises ValueError for a pattern that is
    no regular expression.
    """

    weight: float = 0.2
    """Ours."""
    pattern: str | None = None

    def __post_init__(self):
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise ValueError(f"format pattern={self.pattern!r} is no regular expression: {error}.") from None

    def __call__(self, record: dict, completion: str, verdict: Verdict) -> float:
        if self.pattern is None:
            return float(is_well_formed(completion))
        return float(re.fullmatch(self.pattern, completion.strip(), re.DOTALL) is not None)


@register("answer_reward", "repetition")
@dataclasses.dataclass(frozen=True)
class Repetition(AnswerReward):
    """Minus the share of an answer's word n-grams that have come before in it; 0 for one shorter than n words.

    In [-1, 0]. After the repetition penalty of arXiv:2502.03373, section 4. Deviations: of words and by shares, where theirs is
    a penalty for each token of a repeated n-gram.
    """

    weight: float = 1.0
    """Ours."""
    n: int = 4
    """Words. Ours."""

    def __post_init__(self):
        if self.n < 1:
            raise ValueError(f"repetition n={self.n}: an n-gram has 1 word or more.")

    def __call__(self, record: dict, completion: str, verdict: Verdict) -> float:
        words = completion.split()
        grams = [tuple(words[i : i + self.n]) for i in range(len(words) - self.n + 1)]
        return len(set(grams)) / len(grams) - 1 if grams else 0.0


@dataclasses.dataclass(frozen=True)
class Custom(AnswerReward):
    """Any callable as a reward: a function, a partial, a lambda, an object; from Python only."""

    name: str  # type: ignore[misc]  (of the instance, where the others have one for their class)
    function: Function
    weight: float = 1.0

    def __call__(self, record: dict, completion: str, verdict: Verdict) -> Any:
        return self.function(record, completion, verdict)


@register("task", "rewarded")
@dataclasses.dataclass(frozen=True)
class Rewarded(Around):
    """A task whose answers get the weighted sum of `rewards` in place of the task's reward.

        r = sum_i w_i r_i

    Figures are logged of each r_i and of each w_i r_i. A reward that raises leaves the answer without verdict, its reason
    `error`. Raises ValueError for no rewards, and for two of one name.
    """

    task: Task = Arithmetic()
    rewards: tuple[AnswerReward, ...] = (OfTask(), Format())

    def __post_init__(self):
        names = [reward.name for reward in self.rewards]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"rewarded rewards={names}: name at least one, each once.")

    @property
    def processes(self) -> int:
        """At least 1 where a reward is somebody else's function."""
        return max(self.task.processes, int(any(isinstance(reward, Custom) for reward in self.rewards)))

    def verify(self, record: dict, completion: str) -> Verdict:
        verdict = self.task.verify(record, completion)
        if verdict.reward is None:
            return verdict
        try:
            values = [_value(reward(record, completion, verdict)) for reward in self.rewards]
        except Exception:  # somebody else's function may raise anything
            return Verdict(None, False, Reason.ERROR)
        parts = tuple(
            Part(reward.name, value, float(reward.weight))
            for reward, value in zip(self.rewards, values, strict=True)
            if value is not None
        )
        whole = sum(part.weight * part.value for part in parts) if len(parts) == len(values) else None
        return dataclasses.replace(verdict, reward=whole, parts=parts)


def _value(reward: Any) -> float | None:
    """What a reward function came to, waited for where it is a coroutine."""
    if inspect.isawaitable(reward):
        reward = _awaited(reward)
    return None if reward is None else float(reward)


def _awaited(reward: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await reward

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with concurrent.futures.ThreadPoolExecutor(1) as thread:  # a notebook's loop is running already
        return thread.submit(asyncio.run, wait()).result()
