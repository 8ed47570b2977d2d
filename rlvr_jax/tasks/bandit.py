"""A categorical bandit: one word of many is said, and some of the words are right."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from rlvr_jax.registry import register
from rlvr_jax.tasks.base import Reason, Split, Task, Verdict, check_split


@functools.lru_cache(maxsize=64)
def right_actions(actions: int, correct: int, seed: int, context: int) -> tuple[int, ...]:
    """The actions that are right in a context, in the order that they were drawn in."""
    drawn = np.random.default_rng([seed, context]).permutation(actions)[:correct]
    return tuple(int(action) for action in drawn)


@register("task", "bandit")
@dataclasses.dataclass(frozen=True)
class Bandit(Task):
    """One word out of `actions` is the answer, and `correct` of them are right: the categorical policy of F-GRPO
    (arXiv:2602.06717, appendix J) and BroRL, as a task.

    Each of the `contexts` is a prompt of one word, with right actions of its own. A word more, or another word, is
    unparsable. What is sampled is what is learnt, so both splits ask in the same contexts: the exception to the rule that
    splits share nothing. The papers have 128 000 actions, 10 000 of them right, and one context; there the probability of
    every action is looked at, and `sampling.max_new_tokens` is 1.

    Raises: ValueError for fewer than 2 actions, none or only right ones, no context, and negative seeds.
    """

    actions: int = 64
    correct: int = 8
    contexts: int = 1
    correct_reward: float = 1.0
    wrong_reward: float = 0.0
    """Of a wrong action, and of an answer that is none; -1 in the papers."""
    seed: int = 0
    """Of the draw of the right actions."""

    def __post_init__(self):
        if not 1 <= self.correct < self.actions:
            raise ValueError(
                f"bandit correct={self.correct} of actions={self.actions}: at least one action is right, and one wrong."
            )
        for name, least in (("contexts", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"bandit {name} is {least} or more, got {getattr(self, name)}; raise it.")

    def records(self, split: Split) -> Sequence[dict]:
        check_split(split)
        return [{"id": f"bandit-{split}-{context}", "context": context} for context in range(self.contexts)]

    def right(self, record: dict) -> tuple[int, ...]:
        """The actions that are right in a record's context."""
        return right_actions(self.actions, self.correct, self.seed, record["context"])

    def prompt(self, record: dict) -> str:
        return f"context-{record['context']}"

    def verify(self, record: dict, completion: str) -> Verdict:
        said = self.answer(record, completion)
        if said is None:
            return Verdict(self.wrong_reward, False, Reason.UNPARSABLE)
        if said in _words(self.actions, self.correct, self.seed, record["context"]):
            return Verdict(self.correct_reward, True, Reason.CORRECT)
        return Verdict(self.wrong_reward, False, Reason.WRONG)

    def answer(self, record: dict, completion: str) -> str | None:
        """The one word that is an action."""
        said = completion.split()
        number = said[0].removeprefix("action-") if len(said) == 1 else ""
        is_action = number.isascii() and number.isdigit() and len(number) < 10 and int(number) < self.actions
        return said[0] if is_action and said[0] == f"action-{int(number)}" else None

    def vocabulary(self) -> tuple[str, ...]:
        contexts = tuple(f"context-{context}" for context in range(self.contexts))
        return (*contexts, *(f"action-{action}" for action in range(self.actions)))

    def demonstration(self, record: dict) -> str:
        """The right action that was drawn first: warmed up on it, a policy has the anchor of the papers."""
        return f"action-{self.right(record)[0]}"


@functools.lru_cache(maxsize=64)
def _words(actions: int, correct: int, seed: int, context: int) -> frozenset[str]:
    return frozenset(f"action-{action}" for action in right_actions(actions, correct, seed, context))
