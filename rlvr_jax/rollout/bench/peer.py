"""`transformers.generate` beside our sampler, in a process of its own: neither its threads nor its memory are ours."""

import dataclasses
import importlib.util
import multiprocessing
import os
import pathlib
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int

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


def is_there() -> bool:
    """Whether torch is installed."""
    return importlib.util.find_spec("torch") is not None


def peak_bytes() -> int:
    """The most memory that this process has had resident. On Linux `getrusage` would count that of the process which started
    this one, too."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class Peer:
    """A process with the model loaded and warm. Close it.

    Raises ChildProcessError where the process ends; what it had to say is on standard error.
    """

    def __init__(self, job: Job):
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, job), daemon=True)
        self._process.start()
        other.close()
        self._answer()

    def run(self, seed: int) -> Timed:
        """All rows once."""
        self._pipe.send(seed)
        return self._answer()

    def close(self) -> None:
        self._pipe.close()
        self._process.join()

    def _answer(self) -> Any:
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join()
            raise ChildProcessError(
                f"the process of transformers.generate ended with status {self._process.exitcode}; see above, or measure "
                "without it (--no-compare)."
            ) from None


def _serve(pipe: Any, job: Job) -> None:
    run = loaded(job)
    pipe.send(None)
    while True:
        try:
            seed = pipe.recv()
        except EOFError:
            return
        start = time.perf_counter()
        run(seed)
        pipe.send(Timed(time.perf_counter() - start, peak_bytes()))


def loaded(job: Job) -> Callable[[int], None]:
    """A function of a seed that writes all rows: the model as it is meant to be used on this machine, after a short batch."""
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

    def run(seed: int) -> None:
        torch.manual_seed(seed)
        with torch.inference_mode():
            for start in range(0, len(tokens), _AT_ONCE):
                batch(slice(start, start + _AT_ONCE), most=int(length.max()))

    with torch.inference_mode():
        batch(slice(0, 2), most=4)
    return run
