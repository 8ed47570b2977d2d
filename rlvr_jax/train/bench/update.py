"""The measurement of one optimiser step: ours, torch's and what the machine reaches, in one run and taking turns."""

import contextlib
import dataclasses
import gc
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from rlvr_jax.models.export import export
from rlvr_jax.objective.clips import Ppo
from rlvr_jax.rollout.bench.limits import reach
from rlvr_jax.rollout.bench.measure import named
from rlvr_jax.rollout.bench.process import Peer, Say, peak_device_bytes, surroundings, torch_is_there
from rlvr_jax.train.bench import ours, peer
from rlvr_jax.train.bench.parts import parts
from rlvr_jax.train.bench.scaling import check_scaling, scaling
from rlvr_jax.train.bench.work import Counts, limit, model_flops, needed
from rlvr_jax.train.bench.workload import UpdateBench

_ROWS = 2048
"""Of the products that say what the machine reaches: tokens of a micro-batch, about."""


def measure(bench: UpdateBench, say: Say) -> dict[str, Any]:
    """All of it, as JSON. Times are medians, in seconds.

    Raises FileNotFoundError and ValueError for a model that cannot be loaded, ValueError for what cannot be measured of it.
    """
    batch = bench.batch
    if bench.repeats < 1:
        raise ValueError(f"repeats is 1 or more, got {bench.repeats}.")
    if not 0 <= bench.peer_rows <= batch.rows:
        raise ValueError(
            f"peer_rows is 0 (all) to the {batch.rows} rows of the batch, got {bench.peer_rows}."
        )
    if bench.scaling:
        check_scaling(batch)
    program = ours.program_of(bench, batch, ours.BY_REWARD)
    rollout = ours.rollout_of(batch, program.model_config.vocab_size)
    found: dict[str, Any] = {
        "model": named(bench.model),
        "dtype": bench.dtype,
        "remat": bench.remat,
        **surroundings(),
        "batch": dataclasses.asdict(batch),
    }
    with jax.set_mesh(program.mesh):
        update = ours.TimedUpdate(program, rollout)
        counts = Counts.of(rollout, update.live, update.plan())
        found["tokens"] = dataclasses.asdict(counts)
        with _torch(bench, update, say) as other:
            found |= _taking_turns(update, other, counts, bench.repeats, say)
        model, seconds = ours.model_of(program), found["ours"]["seconds"]
        machine = reach(model, _ROWS)
        work = needed(model, rollout, update.live, batch.group)
        found["limit"] = limit(machine, work, seconds)
        best = max(machine.layer_flops, machine.head_flops)
        for each in (found["ours"], *([found["torch"]] if "torch" in found else [])):
            each["mfu"] = model_flops(model, counts.useful) / (each["seconds"] * best)
        if bench.parts:
            found["parts"] = parts(update, seconds, bench.repeats, say)
    if bench.scaling:
        del update, program
        gc.collect()
        found["scaling"] = scaling(bench, say)
    return found


def _taking_turns(
    update: ours.TimedUpdate, other: Peer | None, counts: Counts, repeats: int, say: Say
) -> dict[str, Any]:
    start = time.perf_counter()
    update.run()
    first, memory = time.perf_counter() - start, peak_device_bytes()
    say(f"ours, first call: {first:.1f} s")
    mine: list[ours.Timed] = []
    theirs: list[peer.Timed] = []

    def one() -> None:
        mine.append(update.run())
        _said(say, "ours", len(mine), repeats, mine[-1].seconds, counts.useful)

    def another() -> None:
        if other is not None:
            theirs.append(other.run(len(theirs)))
            _said(say, "torch", len(theirs), repeats, theirs[-1].seconds, counts.useful)

    for repeat in range(repeats):
        for turn in (one, another) if repeat % 2 == 0 else (another, one):
            turn()
    seconds = statistics.median(t.seconds for t in mine)
    found: dict[str, Any] = {
        "ours": {
            **_rates([t.seconds for t in mine], counts.useful),
            "plan_seconds": statistics.median(t.plan_seconds for t in mine),
            "device_seconds": statistics.median(t.device_seconds for t in mine),
            "compile_seconds": first - seconds,
            "peak_bytes": memory,
            "loss": mine[0].loss,
            "grad_norm": mine[0].grad_norm,
        }
    }
    if theirs:
        found["torch"] = {
            **_rates([t.seconds for t in theirs], counts.useful),
            "optimizer_seconds": statistics.median(t.optimizer_seconds for t in theirs),
            "rows": theirs[0].rows,
            "way": theirs[0].way,
            "tried": dict(theirs[0].tried),
            "peak_bytes": max(t.peak_bytes for t in theirs),
            "loss": theirs[0].loss,
            "grad_norm": theirs[0].grad_norm,
            "ratio": statistics.median(b.seconds / a.seconds for a, b in zip(mine, theirs, strict=True)),
        }
    return found


def _rates(seconds: list[float], tokens: int) -> Mapping[str, Any]:
    middle = statistics.median(seconds)
    return {"seconds": middle, "all_seconds": seconds, "tokens_per_second": tokens / middle}


def job_of(
    update: ours.TimedUpdate, directory: pathlib.Path, ways: tuple[str, ...], timed: int = 0
) -> peer.Job:
    """The same batch for torch, of which it computes `timed` rows; 0: all."""
    told, config = update.told, update.program.config
    clip, longest = config.objective.clip, int(told.length.max())
    assert isinstance(clip, Ppo) and clip.low == clip.high
    return peer.Job(
        directory=directory,
        device=peer.device_of_torch(),
        ways=ways,
        prompt=told.prompt,
        tokens=told.tokens[:, :longest],
        length=told.length,
        weight=np.asarray(update.weight)[:, :longest],
        advantage=np.asarray(update.credit.advantage)[:, :longest],
        clip=clip.low,
        optimizer=config.optimizer,
        timed=timed,
    )


@contextlib.contextmanager
def _torch(bench: UpdateBench, update: ours.TimedUpdate, say: Say) -> Iterator[Peer | None]:
    """torch with the same weights; None where it is not wanted, or cannot be had, which is said."""
    if bench.compare and not torch_is_there():
        say("the update beside ours needs torch, which is not installed: only ours is measured.")
    if not bench.compare or not torch_is_there():
        yield None
        return
    program = update.program
    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder) / "model"
        export(
            update.state.policy,
            program.model_config,
            program.tokenizer,
            directory,
            dtype="float32",
            eos=program.stop,
        )
        ways = tuple(peer.WAYS) if bench.peer == "fastest" else (bench.peer,)
        other = Peer("torch's update", peer.loaded, job_of(update, directory, ways, bench.peer_rows))
        try:
            yield other
        finally:
            other.close()


def _said(say: Say, who: str, repeat: int, repeats: int, seconds: float, tokens: int) -> None:
    say(f"{who} {repeat}/{repeats}: {seconds:.2f} s, {tokens / seconds:.0f} useful tokens/s")
