"""The measurement of whole steps of training, by the functions of a run's loop: sample, judge, score, credit, update.

There is nothing beside it: other trainers are measured by their own scripts. The machine's limit is.
"""

import dataclasses
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.objective import preset
from rlvr_jax.rollout.bench.limits import Step, reach, work_of_step
from rlvr_jax.rollout.bench.measure import named
from rlvr_jax.rollout.bench.process import Say, peak_device_bytes, surroundings
from rlvr_jax.rollout.judge import Judge, judging
from rlvr_jax.rollout.prompts import PromptBatch, PromptStream
from rlvr_jax.rollout.slots import plan
from rlvr_jax.train.batches import batches_of
from rlvr_jax.train.bench import ours
from rlvr_jax.train.bench.work import multiplied, needed
from rlvr_jax.train.bench.workload import Batch, StepBench
from rlvr_jax.train.loop import Run
from rlvr_jax.train.metrics import TIME, Phases
from rlvr_jax.train.program import Program
from rlvr_jax.train.step import TrainState
from rlvr_jax.train.stop import StopRequest
from rlvr_jax.types import Rollout

_ROWS = 2048
"""Of the products that say what the machine reaches in an update."""


class SamePrompts(PromptStream):
    """A stream that gives the same random prompts for each batch, without a record or a text of them."""

    dropped = cut = 0  # type: ignore[assignment]

    def __init__(self, batch: Batch, vocab_size: int):
        count = batch.prompts
        self._batch = PromptBatch(
            tokens=batch.tokens(vocab_size),
            length=np.full(count, batch.prompt_tokens, np.int32),
            prompt_id=np.arange(count, dtype=np.int32),
            occurrence=np.zeros(count, np.int32),
            valid=np.ones(count, bool),
            records=({},) * count,
        )

    def __next__(self) -> PromptBatch:
        return self._batch

    def get_state(self) -> dict[str, Any]:
        """Nothing."""
        return {}


def measure(bench: StepBench, say: Say) -> dict[str, Any]:
    """All of it, as JSON. Times are medians, in seconds.

    Raises FileNotFoundError and ValueError for a model that cannot be loaded, ValueError for what cannot be measured of it.
    """
    batch = bench.batch
    if bench.repeats < 1:
        raise ValueError(f"repeats is 1 or more, got {bench.repeats}.")
    program = ours.program_of(bench, batch, preset(bench.objective))
    with jax.set_mesh(program.mesh), judging(program.config.task) as judge:
        clocked = _Clocked(program, batch, judge)
        first = clocked.step()
        say(f"first step: {first['step']:.1f} s")
        memory, steps = peak_device_bytes(), []
        for repeat in range(bench.repeats):
            steps.append(clocked.step())
            shown = ", ".join(f"{name} {value:.2f}" for name, value in steps[-1].items())
            say(f"step {repeat + 1}/{bench.repeats}: {shown} s")
        seconds = statistics.median(each["step"] for each in steps)
        names = [name for name in steps[0] if name != "step"]
        rollout, live = clocked.trained
        return {
            "model": named(bench.model),
            "objective": bench.objective,
            "dtype": bench.dtype,
            "remat": bench.remat,
            **surroundings(),
            "batch": dataclasses.asdict(batch),
            "seconds": seconds,
            "all_seconds": [each["step"] for each in steps],
            "phases": {name: statistics.median(each[name] for each in steps) for name in names},
            "compile_seconds": first["step"] - seconds,
            "peak_bytes": memory,
            "live_rows": int(live.sum()),
            "limit": _limit(program, batch, rollout, live, seconds),
        }


class _Clocked(Run):
    """A run without a directory and checkpoints, from one step to the next."""

    def __init__(self, program: Program, batch: Batch, judge: Judge):
        self.program, self.config, self.phases = program, program.config, Phases()
        prompts = SamePrompts(batch, program.model_config.vocab_size)
        self.batches = batches_of(program, prompts, judge, StopRequest())
        self.state: TrainState = program.fresh_state()
        self.reference = jax.tree.map(jnp.copy, self.state.params) if program.score_ref else None
        self.count = 0
        self.trained: tuple[Rollout, np.ndarray]

    def step(self) -> dict[str, float]:
        """Seconds by phase; `step` is all of it."""
        start = time.perf_counter()
        self.phases.collect()
        batch = self.batches.take(self.count, self.state)
        assert batch is not None  # nobody asks it to stop
        self.state, _ = self.learn(self.state, batch.filled)
        jax.block_until_ready(self.state)
        seconds = time.perf_counter() - start
        self.count += 1
        rollout, size = batch.filled.groups.rollout, self.config.batch.group_size
        reward = rollout.reward.reshape(-1, size)
        self.trained = rollout, np.repeat((reward != reward[:, :1]).any(1), size)
        times = {**batch.times, **self.phases.collect()}
        named = {name.removeprefix(TIME): value for name, value in times.items()}
        return {**named, "step": seconds}


def _limit(
    program: Program, batch: Batch, rollout: Rollout, live: np.ndarray, seconds: float
) -> dict[str, float]:
    """Sampling: the prompts once, and the decode steps by what they multiply or read; the update as in `bench update`. That of
    reference statistics counts for nothing."""
    model = ours.model_of(program)
    layout = plan(batch.prompts, batch.group, 0, 1, jax.default_backend())
    wide, narrow = reach(model, _ROWS), reach(model, layout.slots)
    layers, _ = multiplied(model)
    steps = batch.new_tokens * batch.rows / layout.slots
    prefill = Step(2.0 * layers * batch.prompts * (batch.prompt_tokens - 1), 0.0, 0.0)
    decode = work_of_step(model, layout, batch.prompt_tokens, (batch.new_tokens + 1) / 2)
    sample = wide.seconds(prefill) + steps * narrow.seconds(decode)
    update = wide.seconds(needed(model, rollout, live, batch.group))
    return {
        "sample_seconds": sample,
        "update_seconds": update,
        "seconds": sample + update,
        "share": (sample + update) / seconds,
    }
