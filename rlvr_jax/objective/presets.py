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
    gates,
    masks,
    passes,
    ratios,
    regularisers,
    response_weights,
    rewards,
    token_weights,
    virtual,
)
from rlvr_jax.objective.base import Chain, Part, chain
from rlvr_jax.objective.objective import CREDIT_SLOTS, Objective

_grpo = Objective()
_dr_grpo = dataclasses.replace(
    _grpo, advantage=chain(advantages.Center()), aggregate=aggregates.FixedLength()
)
_clip_higher = dataclasses.replace(_grpo, clip=clips.Ppo(0.2, 0.28), aggregate=aggregates.TokenMean())
_dapo = dataclasses.replace(
    _clip_higher, reward=chain(rewards.Overlong()), mask=chain(masks.DropUniformGroups())
)
_f_grpo = dataclasses.replace(
    _grpo, advantage=chain(advantages.Group(), advantages.Focal(0.5)), aggregate=aggregates.TokenMean()
)
_f_dapo = dataclasses.replace(_clip_higher, advantage=_f_grpo.advantage)
_rloo = dataclasses.replace(
    _grpo,
    advantage=chain(advantages.LeaveOneOut()),
    ratio=ratios.NoRatio(),
    clip=clips.Unclipped(),
    aggregate=aggregates.FixedLength(),  # log pi of a response is the sum over its tokens, not their mean
)
_cispo = dataclasses.replace(_grpo, clip=clips.Cispo(1.0, 5.0), aggregate=aggregates.TokenMean())
_f_cispo = dataclasses.replace(_cispo, advantage=_f_grpo.advantage)
_gspo = dataclasses.replace(_grpo, ratio=ratios.Sequence(), clip=clips.Ppo(3e-4, 4e-4))
_gspo_token = dataclasses.replace(_gspo, ratio=ratios.GspoToken())
_reweighting = dataclasses.replace(
    _grpo,
    token_weight=chain(token_weights.Probability(0.2)),
    clip=clips.Dual(0.2, 0.24, 10.0),
    aggregate=aggregates.TokenMean(),
)
_lopti = dataclasses.replace(_reweighting, token_weight=chain(), passes=passes.ByProbability(0.4))
_ar_lopti = dataclasses.replace(
    _reweighting, token_weight=chain(token_weights.Probability(0.3)), passes=passes.ByProbability(0.5)
)
_rule_80_20 = dataclasses.replace(
    _clip_higher, mask=chain(token_weights.TopEntropy(0.2)), clip=clips.Dual(0.2, 0.28, 10.0)
)
_reco = dataclasses.replace(
    _grpo,
    response_weight=chain(response_weights.InverseOccurrence()),
    ratio=ratios.BernoulliVariance(),
    clip=clips.PpoRegion(0.2, 0.2),
    aggregate=aggregates.TokenMean(),
)
_reco_dapo = dataclasses.replace(_reco, clip=clips.PpoRegion(0.2, 0.28))
_reco_80_20 = dataclasses.replace(_reco_dapo, mask=_rule_80_20.mask)
_grpo_sg = dataclasses.replace(_grpo, gates=(gates.Confidence(),))
_avspo = dataclasses.replace(_grpo, advantage=chain(virtual.Virtual()), aggregate=aggregates.TokenMean())
_avspo_official = dataclasses.replace(_avspo, advantage=chain(virtual.VirtualOfficial()))
_dcpo = dataclasses.replace(
    _grpo,
    advantage=chain(advantages.Smooth()),
    clip=clips.Dynamic(0.16, 0.2, 10.0),
    aggregate=aggregates.SequenceSum(),
)
_intuitor = dataclasses.replace(_grpo, reward=chain(rewards.SelfCertainty()))
_rent = dataclasses.replace(_grpo, reward=chain(rewards.NegativeEntropy()))
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
    "cispo": _cispo,
    "gspo": _gspo,
    "gspo_token": _gspo_token,
    "f_grpo": _f_grpo,
    "f_dapo": _f_dapo,
    "f_cispo": _f_cispo,
    "reco": _reco,
    "reco_dapo": _reco_dapo,
    "reco_80_20": _reco_80_20,
    "grpo_sg": _grpo_sg,
    "avspo": _avspo,
    "avspo_official": _avspo_official,
    "dcpo": _dcpo,
    "intuitor": _intuitor,
    "rent": _rent,
    "rule_80_20": _rule_80_20,
    "advantage_reweighting": _reweighting,
    "lopti": _lopti,
    "ar_lopti": _ar_lopti,
    "imitation": _imitation,
}

SOURCES: Mapping[str, str] = {
    "grpo": "arXiv:2402.03300. Group-normalised rewards, PPO clip 0.2, mean over tokens then over responses; their KL (0.04) is left out.",
    "dr_grpo": "arXiv:2503.20783. Centred rewards without division by the deviation, sum over tokens over a constant.",
    "rloo": "arXiv:2402.14740. Leave-one-out baseline, plain policy gradient, sum over tokens over a constant.",
    "dapo": "arXiv:2503.14476. Clip-higher 0.2/0.28, token mean, overlong punishment, mixed groups only; batch.max_rounds refills.",
    "cispo": "arXiv:2506.13585. Clipped, detached importance weight on A log pi, token mean; bounds of F-GRPO's runs.",
    "gspo": "arXiv:2507.18071. One ratio for each response, clip 3e-4/4e-4, mean over responses.",
    "gspo_token": "arXiv:2507.18071. GSPO's ratio with each token's own gradient.",
    "f_grpo": "arXiv:2602.06717. GRPO with the focal weight (1 - success rate)^0.5; token mean as in the paper's runs.",
    "f_dapo": "arXiv:2602.06717. The same focal weight on DAPO's clip 0.2/0.28 and token mean, which is all of it that the paper names.",
    "f_cispo": "arXiv:2602.06717. CISPO with the same focal weight.",
    "reco": "arXiv:2607.26862. Responses weighed by 1/(G p), tokens by the Bernoulli variance; details are our proposal.",
    "reco_dapo": "arXiv:2607.26862. ReCo with DAPO's clip region 0.2/0.28 and token mean.",
    "reco_80_20": "arXiv:2607.26862. The same on the 20% most uncertain tokens of the batch.",
    "grpo_sg": "arXiv:2511.00066. GRPO with the detached confidence gate; its constants are a third party's. KL is left out.",
    "avspo": "arXiv:2605.21125. GRPO with virtual rewards in collapsed groups while many collapse; token mean.",
    "avspo_official": "arXiv:2605.21125. The authors' released rule: one virtual reward if the whole batch is alike.",
    "dcpo": "arXiv:2509.02333. Bounds by probability, advantages smoothed over visits, response means summed (clip_norm bites).",
    "intuitor": "arXiv:2505.19590. GRPO on self-certainty in place of the verifier's reward; their KL (0.005) is left out.",
    "rent": "arXiv:2505.22660. GRPO on minus the mean entropy in place of the verifier's reward; their KL (0.001) is left out.",
    "rule_80_20": "arXiv:2506.01939. DAPO on the 20% most uncertain tokens of the batch, which alone are the denominator.",
    "advantage_reweighting": "arXiv:2505.12929. Advantages times 0.2 p + 0.8; clip 0.2/0.24, dual clip 10, token mean; their KL (0.001) is left out.",
    "lopti": "arXiv:2505.12929. Unlikely tokens (p <= 0.4) in a first update, the others in a second; same clip, no KL.",
    "ar_lopti": "arXiv:2505.12929. Both: advantages times 0.3 p + 0.7, and two updates split at p = 0.5.",
    "imitation": "Maximum likelihood of given responses weighted by their reward: the supervised warm-up.",
}
"""One line for each preset: source, and what sets it apart. Printed by `rlvr-jax variants`."""

PLURAL = {"gates": "gate", "regularisers": "regulariser"}
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
    kind = PLURAL.get(slot, slot)
    if slot in CREDIT_SLOTS:
        return chain(*(_part(kind, v) for v in _listed(slot, value)))
    if slot in PLURAL:
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
