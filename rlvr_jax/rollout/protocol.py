"""What samples: a request for responses, the responses, and the protocol of whatever gives them."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from rlvr_jax.rollout.prompts import PromptBatch
from rlvr_jax.types import Stat


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """G responses to each prompt of a batch; the noise of a token is a function of (seed, step, prompt id, sample, position).

    `first_sample` is the index of the first of a prompt's G samples: 0, or G times the number of times that the prompt
    stands earlier in the step. `overrides` are [P * G] arrays by the name of a field of `Sampling`, for rows that differ
    from it.
    """

    batch: PromptBatch
    first_sample: Int[np.ndarray, " P"]
    group_size: int
    seed: int
    step: int
    overrides: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.batch.length) * self.group_size


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """Responses on the host, rows of a prompt consecutive. Beyond `length` everything is 0.

    `mask` is 1 on the tokens that the policy sampled, the stop token included, and 0 on those that a tool wrote;
    `truncated` says that the response ran into a limit. `logprob` is that of the whole tempered vocabulary (see `Sampling`),
    `stats` what else was asked for, `version` the weights that the row was sampled with, as their number at `push`.
    """

    tokens: Int[np.ndarray, "B T"]
    length: Int[np.ndarray, " B"]
    mask: Float[np.ndarray, "B T"]
    truncated: Bool[np.ndarray, " B"]
    logprob: Float[np.ndarray, "B T"]
    stats: dict[Stat, Float[np.ndarray, "B T"]]
    version: Int[np.ndarray, " B"]

    @property
    def entropy(self) -> Float[np.ndarray, "B T"]:
        """In nats; not a number where the sampler did not compute it."""
        return self.stats.get(Stat.ENTROPY, np.full_like(self.logprob, np.nan))


OnRow: TypeAlias = Callable[[int, np.ndarray], None]
"""Told of each row that is over, and its tokens, while others are at work."""


def ignore(row: int, tokens: np.ndarray) -> None:
    """The `OnRow` of who waits for all of them."""


@runtime_checkable
class Sampler(Protocol):
    """What a training step samples with: the loop of this package (`engine.Engine`), or an engine of somebody else."""

    def push(self, params: Any, version: int) -> None:
        """Sample with these weights from now on. Raises ValueError where what arrived is not what was sent."""
        ...

    def sample(self, request: Request, on_row: OnRow = ignore) -> Samples:
        """All responses of a request."""
        ...
