"""Every constant of an objective says where it comes from: nothing of ours is shown as a paper's."""

import dataclasses

import pytest

from rlvr_jax import registry
from rlvr_jax.objective.base import Standing
from rlvr_jax.objective.objective import CREDIT_SLOTS

SLOTS = (*CREDIT_SLOTS, "passes", "aggregate", "ratio", "clip", "gate", "regulariser")
FIELDS = [
    (kind, name, field)
    for kind in SLOTS
    for name in registry.names(kind)
    for field in dataclasses.fields(registry.lookup(kind, name))
]


@pytest.mark.parametrize("kind, name, field", FIELDS, ids=[f"{k}-{n}-{f.name}" for k, n, f in FIELDS])
def test_a_default_says_where_it_comes_from(kind, name, field):
    wanted = "`paper(...)`, `reported(...)` or `proposal(...)`"
    standing = field.metadata.get("standing")
    assert isinstance(standing, Standing), f"{kind} {name!r}: give {field.name} its standing, {wanted}."
    if standing is not Standing.PAPER:
        assert field.metadata["why"].strip(), (
            f"{kind} {name!r}: {field.name} is {standing}: say by whom, or why."
        )


def test_there_are_constants_of_every_standing():
    assert {field.metadata.get("standing") for _, _, field in FIELDS} >= set(Standing)
