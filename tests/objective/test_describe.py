"""What `rlvr-jax variants` prints."""

import json
import re

import pytest

from rlvr_jax.objective.describe import describe, listing
from rlvr_jax.objective.presets import PRESETS


def test_the_listing_names_every_preset_and_its_source():
    found = listing()
    assert [entry["name"] for entry in found.data] == list(PRESETS)
    for name, line in zip(PRESETS, found.text.splitlines(), strict=True):
        assert line.startswith(name)
        assert re.search(r"arXiv:\d{4}\.\d{5}", line) or name == "imitation"


@pytest.mark.parametrize("name", PRESETS)
def test_a_description_holds_every_part_with_its_settings(name):
    found = describe(name)
    objective = PRESETS[name]
    for part in (
        *objective.advantage.stages,
        objective.passes,
        objective.aggregate,
        objective.ratio,
        objective.clip,
    ):
        entry = next(p for p in found.data["parts"] if p["name"] == part.name)
        assert entry["slot"] in ("advantage", "passes", "aggregate", "ratio", "clip")
        assert f"{entry['slot']}: {part.name}(" in found.text
    assert json.loads(json.dumps(found.data)) == found.data


def test_a_description_shows_formula_fields_and_reads():
    text = describe("f_dapo").text
    for line in (
        "advantage: focal(gamma=0.5)",
        "    A_i <- (1 - X/N)^gamma * A_i",
        "clip: ppo(low=0.2, high=0.28)",
        "reads: new.logprob, old.logprob",
    ):
        assert line in text


def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(ValueError, match=re.escape("no objective called 'dapoo'. Did you mean 'dapo'?")):
        describe("dapoo")
