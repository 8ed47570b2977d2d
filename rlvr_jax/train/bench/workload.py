"""What the update and a whole step are measured on.

Imports NumPy alone, so that a command line can show the options at once.
"""

import dataclasses
import pathlib
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from rlvr_jax.rollout.bench.workload import Lengths, Workload

Preset: TypeAlias = Literal["equal", "realistic"]
Remat: TypeAlias = Literal["none", "dots", "full", "offload"]
Peers: TypeAlias = Literal["fastest", "float32", "bfloat16", "autocast"]

_TOKENS = 4096
"""Of a micro-batch: a model of 135M parameters takes 7 GiB for them, where nothing is computed again."""


@dataclasses.dataclass(frozen=True)
class Batch(Workload):
    """Prompts and responses as of a `Workload`; in `collapsed` of the groups all responses have the same reward, and in each of
    the others there are two. Raises ValueError for a share outside [0, 1)."""

    collapsed: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.collapsed < 1:
            raise ValueError(
                f"collapsed is a share of the groups, at least 0 and below 1, got {self.collapsed}."
            )

    def responses(self, vocab_size: int, seed: int = 0) -> Int[np.ndarray, "B T"]:
        """Random tokens, as many to a row as the longest response has."""
        random = np.random.default_rng([seed, 1])
        return random.integers(0, vocab_size, (self.rows, self.new_tokens)).astype(np.int32)

    @property
    def micro_batches(self) -> int:
        """The fewest equal parts of the rows that have `_TOKENS` tokens of responses at the most, or a row each."""
        parts = (n for n in range(1, self.rows + 1) if self.rows % n == 0)
        return next((n for n in parts if self.rows // n * self.new_tokens <= _TOKENS), self.rows)

    def credit(self, seed: int = 0) -> Float[np.ndarray, " B"]:
        """The advantage of each row: 0 in the first groups, which are collapsed, and +-1 in the others."""
        sign = np.random.default_rng([seed, 2]).choice(np.array([-1.0, 1.0], np.float32), self.rows)
        dead = round(self.collapsed * self.prompts) * self.group
        return np.where(np.arange(self.rows) < dead, np.float32(0), sign)


PRESETS: dict[Preset, Batch] = {
    "equal": Batch(8, 8, 64, 128, "fixed"),
    "realistic": Batch(16, 16, 256, 256, "long-tail", 0.35),
}


@dataclasses.dataclass(frozen=True)
class UpdateBench:
    """What to measure of one optimiser step, and how often."""

    model: pathlib.Path | None = None
    """Hugging Face directory or .gguf file; without one, random weights in the shape of SmolLM2-135M."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """What our model computes in; its weights are float32."""
    preset: Preset = "equal"
    """equal: 8 prompts x 8 responses, 64 + 128 tokens, all with credit. realistic: 16 x 16, 256 tokens and up to 256 new ones,
    the median 48, and 35 % of the groups collapsed. What follows changes it."""
    prompts: int | None = None
    """Different ones."""
    group: int | None = None
    """Responses to each prompt."""
    prompt_tokens: int | None = None
    """Tokens of each."""
    new_tokens: int | None = None
    """Tokens of a response, or of the longest."""
    lengths: Lengths | None = None
    """fixed: all responses are equally long. long-tail: log-normal."""
    collapsed: float | None = None
    """Share of the groups whose responses have no credit."""
    remat: Remat = "none"
    """What our backward pass computes again, see `model.remat` of a config."""
    micro_batches: int = 0
    """Ours, see `batch.micro_batches` of a config; 0: so that one has at the most 4096 tokens of responses."""
    repeats: int = 3
    """Timed ones, after one that compiles; medians count."""
    compare: bool = True
    """Time torch's update of the same rows, padded, in a process of its own, taking turns. Needs torch."""
    peer: Peers = "fastest"
    """What torch computes in. fastest: whichever is, of float32, bfloat16 weights, and float32 weights under autocast."""
    peer_rows: int = 0
    """Rows that torch computes, its time being scaled up to all of them, which are padded alike; 0: all."""
    scaling: bool = False
    """Time ours also by group size, share of the prompt, share of padding and share of collapsed groups, at the same rows."""
    parts: bool = False
    """Time parts of ours alone: forward, head, AdamW, adding up gradients."""

    @property
    def batch(self) -> Batch:
        """The preset with what was said otherwise."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(Batch)}
        return dataclasses.replace(PRESETS[self.preset], **{n: v for n, v in own.items() if v is not None})


@dataclasses.dataclass(frozen=True)
class StepBench:
    """What to measure of a whole step of training: sampling, rewards, statistics, credit, update."""

    model: pathlib.Path | None = None
    """Hugging Face directory or .gguf file; without one, random weights in the shape of SmolLM2-135M."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """What the model computes in; weights are float32."""
    objective: str = "grpo"
    """Name of a preset: `rlvr-jax variants` lists them."""
    prompts: int = 8
    """Different ones."""
    group: int = 8
    """Responses to each prompt."""
    prompt_tokens: int = 64
    """Tokens of each."""
    new_tokens: int = 128
    """Tokens of each response."""
    remat: Remat = "none"
    """What the backward pass computes again, see `model.remat` of a config."""
    micro_batches: int = 0
    """See `batch.micro_batches` of a config; 0: so that one has at the most 4096 tokens of responses."""
    repeats: int = 3
    """Timed steps, after one that compiles; medians count."""

    @property
    def batch(self) -> Batch:
        """Rows of equal length."""
        return Batch(self.prompts, self.group, self.prompt_tokens, self.new_tokens, "fixed")
