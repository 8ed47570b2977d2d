"""Several tasks at once, in fixed proportions."""

import dataclasses
import fractions
import functools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from rlvr_jax.registry import register
from rlvr_jax.tasks.arithmetic import Arithmetic
from rlvr_jax.tasks.base import Prompt, Split, Task, Verdict, check_split
from rlvr_jax.tasks.records import LazySequence


def whole(weights: Sequence[float | int]) -> tuple[int, ...]:
    """The smallest whole numbers in the same proportions, exactly as the weights are written: 0.1 and 0.25 are 2 and 5."""
    parts = [fractions.Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(part.denominator for part in parts))
    numbers = [int(part * scale) for part in parts]
    shared = math.gcd(*numbers)
    return tuple(number // shared for number in numbers)


class MixedRecords(LazySequence):
    """The records of several sequences, each once, so that what comes first is mixed by weight too.

    Record j of a sequence with weight w stands at the time (j + 1/2) / w. Of the first n, as long as no sequence has
    ended, each has given its share by weight to within (1 + the number of sequences) / 2.
    """

    def __init__(self, parts: Sequence[tuple[str, Sequence[dict]]], weights: tuple[int, ...]):
        """`parts`: label and records of each."""
        self.parts, self.weights = tuple(parts), weights
        sizes = [len(records) for _, records in parts]
        part = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        local = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
        order = np.argsort((local + 0.5) / np.asarray(weights, float)[part], kind="stable")
        self._part, self._local = part[order], local[order]

    def __len__(self) -> int:
        return len(self._part)

    def item(self, index: int) -> dict:
        label, records = self.parts[self._part[index]]
        record = records[int(self._local[index])]
        return {"id": f"{label}/{record['id']}", "task": label, "record": record}

    def places(self, part: int) -> Int[np.ndarray, " n"]:
        """Where the records of a part stand in this sequence, in their own order."""
        return np.flatnonzero(self._part == part)


@register("task", "mixture")
@dataclasses.dataclass(frozen=True)
class Mixture(Task):
    """Several tasks, of which training draws by `weights`; a record says in `task` which one it is of.

    Each task is shuffled on its own and starts again when all its records were seen, so a small task with a large weight
    is repeated. Without weights, tasks are drawn in proportion to the records they have. A second task of a name is
    called name-2. Held-out records are interleaved in the same proportions.

    Raises: ValueError for no tasks, a mixture of mixtures, and weights that are not one positive number a task.
    """

    tasks: tuple[Task, ...] = (Arithmetic(), Arithmetic(operations=("times",)))
    weights: tuple[float, ...] = ()

    def __post_init__(self):
        if not self.tasks:
            raise ValueError("mixture tasks=(): name at least one task.")
        if any(isinstance(task, Mixture) for task in self.tasks):
            raise ValueError("mixture tasks hold a mixture: name its tasks here, with their weights.")
        if self.weights and len(self.weights) != len(self.tasks):
            raise ValueError(
                f"mixture weights={self.weights}: give one to each of {', '.join(self.labels)}, or none at all."
            )
        for weight in self.weights:
            if not 0 < weight < math.inf:
                raise ValueError(f"mixture weights={self.weights}: a weight is a positive number.")

    @property
    def labels(self) -> tuple[str, ...]:
        """What the tasks are called in records and figures: their names, numbered where one is there again."""
        seen: Counter[str] = Counter()
        labels = []
        for task in self.tasks:
            seen[task.name] += 1
            labels.append(task.name if seen[task.name] == 1 else f"{task.name}-{seen[task.name]}")
        return tuple(labels)

    @functools.cached_property
    def _by_label(self) -> dict[str, Task]:
        return dict(zip(self.labels, self.tasks, strict=True))

    def task_of(self, record: dict) -> Task:
        """The task that a record is of."""
        return self._by_label[record["task"]]

    def records(self, split: Split) -> MixedRecords:
        check_split(split)
        parts = [(label, task.records(split)) for label, task in self._by_label.items()]
        return MixedRecords(parts, whole(self.weights or [len(records) or 1 for _, records in parts]))

    def prompt(self, record: dict) -> Prompt:
        return self.task_of(record).prompt(record["record"])

    def verify(self, record: dict, completion: str) -> Verdict:
        return self.task_of(record).verify(record["record"], completion)

    @property
    def processes(self) -> int:
        return max(task.processes for task in self.tasks)

    def prepare(self) -> None:
        for task in self.tasks:
            task.prepare()

    def check(self) -> None:
        for task in self.tasks:
            task.check()

    def kind(self, record: dict) -> str:
        return record["task"]

    def answer(self, record: dict, completion: str) -> str | None:
        return self.task_of(record).answer(record["record"], completion)

    def vocabulary(self) -> tuple[str, ...] | None:
        """The words of all tasks, or `None` where one of them needs a pretrained tokenizer."""
        words = [task.vocabulary() for task in self.tasks]
        known = [part for part in words if part is not None]
        return tuple(dict.fromkeys(sum(known, ()))) if len(known) == len(words) else None

    def demonstration(self, record: dict) -> str | None:
        return self.task_of(record).demonstration(record["record"])
