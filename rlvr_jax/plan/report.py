"""A plan as plain data, and as text."""

import dataclasses
import math
from typing import Any

from rlvr_jax.config import Config
from rlvr_jax.plan.advice import advice
from rlvr_jax.plan.chips import GIB
from rlvr_jax.plan.measure import Figures
from rlvr_jax.plan.planning import Planned
from rlvr_jax.plan.topology import Target


def as_json(config: Config, found: Planned, target: Target) -> dict[str, Any]:
    """Everything, for `--json`: bytes, seconds, operations."""
    chip = target.chip
    return {
        "topology": found.topology,
        "devices": found.devices,
        "mesh": found.mesh,
        "chip": None if chip is None else dataclasses.asdict(chip),
        "fits": found.fits(target),
        "programs": {each.name: _program(each, found, target) for each in found.figures},
        "step_seconds": _plain(found.step_seconds()),
        "mfu": _plain(found.mfu(target)),
        "missing": target.missing,
        "advice": advice(config, found, target),
        "seconds_to_plan": found.seconds_to_plan,
    }


def _program(each: Figures, found: Planned, target: Target) -> dict[str, Any]:
    memory = None if each.memory is None else {**dataclasses.asdict(each.memory), "peak": each.memory.peak}
    return {
        "runs": each.runs,
        "compile_seconds": each.compile_seconds,
        "fits": each.fits(target.chip),
        "memory": memory,
        "needs": _plain(each.needs),
        "flops": _plain(each.flops),
        "flops_of_one_device": _plain(found.once.get(each.name)),
        "useful_flops": _plain(found.useful.get(each.name)),
        "repeated": _plain(found.repeated(each.name)),
        "bytes": _plain(each.bytes),
        "collectives": {kind: dataclasses.asdict(traffic) for kind, traffic in each.collectives.items()},
        "seconds": {limit: float(s) for limit, s in each.seconds.items()},
        "seconds_apart": _plain(each.seconds_apart),
        "mfu": _plain(found.mfu(target, (each.name,))),
        "error": each.error,
    }


def _plain(x: Any) -> float | None:
    return None if x is None or not math.isfinite(x) else float(x)


def as_text(config: Config, found: Planned, target: Target) -> str:
    """Tables, then what they mean."""
    chip, mesh = target.chip, " x ".join(f"{name} {size}" for name, size in found.mesh.items())
    name = "processor" if chip is None else chip.name
    lines = [f"{found.topology}: {found.devices} {name} devices, mesh {mesh}"]
    if chip is not None:
        rates = (
            f"{chip.flops / 1e12:.0f} TFLOP/s, {chip.memory / GIB:.2f} GiB at {chip.bandwidth / 1e9:.0f} GB/s"
        )
        lines.append(f"each: {rates}, links {chip.link / 1e9:.0f} GB/s ({chip.source})")
    lines += ["", "GiB a device", *_table(_MEMORY, [_memory_row(each, target) for each in found.figures])]
    lines += [
        "",
        "one run of all devices",
        *_table(_WORK, [_work_row(each, found) for each in found.figures]),
    ]
    lines += ["", "GB that a device sends in one run (how often)", *_links(found)]
    if chip is not None:
        lines += [
            "",
            "seconds at the least",
            *_table(_TIME, [_time_row(each, found, target) for each in found.figures]),
        ]
        step, mfu = found.step_seconds(), found.mfu(target)
        if step is not None and mfu is not None:
            lines.append(f"a training step: {_number(step)} s at the least, {mfu:.1%} of the devices' peak")
        lines.append(
            "As if every answer had sampling.max_new_tokens, and nothing but products, memory and links took time."
        )
    lines += ["", *(f"* {each.name}: {each.error}" for each in found.figures if each.error)]
    lines += [f"* {words}" for words in advice(config, found, target)]
    lines += [target.missing] if target.missing else []
    lines.append(f"{_VERDICT[found.fits(target)]} Planned in {found.seconds_to_plan:.0f} s.")
    return "\n".join(lines)


_VERDICT = {True: "It fits.", False: "It does not fit.", None: "Whether it fits is not known."}
_MEMORY = ("", "arguments", "outputs", "in place", "temporaries", "code", "beside", "peak", "of")
_WORK = ("", "FLOP", "one device", "repeated", "GB of memory", "compiled in s")
_TIME = ("", "runs", "products", "memory", "links", "together", "if nothing overlaps", "MFU")


def _memory_row(each: Figures, target: Target) -> list[str]:
    m, most = each.memory, "-" if target.chip is None else f"{target.chip.memory / GIB:.2f}"
    if m is None:
        needs = "more" if each.needs is None or not math.isfinite(each.needs) else f"> {each.needs / GIB:.2f}"
        return [each.name, *["-"] * 6, needs, most]
    parts = [m.arguments, m.outputs, m.aliased, m.temporaries, m.code, m.beside]
    shown = ["-" if x is None else f"{x / GIB:.2f}" for x in parts]
    return [each.name, *shown, f"{'>= ' if m.temporaries is None else ''}{m.peak / GIB:.2f}", most]


def _work_row(each: Figures, found: Planned) -> list[str]:
    once, repeated = found.once.get(each.name), found.repeated(each.name)
    return [
        each.name,
        "-" if each.flops is None else _number(each.flops),
        "-" if once is None else _number(once),
        "-" if repeated is None else f"{repeated:+.1%}",
        "-" if each.bytes is None else _number(each.bytes / 1e9),
        f"{each.compile_seconds:.0f}",
    ]


def _time_row(each: Figures, found: Planned, target: Target) -> list[str]:
    mfu = found.mfu(target, (each.name,))
    limits = [_number(each.seconds[k]) if each.seconds else "-" for k in ("products", "memory", "links")]
    return [
        each.name,
        _number(each.runs),
        *limits,
        "-" if each.fastest is None else _number(each.fastest),
        "-" if each.seconds_apart is None else _number(each.seconds_apart),
        "-" if mfu is None else f"{mfu:.1%}",
    ]


def _links(found: Planned) -> list[str]:
    kinds = sorted({kind for each in found.figures for kind in each.collectives})
    if not kinds:
        return ["nothing"]
    rows = []
    for each in found.figures:
        cells = [each.collectives.get(kind) for kind in kinds]
        rows.append(
            [each.name, *("-" if c is None else f"{_number(c.bytes / 1e9)} ({c.count:.0f})" for c in cells)]
        )
    return _table(("", *kinds), rows)


def _number(x: float) -> str:
    """Three digits: 12.3, 4560, 7.89e+15."""
    return f"{x:.3g}" if abs(x) < 1000 or abs(x) >= 1e6 else f"{x:.0f}"


def _table(head: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    """The first column to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [[*head], *rows]
    return [
        "  ".join(
            [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    ]
