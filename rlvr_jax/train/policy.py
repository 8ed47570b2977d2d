"""A trained or a given policy, opened to be evaluated, sampled from, or taken away."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import jax

from rlvr_jax.config import Batch, Config, MeshShape, Warmup
from rlvr_jax.configfile import override, parse
from rlvr_jax.models.export import export, require_empty
from rlvr_jax.models.lora import joined
from rlvr_jax.registry import names
from rlvr_jax.rollout.collect import decode
from rlvr_jax.rollout.prompts import PromptBatch, PromptEncoder
from rlvr_jax.rollout.workers import Judge, Workers
from rlvr_jax.sharding import batch_shards, make_mesh
from rlvr_jax.train.checkpoint import FOLDER, Checkpoints
from rlvr_jax.train.evaluate import Evaluation, check_held_out, evaluate
from rlvr_jax.train.program import Program, assemble
from rlvr_jax.train.rundir import saved_config


@dataclasses.dataclass(frozen=True, eq=False)
class Completion:
    """One sampled answer; `logprob` is the sum over its tokens, in nats."""

    prompt: str
    text: str
    tokens: int
    truncated: bool
    logprob: float


def policy_config(path: pathlib.Path, overrides: Sequence[str]) -> Config:
    """The config to open `path` with: a run directory's own, or defaults around a model's path.

    `overrides` (`--field value` words) are laid over it.
    """
    base = saved_config(path)
    return parse(override({"model": {"path": str(path)}} if base is None else base, overrides))


def evaluation_config(path: pathlib.Path, task: str | None, overrides: Sequence[str]) -> Config:
    """`policy_config` on the task of a run, or on the one that is named.

    Raises ValueError for a model without a task: a default one would be evaluated unasked.
    """
    words = ["--task", task, *overrides] if task else list(overrides)
    named = any(word.split("=")[0] == "--task" for word in words)
    if not named and path.exists() and saved_config(path) is None:
        raise ValueError(
            f"{path} is no run, so it has no task of its own: name one with --task, of {', '.join(names('task'))}."
        )
    return policy_config(path, words)


def open_policy(path: pathlib.Path, config: Config, step: int | None = None) -> tuple[Program, Any]:
    """The program of a config and all parameters: those of a run after `step` (default: of its newest checkpoint), or the
    model's weights."""
    program = assemble(config, num_prompts=len(config.task.records("train")))
    if saved_config(path) is None:
        return program, program.fresh_state().policy
    with Checkpoints(path / FOLDER, keep=config.checkpoint.keep) as checkpoints:
        trained = checkpoints.restore_params(program.abstract.params, step)
        return program, joined(trained, program.frozen())


def evaluate_policy(
    path: pathlib.Path, config: Config, prompts: int, samples: int, k: Sequence[int], progress: Any
) -> Evaluation:
    """Held-out pass@k of a run or a model on the config's task; `prompts` 0: all that the task holds out."""
    there = len(config.task.records("test"))
    wanted = dataclasses.replace(
        config.evaluation, prompts=prompts or there, samples=samples, k=tuple(sorted(k))
    )
    config = dataclasses.replace(config, evaluation=wanted)
    check_held_out(config)
    program, params = open_policy(path, config)
    judging = Workers(config.verification.workers, config.verification.deadline)
    with jax.set_mesh(program.mesh), judging as workers:
        judge = Judge(config.task, workers)
        return evaluate(
            program, params, judge, prompts=wanted.prompts, samples=samples, k=wanted.k, progress=progress
        )


def sample_policy(
    path: pathlib.Path, config: Config, prompts: Sequence[str], samples: int
) -> list[Completion]:
    """`samples` answers to each prompt, which is a chat message where the tokenizer has a chat template, else raw text.

    The randomness is that of `config.seed`: the same call gives the same answers.
    """
    group = max(2, samples)
    shards = batch_shards(make_mesh(**dataclasses.asdict(config.mesh)))
    rows = -(-len(prompts) // shards) * shards
    sizes = Batch(prompts=rows, group_size=group)
    program, params = open_policy(path, dataclasses.replace(config, batch=sizes))
    batch = _prompt_batch(program, list(prompts) + [prompts[-1]] * (rows - len(prompts)))
    with jax.set_mesh(program.mesh):
        program.sampler.push(params, version=0)
        found = program.sample_batch(batch, step=0, seed=config.seed)
    texts = decode(program.tokenizer, found.tokens, found.length)
    return [
        Completion(
            prompt=prompts[i // group],
            text=texts[i],
            tokens=int(found.length[i]),
            truncated=bool(found.truncated[i]),
            logprob=float(found.logprob[i].sum()),
        )
        for i in range(len(prompts) * group)
        if i % group < samples
    ]


def export_policy(
    path: pathlib.Path,
    config: Config,
    directory: pathlib.Path,
    dtype: str,
    step: int | None,
    max_shard_bytes: int,
) -> None:
    """`models.export.export` of a run after `step` (None: of its newest checkpoint), or of a model.

    The parameters are spread over the devices that are here, whatever the run's mesh was, and in float32, the base of an
    adapter too.
    """
    require_empty(directory)
    if step is not None and saved_config(path) is None:
        raise ValueError(f"{path} is no run, so it has no step {step}: leave --step out.")
    sizes = Batch(prompts=len(jax.devices()), group_size=config.batch.group_size)
    model = dataclasses.replace(config.model, dtype="float32")
    mesh = MeshShape(data=1, fsdp=-1)
    here = dataclasses.replace(config, model=model, mesh=mesh, batch=sizes, warmup=Warmup())
    program, params = open_policy(path, here, step)
    export(
        params,
        program.model_config,
        program.tokenizer,
        directory,
        dtype=dtype,
        eos=program.stop,
        source=model.path,
        lora=model.lora,
        max_shard_bytes=max_shard_bytes,
    )


def _prompt_batch(program: Program, prompts: Sequence[str]) -> PromptBatch:
    encoder = PromptEncoder(
        _Verbatim(bool(program.tokenizer.chat_template)),
        program.tokenizer,
        program.config.prompts.max_tokens,
        "error",
    )
    rows = []
    for i, text in enumerate(prompts):
        ids = encoder.encode(i, {"text": text})
        if ids is not None:  # the policy "error" drops none
            rows.append((i, ids, {"text": text}))
    return encoder.batch(rows, valid=len(rows))


@dataclasses.dataclass(frozen=True)
class _Verbatim:
    """Prompts as they were typed."""

    chat: bool

    def prompt(self, record: dict) -> str | list[dict[str, str]]:
        text = record["text"]
        return [{"role": "user", "content": text}] if self.chat else text
