"""The measurement: our sampler, `transformers.generate` and what the machine reaches, in one run and taking turns."""

import contextlib
import dataclasses
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.decoder import Decoder
from rlvr_jax.models.export import export
from rlvr_jax.models.load import load
from rlvr_jax.models.tokenizer import eos_ids, load_tokenizer, word_tokenizer
from rlvr_jax.rollout.bench import ours, peer
from rlvr_jax.rollout.bench.limits import reach, work_of_step
from rlvr_jax.rollout.bench.process import Peer, Say, peak_device_bytes, surroundings, torch_is_there
from rlvr_jax.rollout.bench.workload import SamplerBench, Workload
from rlvr_jax.rollout.engine import Decoding, structure
from rlvr_jax.rollout.sampling import RowSampling, Sampling
from rlvr_jax.sharding import make_mesh

SMOLLM2_135M = ModelConfig(
    vocab_size=49152,
    num_layers=30,
    dim=576,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    mlp_dim=1536,
    rope_theta=100000.0,
    norm_eps=1e-5,
    max_positions=8192,
)
GROUPS = (1, 4, 16)


def measure(bench: SamplerBench, say: Say) -> dict[str, Any]:
    """All of it, as JSON. Times are medians, in seconds.

    Raises FileNotFoundError and ValueError for a model that cannot be loaded, ValueError for what cannot be measured of it.
    """
    _check(bench)
    mesh = _mesh(bench.devices)
    with jax.set_mesh(mesh):
        return _measured(bench, mesh, say)


def _measured(bench: SamplerBench, mesh: Mesh, say: Say) -> dict[str, Any]:
    workload = bench.workload
    graphdef, params, config, tokenizer, stop = model_of(bench)
    _check_positions(config, workload)
    model, params = structure(graphdef, params), jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    clocked = Clocked(model, params, stop, bench.slots)
    compiling = clocked.compile(workload, say)
    memory = peak_device_bytes()
    found: dict[str, Any] = {
        "model": named(bench.model),
        "dtype": bench.dtype,
        **surroundings(),
        "devices": bench.devices,
        "workload": dataclasses.asdict(workload),
    }
    times: list[ours.Timed] = []
    theirs: list[peer.Timed] = []

    def one(step: int) -> None:
        times.append(clocked.run(workload, step))
        _said(say, "ours", len(times), bench.repeats, times[-1].seconds, times[-1].tokens)

    with _generate(bench, params, config, tokenizer, stop, say) as other:

        def another(step: int) -> None:
            if other is not None:
                theirs.append(other.run(step))
                _said(
                    say,
                    "generate",
                    len(theirs),
                    bench.repeats,
                    theirs[-1].seconds,
                    workload.row_lengths().sum(),
                )

        for repeat in range(bench.repeats):
            for turn in (one, another) if repeat % 2 == 0 else (another, one):
                turn(1 + repeat)
    found["ours"] = _ours(times) | {"peak_bytes": memory} | compiling
    if theirs:
        tokens = times[0].tokens
        found["generate"] = {
            "seconds": statistics.median(t.seconds for t in theirs),
            "all_seconds": [t.seconds for t in theirs],
            "tokens_per_second": tokens / statistics.median(t.seconds for t in theirs),
            "peak_bytes": max(t.peak_bytes for t in theirs),
            "ratio": statistics.median(b.seconds / a.seconds for a, b in zip(times, theirs, strict=True)),
        }
    if bench.scaling:
        found["scaling"] = scaling(clocked, workload, bench.repeats, say)
    found["limit"] = _limit(clocked, workload, found["ours"]["step_seconds"])
    return found


class Clocked:
    """A model with engines by their longest response. Pushes the weights once to each."""

    def __init__(self, model: Decoder, params: Any, stop: tuple[int, ...], slots: int):
        self.model, self._params, self._stop, self._slots = model, params, stop, slots
        self._engines: dict[int, ours.TimedEngine] = {}

    def engine(self, workload: Workload) -> ours.TimedEngine:
        most = workload.new_tokens
        if most not in self._engines:
            engine = ours.TimedEngine(
                self.model, Sampling(max_new_tokens=most), self._stop, decoding=Decoding(slots=self._slots)
            )
            engine.push(self._params, version=0)
            self._engines[most] = engine
        return self._engines[most]

    def run(self, workload: Workload, step: int) -> ours.Timed:
        request = ours.request(workload, self.model.config.vocab_size, step)
        return self.engine(workload).time(request)

    def compile(self, workload: Workload, say: Say) -> dict[str, Any]:
        """What the first push and call take longer than the second ones, and how long a push takes: weights are laid out for
        decoding then."""
        start = time.perf_counter()
        engine = self.engine(workload)
        self.run(workload, 0)
        first = time.perf_counter() - start
        say(f"ours, first call: {first:.1f} s")
        push, second = engine.time_push(self._params), self.run(workload, 0)
        return {"compile_seconds": first - push - second.seconds, "push_seconds": push}

    def prefill(self, workload: Workload) -> float:
        """Seconds of a prefill; compiles where it has to."""
        engine = self.engine(workload)
        request = ours.request(workload, self.model.config.vocab_size, 0)
        how = RowSampling.of(engine.sampling, request.rows, request.overrides)
        return engine.time_prefill(request, how)


def scaling(clocked: Clocked, workload: Workload, repeats: int, say: Say) -> list[dict[str, Any]]:
    """By the size of a group: a decode step at the same number of rows, a prefill at the same number of prompts."""
    fixed = dataclasses.replace(workload, lengths="fixed")
    same_rows = {g: dataclasses.replace(fixed, prompts=workload.rows // g, group=g) for g in GROUPS}
    same_prompts = {g: dataclasses.replace(fixed, group=g) for g in GROUPS}
    steps: dict[int, list[float]] = {g: [] for g in GROUPS}
    prefills: dict[int, list[float]] = {g: [] for g in GROUPS}
    for repeat in range(repeats + 1):  # the first one compiles
        for g in GROUPS:
            prefills[g].append(clocked.prefill(same_prompts[g]))
            steps[g].append(clocked.run(same_rows[g], repeat).step_seconds)
            if repeat:
                shown = f"step {steps[g][-1] * 1e3:.1f} ms, prefill {prefills[g][-1]:.3f} s"
                say(f"groups of {g}, {repeat}/{repeats}: {shown}")
    return [
        {
            "group": g,
            "step_seconds": statistics.median(steps[g][1:]),
            "prefill_seconds": statistics.median(prefills[g][1:]),
        }
        for g in GROUPS
    ]


def named(path: pathlib.Path | None) -> str:
    """What a report calls a model."""
    return str(path or "random weights, SmolLM2-135M's shape")


def model_of(bench: SamplerBench) -> tuple[Any, Any, ModelConfig, Any, tuple[int, ...]]:
    """Structure, parameters (float32), configuration, tokenizer, stop tokens."""
    dtype = jnp.dtype(bench.dtype)
    if bench.model is not None:
        decoder, config = load(bench.model, dtype)
        tokenizer = load_tokenizer(bench.model)
        return *nnx.split(decoder), config, tokenizer, eos_ids(bench.model, tokenizer)
    make = lambda: Decoder(SMOLLM2_135M, rngs=nnx.Rngs(0), dtype=dtype)  # noqa: E731
    graphdef, _ = nnx.split(nnx.eval_shape(make))
    params = jax.jit(lambda: nnx.split(make())[1])()
    tokenizer = word_tokenizer(())
    return graphdef, params, SMOLLM2_135M, tokenizer, eos_ids(None, tokenizer)


def _check(bench: SamplerBench) -> None:
    rows, largest = bench.workload.rows, max(GROUPS)
    if bench.repeats < 1:
        raise ValueError(f"repeats is 1 or more, got {bench.repeats}.")
    if bench.devices < 1:
        raise ValueError(f"devices is 1 or more, got {bench.devices}.")
    if bench.scaling and rows % largest:
        raise ValueError(
            f"{rows} rows do not make groups of {largest}: choose prompts and group so that they do."
        )


def _mesh(devices: int) -> Mesh:
    """Of the first devices. A CPU has as many as are asked for before JAX first looks."""
    with contextlib.suppress(RuntimeError):  # it has looked
        jax.config.update("jax_num_cpu_devices", devices)
    if devices > len(jax.devices()):
        raise ValueError(f"devices is at most the {len(jax.devices())} that JAX has here, got {devices}.")
    return make_mesh(data=devices, devices=jax.devices()[:devices])


def _check_positions(config: ModelConfig, workload: Workload) -> None:
    need = workload.prompt_tokens + workload.new_tokens
    if need > config.max_positions:
        raise ValueError(
            f"prompt_tokens + new_tokens = {need} is more than the {config.max_positions} positions of the model: lower one "
            "of them."
        )


@contextlib.contextmanager
def _generate(
    bench: SamplerBench, params: Any, config: ModelConfig, tokenizer: Any, stop: tuple[int, ...], say: Say
) -> Iterator[Peer | None]:
    """`transformers.generate` with the same weights; None where it is not wanted, or cannot be had, which is said."""
    if bench.compare and not torch_is_there():
        say("transformers.generate needs torch, which is not installed: only our sampler is measured.")
    if not bench.compare or not torch_is_there():
        yield None
        return
    workload = bench.workload
    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder) / "model"
        export(params, config, tokenizer, directory, dtype=bench.dtype, eos=stop)
        job = peer.Job(
            directory=directory,
            dtype=bench.dtype,
            device="cuda" if jax.default_backend() == "gpu" else "cpu",
            tokens=workload.tokens(config.vocab_size).repeat(workload.group, axis=0),
            length=workload.row_lengths(),
        )
        other = Peer("transformers.generate", peer.loaded, job)
        try:
            yield other
        finally:
            other.close()


def _ours(times: list[ours.Timed]) -> dict[str, Any]:
    prefill = statistics.median(t.prefill_seconds for t in times)
    decode = statistics.median(t.decode_seconds for t in times)
    seconds, one = statistics.median(t.seconds for t in times), times[0]
    return {
        "seconds": seconds,
        "all_seconds": [t.seconds for t in times],
        "tokens": one.tokens,
        "tokens_per_second": one.tokens / seconds,
        "prefill_seconds": prefill,
        "prefill_tokens_per_second": one.prompt_tokens / prefill,
        "decode_seconds": decode,
        "decode_tokens_per_second": one.tokens / decode,
        "steps": one.steps,
        "step_seconds": statistics.median(t.step_seconds for t in times),
        "slots": one.slot_steps // one.steps,
        "occupancy": one.occupancy,
    }


def _limit(clocked: Clocked, workload: Workload, step_seconds: float) -> dict[str, Any]:
    """What a step would take at the speeds that this machine reaches, and what share of it that is."""
    request = ours.request(workload, clocked.model.config.vocab_size, 0)
    layout = clocked.engine(workload).layout(request)
    length = workload.row_lengths().astype(float)
    own = float((length * (length + 1) / 2).sum() / length.sum())
    work = work_of_step(clocked.model, layout, workload.prompt_tokens, own)
    machine = reach(clocked.model, layout.slots)
    return {
        "step_flops": work.layer_flops + work.head_flops,
        "step_bytes": work.bytes,
        "layer_flops_per_second": machine.layer_flops,
        "head_flops_per_second": machine.head_flops,
        "bytes_per_second": machine.bytes,
        "step_seconds": machine.seconds(work),
        "share": machine.seconds(work) / step_seconds,
    }


def _said(say: Say, who: str, repeat: int, repeats: int, seconds: float, tokens: Any) -> None:
    say(f"{who} {repeat}/{repeats}: {seconds:.2f} s, {tokens / seconds:.0f} tokens/s")
