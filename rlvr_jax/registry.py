"""Names for everything a config can pick: `register("advantage", "focal")`, then `build("advantage", "focal", gamma=2)`."""

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any, TypeVar

_TABLE: dict[str, dict[str, type]] = {}

C = TypeVar("C", bound=type)


def register(slot: str, name: str):
    """Class decorator. The class is a frozen dataclass whose fields all have defaults; it learns its `name`."""

    def add(cls: C) -> C:
        names = _TABLE.setdefault(slot, {})
        if name in names:
            raise ValueError(f"{slot} {name!r} is already {names[name].__qualname__}; pick another name.")
        names[name] = cls
        cls.slot, cls.name = slot, name
        return cls

    return add


def slots() -> tuple[str, ...]:
    return tuple(sorted(_TABLE))


def names(slot: str) -> tuple[str, ...]:
    return tuple(sorted(_TABLE.get(slot, {})))


def lookup(slot: str, name: str) -> type:
    """The class registered under a name; the error offers the nearest one."""
    if name not in _TABLE.get(slot, {}):
        raise ValueError(
            f"no {slot} called {name!r}.{nearest(name, names(slot))} Known: {', '.join(names(slot))}."
        )
    return _TABLE[slot][name]


def build(slot: str, name: str, **fields: Any):
    """Construct by name. Unknown names and unknown fields are errors that list what there is."""
    cls = lookup(slot, name)
    known = [f.name for f in dataclasses.fields(cls)]
    for field in fields:
        if field not in known:
            raise ValueError(
                f"{slot} {name!r} has no field {field!r};{nearest(field, known)} its fields are {', '.join(known) or 'none'}."
            )
    return cls(**fields)


def nearest(word: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' where something is near, else ''."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f" Did you mean {near[0]!r}?" if near else ""
