"""Dynamic sampling: a batch is filled up with the groups that the objective trains on; what is over waits for the next.

Shapes stay static: a step trains on P groups of G rows, whatever was sampled. After the last round that is allowed,
groups which the objective leaves out stand in for the missing ones, and carry no weight in it.

Reference: DAPO, arXiv:2503.14476, section 3.2.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from rlvr_jax.objective.base import GroupFilter
from rlvr_jax.rollout.collect import Collected
from rlvr_jax.types import Mean, Metrics, Rollout, pytree


@pytree
class Groups:
    """Whole groups of verified responses on the host, with the log-probabilities that the sampler stored and the version of
    its weights."""

    rollout: Rollout
    logprob: np.ndarray
    version: np.ndarray

    def __len__(self) -> int:
        """Rows."""
        return len(self.logprob)

    def take(self, groups: np.ndarray, group_size: int) -> "Groups":
        """Some of the groups, by index."""
        rows = (groups[:, None] * group_size + np.arange(group_size)).reshape(-1)
        return jax.tree.map(lambda x: x[rows], self)

    def as_arrays(self) -> dict[str, np.ndarray]:
        """For a checkpoint."""
        return {**vars(self.rollout), "logprob": self.logprob, "version": self.version}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Groups | None":
        """What `as_arrays` left in a checkpoint; None where it left nothing."""
        if not arrays:
            return None
        fields = {f.name: arrays[f.name] for f in dataclasses.fields(Rollout)}
        return cls(rollout=Rollout(**fields), logprob=arrays["logprob"], version=arrays["version"])


def joined(parts: Sequence[Groups]) -> Groups:
    """Groups one after another; prompts are padded to the widest."""
    width = max(part.rollout.prompt.shape[1] for part in parts)

    def widened(part: Groups) -> Groups:
        missing = width - part.rollout.prompt.shape[1]
        prompt = np.pad(part.rollout.prompt, ((0, 0), (0, missing)))
        return dataclasses.replace(part, rollout=dataclasses.replace(part.rollout, prompt=prompt))

    return jax.tree.map(lambda *x: np.concatenate(x), *map(widened, parts))


@dataclasses.dataclass(frozen=True, eq=False)
class Filled:
    """A batch to train on. Its first `kept` groups pass the filters, the others only fill it up."""

    groups: Groups
    kept: int
    surplus: Groups | None
    metrics: Metrics


class Refill:
    """The groups of one step: those left over from the step before, then those of each round that is added.

    Without filters every group passes, and the first round fills the batch.
    """

    def __init__(
        self, filters: Sequence[GroupFilter], groups: int, group_size: int, surplus: Groups | None = None
    ):
        self._filters, self._want, self._size = filters, groups, group_size
        self._kept = [] if surplus is None else [surplus]
        self._fillers: list[Groups] = []
        self._waited = self.count
        self.rounds = 0

    @property
    def count(self) -> int:
        """Groups that pass the filters so far."""
        return sum(map(len, self._kept)) // self._size

    @property
    def full(self) -> bool:
        return self.count >= self._want

    def add(self, found: Collected) -> None:
        """One round of as many groups as a batch has."""
        groups = Groups(rollout=found.rollout, logprob=found.logprob, version=found.version)
        passed = self._passed(found.rollout)
        self._kept.append(groups.take(np.flatnonzero(passed), self._size))
        self._fillers = [groups.take(np.flatnonzero(~passed), self._size)]
        self.rounds += 1

    def close(self) -> Filled:
        """The batch. Where kept groups are missing, the last round alone has as many that are not."""
        there = joined([*self._kept, *self._fillers])
        kept = min(self.count, self._want)
        over = np.arange(kept, self.count)
        return Filled(
            groups=there.take(np.arange(self._want), self._size),
            kept=kept,
            surplus=there.take(over, self._size) if len(over) else None,
            metrics=self._metrics(kept, len(over)) if self._filters else {},
        )

    def _metrics(self, kept: int, over: int) -> Metrics:
        """Shares of a batch's groups, and the rounds that it took."""
        shares = {"kept": kept, "from_last_step": self._waited, "left_over": over}
        return {
            **{f"groups/{k}": Mean(total=float(n), count=float(self._want)) for k, n in shares.items()},
            "groups/rounds": Mean(total=float(self.rounds), count=1.0),
        }

    def _passed(self, rollout: Rollout) -> np.ndarray:
        answered = rollout.valid.reshape(-1, self._size)
        right = (answered * rollout.correct.reshape(-1, self._size)).sum(1, dtype=np.float32)
        verdicts = [each.keeps(right, answered.sum(1, dtype=np.float32)) for each in self._filters]
        return np.logical_and.reduce(verdicts, axis=0) if verdicts else np.ones(len(right), bool)
