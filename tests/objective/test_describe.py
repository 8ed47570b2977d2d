"""What `rlvr-jax variants` prints, and how a docstring is taken apart."""

import dataclasses
import json
import re
import textwrap

import jax.numpy as jnp
import pytest

from rlvr_jax import registry
from rlvr_jax.objective.base import Context, Stage, paper
from rlvr_jax.objective.describe import WIDTH, describe, entry, listing, slot
from rlvr_jax.objective.docstrings import Docstring, parse, show
from rlvr_jax.objective.objective import CREDIT_SLOTS
from rlvr_jax.objective.presets import PRESETS, to_config

SLOTS = (*CREDIT_SLOTS, "passes", "aggregate", "ratio", "clip", "gate", "regulariser")
CASES = [(kind, name) for kind in SLOTS for name in registry.names(kind)]
KEYS = ("slot", "name", "constants", "equation", "sources", "reads", "state", "deviations", "note")


@dataclasses.dataclass(frozen=True)
class Example(Stage):
    """Compares a thing with
    another: `show`.

        y = x + 1

    It has (brackets). Metrics: none.

        z = y^2,
            where y > 0

    Reference: A paper, arXiv:1234.56789, eq. 2;
    its code. Deviations: theirs has no z.
    """

    slot, name = "advantage", "example"

    size: int = paper(3, "eq. 3")
    """Rows. Two
    lines."""
    plain: float = 1e-6

    def init(self, spec):
        each = {"rows": jnp.zeros((spec.rows, spec.length)), "visits": jnp.zeros(spec.num_prompts, jnp.int32)}
        return each | {"table": (jnp.zeros((spec.groups, spec.group_size, self.size)),)}

    def apply(self, x, ctx: Context, state):
        return x, state, {}


def test_a_docstring_is_taken_apart():
    assert parse(Example) == Docstring(
        summary="Compares a thing with another: `show`.",
        equation="y = x + 1\nz = y^2,\n    where y > 0",
        text="It has (brackets). Metrics: none.",
        reference="A paper, arXiv:1234.56789, eq. 2; its code.",
        deviations="theirs has no z.",
    )


def test_the_reference_may_stand_in_the_only_line():
    class Short:
        """As far as it goes. Reference: arXiv:1234.56789."""

    assert parse(Short) == Docstring("As far as it goes.", "", "", "arXiv:1234.56789.", "")


def test_an_entry_holds_constants_state_and_source():
    found = entry(Example(size=4, plain=0.5))
    assert found["constants"] == [
        {
            "name": "size",
            "value": 4,
            "standing": "set by the preset",
            "why": "the stage's default is 3 [paper: eq. 3]",
            "meaning": "Rows. Two lines.",
        },
        {
            "name": "plain",
            "value": 0.5,
            "standing": "set by the preset",
            "why": "the stage's default is 1e-6",
            "meaning": "",
        },
    ]
    assert found["state"] == [
        {"name": "rows", "shape": "[B, T]", "dtype": "float32"},
        {"name": "table/0", "shape": "[P, G, 4]", "dtype": "float32"},
        {"name": "visits", "shape": "[num_prompts]", "dtype": "int32"},
    ]
    assert (found["sources"], found["reads"]) == (["1234.56789"], [])
    assert entry(Example())["constants"][0] == {
        "name": "size",
        "value": 3,
        "standing": "paper",
        "why": "eq. 3",
        "meaning": "Rows. Two lines.",
    }


@pytest.mark.parametrize(
    "kind, name, signature",
    [
        ("clip", "ppo", "ppo_gain(ratio [B, T], advantage [B, T], low, high) -> [B, T]"),
        ("clip", "dynamic", "dynamic_bounds(old_logprob [B, T], low, high, *, cap=10.0) -> ([B, T], [B, T])"),
        ("gate", "confidence", "confidence_weight(logit [B, T], *, alpha, tau, mu, lower, upper) -> [B, T]"),
        ("aggregate", "token_mean", ""),
    ],
)
def test_the_pure_function_is_shown_with_its_axes(kind, name, signature):
    assert entry(registry.build(kind, name))["function"] == signature


@pytest.mark.parametrize("value, text", [(1e-6, "1e-6"), (3e20, "3e20"), (0.28, "0.28"), (None, "None")])
def test_values_are_shown_as_one_writes_them(value, text):
    assert show(value) == text


@pytest.mark.parametrize("kind, name", CASES, ids=[f"{kind}-{name}" for kind, name in CASES])
def test_every_part_has_equation_and_source(kind, name):
    found = entry(registry.build(kind, name))
    assert found["summary"].endswith(".") and found["equation"] and found["sources"]
    assert "Reference:" not in found["text"] + found["reference"] + found["deviations"]
    assert json.loads(json.dumps(found)) == found


def test_the_listing_is_a_line_for_each_preset():
    found = listing()
    for name, line in zip(PRESETS, found.text.splitlines(), strict=True):
        assert line.startswith(f"{name} ")
        assert re.search(r"arXiv:\d{4}\.\d{5}", line) or name == "imitation"


def test_the_listing_as_data_is_every_preset_with_its_stages():
    data = json.loads(json.dumps(listing().data))
    assert [found["name"] for found in data] == list(PRESETS)
    for found in data:
        assert found["arxiv"] or found["name"] == "imitation"
        spelt = {}
        for stage in found["stages"]:
            assert all(re.fullmatch(r"\d{4}\.\d{5}", source) for source in stage["sources"])
            spelt.setdefault(stage["slot"], []).append({"name": stage["name"], **stage["fields"]})
        config = json.loads(json.dumps(to_config(PRESETS[found["name"]])))
        assert spelt == {
            key: value if isinstance(value, list) else [value] for key, value in config.items() if value
        }


@pytest.mark.parametrize("name", PRESETS)
def test_a_description_holds_every_stage_in_order(name):
    found = describe(name)
    parts = PRESETS[name].parts
    assert [(stage["slot"], stage["name"]) for stage in found.data["stages"]] == [
        (slot(part), part.name) for part in parts
    ]
    heads = re.findall(r"^(\w+: \w+)$", found.text, re.MULTILINE)
    assert heads == [f"{slot(part)}: {part.name}" for part in parts]
    for stage in found.data["stages"]:
        assert set(KEYS) <= set(stage)
        for constant in stage["constants"]:
            assert f"{constant['name']} = {show(constant['value'])} ({constant['standing']}" in found.text
    assert json.loads(json.dumps(found.data)) == found.data


@pytest.mark.parametrize("name", PRESETS)
def test_a_description_fits_a_terminal_of_a_hundred_columns(name):
    assert max(map(len, describe(name).text.splitlines())) <= WIDTH


def test_a_description_shows_equations_constants_source_and_reads():
    text = describe("f_dapo").text
    for block in (
        """
        advantage: focal
          F-GRPO: shrinks the advantages of prompts that are solved often already. Comes after a base
          advantage.

              A_i <- (1 - X/N)^gamma * A_i
        """,
        """
        clip: ppo
          PPO's clipped surrogate: `ppo_gain`.

              min(r A, clip(r, 1 - low, 1 + high) A)

          constants   low = 0.2 (reported: Dr. GRPO, DAPO and F-GRPO, which train with it; GRPO's paper
                        gives none)
                      high = 0.28 (set by the preset: the stage's default is 0.2 [reported: Dr. GRPO and
                        F-GRPO, which train with it; GRPO's paper gives none])
          source      PPO, arXiv:1707.06347, eq. 7; DAPO, arXiv:2503.14476, eq. 10.
        """,
    ):
        assert textwrap.dedent(block) in text
    assert text.endswith("\nreads: new.logprob, old.logprob")


def test_a_description_shows_state_notes_and_deviations():
    text = describe("reco").text
    assert "\nnote: ratio 'bernoulli_variance' is 1 everywhere with one update per batch" in text
    assert "\n  deviations  whether the paper detaches or clips r_var was not found" in text
    assert "\n  state       smooth [num_prompts, 3] float32" in describe("dcpo").text
    assert describe("avspo").data["stages"][0]["state"] == [
        {"name": "batches", "shape": "[]", "dtype": "int32"},
        {"name": "reward", "shape": "[]", "dtype": "float32"},
        {"name": "threshold", "shape": "[]", "dtype": "float32"},
    ]


def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(ValueError, match=re.escape("no objective called 'dapoo'. Did you mean 'dapo'?")):
        describe("dapoo")
