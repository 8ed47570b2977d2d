"""A trained or a given policy, opened to be evaluated, sampled from, or taken away."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from rlvr_jax.config import Batch, Config, Evaluation, MeshShape, Warmup
from rlvr_jax.configfile import override, parse, read, to_plain
from rlvr_jax.models.export import export, require_empty
from rlvr_jax.models.lora import joined
from rlvr_jax.registry import names
from rlvr_jax.rollout.collect import decode
from rlvr_jax.rollout.judge import judging
from rlvr_jax.rollout.prompts import PromptBatch, PromptEncoder
from rlvr_jax.sharding import batch_shards, make_mesh
from rlvr_jax.tasks.base import Split
from rlvr_jax.train.checkpoint import FOLDER, Checkpoints
from rlvr_jax.train.evaluate import Asked
from rlvr_jax.train.evaluation_folder import EvaluationFolder, evaluate_into, folder_name, settings_of
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
    """The config to open `path` with: a run directory's own, a config file's, or defaults around a model's path.

    `overrides` (`--field value` words) are laid over it.
    """
    return parse(override(_tree(path), overrides))


def evaluation_config(path: pathlib.Path, task: str | None, overrides: Sequence[str]) -> Config:
    """`policy_config` on the task that is named, or on the one that the run or the config is evaluated on, sampled in the
    way that this is.

    Raises ValueError for a model without a task: a default one would be evaluated unasked.
    """
    words = ["--task", task, *overrides] if task else list(overrides)
    named = any(word.split("=")[0] == "--task" for word in words)
    if not named and path.exists() and _is_model(path):
        raise ValueError(
            f"{path} is no run, so it has no task of its own: name one with --task, of {', '.join(names('task'))}."
        )
    tree = to_plain(parse(_tree(path)))
    own = tree.pop("evaluation")
    tree["task"] = own["task"] or tree["task"]
    tree["sampling"] |= {name: value for name, value in own["sampling"].items() if value is not None}
    return parse(override(tree, words))


def _tree(path: pathlib.Path) -> dict[str, Any]:
    """The config of a run, of a file, or around a model, as plain data."""
    saved = saved_config(path)
    if saved is not None:
        return saved
    return {"model": {"path": str(path)}} if _is_model(path) else read(path)


def _is_model(path: pathlib.Path) -> bool:
    """Whether a path names weights: neither a run nor a config file."""
    return saved_config(path) is None and path.suffix not in (".yaml", ".yml")


def open_policy(path: pathlib.Path, config: Config, step: int | None = None) -> tuple[Program, Any]:
    """The program of a config and all parameters: those of a run after `step` (default: of its newest checkpoint), or the
    model's weights. Raises ValueError for a step of what is no run."""
    if step is not None and saved_config(path) is None:
        raise ValueError(f"{path} is no run, so it has no step {step}: leave --step out.")
    program = assemble(config, num_prompts=len(config.task.records("train")))
    if saved_config(path) is None:
        return program, program.fresh_state().policy
    with Checkpoints(path / FOLDER, keep=config.checkpoint.keep) as checkpoints:
        trained = checkpoints.restore_params(program.abstract.params, step)
        return program, joined(trained, program.frozen())


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOut:
    """Which problems `evaluate_policy` asks, how often, and what it works out: fields of the command `eval`."""

    prompts: int = 0
    """0: all of the split."""
    samples: int = 64
    k: tuple[int, ...] = (1,)
    split: Split = "test"
    step: int | None = None
    """Of a run's checkpoint; None: the newest."""
    output: pathlib.Path | None = None
    """Folder of the evaluation; None: see `evaluation_path`."""


def evaluate_policy(
    path: pathlib.Path,
    config: Config,
    wanted: HeldOut,
    progress: Callable[[int, int], None],
    stop: Callable[[], bool],
) -> tuple[pathlib.Path, dict[str, Any] | None]:
    """Evaluate a run, a config's start weights or a model on the config's task: the folder of the evaluation, and its
    figures as plain data, None where `stop` ended it early."""
    config.task.check()
    there = len(config.task.records(wanted.split))
    asks = Evaluation(prompts=wanted.prompts or there, samples=wanted.samples, k=tuple(sorted(wanted.k)))
    if asks.prompts > there:
        raise ValueError(
            f"prompts={asks.prompts}, but split {wanted.split!r} of task {config.task.name!r} has {there} records: ask for "
            "fewer."
        )
    program, params = open_policy(path, config, wanted.step)
    asked = Asked.of(program, asks.prompts, asks.samples, split=wanted.split)
    verified = judging(config.task, **dataclasses.asdict(config.verification))
    with jax.set_mesh(program.mesh), verified as judge:
        settings = settings_of(program, params, asked, wanted.split)
        folder = wanted.output or evaluation_path(path, settings)
        with EvaluationFolder(folder, settings) as kept:
            found = evaluate_into(kept, program, params, judge, asked, asks.k, progress, stop)
            about = {"policy": str(path), "step": _step(path, config, wanted.step)}
            about |= {name: settings[name] for name in ("weights", "task", "split", "seed", "sampling")}
            title = f"{path}: {config.task.name}, {wanted.split}"
            return folder, None if found is None else kept.finish(found, about, title)


def _step(path: pathlib.Path, config: Config, step: int | None) -> int | None:
    """The step of a run that is evaluated; None for what is no run."""
    if step is not None or saved_config(path) is None:
        return step
    with Checkpoints(path / FOLDER, keep=config.checkpoint.keep) as checkpoints:
        return checkpoints.latest()


def evaluation_path(path: pathlib.Path, settings: Mapping[str, Any]) -> pathlib.Path:
    """Where an evaluation lies if nobody says: in its run's directory, or under `runs` by the name of the model."""
    if saved_config(path) is not None:
        return path / "evaluations" / folder_name(settings)
    return pathlib.Path("runs", "evaluations", f"{path.stem}-{folder_name(settings)}")


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
