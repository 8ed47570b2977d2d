"""A compiled program, read from XLA's text: what one device computes, reads and sends, loop bodies as often as they run.

The text is that of the optimised module (`jax.stages.Compiled.as_text`), after XLA has split the program over the devices,
so every shape is that of one device.
"""

import dataclasses
import functools
import math
import re
from collections import defaultdict
from collections.abc import Iterator

_BYTES = {"pred": 1.0, "bf16": 2.0, "f16": 2.0, "c64": 8.0, "token": 0.0}
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,]*)\](?:\{([^{}]*)\})?")
_NAME = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|branch_computations|called_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)


@dataclasses.dataclass(frozen=True)
class Shape:
    """One array, and whether it is in the device's main memory: not on the chip, in the host, or a number."""

    type: str
    sizes: tuple[int, ...]
    in_memory: bool

    @property
    def bytes(self) -> float:
        bits = re.search(r"\d+", self.type)
        each = _BYTES[self.type] if self.type in _BYTES else int(bits.group()) / 8 if bits else 0
        return float(math.prod(self.sizes) * each)


@dataclasses.dataclass(frozen=True, eq=False)
class Instruction:
    """`name = shapes op(operands), rest`."""

    name: str
    op: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    rest: str
    root: bool

    @functools.cached_property
    def called(self) -> tuple[str, ...]:
        found = [word for words in _CALLED.findall(self.rest) for word in re.findall(r"[\w.\-]+", words)]
        return tuple(found)

    def number_in(self, key: str) -> int | None:
        found = re.search(rf"{key}\D{{1,8}}(\d+)", self.rest)
        return int(found.group(1)) if found else None


Computation = dict[str, Instruction]


@dataclasses.dataclass(frozen=True, eq=False)
class Module:
    """Computations by name. `times` says how often each one runs in one run of the program; where it branches, that is the
    branch with the fewest instructions: what is counted is the least that a run does."""

    computations: dict[str, Computation]
    times: dict[str, float]
    fused: frozenset[str]
    """Those that are the body of a fusion: what they read and write is counted where they are called."""

    def __iter__(self) -> Iterator[tuple[str, float, Computation]]:
        for name, times in self.times.items():
            yield name, times, self.computations[name]


def parse(text: str, *, turns: int = 1) -> Module:
    """Read a module. A loop whose number of turns the text does not say makes `turns`."""
    computations: dict[str, Computation] = {}
    here: Computation = {}
    entry = ""
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY ")):
            if head := _HEAD.match(line):
                here = computations.setdefault(head.group(2), {})
                entry = head.group(2) if head.group(1) else entry
        elif line.rstrip() == "}":
            here = {}
        elif (found := _instruction(line)) is not None:
            here[found.name] = found
    times: dict[str, float] = defaultdict(float)
    fused = set()

    def visit(name: str, often: float) -> None:
        times[name] += often
        for each in computations[name].values():
            if each.op == "fusion":
                fused.update(each.called)
            factor = _turns(each, computations, turns) if each.op == "while" else 1.0
            inside = [c for c in each.called if c in computations and not _is_scalar(computations[c])]
            if each.op == "conditional":
                inside = sorted(inside, key=lambda name: _size(name, computations))[:1]
            for called in inside:
                visit(called, often * factor)

    visit(entry, 1.0)
    return Module(computations, dict(times), frozenset(fused))


def _instruction(line: str) -> Instruction | None:
    name = _NAME.match(line)
    if name is None:
        return None
    rest = line[name.end() :]
    kind = re.search(r"(?:^|[\s)}\]]) ?([a-z][\w\-]*)\(", _without_comments(rest))
    rest = _without_comments(rest)
    if kind is None:
        return None
    shapes = tuple(_shape(m) for m in _SHAPE.finditer(rest[: kind.start(1)]))
    inside, after = _parenthesis(rest, kind.end() - 1)
    operands = tuple(re.findall(r"%([\w.\-]+)", inside)) or (inside,)
    return Instruction(name.group(2), kind.group(1), shapes, operands, after, bool(name.group(1)))


def _without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text)


def _shape(found: re.Match) -> Shape:
    sizes = tuple(int(n) for n in found.group(2).split(",") if n)
    space = re.search(r"S\((\d+)\)", found.group(3) or "")
    return Shape(found.group(1), sizes, bool(sizes) and (space is None or space.group(1) == "0"))


def _parenthesis(text: str, start: int) -> tuple[str, str]:
    """What is inside the parenthesis that opens at `start`, and what is behind it."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return text[start + 1 : i], text[i + 1 :]
    return text[start + 1 :], ""


def _turns(loop: Instruction, computations: dict[str, Computation], unknown: int) -> int:
    """Of a loop: as XLA notes it, else the bound that its counter is compared with, over what a turn adds to it."""
    noted = loop.number_in("known_trip_count")
    if noted is not None:
        return noted
    condition = re.search(r"condition=%?([\w.\-]+)", loop.rest)
    if condition is None:
        return unknown
    body = computations[condition.group(1)]
    root = next(each for each in body.values() if each.root)
    bounds = [body[name] for name in root.operands if name in body and body[name].op == "constant"]
    if root.op != "compare" or "direction=LT" not in root.rest or not bounds:
        inner = [c for each in body.values() if each.op == "fusion" for c in each.called]
        return _bound_in_fusion(body, [computations[c] for c in inner], unknown)
    return -(-int(bounds[0].operands[0]) // _step(loop, body, root, computations))


def _step(
    loop: Instruction, condition: Computation, compare: Instruction, computations: dict[str, Computation]
) -> int:
    """What a turn adds to the counter: more than 1 where several turns are written as one. 1 where the text does not say."""
    counter = next(
        (condition[name].number_in("index") for name in compare.operands if name in condition), None
    )
    name = re.search(r"body=%?([\w.\-]+)", loop.rest)
    if counter is None or name is None:
        return 1
    body, step = computations[name.group(1)], 0
    carried = next(each for each in body.values() if each.root).operands
    here = body.get(carried[counter]) if counter < len(carried) else None
    while here is not None and here.op in ("add", "copy", "bitcast"):
        operands = [body[operand] for operand in here.operands if operand in body]
        step += sum(int(each.operands[0]) for each in operands if each.op == "constant")
        here = next((each for each in operands if each.op != "constant"), None)
    return max(step, 1)


def _bound_in_fusion(body: Computation, fused: list[Computation], unknown: int) -> int:
    """Some backends wrap the comparison: then it is the only instruction of a fusion, and its bound beside it."""
    root = next(each for each in body.values() if each.root)
    constants = [each for each in body.values() if each.op == "constant"]
    compares = [each for c in fused for each in c.values() if each.op == "compare"]
    if root.op == "fusion" and len(constants) == len(compares) == 1 and "direction=LT" in compares[0].rest:
        return int(constants[0].operands[0])
    return unknown


def _size(name: str, computations: dict[str, Computation]) -> int:
    """Instructions of a computation and all that it calls."""
    here = computations[name].values()
    inside = [called for each in here for called in each.called if called in computations]
    return len(here) + sum(_size(called, computations) for called in inside)


def _is_scalar(computation: Computation) -> bool:
    """What a reduction applies to pairs of numbers."""
    return all(not shape.sizes for each in computation.values() for shape in each.shapes) and not any(
        each.called for each in computation.values()
    )
