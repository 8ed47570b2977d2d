"""Where the batches of a run come from: sampled from the policy as it is, or one step ahead of training.

Ahead, the batch of step n + 1 is sampled, and judged, while step n trains: from weights that are one step old, which
`sampler_correction` answers for. Each row carries the version of its weights. A checkpoint then holds those weights too
and where the data stood before that batch, so that a resumed run samples it again, token by token.
"""

import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax import distributed
from rlvr_jax.config import Config
from rlvr_jax.rollout.collect import Early, collect
from rlvr_jax.rollout.judge import Judge
from rlvr_jax.rollout.prompts import PromptStream
from rlvr_jax.rollout.refill import Filled, Groups, Refill
from rlvr_jax.train.logs import Round
from rlvr_jax.train.metrics import Phases
from rlvr_jax.train.program import Program
from rlvr_jax.train.step import TrainState
from rlvr_jax.train.stop import StopRequest
from rlvr_jax.types import Mean, Metrics


@dataclasses.dataclass(frozen=True, eq=False)
class Gathered:
    """A batch to train on, all that was sampled for it, and the seconds that took."""

    filled: Filled
    rounds: tuple[Round, ...]
    metrics: Metrics
    times: dict[str, float]


class Batches:
    """Each batch is sampled when it is asked for: fully on policy.

    `behind` are the trained parameters that the batch to come is sampled with, where they are not those of the state.
    """

    behind: Any = None

    def __init__(self, program: Program, stream: PromptStream, judge: Judge, stop: StopRequest):
        self._program, self._stream, self._judge, self._stop = program, stream, judge, stop
        self._surplus: Groups | None = None
        self._before: tuple[dict[str, Any], dict[str, np.ndarray]] | None = None

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *error: object) -> None:
        self.settle()

    def take(self, step: int, state: TrainState) -> Gathered | None:
        """The batch of a step; None where the run was asked to stop before it was whole."""
        self._push(state, version=step)
        self._before = self._here()
        return self._taken(self._gather(step))

    def look_ahead(self, step: int, state: TrainState) -> None:
        """The batch of that step is next, and this is the state before the one that trains now."""

    def settle(self) -> None:
        """Wait until nothing is sampled any more, so that the sampler can be lent."""

    def position(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Where the next batch begins, for a checkpoint: the data stream, and groups that wait for it."""
        return self._before or self._here()

    def set_position(self, stream: dict[str, Any], arrays: dict[str, np.ndarray], behind: Any = None) -> None:
        """Continue where `position` was called."""
        self._stream.set_state(stream)
        self._surplus = Groups.from_arrays(arrays)
        self.behind = behind

    def _here(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return self._stream.get_state(), self._surplus.as_arrays() if self._surplus else {}

    def _push(self, state: TrainState, version: int) -> None:
        self._program.sampler.push(state.policy, version=version)

    def _taken(self, found: Gathered | None) -> Gathered | None:
        if found is not None:
            self._before = None
        return found

    def _gather(self, step: int) -> Gathered | None:
        """Rounds of sampling, until the batch is full of groups that the objective keeps or no more are allowed."""
        program, config = self._program, self._program.config
        size, phases = config.batch, Phases()
        refill = Refill(config.objective.filters, size.prompts, size.group_size, self._surplus)
        rounds: list[Round] = []
        while not (refill.full or refill.rounds == size.max_rounds or self._stop.agreed()):
            prompts = next(self._stream).after(refill.rounds)
            early = Early(self._judge, program.tokenizer, prompts.records, size.group_size)
            with phases("sample"):
                samples = program.sample_batch(prompts, step=step, seed=config.seed, on_row=early.on_row)
            with phases("verify"):
                found = collect(config.task, program.tokenizer, prompts, samples, early.answers())
            rounds.append(Round(prompts, found))
            refill.add(found)
        if self._stop.agreed():  # thrown away; on resume the same one is sampled again
            return None
        filled = refill.close()
        self._surplus = filled.surplus
        counts = {"prompts/dropped": self._stream.dropped, "prompts/cut": self._stream.cut}
        return Gathered(
            filled=filled,
            rounds=tuple(rounds),
            metrics={
                **filled.metrics,
                **lags(step - filled.groups.version, size.oldest),
                **{name: Mean(total=float(n), count=1.0) for name, n in counts.items()},
            },
            times={name: seconds for name, seconds in phases.collect().items() if name != "time/step"},
        )


class BatchesAhead(Batches):
    """The batch of step n + 1 is sampled in a thread while step n trains, from a copy of the weights before that step."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sampling")
        self._coming: Future[Gathered | None] | None = None

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._thread.shutdown()

    def take(self, step: int, state: TrainState) -> Gathered | None:
        coming, self._coming = self._coming, None
        if coming is None:  # the first one of a start
            behind = state.params if self.behind is None else self.behind
            coming = self._begin(step, dataclasses.replace(state, params=behind), version=max(step - 1, 0))
        return self._taken(coming.result())

    def look_ahead(self, step: int, state: TrainState) -> None:
        # The update takes the state's own buffers.
        self.behind = jax.tree.map(jnp.copy, state.params)
        if step < self._program.config.steps:
            ahead = dataclasses.replace(state, params=self.behind)
            self._coming = self._begin(step, ahead, version=step - 1)

    def settle(self) -> None:
        if self._coming is not None:
            self._coming.exception()  # which is for `take` to raise

    def _begin(self, step: int, state: TrainState, version: int) -> Future[Gathered | None]:
        self._push(state, version)
        self._before = self._here()

        def gather() -> Gathered | None:
            with jax.set_mesh(self._program.mesh):  # a mesh is entered by thread
                return self._gather(step)

        return self._thread.submit(gather)


def check_processes(config: Config) -> None:
    """Raise ValueError where several processes cannot get batches as the config says."""
    if config.batch.ahead and distributed.count() > 1:
        raise ValueError(
            f"batch.ahead={config.batch.ahead} on {distributed.count()} processes: two threads begin their programs in another "
            "order on each, and would wait for each other for ever; set it to 0."
        )


def batches_of(program: Program, stream: PromptStream, judge: Judge, stop: StopRequest) -> Batches:
    """As the config says."""
    kind = BatchesAhead if program.config.batch.ahead else Batches
    return kind(program, stream, judge, stop)


def lags(lag: np.ndarray, oldest: int) -> Metrics:
    """Shares of the rows whose weights were so many steps old, from `lag/0` to `lag/oldest`; none where all are new.

    Raises RuntimeError for a row that is older, or from the future.
    """
    if ((lag < 0) | (lag > oldest)).any():
        raise RuntimeError(
            f"rows to be trained on were sampled with weights {lag.min()} to {lag.max()} steps old, where 0 to {oldest} are "
            "allowed: this is a fault of the trainer, please report it."
        )
    if not oldest:
        return {}
    return {f"lag/{n}": Mean(total=float((lag == n).sum()), count=float(lag.size)) for n in range(oldest + 1)}
