"""What the sampler is measured on: a number of prompts, and how long each response is.

Imports NumPy alone, so that a command line can show the options at once.
"""

import dataclasses
import pathlib
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Int

Lengths: TypeAlias = Literal["fixed", "long-tail"]
Preset: TypeAlias = Literal["batch-64", "distinct-64", "long-tail"]

MEDIAN, SPREAD = 48, 1.0
"""Of a long tail: tokens, and the standard deviation of their logarithm, with which one row in twenty would be longer
than five times the median. Ours."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """P prompts of the same number of random tokens, G responses to each.

    A response has exactly `new_tokens` tokens, or under a long tail a log-normal number of them, median 48, at the most
    `new_tokens`. Raises ValueError for a size below 1, and for a prompt of 1 token, which leaves nothing to prefill.
    """

    prompts: int
    group: int
    prompt_tokens: int
    new_tokens: int
    lengths: Lengths

    def __post_init__(self):
        for name, least in (("prompts", 1), ("group", 1), ("prompt_tokens", 2), ("new_tokens", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {least} or more, got {getattr(self, name)}.")

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    def row_lengths(self, seed: int = 0) -> Int[np.ndarray, " B"]:
        """Tokens of each response, in 1..new_tokens."""
        if self.lengths == "fixed":
            return np.full(self.rows, self.new_tokens, np.int32)
        normal = np.random.default_rng(seed).standard_normal(self.rows)
        return np.clip(np.rint(MEDIAN * np.exp(SPREAD * normal)), 1, self.new_tokens).astype(np.int32)

    def tokens(self, vocab_size: int, seed: int = 0) -> Int[np.ndarray, "P S"]:
        """The prompts."""
        shape = self.prompts, self.prompt_tokens
        return np.random.default_rng(seed).integers(0, vocab_size, shape).astype(np.int32)


PRESETS: dict[Preset, Workload] = {
    "batch-64": Workload(8, 8, 64, 128, "fixed"),
    "distinct-64": Workload(64, 1, 64, 128, "fixed"),
    "long-tail": Workload(8, 16, 256, 256, "long-tail"),
}


@dataclasses.dataclass(frozen=True)
class SamplerBench:
    """What to measure, and how often."""

    model: pathlib.Path | None = None
    """Hugging Face directory or .gguf file; without one, random weights in the shape of SmolLM2-135M."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """What the model computes in."""
    preset: Preset = "batch-64"
    """batch-64: 8 prompts x 8 responses, 64 + 128 tokens. distinct-64: the same rows, of a prompt each. long-tail: 8 x 16, 256
    tokens and up to 256 new ones, the median 48. What follows changes it."""
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
    slots: int = 0
    """Rows that our sampler decodes at once; 0: what suits the platform."""
    devices: int = 1
    """Ours that rows are split over. A CPU's cores can be as many devices: on two cores two are faster than one, whose threads
    wait for each other in every operation."""
    repeats: int = 3
    """Timed ones, after one that compiles; medians count."""
    compare: bool = True
    """Time `transformers.generate` too, in a process of its own, taking turns. Needs torch."""
    scaling: bool = False
    """Time groups of 1, 4 and 16 too: a decode step at the same number of rows, prefill at the same number of prompts."""

    @property
    def workload(self) -> Workload:
        """The preset with what was said otherwise."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(Workload)}
        return dataclasses.replace(PRESETS[self.preset], **{n: v for n, v in own.items() if v is not None})
