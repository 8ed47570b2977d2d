"""The variants by name, each a `dataclasses.replace` of another, and the objective's form in a config.

In YAML an objective is a preset's name, or a mapping that starts from one and replaces slots:

    objective:
      preset: f_grpo
      advantage: [{name: group}, {name: focal, gamma: 1.0}]
      clip: {name: ppo, low: 0.2, high: 0.28}
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from rlvr_jax import registry
from rlvr_jax.objective import (  # noqa: F401  (importing a slot file registers its stages)
    advantages,
    aggregates,
    clips,
    masks,
    passes,
    ratios,
    regularisers,
    rewards,
)
from rlvr_jax.objective.base import Chain, Part, chain
from rlvr_jax.objective.objective import CREDIT_SLOTS, Objective

_grpo = Objective()
_dr_grpo = dataclasses.replace(
    _grpo, advantage=chain(advantages.Center()), aggregate=aggregates.FixedLength()
)
_dapo = dataclasses.replace(_grpo, clip=clips.Ppo(0.2, 0.28), aggregate=aggregates.TokenMean())
_f_grpo = dataclasses.replace(
    _grpo, advantage=chain(advantages.Group(), advantages.Focal(0.5)), aggregate=aggregates.TokenMean()
)
_f_dapo = dataclasses.replace(_dapo, advantage=_f_grpo.advantage)
_rloo = dataclasses.replace(
    _grpo,
    advantage=chain(advantages.LeaveOneOut()),
    ratio=ratios.NoRatio(),
    clip=clips.Unclipped(),
    aggregate=aggregates.FixedLength(),  # log pi of a response is the sum over its tokens, not their mean
)
_imitation = dataclasses.replace(
    _grpo,
    advantage=chain(),
    ratio=ratios.NoRatio(),
    clip=clips.Unclipped(),
    aggregate=aggregates.TokenMean(),
)

PRESETS: Mapping[str, Objective] = {
    "grpo": _grpo,
    "dr_grpo": _dr_grpo,
    "rloo": _rloo,
    "dapo": _dapo,
    "f_grpo": _f_grpo,
    "f_dapo": _f_dapo,
    "imitation": _imitation,
}

SOURCES: Mapping[str, str] = {
    "grpo": "arXiv:2402.03300. Group-normalised rewards, PPO clip 0.2, mean over tokens then over responses, no KL.",
    "dr_grpo": "arXiv:2503.20783. Centred rewards without division by the deviation, sum over tokens over a constant.",
    "rloo": "arXiv:2402.14740. Leave-one-out baseline, plain policy gradient, sum over tokens over a constant.",
    "dapo": "arXiv:2503.14476. Clip-higher 0.2/0.28 and token mean; add reward overlong or mask drop_truncated to taste.",
    "f_grpo": "arXiv:2602.06717. GRPO with the focal weight (1 - success rate)^0.5; token mean as in the paper's runs.",
    "f_dapo": "arXiv:2602.06717. DAPO with the same focal weight.",
    "imitation": "Maximum likelihood of given responses weighted by their reward: the supervised warm-up.",
}
"""One line for each preset: source, and what sets it apart. Printed by `rlvr-jax variants`."""

_PLURAL = {"gates": "gate", "regularisers": "regulariser"}
"""Field of the objective -> registry slot, where they differ."""


def preset(name: str) -> Objective:
    """An objective by name; the error offers the nearest."""
    if name not in PRESETS:
        raise ValueError(
            f"no objective called {name!r}.{registry.nearest(name, PRESETS)} Known: {', '.join(sorted(PRESETS))}."
        )
    return PRESETS[name]


def to_config(objective: Objective) -> dict[str, Any]:
    """Plain data that `from_config` turns into an equal objective."""
    out: dict[str, Any] = {}
    for field in dataclasses.fields(Objective):
        value = getattr(objective, field.name)
        if isinstance(value, Chain):
            value = value.stages
        out[field.name] = [_plain(p) for p in value] if isinstance(value, tuple) else _plain(value)
    return out


def from_config(value: Any) -> Objective:
    """The objective that a config means: a preset's name, or a mapping of slots over one (`grpo` unless `preset` says).

    Raises ValueError for an unknown preset, slot, stage or field, with the nearest known name.
    """
    if isinstance(value, str):
        return preset(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"objective is a preset's name or a mapping of slots, got {value!r}.")
    slots = dict(value)
    name = slots.pop("preset", "grpo")
    if not isinstance(name, str):
        raise ValueError(f"objective.preset is a name, one of {', '.join(sorted(PRESETS))}; got {name!r}.")
    start = preset(name)
    fields = {f.name for f in dataclasses.fields(Objective)}
    for slot in slots:
        if slot not in fields:
            raise ValueError(
                f"an objective has no slot {slot!r}.{registry.nearest(str(slot), fields)} Its slots: {', '.join(sorted(fields))}."
            )
    return dataclasses.replace(start, **{slot: _parts(slot, found) for slot, found in slots.items()})


def _plain(part: Part) -> dict[str, Any]:
    return {"name": part.name, **dataclasses.asdict(part)}  # type: ignore[call-overload]


def _parts(slot: str, value: Any) -> Any:
    kind = _PLURAL.get(slot, slot)
    if slot in CREDIT_SLOTS:
        return chain(*(_part(kind, v) for v in _listed(slot, value)))
    if slot in _PLURAL:
        return tuple(_part(kind, v) for v in _listed(slot, value))
    return _part(kind, value)


def _listed(slot: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"objective.{slot} is a list of stages ([] for none), got {value!r}.")
    return list(value)


def _part(kind: str, value: Any) -> Any:
    fields = {"name": value} if isinstance(value, str) else value
    if not isinstance(fields, Mapping) or not isinstance(fields.get("name"), str):
        raise ValueError(
            f"objective: {kind} is a name, or a mapping with `name` and its fields, got {value!r}."
        )
    fields = {str(key): v for key, v in fields.items()}
    name = fields.pop("name")
    return registry.construct(registry.lookup(kind, name), f"{kind} {name!r}", fields)
