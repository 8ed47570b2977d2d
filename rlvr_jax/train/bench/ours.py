"""The trainer's own program, on rows that were made up, with a clock in it."""

import dataclasses
import time
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rlvr_jax import config as configs
from rlvr_jax.models.decoder import Decoder
from rlvr_jax.models.tokenizer import eos_ids, word_tokenizer
from rlvr_jax.objective import Objective
from rlvr_jax.objective.base import chain
from rlvr_jax.rollout.bench.measure import SMOLLM2_135M
from rlvr_jax.rollout.engine import structure
from rlvr_jax.rollout.sampling import Sampling
from rlvr_jax.tasks.base import Reason, Split, Task, Verdict
from rlvr_jax.train.bench.workload import Batch, StepBench, UpdateBench
from rlvr_jax.train.packing import Plan
from rlvr_jax.train.program import Described, Program, assemble
from rlvr_jax.types import Rollout, Stats

BY_REWARD = Objective(advantage=chain())
"""GRPO but for its advantage, which is the reward itself: so a group of one response has credit too."""


@dataclasses.dataclass(frozen=True)
class Coin(Task):
    """Every other answer, by a checksum of its text, is right. Its prompts are no texts: token ids are made up in their place."""

    def records(self, split: Split) -> Sequence[dict]:
        return [{"id": split}]

    def prompt(self, record: dict) -> str:
        return record["id"]

    def verify(self, record: dict, completion: str) -> Verdict:
        even = zlib.crc32(completion.encode("utf-8", "replace")) % 2 == 0
        return Verdict.of(Reason.CORRECT if even else Reason.WRONG)

    def vocabulary(self) -> tuple[str, ...]:
        return ()


def program_of(bench: UpdateBench | StepBench, batch: Batch, objective: Objective) -> Program:
    """As of a config with that model, batch and objective, on one device.

    Raises FileNotFoundError and ValueError for a model that cannot be loaded, ValueError for what does not fit together.
    """
    how: dict[str, Any] = dict(dtype=bench.dtype, remat=bench.remat)
    described = None
    if bench.model is None:
        how["scratch"] = configs.Scratch()  # of which only the description is used
        tokenizer = word_tokenizer(())
        described = Described(model=SMOLLM2_135M, tokenizer=tokenizer, stop=eos_ids(None, tokenizer))
    else:
        how["path"] = str(bench.model)
    config = configs.Config(
        model=configs.Model(**how),
        task=Coin(),
        objective=objective,
        sampling=Sampling(max_new_tokens=batch.new_tokens, min_new_tokens=batch.new_tokens),
        prompts=configs.Prompts(max_tokens=batch.prompt_tokens),
        batch=configs.Batch(
            prompts=batch.prompts,
            group_size=batch.group,
            micro_batches=bench.micro_batches or batch.micro_batches,
        ),
    )
    return assemble(config, num_prompts=batch.prompts, devices=jax.devices()[:1], described=described)


def model_of(program: Program) -> Decoder:
    """The model's structure, without weights."""
    return structure(program.forward.graphdef, program.abstract.policy)


def rollout_of(batch: Batch, vocab_size: int) -> Rollout:
    """The rows, on the host."""
    length, credit = batch.row_lengths(), batch.credit()
    return Rollout(
        prompt=batch.tokens(vocab_size).repeat(batch.group, axis=0),
        prompt_length=np.full(batch.rows, batch.prompt_tokens, np.int32),
        tokens=batch.responses(vocab_size),
        length=length,
        mask=(np.arange(batch.new_tokens) < length[:, None]).astype(np.float32),
        reward=credit,
        correct=(credit > 0).astype(np.float32),
        prompt_id=np.arange(batch.prompts, dtype=np.int32).repeat(batch.group),
        truncated=np.zeros(batch.rows, bool),
    )


@dataclasses.dataclass(frozen=True)
class Timed:
    """One optimiser step: the host's plan of it, and what the device does."""

    plan_seconds: float
    device_seconds: float
    loss: float
    grad_norm: float

    @property
    def seconds(self) -> float:
        return self.plan_seconds + self.device_seconds


class TimedUpdate:
    """Optimiser steps on one batch, each from the weights that the one before has left. Enter the program's mesh."""

    def __init__(self, program: Program, rollout: Rollout):
        self.program, self.told = program, rollout
        self.state = program.fresh_state()
        self.rollout = program.rows(rollout)
        self.credit, _, _ = program.credit(self.rollout, Stats(values={}), self.state.objective)
        self.live = jax.device_get(program.live(self.credit))
        self.weight = program.config.objective.weights(self.credit, program.spec, 0)

    def plan(self) -> Plan:
        """How the batch is computed."""
        return self.program.update_plan(self.told, self.live, 0)

    def run(self) -> Timed:
        """One step, as the loop of a run does it."""
        start = time.perf_counter()
        plan = self.plan()
        planned = time.perf_counter()
        self.state, metrics = self.program.update(
            self.state, self.rollout, Stats(values={}), self.credit, plan, 0, 0
        )
        metrics = jax.device_get(metrics)
        jax.block_until_ready(self.state)
        return Timed(
            plan_seconds=planned - start,
            device_seconds=time.perf_counter() - planned,
            loss=metrics["loss"].value(),
            grad_norm=metrics["optimizer/grad_norm"].value(),
        )
