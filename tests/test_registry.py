"""Names for what a config can pick, and errors that carry the fix."""

import dataclasses
import re
from typing import Literal

import pytest

from rlvr_jax import registry
from rlvr_jax.objective.advantages import Focal, Group
from rlvr_jax.registry import build, lookup, names, nearest, register, slots


@dataclasses.dataclass(frozen=True)
class Gadget:
    """One field of every kind."""

    size: int = 1
    rate: float = 0.5
    label: str = "a"
    active: bool = True
    limit: float | None = None
    mode: Literal["fast", "slow"] = "fast"
    sizes: tuple[int, ...] = ()


@pytest.fixture
def gadgets(monkeypatch):
    monkeypatch.setattr(registry, "_TABLE", {})
    register("gadget", "gadget")(Gadget)
    return lambda **fields: build("gadget", "gadget", **fields)


def test_a_class_is_found_and_built_by_name():
    assert build("advantage", "focal", gamma=1.0) == Focal(1.0)
    assert lookup("advantage", "group") is Group
    assert (Focal.slot, Focal.name) == ("advantage", "focal")
    assert {"advantage", "clip", "regulariser"} <= set(slots())
    assert names("advantage") == tuple(sorted(names("advantage"))) and "focal" in names("advantage")
    assert names("no such slot") == ()


def test_a_name_is_given_once(gadgets):
    text = "gadget 'gadget' is already Gadget; pick another name."
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        register("gadget", "gadget")(dataclasses.make_dataclass("Other", []))
    assert lookup("gadget", "gadget") is Gadget
    register("tool", "gadget")(dataclasses.make_dataclass("Tool", []))  # another slot has names of its own


def test_numbers_may_be_written_as_text(gadgets):
    """YAML reads 1e-6 as text and 1 as an integer."""
    assert gadgets(rate="1e-6").rate == 1e-6
    assert gadgets(rate=2) == gadgets(rate=2.0) and type(gadgets(rate=2).rate) is float
    assert gadgets(size="3").size == 3 and type(gadgets(size=4.0).size) is int
    assert gadgets(limit=None).limit is None and gadgets(limit=1).limit == 1.0
    assert gadgets(sizes=[1, "2"]).sizes == (1, 2)
    assert hash(gadgets(sizes=[1, 2])) == hash(Gadget(sizes=(1, 2)))


@pytest.mark.parametrize(
    "fields, text",
    [
        (
            {"sise": 1},
            "gadget 'gadget' has no field 'sise'; Did you mean 'size'? its fields are size, rate, label, active, limit, mode, sizes.",
        ),
        (
            {"zzz": 1},
            "gadget 'gadget' has no field 'zzz'; its fields are size, rate, label, active, limit, mode, sizes.",
        ),
        ({"size": 1.5}, "gadget 'gadget' field 'size' is a whole number, got 1.5."),
        ({"size": "many"}, "gadget 'gadget' field 'size' is a whole number, got 'many'."),
        ({"size": True}, "gadget 'gadget' field 'size' is a whole number, got True."),
        ({"size": float("inf")}, "gadget 'gadget' field 'size' is a whole number, got inf."),
        ({"rate": None}, "gadget 'gadget' field 'rate' is a number, got None."),
        ({"rate": [1]}, "gadget 'gadget' field 'rate' is a number, got [1]."),
        ({"label": 3}, "gadget 'gadget' field 'label' is text, got 3."),
        ({"active": 1}, "gadget 'gadget' field 'active' is true or false, got 1."),
        ({"active": "yes"}, "gadget 'gadget' field 'active' is true or false, got 'yes'."),
        ({"limit": "low"}, "gadget 'gadget' field 'limit' is a number, got 'low'."),
        ({"mode": "fats"}, "gadget 'gadget' field 'mode' is one of fast, slow, got 'fats'."),
        ({"sizes": 3}, "gadget 'gadget' field 'sizes' is a list, got 3."),
        ({"sizes": [1, "x"]}, "gadget 'gadget' field 'sizes' is a whole number, got 'x'."),
    ],
)
def test_errors_of_fields(gadgets, fields, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        gadgets(**fields)


def test_errors_of_names(gadgets):
    own = "one of your own is known once the module that registers it is imported."
    for name, text in {
        "gadjet": f"no gadget called 'gadjet'. Did you mean 'gadget'? Known: gadget; {own}",
        "zzz": f"no gadget called 'zzz'. Known: gadget; {own}",
    }.items():
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            build("gadget", name)


def test_the_nearest_name_is_offered_only_where_one_is_near():
    assert nearest("focla", ["focal", "group"]) == " Did you mean 'focal'?"
    assert nearest("zzz", ["focal", "group"]) == ""
