"""Two-operand arithmetic asked in words: What is 27 plus 45?"""

import dataclasses
import operator
from collections.abc import Sequence
from typing import SupportsIndex, overload

import numpy as np
from jaxtyping import Bool, Int

from rlvr_jax.registry import nearest, register
from rlvr_jax.tasks.answers import last_number, spelt
from rlvr_jax.tasks.base import Reason, Split, Task, Verdict, check_split

OPERATIONS = {"plus": operator.add, "minus": operator.sub, "times": operator.mul}

HELD_OUT_SHARE = 8
"""One pair of operands in this many belongs to the test split."""

LARGEST_OPERAND = 2000
"""Every pair is listed, so the table of a larger range would not be small any more."""


def is_held_out(a: Int[np.ndarray, " N"], b: Int[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
    """Whether a pair belongs to the test split: a function of the two numbers, not of their order.

    Held-out 27 and 45 are so in 27 plus 45, 45 plus 27 and 45 minus 27, whatever the largest operand.
    Source: the mixing steps of SplitMix64 (Steele et al., OOPSLA 2014).
    """
    low, high = np.minimum(a, b).astype(np.uint64), np.maximum(a, b).astype(np.uint64)
    x = (low << np.uint64(32)) + high + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x % np.uint64(HELD_OUT_SHARE) == 0


class ArithmeticRecords(Sequence[dict]):
    """All questions of a split, each once, in an order that does not start with the small numbers."""

    def __init__(self, max_operand: int, operations: tuple[str, ...], split: Split):
        a, b = (x.ravel() for x in np.divmod(np.arange((max_operand + 1) ** 2), max_operand + 1))
        mine = is_held_out(a, b) == (split == "test")
        pairs = np.stack([a[mine], b[mine]], axis=1).astype(np.int32)
        order = np.random.default_rng(0).permutation(len(pairs) * len(operations))
        self._pairs, self._order, self._operations = pairs, order, operations

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: SupportsIndex) -> dict: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> dict | list[dict]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        pair, which = divmod(int(self._order[index]), len(self._operations))
        a, b = (int(x) for x in self._pairs[pair])
        name = self._operations[which]
        answer = str(OPERATIONS[name](a, b))
        return {"id": f"{a}-{name}-{b}", "a": a, "operation": name, "b": b, "answer": answer}


@register("task", "arithmetic")
@dataclasses.dataclass(frozen=True)
class Arithmetic(Task):
    """All questions `What is A plus B?` with operands from 0 to `max_operand`, as chat messages.

    The last number of the answer is judged, so reasoning before it is free. Differences may be negative.

    Raises: ValueError for an unknown, repeated or missing operation, and a largest operand outside 1..2000.
    """

    max_operand: int = 99
    operations: tuple[str, ...] = ("plus", "minus")
    instruction: str = "Answer with the number only."

    def __post_init__(self):
        if not 1 <= self.max_operand <= LARGEST_OPERAND:
            raise ValueError(
                f"arithmetic max_operand={self.max_operand}: operands go from 0 to a "
                f"number in 1..{LARGEST_OPERAND}."
            )
        for name in self.operations:
            if name not in OPERATIONS:
                raise ValueError(
                    f"no arithmetic operation called {name!r}.{nearest(name, OPERATIONS)} "
                    f"Known: {', '.join(OPERATIONS)}."
                )
        if not self.operations or len(set(self.operations)) < len(self.operations):
            raise ValueError(
                f"arithmetic operations={self.operations}: name at least one of "
                f"{', '.join(OPERATIONS)}, each once."
            )

    def records(self, split: Split) -> Sequence[dict]:
        check_split(split)
        return ArithmeticRecords(self.max_operand, self.operations, split)

    def prompt(self, record: dict) -> list[dict[str, str]]:
        question = f"What is {record['a']} {record['operation']} {record['b']}?"
        return [{"role": "user", "content": f"{question} {self.instruction}".strip()}]

    def verify(self, record: dict, completion: str) -> Verdict:
        answer = last_number(completion)
        if answer is None:
            return Verdict.of(Reason.UNPARSABLE)
        return Verdict.of(Reason.CORRECT if answer == int(record["answer"]) else Reason.WRONG)

    def answer(self, record: dict, completion: str) -> str | None:
        """The last number, 7 and 7.0 being one."""
        found = last_number(completion)
        return None if found is None else spelt(found)

    def demonstration(self, record: dict) -> str:
        return record["answer"]
