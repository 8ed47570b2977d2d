"""The description of a run: frozen dataclasses, each checked where it is made.

Everything that can be found wrong in a config is found here or in `configfile`, before a model, data or a device is
touched: values out of range and combinations that make no sense. A config stands above the stages, tasks and sampler
that it composes, so that it can reject them together.
"""

import dataclasses
from typing import Any, Literal

from rlvr_jax.models.lora import Lora
from rlvr_jax.objective import Objective
from rlvr_jax.rollout.engine import Decoding
from rlvr_jax.rollout.sampling import Sampling
from rlvr_jax.rollout.tools import Turns
from rlvr_jax.rollout.vllm import Vllm
from rlvr_jax.tasks.base import Task
from rlvr_jax.tasks.maze import Maze
from rlvr_jax.types import BatchSpec, Pass, Stat

LARGEST_SEED = 2_000_000_000
"""Seeds are 32-bit integers on a device, and an evaluation adds an offset to the run's."""


def _positive(owner: Any, where: str, *fields: str, least: int = 1) -> None:
    for field in fields:
        if getattr(owner, field) < least:
            raise ValueError(f"{where}.{field} is {least} or more, got {getattr(owner, field)}.")


@dataclasses.dataclass(frozen=True)
class Scratch:
    """A Llama-like decoder with random weights, its vocabulary that of the task."""

    num_layers: int = 4
    dim: int = 128
    num_heads: int = 4
    num_kv_heads: int = 2
    mlp_dim: int = 512
    rope_theta: float = 10000.0

    def __post_init__(self):
        _positive(self, "model.scratch", "num_layers", "dim", "num_heads", "num_kv_heads", "mlp_dim")
        if self.dim % (2 * self.num_heads):
            raise ValueError(
                f"model.scratch.dim={self.dim} is no multiple of 2 * num_heads={2 * self.num_heads}: heads have "
                "dim / num_heads, and rotary embeddings turn pairs of it."
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"model.scratch.num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}: key heads "
                "are shared evenly."
            )


@dataclasses.dataclass(frozen=True)
class Model:
    """Where the policy comes from: a path, or `scratch`."""

    path: str | None = None
    """A Hugging Face directory (config.json, safetensors, tokenizer) or a .gguf file."""
    scratch: Scratch | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the model computes in. Parameters are float32 whatever this is."""
    remat: Literal["none", "dots", "full", "offload"] = "none"
    """What the backward pass computes again, from least to most memory saved: nothing; all but the products with weights;
    every layer from its entry; the same, with the entries in the host's memory."""
    lora: Lora | None = None
    """Train low-rank adapters beside the weights, which stay as they are; None: train all weights."""
    vocab_chunk: int = 8192
    """Vocabulary entries that are held at a time when log-probabilities are computed."""

    def __post_init__(self):
        if (self.path is None) == (self.scratch is None):
            raise ValueError(
                "model is either a path to weights or `scratch` (random ones): set exactly one of model.path and "
                "model.scratch."
            )
        _positive(self, "model", "vocab_chunk")


@dataclasses.dataclass(frozen=True)
class Batch:
    """Sizes of a step. One rollout batch is prompts * group_size responses."""

    prompts: int = 32
    group_size: int = 8
    """G, responses to each prompt."""
    minibatches: int = 1
    """Optimiser steps in one run over a rollout batch. 1 (and epochs 1) is fully on policy."""
    epochs: int = 1
    """Runs over a rollout batch."""
    micro_batches: int = 1
    """Memory: an optimiser step computes no more tokens at once than one of so many equal parts of its rows has, padding
    included. Answers are packed and those that teach nothing are left out, so it takes fewer parts; the result is the same."""
    max_rounds: int = 1
    """Times at the most that `prompts` are sampled to fill one batch with groups that the objective's group filter keeps
    (DAPO's dynamic sampling, arXiv:2503.14476; its recipe has 10). 1: what the filter leaves out is not replaced."""
    ahead: int = 0
    """Steps by which sampling is ahead of training. 0: on policy. 1: the next batch is sampled, and judged, while this one is
    trained on, from weights one step old. What that gains is the time in which the devices waited for verdicts, tools or
    an engine of somebody else; it takes one more copy of the trained weights."""

    def __post_init__(self):
        _positive(self, "batch", *(f.name for f in dataclasses.fields(self) if f.name != "ahead"))
        if self.ahead not in (0, 1):
            raise ValueError(f"batch.ahead is 0 (on policy) or 1 (weights one step old), got {self.ahead}.")
        if self.prompts % self.minibatches:
            raise ValueError(
                f"batch.minibatches={self.minibatches} does not divide batch.prompts={self.prompts}: a group stays in "
                "one optimiser step."
            )
        rows = self.prompts // self.minibatches * self.group_size
        if rows % self.micro_batches:
            raise ValueError(
                f"batch.micro_batches={self.micro_batches} does not divide the {rows} rows of an optimiser step."
            )

    @property
    def updates(self) -> int:
        """Optimiser steps for each rollout batch and pass."""
        return self.minibatches * self.epochs

    @property
    def oldest(self) -> int:
        """Steps by which the weights of a row may be old: sampled ahead, or left over from the step before."""
        return self.ahead + (self.max_rounds > 1)


@dataclasses.dataclass(frozen=True)
class Verification:
    """Where answers are judged, and how long that may take."""

    workers: int | None = None
    """Processes that judge finished answers while others are being sampled, each killed where it takes too long. 0: in the
    training process, without a deadline. None: what the task asks for, which is 0 where its verifier always ends at once."""
    deadline: float = 10.0
    """Seconds for one answer in a worker; over it, the verdict is `timeout`."""
    batch_deadline: float = 600.0
    """Seconds for all answers in workers that are not judged when the last one has been sampled; what is not judged by then
    is `timeout` too."""
    memory_gb: float = 4.0
    """GiB that one process may take. A verifier that wants more has failed: its verdict is `error`."""

    def __post_init__(self):
        if self.workers is not None:
            _positive(self, "verification", "workers", least=0)
        for name in ("deadline", "batch_deadline", "memory_gb"):
            if not getattr(self, name) > 0:
                raise ValueError(f"verification.{name} is a positive number, got {getattr(self, name)}.")


@dataclasses.dataclass(frozen=True)
class Prompts:
    """How prompts are read."""

    max_tokens: int = 512
    too_long: Literal["error", "drop", "cut_left"] = "error"
    """What happens to a prompt over the limit. Dropped and cut ones are counted."""

    def __post_init__(self):
        _positive(self, "prompts", "max_tokens")


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """AdamW (arXiv:1711.05101) with linear warm-up and clipping by the global norm."""

    learning_rate: float = 1e-6
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up: stay, or go down to 0 at the last step."""
    warmup_steps: int = 0
    """Training steps over which the learning rate rises from 0."""
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    """On matrices and embeddings, not on norms and biases."""
    clip_norm: float = 1.0
    """Global gradient norm above which gradients are scaled down."""

    def __post_init__(self):
        for name in ("learning_rate", "epsilon", "clip_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"optimizer.{name} is positive, got {getattr(self, name)}.")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"optimizer.{name} is in [0, 1), got {getattr(self, name)}.")
        if not self.weight_decay >= 0:
            raise ValueError(f"optimizer.weight_decay is >= 0, got {self.weight_decay}.")
        _positive(self, "optimizer", "warmup_steps", least=0)


@dataclasses.dataclass(frozen=True)
class Warmup:
    """Supervised steps on the task's demonstrations before the first rollout. 0 steps: none."""

    steps: int = 0
    """At the most; fewer where `target` is reached."""
    batch: int = 64
    """Demonstrations in a step."""
    learning_rate: float = 5e-4
    target: float | None = None
    """Held-out pass@1 at which the warm-up ends."""
    check_every: int = 50
    """Steps between looks at `target`."""

    def __post_init__(self):
        _positive(self, "warmup", "steps", least=0)
        _positive(self, "warmup", "batch", "check_every")
        if not self.learning_rate > 0:
            raise ValueError(f"warmup.learning_rate is positive, got {self.learning_rate}.")
        if self.target is not None and not 0 < self.target < 1:
            raise ValueError(f"warmup.target is a pass rate in (0, 1), got {self.target}.")


@dataclasses.dataclass(frozen=True)
class MeshShape:
    """Devices along each axis of the mesh; one may be -1 and takes what is left."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    sequence: int = 1
    """Parts of each row that is trained on: for responses so long that one row is too much for a device."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """When the whole state is saved. The last step always is."""

    every: int = 50
    """Training steps."""
    keep: int = 2
    """Checkpoints that stay on the disk."""

    def __post_init__(self):
        _positive(self, "checkpoint", "every", "keep")


@dataclasses.dataclass(frozen=True)
class HeldOutSampling:
    """What is drawn otherwise than in training, see `Sampling`; None: as there."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    max_new_tokens: int | None = None
    """At the most those of `sampling`."""
    min_new_tokens: int | None = None

    def over(self, sampling: Sampling) -> Sampling:
        """`sampling` with what is set here. Raises ValueError for values out of range."""
        given = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        try:
            return dataclasses.replace(sampling, **given)
        except ValueError as error:
            raise ValueError(f"evaluation.{error}") from None


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Held-out pass@k, before the first step, at the end, and every `every` steps. 0 prompts: none."""

    prompts: int = 0
    samples: int = 16
    """Responses to each held-out prompt."""
    k: tuple[int, ...] = (1,)
    every: int = 0
    """Training steps between evaluations; 0: only before and after."""
    task: Task | None = None
    """Whose held-out prompts; None: the run's."""
    sampling: HeldOutSampling = dataclasses.field(default_factory=HeldOutSampling)

    def __post_init__(self):
        _positive(self, "evaluation", "prompts", "every", least=0)
        _positive(self, "evaluation", "samples")
        if not self.k or not all(1 <= k <= self.samples for k in self.k):
            raise ValueError(
                f"evaluation.k={list(self.k)}: every k is in 1..evaluation.samples={self.samples}, pass@k needs k samples."
            )


@dataclasses.dataclass(frozen=True)
class Logging:
    """Where figures go beside metrics.jsonl and rollouts.jsonl."""

    tensorboard: bool = True
    wandb: str | None = None
    """Project of Weights & Biases; needs the extra `logging`."""
    mlflow: str | None = None
    """Experiment of MLflow; needs the extra `logging`. It is where MLFLOW_TRACKING_URI says, else in the database mlflow.db
    beside the run directory."""
    show_every: int = 10
    """Steps between sampled answers and histograms in these services; 0: figures alone. rollouts.jsonl has all answers."""
    credit_answers: int = 2
    """Answers of each step whose tokens are kept with their credit, in credit.jsonl."""

    def __post_init__(self):
        _positive(self, "logging", "show_every", "credit_answers", least=0)


@dataclasses.dataclass(frozen=True)
class Config:
    """A run, whole."""

    run_dir: str = "runs/run"
    seed: int = 0
    steps: int = 100
    """Rollout batches."""
    task: Task = dataclasses.field(default_factory=Maze)
    model: Model = dataclasses.field(default_factory=lambda: Model(scratch=Scratch()))
    objective: Objective = dataclasses.field(default_factory=Objective)
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    decoding: Decoding = dataclasses.field(default_factory=Decoding)
    vllm: Vllm | None = None
    """Sample with vLLM; None: with the loop of this package."""
    turns: Turns | None = None
    """Tools that an answer may call; None: it calls none."""
    verification: Verification = dataclasses.field(default_factory=Verification)
    batch: Batch = dataclasses.field(default_factory=Batch)
    prompts: Prompts = dataclasses.field(default_factory=Prompts)
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    warmup: Warmup = dataclasses.field(default_factory=Warmup)
    mesh: MeshShape = dataclasses.field(default_factory=MeshShape)
    checkpoint: Checkpoint = dataclasses.field(default_factory=Checkpoint)
    evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
    logging: Logging = dataclasses.field(default_factory=Logging)

    def __post_init__(self):
        _positive(self, "config", "steps", "seed", least=0)
        if self.seed > LARGEST_SEED:
            raise ValueError(f"config.seed is {LARGEST_SEED} at the most, got {self.seed}.")
        self.objective.check(self.spec(num_prompts=1))
        if self.batch.max_rounds > 1 and not self.objective.filters:
            raise ValueError(
                f"batch.max_rounds={self.batch.max_rounds} replaces the groups that a filter of the objective leaves out, and "
                "this objective has none: add drop_uniform_groups to objective.mask (objective dapo has it), or set it to 1."
            )
        if self.batch.ahead and Stat.LOGPROB not in self.objective.wants(Pass.SAMPLER):
            raise ValueError(
                "batch.ahead=1 trains on answers of weights one step old, and nothing in this objective answers for that: add "
                "sampler_correction to objective.token_weight, or set batch.ahead to 0."
            )
        if self.vllm is not None and (self.turns is not None or self.sampling.stop):
            raise ValueError(
                "vllm gets and gives token ids alone: leave out turns and sampling.stop, or leave out vllm."
            )
        if self.turns is not None and self.turns.max_result_tokens >= self.sampling.max_new_tokens:
            raise ValueError(
                f"turns.max_result_tokens={self.turns.max_result_tokens} leaves no room in sampling.max_new_tokens="
                f"{self.sampling.max_new_tokens}, which counts a tool's tokens too: raise the one or lower the other."
            )
        if self.model.scratch is not None and self.task.vocabulary() is None:
            raise ValueError(
                f"task {self.task.name!r} needs a pretrained tokenizer: set model.path instead of model.scratch."
            )

    def check_training(self) -> None:
        """Raise ValueError where a policy can be sampled from as described, but not trained."""
        if self.sampling.temperature == 0 and self.batch.group_size > 1:
            raise ValueError(
                f"sampling.temperature=0 gives the {self.batch.group_size} responses of a group the same tokens, so there "
                "is nothing to learn from: train with a positive temperature."
            )

    def spec(self, num_prompts: int) -> BatchSpec:
        """The static sizes of one rollout batch over a data set of `num_prompts` records."""
        return BatchSpec(
            groups=self.batch.prompts,
            group_size=self.batch.group_size,
            length=self.sampling.max_new_tokens,
            num_prompts=num_prompts,
        )


FREE = frozenset(
    {
        "run_dir",
        "steps",
        "checkpoint",
        "evaluation",
        "logging",
        "mesh",
        "batch.micro_batches",
        "decoding.slots",
        "decoding.segment",
        "decoding.weights",
        "verification",
    }
)
"""Keys (and everything below them) that may differ when a run is resumed: they change no sample and no gradient."""

EVERY_KEY = frozenset(f.name for f in dataclasses.fields(Config))
"""What may differ where a run directory holds no work yet."""
