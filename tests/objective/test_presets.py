"""Presets by name, and objectives as they are written in a config."""

import dataclasses
import re

import pytest

from rlvr_jax.objective import Objective, chain, preset
from rlvr_jax.objective.clips import Ppo, Unclipped
from rlvr_jax.objective.masks import DropTruncated
from rlvr_jax.objective.presets import PRESETS, SOURCES, from_config
from rlvr_jax.objective.ratios import NoRatio
from rlvr_jax.objective.regularisers import KL
from rlvr_jax.types import Pass


def test_the_default_is_grpo_and_every_preset_has_a_source():
    assert preset("grpo") == Objective()
    assert set(SOURCES) == set(PRESETS) and all(SOURCES.values())


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "dapo", "f_grpo", "f_dapo", "imitation"])
def test_a_preset_without_kl_loads_no_reference_model(name):
    assert PRESETS[name].wants(Pass.REF) == frozenset()


def test_configs_compose():
    config = {
        "preset": "f_grpo",
        "mask": ["drop_truncated"],
        "clip": {"name": "ppo", "low": 0.2, "high": 0.28},
        "regularisers": [{"name": "kl", "coef": 0.01}],
    }
    expected = dataclasses.replace(
        preset("f_grpo"), mask=chain(DropTruncated()), clip=Ppo(0.2, 0.28), regularisers=(KL(0.01),)
    )
    assert from_config(config) == expected
    assert from_config({}) == Objective()
    assert from_config({"preset": "rloo", "ratio": "none", "clip": "unclipped"}) == preset("rloo")


KNOWN = ", ".join(sorted(PRESETS))
SLOTS = "advantage, aggregate, clip, gates, mask, passes, ratio, regularisers, response_weight, reward, token_weight"


@pytest.mark.parametrize(
    "config, text",
    [
        ("f_gpro", f"no objective called 'f_gpro'. Did you mean 'f_grpo'? Known: {KNOWN}."),
        ({"preset": "zzz"}, f"no objective called 'zzz'. Known: {KNOWN}."),
        ({"preset": ["grpo"]}, f"objective.preset is a name, one of {KNOWN}; got ['grpo']."),
        (
            {"advantages": []},
            f"an objective has no slot 'advantages'. Did you mean 'advantage'? Its slots: {SLOTS}.",
        ),
        ({1: []}, f"an objective has no slot 1. Its slots: {SLOTS}."),
        ({"advantage": "group"}, "objective.advantage is a list of stages ([] for none), got 'group'."),
        (
            {"regularisers": {"name": "kl"}},
            "objective.regularisers is a list of stages ([] for none), got {'name': 'kl'}.",
        ),
        ({"advantage": ["focla"]}, "no advantage called 'focla'. Did you mean 'focal'?"),
        (
            {"advantage": [{"name": "focal", "gama": 1.0}]},
            "advantage 'focal' has no field 'gama'; Did you mean 'gamma'?",
        ),
        (
            {"clip": {"low": 0.1}},
            "objective: clip is a name, or a mapping with `name` and its fields, got {'low': 0.1}.",
        ),
        (
            {"clip": {"name": 5}},
            "objective: clip is a name, or a mapping with `name` and its fields, got {'name': 5}.",
        ),
        ({"clip": {"name": "ppo", "slot": 1}}, "clip 'ppo' has no field 'slot';"),
        ({"clip": {"name": "ppo", "low": "x"}}, "clip 'ppo' field 'low' is a number, got 'x'."),
        (None, "objective is a preset's name or a mapping of slots, got None."),
    ],
)
def test_errors_of_a_config(config, text):
    """New stages and presets may extend a list of what is known; what the user did and should do stands before it."""
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        from_config(config)


def test_a_likelihood_under_the_clip_of_a_ratio_is_refused():
    text = (
        "clip 'ppo' bounds the ratio of two policies, and ratio 'none' is the log-likelihood of one: use it with ratio "
        "'token', or take clip 'unclipped'."
    )
    for build in (lambda: Objective(ratio=NoRatio()), lambda: from_config({"preset": "rloo", "clip": "ppo"})):
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            build()
    assert Objective(ratio=NoRatio(), clip=Unclipped())
