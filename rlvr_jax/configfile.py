"""Configs as files: YAML to `Config` and back, with `--field value` laid over it."""

import copy
import dataclasses
import json
import pathlib
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

import rlvr_jax.tasks  # noqa: F401  (registers every task)
from rlvr_jax import registry
from rlvr_jax.config import Config
from rlvr_jax.objective import Objective
from rlvr_jax.objective.presets import from_config, to_config
from rlvr_jax.rollout.tools import Tool
from rlvr_jax.tasks.base import Task
from rlvr_jax.tasks.rewards import AnswerReward

LISTED: dict[str, type] = {"tool": Tool, "task": Task, "answer_reward": AnswerReward}
"""What a config may hold lists of, each by its name in the registry's slot."""


def load(path: str | pathlib.Path, overrides: Sequence[str] = ()) -> Config:
    """A config from a YAML file and `--field value` words. Raises ValueError with one sentence that says what is wrong."""
    return parse(override(read(path), overrides))


def read(path: str | pathlib.Path) -> dict[Any, Any]:
    """The plain data of a YAML file. Raises ValueError for a file that is missing or holds no mapping."""
    path = pathlib.Path(path)
    if not path.is_file():
        near = registry.nearest(str(path), [str(p) for p in path.parent.glob("*.yaml")])
        raise ValueError(f"no config file {str(path)!r}.{near}")
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise ValueError(f"{path} holds {type(tree).__name__}, a config is a mapping of keys.")
    return tree


def parse(tree: Mapping[Any, Any]) -> Config:
    """A config from plain data."""
    return _section(Config, "config", tree)


def to_plain(config: Config) -> dict[str, Any]:
    """Plain data that `parse` turns into an equal config, every default spelt out."""
    return json.loads(json.dumps(_plain(config)))


def _plain(value: Any) -> Any:
    if isinstance(value, Objective):
        return to_config(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if not dataclasses.is_dataclass(value):
        # Only Python can put a function into a config; its name is for people to read.
        return getattr(value, "__qualname__", type(value).__qualname__) if callable(value) else value
    fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return {"name": value.name, **fields} if isinstance(value, Task | Tool | AnswerReward) else fields


def to_yaml(config: Config) -> str:
    """`to_plain` as text: the resolved config of a run."""
    return yaml.safe_dump(to_plain(config), sort_keys=False)


def _section(cls: type, where: str, value: Any) -> Any:
    """A dataclass from a mapping, and so on downwards."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is a mapping of keys, got {value!r}.")
    hints = typing.get_type_hints(cls)
    named = {str(k): v for k, v in value.items()}  # YAML has keys that are no text: 8, on, 2024-01-01
    values = {k: _field(hints.get(k), k if cls is Config else f"{where}.{k}", v) for k, v in named.items()}
    return registry.construct(cls, where, values)


def _field(hint: Any, where: str, value: Any) -> Any:
    if hint is Task or (hint == Task | None and value is not None):
        return _registered("task", where, value)
    for slot, kind in LISTED.items():
        if hint == tuple[kind, ...]:
            if not isinstance(value, list | tuple):
                raise ValueError(f"{where} is a list of {slot.replace('_', ' ')}s, got {value!r}.")
            return tuple(_registered(slot, where, each) for each in value)
    if hint is Objective:
        return from_config(value)
    kinds = [t for t in (hint, *typing.get_args(hint)) if isinstance(t, type) and dataclasses.is_dataclass(t)]
    left_out = value is None and type(None) in typing.get_args(hint)
    return _section(kinds[0], where, value) if kinds and not left_out else value


def _registered(slot: str, where: str, value: Any) -> Any:
    """A task or a tool, by its name."""
    fields = {"name": value} if isinstance(value, str) else value
    if not isinstance(fields, Mapping) or not isinstance(fields.get("name"), str):
        raise ValueError(f"{where} is a name, or a mapping with `name` and its fields; got {value!r}.")
    fields = {str(k): v for k, v in fields.items()}
    name = fields.pop("name")
    cls = registry.lookup(slot, name)
    hints = typing.get_type_hints(cls)
    fields = {k: _field(hints.get(k), f"{where}.{k}", v) for k, v in fields.items()}
    return registry.construct(cls, f"{slot} {name!r}", fields)


def parse_task(value: Any) -> Task:
    """A task from its name, or from a mapping with `name` and its fields."""
    return _registered("task", "task", value)


def override(tree: Mapping[Any, Any], words: Sequence[str]) -> dict[Any, Any]:
    """`tree` with `--a.b value` or `--a.b=value` laid over it. Dashes in a key count as underscores.

    A stage in a list of the objective is addressed by its name: `--objective.advantage.focal.gamma 1`.
    """
    out = copy.deepcopy(dict(tree))
    words = list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            raise ValueError(f"expected --field value, got {word!r}.")
        key, equals, text = word[2:].partition("=")
        if not equals:
            if not words:
                raise ValueError(f"--{key} has no value.")
            text = words.pop(0)
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        _put(out, key.replace("-", "_").split("."), value, f"--{key}")
    return out


def _put(tree: dict[Any, Any], path: list[str], value: Any, flag: str) -> None:
    head, rest = path[0], path[1:]
    if not rest:
        tree[head] = value
        return
    child = tree.get(head)
    if head == "objective" and rest == ["preset"]:
        child = _changeable(child, flag)
    elif head == "objective" and not _is_spelt_out(child):
        child = to_config(from_config(child if child is not None else "grpo"))
    elif isinstance(child, str):
        child = {"name": child}
    if isinstance(child, list):
        child = [{"name": c} if isinstance(c, str) else c for c in child]
        tree[head] = child
        named = [c for c in child if isinstance(c, dict) and c.get("name") == rest[0]]
        if not named or len(rest) < 2:
            names = ", ".join(str(c.get("name")) for c in child if isinstance(c, dict)) or "nothing"
            raise ValueError(f"{flag}: {head} holds {names}; name one of them and its field.")
        _put(named[0], rest[1:], value, flag)
        return
    if child is None:
        child = {}
    if not isinstance(child, dict):
        raise ValueError(f"{flag}: {head} is {child!r} and has no fields.")
    tree[head] = child
    _put(child, rest, value, flag)


def _changeable(objective: Any, flag: str) -> Any:
    """An objective whose preset can still be changed. Where all slots are set, a preset would do nothing, silently."""
    if _is_spelt_out(objective):
        raise ValueError(
            f"{flag}: every slot of the objective is set already, so its preset changes nothing; take another objective "
            "whole with --objective NAME, before its fields."
        )
    return objective if isinstance(objective, Mapping) else {}


def _is_spelt_out(objective: Any) -> bool:
    return isinstance(objective, Mapping) and {f.name for f in dataclasses.fields(Objective)} <= set(
        objective
    )
