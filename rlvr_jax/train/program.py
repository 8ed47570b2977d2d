"""What a run computes with: the mesh, the model's structure, and the four jitted functions."""

import dataclasses
import pathlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Bool

from rlvr_jax.config import Config
from rlvr_jax.distributed import count, put
from rlvr_jax.models.attention import texts_in_a_row
from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.decoder import Decoder, param_shardings
from rlvr_jax.models.load import load_params, read_config
from rlvr_jax.models.lora import split_trained
from rlvr_jax.models.tokenizer import eos_ids, load_tokenizer, word_tokenizer
from rlvr_jax.rollout.engine import Engine
from rlvr_jax.rollout.prompts import PromptBatch, PromptStream
from rlvr_jax.rollout.protocol import OnRow, Request, Sampler, Samples, ignore
from rlvr_jax.rollout.vllm import VllmSampler
from rlvr_jax.sharding import batch_shards, in_order, make_mesh, replicated, row_sharding
from rlvr_jax.train.optimizer import learning_rate, like_params, make_optimizer
from rlvr_jax.train.packing import Packer, Plan
from rlvr_jax.train.step import Forward, TrainState, jit_update, make_credit, make_score, make_update
from rlvr_jax.types import BatchSpec, Pass, Rollout


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """Everything static about a run. The jitted functions take and return arrays on `mesh`; enter `jax.set_mesh(mesh)`.

    `score` (None where nothing reads old statistics), `score_ref` (None without a reference), `credit`, `live`, `update`.
    `packer` plans the rows of an optimiser step. `traces` counts how often each function and each of the sampler's was traced,
    which is once for each bucket of prompt lengths, and for each number of prompts in a micro-batch.
    """

    config: Config
    mesh: Mesh
    spec: BatchSpec
    tokenizer: Any
    stop: tuple[int, ...]
    model_config: ModelConfig
    forward: Forward
    tx: Any
    schedule: Any
    abstract: TrainState
    sampler: Sampler
    score: Callable | None
    score_ref: Callable | None
    credit: Callable
    live: Callable
    update: Callable
    packer: Packer
    traces: Counter

    def rows(self, tree: Any) -> Any:
        """Host arrays with rows on axis 0, laid out over the mesh."""
        return put(tree, row_sharding(self.mesh))

    def score_plan(self, rollout: Rollout) -> Plan:
        """How all rows of a batch are computed."""
        batch = self.config.batch
        whole = dataclasses.replace(
            self.packer, groups=batch.prompts, micro_batches=batch.minibatches * batch.micro_batches
        )
        return whole.all_rows(rollout.length, rollout.prompt.shape[1])

    def update_plan(self, rollout: Rollout, live: Bool[np.ndarray, " B"], j: int) -> Plan:
        """How the rows of mini-batch `j` are computed, which is every `minibatches`-th group: those that are `live`."""
        batch = self.config.batch

        def mine(x: np.ndarray) -> np.ndarray:
            return x.reshape(-1, batch.minibatches, batch.group_size)[:, j].reshape(-1)

        return self.packer.plan(mine(rollout.length), mine(live), rollout.prompt.shape[1])

    def stream(self, batch: int) -> PromptStream:
        """Training prompts in batches of that many, in the order of the run's seed."""
        config = self.config
        limit, policy = config.prompts.max_tokens, config.prompts.too_long
        return PromptStream(config.task, self.tokenizer, "train", batch, limit, policy, config.seed)

    def sample_batch(
        self, batch: PromptBatch, *, step: int, seed: int, first_sample: int = 0, on_row: OnRow = ignore
    ) -> Samples:
        """`group_size` responses to each prompt of a batch, from the weights that the sampler was given last."""
        group = self.spec.group_size
        first = (first_sample + batch.occurrence * group).astype(np.int32)
        return self.sampler.sample(Request(batch, first, group, seed, step), on_row)

    def learning_rate_at(self, step: int) -> float:
        """Of the first optimiser step of a training step."""
        return float(self.schedule(step * updates_per_step(self.config)))

    def fresh_state(self) -> TrainState:
        """Parameters from the config's path or at random, a new optimiser and objective state. Step 0."""
        model = self.config.model
        if model.path is not None and model.lora is None:
            return self.state_of(load_params(model.path, self.abstract.params, self.mesh))
        return self.state_of(self._random(0), self.frozen())

    def frozen(self) -> Any:
        """The weights that are not trained, which follow from the config: no checkpoint holds them."""
        model = self.config.model
        if model.lora is None:
            return ()
        if model.path is not None:
            return load_params(model.path, self.abstract.frozen, self.mesh)
        return self._random(1)

    def _random(self, part: int) -> Any:
        """Random parameters, of which 0 are trained and 1 are frozen. The others are not computed."""
        config = self.config

        def draw() -> Any:
            params = nnx.state(_decoder(config, self.model_config, config.seed))
            return split_trained(params, config.model.lora)[part]

        wanted = (self.abstract.params, self.abstract.frozen)[part]
        return jax.jit(draw, out_shardings=jax.tree.map(lambda x: x.sharding, wanted))()

    def state_of(self, params: Any, frozen: Any = ()) -> TrainState:
        """A fresh training state around given parameters."""
        objective = self.config.objective

        def init(params):
            state = objective.init(self.spec)
            return self.tx.init(params), jax.tree.map(jnp.asarray, state), jnp.zeros((), jnp.int32)

        shardings = jax.tree.map(
            lambda x: x.sharding, (self.abstract.opt, self.abstract.objective, self.abstract.step)
        )
        opt, state, step = jax.jit(init, out_shardings=shardings)(params)
        return TrainState(params=params, opt=opt, objective=state, step=step, frozen=frozen)


def _sampler(
    config: Config, model: Decoder, tokenizer: Any, stop: tuple[int, ...], mesh: Mesh, traces: Counter
) -> Sampler:
    """vLLM where the config names it, else the engine of this package. Raises ValueError for vLLM on several processes."""
    if config.vllm is not None:
        if count() > 1:
            raise ValueError(
                f"vllm samples for one process, and here are {count()}: leave `vllm` out, or train on one host."
            )
        return VllmSampler(
            model.config,
            config.sampling,
            stop,
            python=config.vllm.python,
            max_prompt_tokens=config.prompts.max_tokens,
            dtype=config.vllm.dtype,
            lora=config.model.lora,
            options=config.vllm.options,
        )
    return Engine(
        model,
        config.sampling,
        stop,
        tokenizer=tokenizer,
        turns=config.turns,
        decoding=config.decoding,
        mesh=mesh,
        traces=traces,
    )


def check_devices(config: Config, devices: int) -> None:
    """Raise ValueError where the mesh or the batch does not fit the devices; before anything is loaded."""
    _check_rows(config, make_mesh(**dataclasses.asdict(config.mesh), devices=jax.devices()[:devices]))


def _check_rows(config: Config, mesh: Mesh) -> None:
    shards, devices = batch_shards(mesh), mesh.size
    for name, rows in (("batch.prompts", config.batch.prompts), ("warmup.batch", config.warmup.batch)):
        if rows % shards and (name == "batch.prompts" or config.warmup.steps):
            raise ValueError(
                f"{name}={rows} does not spread over the {shards} data and fsdp shards of {devices} devices: make it a "
                "multiple, or give more devices to mesh.tensor or mesh.sequence."
            )
    tokens, parts = config.sampling.max_new_tokens, mesh.shape["sequence"]
    if tokens % parts:
        raise ValueError(
            f"sampling.max_new_tokens={tokens} does not split into the mesh.sequence={parts} equal parts of a row: make it "
            f"{-(-tokens // parts) * parts}, or mesh.sequence a divisor of it."
        )


def make_tokenizer(config: Config) -> tuple[Any, tuple[int, ...]]:
    """The tokenizer of the config's model, and every id that ends a response."""
    if config.model.path is None:
        tokenizer = word_tokenizer(config.task.vocabulary() or ())
        return tokenizer, eos_ids(None, tokenizer)
    if not pathlib.Path(config.model.path).exists():
        raise ValueError(
            f"model.path={config.model.path!r} does not exist: give a Hugging Face directory or a .gguf file."
        )
    tokenizer = load_tokenizer(config.model.path)
    return tokenizer, eos_ids(config.model.path, tokenizer)


@dataclasses.dataclass(frozen=True, eq=False)
class Described:
    """What is known of a model before its weights are read."""

    model: ModelConfig
    tokenizer: Any
    stop: tuple[int, ...]

    @classmethod
    def of(cls, config: Config) -> "Described":
        """From the files of the config's model, or from `model.scratch`."""
        tokenizer, stop = make_tokenizer(config)
        return cls(model=_model_config(config, len(tokenizer)), tokenizer=tokenizer, stop=stop)


def assemble(
    config: Config,
    num_prompts: int,
    *,
    devices: Sequence[Any] | None = None,
    described: Described | None = None,
) -> Program:
    """Check the devices, read the model's description, and build the functions. Loads and compiles nothing yet.

    `devices` are all that are here, or those of a topology to compile for; `described` spares the model's files.
    """
    mesh = make_mesh(**dataclasses.asdict(config.mesh), devices=devices)
    _check_rows(config, mesh)
    described = Described.of(config) if described is None else described
    tokenizer, stop, model_config = described.tokenizer, described.stop, described.model
    _check_positions(config, model_config)
    graphdef, params = nnx.split(nnx.eval_shape(lambda: _decoder(config, model_config, 0)))
    model, traces = nnx.merge(graphdef, params), Counter()
    sampler = _sampler(config, model, tokenizer, stop, mesh, traces)
    params, frozen = split_trained(_placed(params, param_shardings(params, mesh)), config.model.lora)
    forward = Forward(graphdef, config.sampling.score_temperature, config.model.vocab_chunk)
    spec = config.spec(num_prompts)
    schedule = learning_rate(config.optimizer, config.steps, updates_per_step(config))
    tx = make_optimizer(config.optimizer, schedule)
    abstract = _abstract_state(config, spec, tx, params, frozen, mesh)
    return Program(
        config=config,
        mesh=mesh,
        spec=spec,
        tokenizer=tokenizer,
        stop=stop,
        model_config=model_config,
        forward=forward,
        tx=tx,
        schedule=schedule,
        abstract=abstract,
        traces=traces,
        sampler=sampler,
        packer=_packer(config, model_config, mesh),
        **_functions(config, spec, forward, tx, abstract, mesh, traces),
    )


def _packer(config: Config, model: ModelConfig, mesh: Mesh) -> Packer:
    batch = config.batch
    with jax.set_mesh(mesh):
        texts = texts_in_a_row(model.windows)
    return Packer(
        groups=batch.prompts // batch.minibatches,
        group_size=batch.group_size,
        length=config.sampling.max_new_tokens,
        micro_batches=batch.micro_batches,
        shards=batch_shards(mesh),
        texts=texts,
    )


def _functions(config, spec, forward, tx, abstract, mesh, traces) -> dict[str, Any]:
    """The jitted functions. Each counts its traces in `traces`."""
    objective, batch = config.objective, config.batch
    rows = row_sharding(mesh)
    state_sharding = jax.tree.map(lambda x: x.sharding, abstract)

    def counted(name: str, f: Callable) -> Callable:
        def traced(*args):
            traces[name] += 1
            return f(*args)

        return traced

    def score_of(which: Pass, want) -> Callable | None:
        score = make_score(forward, which, want)
        return in_order(jax.jit(counted(f"score_{which}", score), out_shardings=rows)) if want else None

    part = dataclasses.replace(spec, groups=batch.prompts // batch.minibatches)
    update = make_update(objective, forward, tx, part, batch.minibatches)
    return {
        "score": score_of(Pass.OLD, old_stats(config)),
        "score_ref": score_of(Pass.REF, objective.wants(Pass.REF)),
        "credit": in_order(
            jax.jit(
                counted("credit", make_credit(objective, spec)),
                out_shardings=(rows, state_sharding.objective, replicated(mesh)),
            )
        ),
        "live": in_order(jax.jit(objective.live, out_shardings=replicated(mesh))),
        "update": in_order(
            jit_update(counted("update", update), out_shardings=(state_sharding.changing, replicated(mesh)))
        ),
    }


def updates_per_step(config: Config) -> int:
    """Optimiser steps in one training step."""
    return config.batch.updates * config.objective.passes.count


def old_stats(config: Config) -> frozenset:
    """What must be computed under the old policy: all that is read, but for a first and only update, whose old policy
    is the new one."""
    objective = config.objective
    if updates_per_step(config) == 1:
        return frozenset(stat for which, stat in objective.credit_needs if which is Pass.OLD)
    return objective.wants(Pass.OLD)


def _decoder(config: Config, model_config: ModelConfig, seed: int) -> Decoder:
    model = config.model
    return Decoder(
        model_config,
        rngs=nnx.Rngs(seed),
        dtype=jnp.dtype(model.dtype),
        remat=model.remat,
        lora=model.lora,
    )


def _model_config(config: Config, vocab_size: int) -> ModelConfig:
    scratch = config.model.scratch
    if config.model.path is not None:
        found = read_config(config.model.path)
    elif scratch is not None:  # one of the two is there, says the config
        found = ModelConfig(
            vocab_size=vocab_size,
            num_layers=scratch.num_layers,
            dim=scratch.dim,
            num_heads=scratch.num_heads,
            num_kv_heads=scratch.num_kv_heads,
            head_dim=scratch.dim // scratch.num_heads,
            mlp_dim=scratch.mlp_dim,
            rope_theta=scratch.rope_theta,
            max_positions=config.prompts.max_tokens + config.sampling.max_new_tokens,
        )
    return found


def _check_positions(config: Config, model: ModelConfig) -> None:
    need = config.prompts.max_tokens + config.sampling.max_new_tokens
    if need > model.max_positions:
        raise ValueError(
            f"prompts.max_tokens + sampling.max_new_tokens = {need} is more than the {model.max_positions} positions of "
            "the model: lower one of them."
        )


def _placed(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        tree,
        shardings,
        is_leaf=lambda x: isinstance(x, jax.ShapeDtypeStruct),
    )


def _abstract_state(config, spec, tx, params, frozen, mesh) -> TrainState:
    """Shapes, dtypes and shardings of the training state."""
    shardings = jax.tree.map(lambda x: x.sharding, params)
    opt = jax.eval_shape(tx.init, params)
    objective = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, config.objective.init(spec)))
    everywhere = replicated(mesh)
    return TrainState(
        params=params,
        opt=_placed(opt, like_params(opt, params, shardings, mesh)),
        objective=jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), objective
        ),
        step=jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere),
        frozen=frozen,
    )
