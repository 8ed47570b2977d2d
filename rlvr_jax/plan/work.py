"""What one device does in a compiled program: products, bytes of its memory, and what goes over the links."""

import dataclasses
import math
import re
from collections.abc import Mapping

import numpy as np

from rlvr_jax.plan.flops import dot_flops
from rlvr_jax.plan.hlo import Computation, Instruction, Module

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_IN_PLACE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call"}
_IN_PLACE |= {
    "after-all",
    "partition-id",
    "iota",
    "optimization-barrier",
    "copy-done",
    "slice-done",
    "domain",
}
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""What writes a part of its first operand in place, and which operand holds that part."""


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Collectives of one kind: how often one is begun, and the bytes that a device sends."""

    count: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.count + other.count, self.bytes + other.bytes)


@dataclasses.dataclass(frozen=True)
class Work:
    """Of one device, in one run of a part of the program that runs `times`."""

    times: float
    flops: float
    bytes: float
    collectives: Mapping[str, Traffic]

    @property
    def sent(self) -> float:
        return math.fsum(each.bytes for each in self.collectives.values())


def work(module: Module) -> list[Work]:
    """By computation: those of a fusion belong to the one that calls it.

    Products in kernels (custom calls) are not in it, see `flops.kernel_flops`.
    """
    found = []
    for name, times, computation in module:
        if name not in module.fused:
            flops = math.fsum(_products(each, computation, module) for each in computation.values())
            moved = math.fsum(_moved(each, computation, module) for each in computation.values())
            found.append(Work(times, flops, moved, _collectives(computation, module)))
    return found


def total(works: list[Work]) -> dict[str, Traffic]:
    """All collectives of a program by their kind."""
    out: dict[str, Traffic] = {}
    for each in works:
        for kind, traffic in each.collectives.items():
            more = Traffic(each.times * traffic.count, each.times * traffic.bytes)
            out[kind] = out.get(kind, Traffic()) + more
    return dict(sorted(out.items()))


# ---- products ------------------------------------------------------------------------------------------------------


def _products(each: Instruction, here: Computation, module: Module) -> float:
    if each.op == "fusion":
        inside = [module.computations[c] for c in each.called if c in module.computations]
        return math.fsum(
            _products(x, computation, module) for computation in inside for x in computation.values()
        )
    out = each.shapes[0].sizes if each.shapes else ()
    if each.op == "dot":
        left = here[each.operands[0]].shapes[0].sizes
        return dot_flops(left, _numbers("lhs_contracting_dims", each.rest), out)
    if each.op == "convolution":
        left, kernel = (here[name].shapes[0].sizes for name in each.operands[:2])
        return _convolution(each, left, kernel, out)
    if each.op == "custom-call" and re.search(
        r"matmul|gemm|dot", each.rest.split('custom_call_target="')[-1][:40]
    ):
        left, right = (math.prod(here[name].shapes[0].sizes) for name in each.operands[:2])
        return 2.0 * math.sqrt(left * right * math.prod(out))  # m k, k n and m n
    return 0.0


def _convolution(
    each: Instruction, left: tuple[int, ...], kernel: tuple[int, ...], out: tuple[int, ...]
) -> float:
    """How TPUs write products: two for each output, input feature, and place of the window that meets a number. What is summed
    may be a window, and so may batch axes of both, padded or dilated so that each output meets one place of it."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", each.rest)
    if labels is None:
        return 0.0
    x, w, y = (
        dict(zip(found, sizes, strict=True))
        for found, sizes in zip(labels.groups(), (left, kernel, out), strict=True)
    )
    axes = [axis for axis in "0123456789" if axis in w]

    def window(key: str, default: str) -> list[str]:
        found = re.search(rf"\b{key}=([\d_x-]+)", each.rest)
        return found.group(1).split("x") if found else [default] * len(axes)

    met = 1
    for i, axis in enumerate(axes):
        stride, spread, apart = (int(window(key, "1")[i]) for key in ("stride", "rhs_dilate", "lhs_dilate"))
        before = int(window("pad", "0_0")[i].split("_")[0])
        place = np.add.outer(stride * np.arange(y[axis]), spread * np.arange(w[axis])) - before
        met *= int(((place >= 0) & (place <= (x[axis] - 1) * apart) & (place % apart == 0)).sum())
    return 2.0 * y["b"] * y["f"] * w["i"] * met


def _numbers(key: str, text: str) -> tuple[int, ...]:
    found = re.search(rf"{key}={{([\d,]*)}}", text)
    return tuple(int(n) for n in found.group(1).split(",") if n) if found else ()


# ---- memory --------------------------------------------------------------------------------------------------------


def _moved(each: Instruction, here: Computation, module: Module) -> float:
    """Bytes from and to the main memory. Of an array that is cut, only the part that is read or written."""
    if each.op in _IN_PLACE or each.op.removesuffix("-done") in KINDS:
        return 0.0
    same = (
        {int(n) for n in re.findall(r"{(\d+)}: \(\d+", each.rest)}
        if "output_to_operand" in each.rest
        else set()
    )
    written = math.fsum(s.bytes for i, s in enumerate(each.shapes) if s.in_memory and i not in same)
    if each.op in ("copy-start", "slice-start"):  # (result, operand, context)
        return math.fsum(
            2 * s.bytes if len(each.shapes) == 1 else s.bytes for s in each.shapes[:2] if s.in_memory
        )
    if each.op in _UPDATES:
        return 2 * _bytes(each.operands[_UPDATES[each.op]], here)
    if each.op in ("dynamic-slice", "gather", "slice"):
        return 2 * written
    if each.op != "fusion" or not each.called or each.called[0] not in module.computations:
        return written + math.fsum(_bytes(name, here) for name in set(each.operands))
    body = module.computations[each.called[0]]
    read = 0.0
    for i, name in enumerate(each.operands):
        whole = _bytes(name, here)
        read += min(whole, _read_of(_parameter(i, body), body, whole, module)) if whole else 0.0
    updates = [x for x in body.values() if x.op in _UPDATES and _is_whole(x, each)]
    for update in updates:
        written += math.fsum(s.bytes for s in body[update.operands[_UPDATES[update.op]]].shapes) - math.fsum(
            s.bytes for s in update.shapes
        )
    return read + max(written, 0.0)


def _bytes(name: str, here: Computation) -> float:
    return math.fsum(s.bytes for s in here[name].shapes if s.in_memory) if name in here else 0.0


def _is_whole(update: Instruction, fusion: Instruction) -> bool:
    """Whether what is updated in place is a result of the fusion."""
    return any(update.shapes and s.sizes == update.shapes[0].sizes and s.in_memory for s in fusion.shapes)


def _parameter(i: int, body: Computation) -> str:
    return next((name for name, x in body.items() if x.op == "parameter" and int(x.operands[0]) == i), "")


def _read_of(name: str, body: Computation, whole: float, module: Module) -> float:
    """What is read of a fusion's argument, which fusions inside it may cut."""
    read = 0.0
    for user in body.values():
        if name not in user.operands:
            continue
        if user.op in ("dynamic-slice", "slice", "gather") and user.operands[0] == name:
            read += math.fsum(s.bytes for s in user.shapes)
        elif user.op in _UPDATES and user.operands[0] == name:
            continue
        elif user.op in KINDS or "AsyncCollective" in user.rest or user.op == "tuple":
            continue  # on its way beside the fusion
        elif user.op == "bitcast":
            read += _read_of(user.name, body, whole, module)
        elif user.op == "fusion" and user.called and user.called[0] in module.computations:
            inside = module.computations[user.called[0]]
            for i in (i for i, operand in enumerate(user.operands) if operand == name):
                read += _read_of(_parameter(i, inside), inside, whole, module)
        else:
            return whole
    return read


# ---- links ---------------------------------------------------------------------------------------------------------


def _collectives(computation: Computation, module: Module, fused: bool = False) -> dict[str, Traffic]:
    """Those that are begun here. One that runs beside a chain of fusions is in all of them; it begins where it says so."""
    out: dict[str, Traffic] = {}
    begins = not fused or any("AsyncCollectiveStart" in x.rest for x in computation.values())
    scatters = fused and any(x.op == "dynamic-slice" for x in computation.values())
    for each in computation.values():
        kind = each.op.removesuffix("-start")
        if each.op == "fusion" or (each.op == "async-start" and each.called):
            for name in each.called:
                inside = _collectives(module.computations[name], module, fused=True)
                for key, traffic in inside.items():
                    out[key] = out.get(key, Traffic()) + traffic
        elif kind in KINDS and (begins or scatters):
            if kind == "all-reduce" and scatters and not begins:
                kind = "reduce-scatter"
            sent = _sent(kind, each, computation)
            out[kind] = out.get(kind, Traffic()) + Traffic(1.0, sent)
    return out


def _sent(kind: str, each: Instruction, here: Computation) -> float:
    """Bytes that a device sends to its neighbours, where groups are rings: the least that any schedule can do."""
    given = math.fsum(s.bytes for name in each.operands if name in here for s in here[name].shapes)
    n = _group(each.rest)
    others = 1 - 1 / n if n else 1.0
    if kind == "all-gather":
        return given * (n - 1 if n else 1)
    if kind == "all-reduce":
        return 2 * given * others
    return given if kind.startswith("collective") else given * others


def _group(text: str) -> int:
    """How many devices take part in a collective, in any of XLA's three ways to write it; 0 where it does not say."""
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\] {([^}]*)}", text):
        sizes = {axis: int(size) for axis, size in re.findall(r"'(\w+)'=(\d+)", mesh.group(1))}
        return math.prod(sizes[axis] for axis in re.findall(r"'(\w+)'", mesh.group(2)))
    if tiles := re.search(r"replica_groups=\[(\d+),(\d+)\]", text):
        return int(tiles.group(2))
    if listed := re.search(r"replica_groups={{([\d,]+)}", text):
        return len(listed.group(1).split(","))
    return 0
