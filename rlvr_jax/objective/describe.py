"""Objectives for people to read: the presets, and the pipeline of one with its formulas."""

import dataclasses
import inspect
from typing import Any

from rlvr_jax.objective.base import Chain, Part
from rlvr_jax.objective.objective import Objective
from rlvr_jax.objective.presets import PRESETS, SOURCES, preset


@dataclasses.dataclass(frozen=True)
class Description:
    """The same content as text and as plain data."""

    text: str
    data: Any


def listing() -> Description:
    """Every preset with its source."""
    width = max(map(len, PRESETS))
    lines = [f"{name:<{width}}  {SOURCES[name]}" for name in PRESETS]
    return Description(text="\n".join(lines), data=[{"name": n, "source": SOURCES[n]} for n in PRESETS])


def describe(name: str) -> Description:
    """The pipeline of one preset, slot by slot: each part's fields, formula and source."""
    lines, data = [f"{name}: {SOURCES[name] if name in SOURCES else ''}"], []
    objective = preset(name)
    for field in dataclasses.fields(Objective):
        for part in _parts(getattr(objective, field.name)):
            values = dataclasses.asdict(part)  # type: ignore[call-overload]
            shown = ", ".join(f"{k}={v}" for k, v in values.items())
            doc = inspect.getdoc(type(part)) or ""
            lines += [
                "",
                f"{field.name}: {part.name}({shown})",
                *(f"    {line}".rstrip() for line in doc.splitlines()),
            ]
            data.append({"slot": field.name, "name": part.name, **values, "doc": doc})
    reads = sorted(f"{which}.{stat}" for which, stat in objective.needs)
    notes = list(objective.notes)
    lines += ["", f"reads: {', '.join(reads)}", *(f"note: {note}" for note in notes)]
    return Description(
        text="\n".join(lines), data={"name": name, "parts": data, "reads": reads, "notes": notes}
    )


def _parts(value: Any) -> tuple[Part, ...]:
    if isinstance(value, Chain):
        return value.stages
    return value if isinstance(value, tuple) else (value,)
