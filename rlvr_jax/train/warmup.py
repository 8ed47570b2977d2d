"""The supervised warm-up of a model from scratch: maximum likelihood of the task's demonstrations.

It is the trainer's own update with the objective `imitation`: each demonstration is a response with reward 1, in a
group of its own.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from rlvr_jax.config import Config, Optimizer
from rlvr_jax.objective import preset
from rlvr_jax.rollout.prompts import PromptBatch
from rlvr_jax.sharding import replicated
from rlvr_jax.train.optimizer import like_params, make_optimizer
from rlvr_jax.train.program import Program
from rlvr_jax.train.step import Forward, TrainState, jit_update, make_credit, make_update
from rlvr_jax.types import BatchSpec, Rollout, Stats


def check_demonstrations(config: Config) -> None:
    """Raise ValueError where a warm-up is asked of a task without demonstrations."""
    if config.warmup.steps and config.task.demonstration(config.task.records("train")[0]) is None:
        raise ValueError(
            f"warmup.steps={config.warmup.steps}, but task {config.task.name!r} has no demonstrations: set it to 0."
        )


def demonstrations(config: Config, program: Program, batch: PromptBatch) -> Rollout:
    """Right answers as a rollout: every token and the stop token are trained."""
    limit = config.sampling.max_new_tokens
    tokens = np.zeros((len(batch.records), limit), np.int32)
    length = np.zeros(len(batch.records), np.int32)
    for i, record in enumerate(batch.records):
        text = config.task.demonstration(record)
        ids = program.tokenizer(text, add_special_tokens=False)["input_ids"] + [
            program.tokenizer.eos_token_id
        ]
        if len(ids) > limit:
            raise ValueError(
                f"a demonstration has {len(ids)} tokens, more than sampling.max_new_tokens={limit}: raise it."
            )
        tokens[i, : len(ids)], length[i] = ids, len(ids)
    ones = np.ones(len(tokens), np.float32)
    return Rollout(
        prompt=batch.tokens,
        prompt_length=batch.length,
        tokens=tokens,
        length=length,
        mask=(np.arange(limit) < length[:, None]).astype(np.float32),
        reward=ones,
        correct=ones,
        prompt_id=batch.prompt_id,
        truncated=np.zeros(len(tokens), bool),
    )


def _shardings(program: Program, tx: optax.GradientTransformation, nothing: Any) -> TrainState:
    """Where the state of the warm-up lies: each moment beside its parameter."""
    params = jax.tree.map(lambda x: x.sharding, program.abstract.params)
    opt = jax.eval_shape(tx.init, program.abstract.params)
    placed = like_params(opt, program.abstract.params, params, program.mesh)
    return TrainState(params=params, opt=placed, objective=nothing, step=program.abstract.step.sharding)


def warm_up(
    program: Program,
    state: TrainState,
    pass_rate: Callable[[Any], float],
    report: Callable[[int, float, float | None], bool],
) -> TrainState:
    """Train on demonstrations until `warmup.target` or for `warmup.steps`; then a fresh optimiser.

    `pass_rate(params)` is looked at every `check_every` steps where there is a target. `report(step, loss, rate)`
    is called after each step; loss in nats a token, rate None between the looks; the warm-up ends where it is false.
    """
    config = program.config
    warm = config.warmup
    objective = preset("imitation")
    spec = BatchSpec(groups=warm.batch, group_size=1, length=config.sampling.max_new_tokens, num_prompts=1)
    tx = make_optimizer(dataclasses.replace(Optimizer(), beta2=0.95), warm.learning_rate)
    forward = Forward(program.forward.graphdef, 1.0, config.model.vocab_chunk)
    nothing = objective.init(spec)
    laid_out = _shardings(program, tx, nothing)
    update = jit_update(
        make_update(objective, forward, tx, spec, 1), out_shardings=(laid_out, replicated(program.mesh))
    )
    credit = jax.jit(make_credit(objective, spec))
    packer = dataclasses.replace(program.packer, groups=warm.batch, group_size=1, micro_batches=1)
    stream = program.stream(warm.batch)
    opt = jax.jit(tx.init, out_shardings=laid_out.opt)(state.params)
    state = dataclasses.replace(state, opt=opt, objective=nothing)
    for step in range(1, warm.steps + 1):
        told = demonstrations(config, program, next(stream))
        rollout, plan = program.rows(told), packer.all_rows(told.length, told.prompt.shape[1])
        given, _, _ = credit(rollout, Stats(values={}), nothing)
        state, metrics = update(state, rollout, Stats(values={}), given, plan, 0, 0)
        looks = warm.target is not None and step % warm.check_every == 0
        rate = pass_rate(state.policy) if looks else None
        go_on = report(step, metrics["loss"].value(), rate)
        if not go_on or (warm.target is not None and rate is not None and rate >= warm.target):
            break
    return program.state_of(state.params, state.frozen)
