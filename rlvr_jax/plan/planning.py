"""A config on a topology: every program of a training step, compiled and counted."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import jax

from rlvr_jax.config import Config, MeshShape
from rlvr_jax.plan.measure import Figures, counted, measure
from rlvr_jax.plan.programs import Calls, device_bytes, laid_out
from rlvr_jax.plan.topology import Target
from rlvr_jax.rollout.engine import Engine
from rlvr_jax.train.program import Described, Program, assemble

Say = Callable[[str], None]

PARTS = ("sample", "score", "update")


@dataclasses.dataclass(frozen=True)
class Planned:
    """`once` has the FLOPs of each call on one device (None: not counted), `useful` without those of rematerialisation."""

    topology: str
    devices: int
    mesh: dict[str, int]
    figures: tuple[Figures, ...]
    once: dict[str, float]
    useful: dict[str, float]
    seconds_to_plan: float

    def fits(self, target: Target) -> bool | None:
        """False where one program does not, None where that is not known of all."""
        found = [each.fits(target.chip) for each in self.figures]
        return False if False in found else None if None in found else True

    def repeated(self, name: str) -> float | None:
        """By how much the devices compute more than one device would, 0.05 is 5 %."""
        figures = {each.name: each for each in self.figures}[name]
        return (
            None if figures.flops is None or not self.once.get(name) else figures.flops / self.once[name] - 1
        )

    def step_seconds(self) -> float | None:
        """A training step at the least; None where one of its programs is not known."""
        known = [None if each.fastest is None else each.runs * each.fastest for each in self.figures]
        return None if not known or None in known else math.fsum(x for x in known if x)

    def mfu(self, target: Target, names: tuple[str, ...] = ()) -> float | None:
        """Useful FLOPs of these calls (all), over what the devices could do in the time that they take at the least."""
        chosen = [each for each in self.figures if not names or each.name in names]
        if target.chip is None or any(
            each.fastest is None or each.name not in self.useful for each in chosen
        ):
            return None
        seconds = math.fsum(each.runs * (each.fastest or 0.0) for each in chosen)
        return math.fsum(each.runs * self.useful[each.name] for each in chosen) / (
            seconds * self.devices * target.chip.flops
        )


def plan_run(
    config: Config,
    described: Described,
    num_prompts: int,
    target: Target,
    say: Say,
    parts: tuple[str, ...] = PARTS,
) -> Planned:
    """Compile the parts of a step.

    Raises ValueError where the config does not fit the number of devices, and where it has none of the parts.
    """
    start = time.perf_counter()
    program = assemble(config, num_prompts, devices=target.devices, described=described)
    with jax.set_mesh(program.mesh):
        figures = tuple(compiled(program, target, say, parts))
    if not figures:
        raise ValueError(
            f"--parts {' '.join(parts)}: there is nothing of it in this config, as where a run needs no statistics beside "
            "the update's, or vLLM samples; add update to --parts, or leave it out."
        )
    say("counting the work of one device")
    once = _once(config, described, num_prompts, target, program, parts)
    plain = dataclasses.replace(config, model=dataclasses.replace(config.model, remat="none"))
    useful = (
        once if config.model.remat == "none" else _once(plain, described, num_prompts, target, program, parts)
    )
    return Planned(
        topology=target.name,
        devices=len(target.devices),
        mesh={name: int(size) for name, size in program.mesh.shape.items()},
        figures=figures,
        once=once,
        useful=useful,
        seconds_to_plan=time.perf_counter() - start,
    )


def compiled(program: Program, target: Target, say: Say, parts: tuple[str, ...]) -> list[Figures]:
    """The parts of a step, one after another; enter the program's mesh first."""
    calls, out, kept = Calls(program), [], 0
    if isinstance(program.sampler, Engine):
        say("compiling weights")
        call = calls.weights()
        _, executable = measure(call, target)
        shapes = jax.eval_shape(call.function, *call.arguments)
        weights = shapes if executable is None else laid_out(executable, shapes)
        kept = device_bytes(weights)
        if "sample" in parts and executable is not None:
            out += _sampling(calls, weights, kept, target, say)
    for call in calls.training(kept):
        if call.name.split("_")[0] in parts:
            say(f"compiling {call.name}")
            out.append(measure(call, target)[0])
    return out


def _sampling(calls: Calls, weights: Any, kept: int, target: Target, say: Say) -> list[Figures]:
    """Prefill and a decode segment, which starts from what prefill leaves."""
    say("compiling prefill")
    call = calls.prefill(kept)
    figures, executable = measure(call, target)
    if executable is None:
        return [figures]
    rows = laid_out(executable, jax.eval_shape(call.function, *call.arguments))
    start = calls.start(rows)
    _, executable = measure(start, target)
    if executable is None:
        words = "the cache alone is larger than the chip's memory"
        return [figures, Figures("decode", 1.0, 0.0, needs=float("inf"), error=words)]
    slots = jax.eval_shape(lambda rows: calls.loop.start(rows, *start.arguments[1:]), rows)
    say("compiling decode")
    decode, _ = measure(calls.decode(weights, rows, laid_out(executable, slots)), target)
    return [figures, decode]


def _once(
    config: Config,
    described: Described,
    num_prompts: int,
    target: Target,
    program: Program,
    parts: tuple[str, ...],
) -> dict[str, float]:
    """FLOPs of each call where one of the devices does everything, with as many decode slots as all have together."""
    with jax.set_mesh(program.mesh):
        slots = Calls(program).layout().slots if isinstance(program.sampler, Engine) else 0
    decoding = dataclasses.replace(config.decoding, slots=slots)
    alone = dataclasses.replace(config, mesh=MeshShape(1, 1, 1), decoding=decoding)
    one = assemble(alone, num_prompts, devices=target.devices[:1], described=described)
    with jax.set_mesh(one.mesh):
        calls, out = Calls(one), {}
        if isinstance(one.sampler, Engine) and "sample" in parts:
            prefill, weights = calls.prefill(), calls.weights()
            out["prefill"] = counted(prefill)
            rows = jax.eval_shape(prefill.function, *prefill.arguments)
            start = calls.start(rows)
            slots = jax.eval_shape(lambda rows: calls.loop.start(rows, *start.arguments[1:]), rows)
            of_weights = jax.eval_shape(weights.function, *weights.arguments)
            out["decode"] = counted(calls.decode(of_weights, rows, slots))
        for call in calls.training():
            if call.name.split("_")[0] in parts:
                out[call.name] = counted(call)
    return out
