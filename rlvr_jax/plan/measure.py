"""One program compiled for devices that need not be here, and what that tells."""

import dataclasses
import math
import re
import time
from collections.abc import Mapping
from typing import Any

import jax

from rlvr_jax.plan.chips import GIB, Chip
from rlvr_jax.plan.flops import flops, kernel_flops
from rlvr_jax.plan.hlo import parse
from rlvr_jax.plan.programs import Call
from rlvr_jax.plan.topology import Target
from rlvr_jax.plan.work import Traffic, Work, total, work


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device. Outputs that take the place of arguments are in `aliased`; `beside` is what other arrays of the
    run take meanwhile. `temporaries` is None where processors stand in for the device."""

    arguments: int
    outputs: int
    aliased: int
    temporaries: int | None
    code: int
    beside: int

    @property
    def peak(self) -> int:
        """The most at any moment; without temporaries a lower bound."""
        own = self.arguments + self.outputs - self.aliased + (self.temporaries or 0) + self.code
        return own + self.beside


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of one call: `runs` is how often it runs in a training step, the rest is for one run.

    `flops` are of all devices together, `seconds` what the roofline of the chip says where everything overlaps, by the
    resource that limits each part of the program. What is None is not known; `error` says why.
    """

    name: str
    runs: float
    compile_seconds: float
    memory: Memory | None = None
    flops: float | None = None
    bytes: float | None = None
    collectives: Mapping[str, Traffic] = dataclasses.field(default_factory=dict)
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    seconds_apart: float | None = None
    """Where nothing overlaps."""
    needs: float | None = None
    """Bytes that the compiler asked for, where it found no way within the chip's memory."""
    error: str = ""

    @property
    def fastest(self) -> float | None:
        """Seconds of one run at the least."""
        return math.fsum(self.seconds.values()) if self.seconds else None

    def fits(self, chip: Chip | None) -> bool | None:
        """None where that is not known."""
        if self.needs is not None:
            return False
        if self.memory is None or chip is None:
            return None
        if self.memory.peak > chip.memory:
            return False
        return True if self.memory.temporaries is not None else None


def measure(call: Call, target: Target) -> tuple[Figures, jax.stages.Compiled | None]:
    """Compile a call. A program that does not fit in the chip's memory is a result and no error; enter the mesh first."""
    start = time.perf_counter()
    traced = call.function.trace(*call.arguments)
    here = traced.jaxpr
    try:
        compiled = traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        return too_large(call, str(error), time.perf_counter() - start), None
    took = time.perf_counter() - start
    found = Figures(call.name, call.runs, took, memory=_memory(compiled, call, not target.missing))
    try:
        text = compiled.as_text() or ""
    except jax.errors.JaxRuntimeError as error:  # a program of libtpu's that its own printer does not know
        words = f"the compiler cannot print its program ({str(error).splitlines()[0]}), so its work is not counted."
        return dataclasses.replace(found, error=words), compiled
    works, kernels = work(parse(text, turns=call.turns)), kernel_flops(here, turns=call.turns)
    if target.missing:  # the kernels of the real devices are products on these
        kernels = 0.0
    devices = len(target.devices)
    found = dataclasses.replace(
        found,
        flops=devices * (math.fsum(each.times * each.flops for each in works) + kernels),
        bytes=math.fsum(each.times * each.bytes for each in works),
        collectives=total(works),
    )
    if target.chip is not None:
        seconds, apart = roofline(works, kernels, target.chip)
        found = dataclasses.replace(found, seconds=seconds, seconds_apart=apart)
    return found, compiled


def counted(call: Call) -> float:
    """FLOPs of a call on one device, where nothing can be done twice. Nothing is compiled."""
    return flops(call.function.trace(*call.arguments).jaxpr, turns=call.turns)


def roofline(works: list[Work], kernels: float, chip: Chip) -> tuple[dict[str, float], float]:
    """Seconds by what limits them, each part of the program by what takes it longest; and where nothing overlaps.

    `kernels` are FLOPs of kernels on one device, which limit themselves.
    """
    seconds = {"products": kernels / chip.flops, "memory": 0.0, "links": 0.0}
    apart = seconds["products"]
    for each in works:
        parts = {
            "products": each.flops / chip.flops,
            "memory": each.bytes / chip.bandwidth,
            "links": each.sent / chip.link,
        }
        limit = max(parts, key=lambda name: parts[name])
        seconds[limit] += each.times * parts[limit]
        apart += each.times * math.fsum(parts.values())
    return seconds, apart


def _memory(compiled: Any, call: Call, exact: bool) -> Memory | None:
    found = compiled.memory_analysis()
    if found is None:
        return None
    return Memory(
        arguments=found.argument_size_in_bytes,
        outputs=found.output_size_in_bytes,
        aliased=found.alias_size_in_bytes,
        temporaries=found.temp_size_in_bytes if exact else None,
        code=found.generated_code_size_in_bytes if exact else 0,
        beside=call.beside,
    )


_UNITS = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": GIB, "T": 2.0**40}


def too_large(call: Call, message: str, took: float) -> Figures:
    """What the compiler says where it gives up. Raises RuntimeError where that is no matter of memory."""
    if "RESOURCE_EXHAUSTED" not in message and "out of memory" not in message:
        raise RuntimeError(f"{call.name} does not compile: {message}")
    size = re.search(r"(?:temporaries \(|Used )([\d.]+)([KMGT]?)", message)
    needs = float(size.group(1)) * _UNITS[size.group(2)] if size else math.inf
    words = "the compiler found no way to run it in the chip's memory"
    return Figures(call.name, call.runs, took, needs=needs, error=words)
