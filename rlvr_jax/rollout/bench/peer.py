"""`transformers.generate` beside our sampler, in a process of its own: neither its threads nor its memory are ours."""

import dataclasses
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int

from rlvr_jax.rollout.bench.process import peak_bytes

_AT_ONCE = 64
"""Rows of a batch; it runs until its longest row is done, as nothing takes the place of a row that has ended."""


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """A model, and what it has to write: `tokens` has a prompt for each row, `length` what each row's response has."""

    directory: pathlib.Path
    dtype: str
    device: str
    tokens: Int[np.ndarray, "B S"]
    length: Int[np.ndarray, " B"]


@dataclasses.dataclass(frozen=True)
class Timed:
    """Seconds of one repeat; the most memory that the process has had, in bytes."""

    seconds: float
    peak_bytes: int


def loaded(job: Job) -> Callable[[int], Timed]:
    """A function of a seed that writes all rows and says how long that took: the model as it is meant to be used on this machine, after a short batch."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(os.cpu_count() or 1)
    kind = getattr(torch, job.dtype)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        job.directory, dtype=kind, local_files_only=True
    )
    model = model.eval().to(job.device)
    model.generation_config = transformers.GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0
    )  # without a token that ends a row: lengths do
    tokens, length = torch.from_numpy(job.tokens).long(), torch.from_numpy(job.length)

    def batch(rows: slice, most: int) -> None:
        ids, own = tokens[rows].to(job.device), length[rows].to(job.device)

        def over(written: Any, scores: Any, **_: Any) -> Any:
            return written.shape[1] - ids.shape[1] >= own

        longest = min(most, int(own.max()))
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=longest,
            stopping_criteria=transformers.StoppingCriteriaList([over]),
        )
        if found.shape[1] != ids.shape[1] + longest:
            raise RuntimeError(f"a row of {longest} tokens was asked for, and {found.shape[1]} came.")

    def run(seed: int) -> Timed:
        start = time.perf_counter()
        torch.manual_seed(seed)
        with torch.inference_mode():
            for first in range(0, len(tokens), _AT_ONCE):
                batch(slice(first, first + _AT_ONCE), most=int(length.max()))
        return Timed(time.perf_counter() - start, peak_bytes())

    with torch.inference_mode():
        batch(slice(0, 2), most=4)
    return run
