"""torch's update beside ours, as one writes it with `transformers`: every row padded to the batch's longest prompt and longest
response, micro-batch after micro-batch; and AdamW."""

import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from rlvr_jax.config import Optimizer
from rlvr_jax.rollout.bench.process import peak_bytes

Ways = Mapping[str, tuple[str, str | None]]
WAYS: Ways = {
    "float32": ("float32", None),
    "bfloat16": ("bfloat16", None),
    "autocast": ("float32", "bfloat16"),
}
"""What the weights, their gradients and AdamW's moments are kept in, and what is multiplied in where that is another. In
bfloat16 alone a small step rounds to none, so that nothing may be learnt; it is timed all the same."""
_TOKENS = 2048
"""Of a micro-batch, padding included; 10 rows of 192, 4 of 512. Twice as many are no faster on a CPU."""
_TRIED = 1024
"""Tokens with which a way is tried."""
_KERNELS = ("sdpa", "eager")


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """A model on the disk, and the batch: prompts without padding, responses padded on the right. `ways` are names of `WAYS`:
    a few rows are tried with each, and the fastest is taken. The loss is PPO's, clipped at 1 +- `clip`, and fully on
    policy; `weight` holds its denominators. `timed` of the rows are computed, and the time is scaled up to all: as they are all
    padded alike, they take as long. 0: all are."""

    directory: pathlib.Path
    device: str
    ways: tuple[str, ...]
    prompt: Int[np.ndarray, "B S"]
    tokens: Int[np.ndarray, "B T"]
    length: Int[np.ndarray, " B"]
    weight: Float[np.ndarray, "B T"]
    advantage: Float[np.ndarray, "B T"]
    clip: float
    optimizer: Optimizer
    timed: int = 0

    def rows_of(self, tokens: int) -> int:
        """How many rows have so many tokens, padding included."""
        return max(1, tokens // (self.prompt.shape[1] + self.tokens.shape[1]))


@dataclasses.dataclass(frozen=True)
class Timed:
    """One optimiser step of all rows, of which `rows` were computed: loss and gradient are of these. `tried` has the seconds of those few rows for each way, and `way` is the one that was taken."""

    seconds: float
    optimizer_seconds: float
    rows: int
    loss: float
    grad_norm: float
    peak_bytes: int
    way: str
    tried: Mapping[str, float]


class _Update:
    """The model in one of the ways, its batch and its optimiser."""

    def __init__(self, job: Job, way: str, kernel: str):
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        kept, self._multiplied = WAYS[way]
        self._job, self._torch = job, torch
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            job.directory, dtype=getattr(torch, kept), attn_implementation=kernel, local_files_only=True
        )
        self._model.train().to(job.device)
        size, how = job.tokens.shape[1], job.optimizer
        own = np.arange(size) < job.length[:, None]
        arrays = {
            "ids": np.concatenate([job.prompt, np.where(own, job.tokens, 0)], axis=1).astype(np.int64),
            "mask": np.concatenate([np.ones(job.prompt.shape, bool), own], axis=1).astype(np.int64),
            "weight": job.weight,
            "advantage": job.advantage,
        }
        self._batch = {name: torch.from_numpy(x.copy()).to(job.device) for name, x in arrays.items()}
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=how.learning_rate,
            betas=(how.beta1, how.beta2),
            eps=how.epsilon,
            weight_decay=how.weight_decay,
            fused=True,
        )

    def _logprob(self, ids: Any, mask: Any) -> Any:
        """[B, T]: of the responses' tokens; logits of other positions are not made."""
        torch, size = self._torch, self._job.tokens.shape[1]
        narrow = None if self._multiplied is None else getattr(torch, self._multiplied)
        with torch.autocast(self._job.device, dtype=narrow, enabled=narrow is not None):
            found = self._model(input_ids=ids, attention_mask=mask, logits_to_keep=size + 1, use_cache=False)
        chosen = ids[:, -size:, None]
        if found.logits.dtype == torch.float32:
            picked = found.logits[:, :-1].gather(-1, chosen)[..., 0]
            return picked - torch.stack([torch.logsumexp(row, -1) for row in found.logits[:, :-1]])
        rows = [torch.log_softmax(row, -1) for row in found.logits[:, :-1]]
        return torch.stack([row.gather(-1, one)[:, 0] for row, one in zip(rows, chosen, strict=True)]).float()

    def backward(self, rows: slice) -> float:
        """Adds the gradient of a micro-batch; its loss."""
        part = {name: x[rows] for name, x in self._batch.items()}
        logprob = self._logprob(part["ids"], part["mask"])
        ratio = self._torch.exp(logprob - logprob.detach())
        clipped = ratio.clamp(1 - self._job.clip, 1 + self._job.clip)
        advantage = part["advantage"]
        gain = self._torch.minimum(ratio * advantage, clipped * advantage)
        loss = -(part["weight"] * gain).sum()
        loss.backward()
        return float(loss.detach())

    def step(self) -> float:
        """Clips the gradients, moves the weights and forgets the gradients; the norm that there was."""
        norm = self._torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._job.optimizer.clip_norm)
        self._optimizer.step()
        return float(norm)

    def forget(self) -> None:
        """No gradient is left."""
        self._optimizer.zero_grad(set_to_none=True)

    def seconds(self) -> float:
        """Of a few rows, the second time."""
        found = 0.0
        for _ in range(2):
            start = time.perf_counter()
            self.backward(slice(0, self._job.rows_of(_TRIED)))
            found = time.perf_counter() - start
            self.forget()
        return found


def loaded(job: Job) -> Callable[[int], Timed]:
    """A function that does an optimiser step, whatever its number, and says how long that took: in the fastest of the ways,
    with the faster kernel of attention."""
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    tried: dict[str, float] = {}
    best: tuple[float, str, str] | None = None
    for way in job.ways:
        for kernel in _KERNELS:
            if kernel != _KERNELS[0] and best is not None and way != best[1]:
                continue  # the other kernel, only where the way is the fastest so far
            seconds = _Update(job, way, kernel).seconds()
            tried[f"{way}, {kernel}"] = seconds
            best = min(best or (seconds, way, kernel), (seconds, way, kernel))
    assert best is not None
    update = _Update(job, *best[1:])
    rows, count = job.rows_of(_TOKENS), job.timed or len(job.tokens)
    update.backward(slice(0, rows))
    update.forget()

    def run(number: int) -> Timed:
        start, loss = time.perf_counter(), 0.0
        for first in range(0, count, rows):
            loss += update.backward(slice(first, min(first + rows, count)))
        middle = time.perf_counter()
        norm = update.step()
        update.forget()
        end = time.perf_counter()
        way = ", ".join(best[1:])
        return Timed(
            seconds=(middle - start) * len(job.tokens) / count + end - middle,
            optimizer_seconds=end - middle,
            rows=count,
            loss=loss,
            grad_norm=norm,
            peak_bytes=peak_bytes(),
            way=way,
            tried=tried,
        )

    return run


def device_of_torch() -> str:
    """Where torch computes, beside JAX on its default backend."""
    return "cuda" if jax.default_backend() == "gpu" else "cpu"
