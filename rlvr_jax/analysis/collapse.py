"""Advantage collapse: groups whose rewards do not differ, so that normalised advantages teach nothing."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rlvr_jax.numerics import group_std
from rlvr_jax.objective.advantages import COLLAPSED, collapsed

EARLY_STEPS = 100
"""Steps whose collapse rate goes with the final accuracy (arXiv:2605.21125)."""
HIGH = 0.3
"""Early collapse rate from which a run is warned. Our proposal: GRPO's runs in the paper lie between 0.28 and 0.45."""


def advantage_collapse_rate(
    rewards: Float[Array, " B"] | Float[np.ndarray, " B"], group_size: int, *, tau: float = COLLAPSED
) -> Float[Array, ""]:
    """ACR = (1/P) sum_j 1[sigma(R_j) < tau], with the population standard deviation of each group's rewards.

    Groups are consecutive rows; the unit is the group (prompt), not the batch. In 0..1, and safe under `jit`.

    Raises: ValueError where the groups do not divide the rows.
    Source: AVSPO (arXiv:2605.21125), definition of ACR.
    """
    spread = group_std(jnp.asarray(rewards, jnp.float32), group_size, ddof=0)
    return (spread < tau).mean(dtype=jnp.float32)


@dataclasses.dataclass(frozen=True)
class Collapsed:
    """How many of a number of groups have collapsed: at all, with no answer right, with every answer right.

    The rest of those that collapsed got one and the same reward for answers of which some are right.
    """

    groups: int = 0
    all: int = 0
    all_wrong: int = 0
    all_right: int = 0

    @classmethod
    def of(
        cls,
        rewards: Float[np.ndarray, " B"],
        correct: Float[np.ndarray, " B"],
        valid: Bool[np.ndarray, " B"],
        group_size: int,
    ) -> "Collapsed":
        """Of raw rewards, as the verifier gave them. Rejected rows are left out, and groups with fewer than two others:
        one answer has no spread, whatever the policy is."""
        found = collapsed(jnp.asarray(rewards), group_size, valid=jnp.asarray(valid))
        flat, judged = (np.asarray(x)[:, 0] for x in found)
        answers = valid.reshape(-1, group_size)
        right = (answers & (correct.reshape(-1, group_size) > 0)).sum(1)
        return cls(
            groups=int(judged.sum()),
            all=int(flat.sum()),
            all_wrong=int((flat & (right == 0)).sum()),
            all_right=int((flat & (right == answers.sum(1))).sum()),
        )

    def __add__(self, other: "Collapsed") -> "Collapsed":
        mine, its = dataclasses.astuple(self), dataclasses.astuple(other)
        return Collapsed(*(a + b for a, b in zip(mine, its, strict=True)))

    def rates(self) -> dict[str, float]:
        """Shares of the groups; `nan` where there is none."""
        names = ("all", "all_wrong", "all_right")
        return {n: getattr(self, n) / self.groups if self.groups else float("nan") for n in names}


class CollapseRecord:
    """The collapse rates of a run: of a batch, of all batches so far, and the mean rate of its first 100 steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.total = Collapsed()
        self.early: list[float] = []

    def add(self, batch: Collapsed) -> dict[str, float]:
        """Count one step; its figures. `early` is the mean over at most the first 100 steps, and fixed after them."""
        self.steps += 1
        self.total += batch
        if self.steps <= EARLY_STEPS and batch.groups:
            self.early.append(batch.rates()["all"])
        running = {f"running_{name}": rate for name, rate in self.total.rates().items()}
        return {**batch.rates(), **running, "early": self.early_rate}

    @property
    def early_rate(self) -> float:
        return sum(self.early) / len(self.early) if self.early else float("nan")

    def get_state(self) -> dict[str, Any]:
        """A JSON-able dict."""
        return {"steps": self.steps, "total": dataclasses.asdict(self.total), "early": self.early}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue where `get_state` was called."""
        self.steps, self.early = state["steps"], list(state["early"])
        self.total = Collapsed(**state["total"])
