"""The sampler of this package with a clock in it."""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.rollout.bench.workload import Workload
from rlvr_jax.rollout.engine import Engine
from rlvr_jax.rollout.prompts import PromptBatch
from rlvr_jax.rollout.protocol import Request


@dataclasses.dataclass(frozen=True)
class Timed:
    """One call of `sample`. Decoding is all that is not prefill: the host's part, and what the first steps wait for.

    `used` of `slot_steps` gave a token.
    """

    prefill_seconds: float
    decode_seconds: float
    tokens: int
    prompt_tokens: int
    steps: int
    used: int
    slot_steps: int

    @property
    def seconds(self) -> float:
        return self.prefill_seconds + self.decode_seconds

    @property
    def step_seconds(self) -> float:
        return self.decode_seconds / self.steps

    @property
    def occupancy(self) -> float:
        return self.used / self.slot_steps


class TimedEngine(Engine):
    """An `Engine` that waits for its prefill to be done, and keeps what its slots worked on."""

    def __init__(self, *args: Any, **how: Any):
        super().__init__(*args, **how)
        prefill, advance = self._prefill, self._advance
        self._prefilled, self._worked = 0.0, []

        def timed(*arrays: Any) -> Any:
            start = time.perf_counter()
            rows = jax.block_until_ready(prefill(*arrays))
            self._prefilled = time.perf_counter() - start
            return rows

        def kept(*arrays: Any) -> Any:
            slots, log, left = advance(*arrays)
            self._worked.append(log.row)
            return slots, log, left

        self._prefill, self._advance = timed, kept

    def time_push(self, params: Any) -> float:
        """Seconds until new weights are laid out."""
        start = time.perf_counter()
        self.push(params, self.version + 1)
        jax.block_until_ready(self._weights)
        return time.perf_counter() - start

    def time(self, request: Request) -> Timed:
        """A request, sampled."""
        self._worked.clear()
        start = time.perf_counter()
        found = self.sample(request)
        seconds = time.perf_counter() - start
        at_work = [rows >= 0 for rows in jax.device_get(self._worked)]  # of fewer slots towards the end
        steps = [int(each.any(1).sum()) for each in at_work]
        return Timed(
            prefill_seconds=self._prefilled,
            decode_seconds=seconds - self._prefilled,
            tokens=int(found.length.sum()),
            prompt_tokens=int(request.batch.length.sum()),
            steps=sum(steps),
            used=sum(int(each.sum()) for each in at_work),
            slot_steps=sum(n * each.shape[1] for n, each in zip(steps, at_work, strict=True)),
        )

    def time_prefill(self, request: Request, how: Any) -> float:
        """Seconds that the prompts of a request take, without a step of decoding."""
        batch = request.batch
        arrays = tuple(map(jnp.asarray, (batch.tokens, batch.length, batch.prompt_id, request.first_sample)))
        self._prefill(self._params, *arrays, jnp.asarray(request.seed), jnp.asarray(request.step), how)
        return self._prefilled


def request(workload: Workload, vocab_size: int, step: int) -> Request:
    """Rows that end where the workload says and nowhere else."""
    tokens, length = workload.tokens(vocab_size), workload.row_lengths()
    count = workload.prompts
    return Request(
        batch=PromptBatch(
            tokens=tokens,
            length=np.full(count, workload.prompt_tokens, np.int32),
            prompt_id=np.arange(count, dtype=np.int32),
            occurrence=np.zeros(count, np.int32),
            valid=np.ones(count, bool),
            records=({},) * count,
        ),
        first_sample=np.zeros(count, np.int32),
        group_size=workload.group,
        seed=0,
        step=step,
        overrides={"min_new_tokens": length, "max_new_tokens": length},
    )
