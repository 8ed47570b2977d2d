"""Names for everything a config can pick: `register("advantage", "focal")`, then `build("advantage", "focal", gamma=2)`."""

import dataclasses
import difflib
import types
import typing
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
    """Slots that something is registered in, in alphabetical order."""
    return tuple(sorted(_TABLE))


def names(slot: str) -> tuple[str, ...]:
    """What a slot knows, in alphabetical order."""
    return tuple(sorted(_TABLE.get(slot, {})))


def lookup(slot: str, name: str) -> type:
    """The class registered under a name; the error offers the nearest one."""
    if name not in _TABLE.get(slot, {}):
        raise ValueError(
            f"no {slot} called {name!r}.{nearest(name, names(slot))} Known: {', '.join(names(slot))}; one of your own is "
            "known once the module that registers it is imported."
        )
    return _TABLE[slot][name]


def build(slot: str, name: str, **fields: Any):
    """Construct by name. Unknown names, unknown fields and values of a wrong type are errors that say what fits."""
    return construct(lookup(slot, name), f"{slot} {name!r}", fields)


def construct(cls: type, where: str, values: dict[str, Any]):
    """A dataclass from plain values: every key must be a field, every value must fit the field's type."""
    hints = typing.get_type_hints(cls)
    known = [f.name for f in dataclasses.fields(cls)]
    for key in values:
        if key not in known:
            raise ValueError(
                f"{where} has no field {key!r};{nearest(key, known)} its fields are {', '.join(known) or 'none'}."
            )
    return cls(**{key: fit(f"{where} field {key!r}", hints[key], value) for key, value in values.items()})


def fit(where: str, hint: Any, value: Any) -> Any:
    """`value` as the annotated type, or a ValueError. Numbers may be strings that read as such (YAML's 1e-6)."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        rest = [a for a in args if a is not type(None)]
        return fit(where, rest[0], value) if len(rest) == 1 else value
    if origin is typing.Literal:
        if value not in args:
            raise ValueError(f"{where} is one of {', '.join(map(str, args))}, got {value!r}.")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where} is a list, got {value!r}.")
        return tuple(fit(where, args[0], v) for v in value)
    if hint not in (int, float, str, bool) or type(value) is hint:
        return value
    if hint in (int, float) and not isinstance(value, bool):
        try:
            number = float(value)
            if hint is float or number.is_integer():
                return hint(number)
        except (TypeError, ValueError, OverflowError):
            pass
    noun = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[hint]
    raise ValueError(f"{where} is {noun}, got {value!r}.")


def nearest(word: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' where something is near, else ''."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f" Did you mean {near[0]!r}?" if near else ""
