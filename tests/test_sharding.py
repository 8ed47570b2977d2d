"""The mesh, the table of axes, and splits that keep shards and groups where they are."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from rlvr_jax.sharding import (
    MESH_AXES,
    RULES,
    batch_shards,
    constrain,
    make_mesh,
    microbatches,
    named,
    replicated,
    row_sharding,
    spec,
)


def test_a_mesh_takes_what_is_left():
    assert dict(make_mesh().shape) == {"data": 8, "fsdp": 1, "tensor": 1, "sequence": 1}
    assert dict(make_mesh(2, 2, 2).shape) == {"data": 2, "fsdp": 2, "tensor": 2, "sequence": 1}
    assert dict(make_mesh(2, -1, 1).shape) == {"data": 2, "fsdp": 4, "tensor": 1, "sequence": 1}
    assert dict(make_mesh(1, 1, -1, devices=jax.devices()[:2]).shape) == {
        "data": 1,
        "fsdp": 1,
        "tensor": 2,
        "sequence": 1,
    }
    assert batch_shards(make_mesh(2, 2, 2)) == 4


@pytest.mark.parametrize(
    "sizes, text",
    [
        (
            (3, 1, 1),
            "mesh {'data': 3, 'fsdp': 1, 'tensor': 1, 'sequence': 1} does not fill 8 devices: the sizes must multiply to 8; set one of "
            "them to -1.",
        ),
        (
            (-1, 3, 1),
            "mesh {'data': -1, 'fsdp': 3, 'tensor': 1, 'sequence': 1} does not fill 8 devices: the sizes must multiply to 8; set one of "
            "them to -1.",
        ),
        (
            (-1, -1, 1),
            "mesh sizes are positive, and one of them may be -1 (what is left); got {'data': -1, 'fsdp': -1, 'tensor': 1, 'sequence': 1}.",
        ),
        (
            (8, 0, 1),
            "mesh sizes are positive, and one of them may be -1 (what is left); got {'data': 8, 'fsdp': 0, 'tensor': 1, 'sequence': 1}.",
        ),
        (
            (8, -2, 1),
            "mesh sizes are positive, and one of them may be -1 (what is left); got {'data': 8, 'fsdp': -2, 'tensor': 1, 'sequence': 1}.",
        ),
    ],
)
def test_mesh_errors(sizes, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        make_mesh(*sizes)


def test_the_table_names_mesh_axes_only():
    assert {axis for axes in RULES.values() for axis in axes or ()} <= set(MESH_AXES)


def test_specs_are_asked_for_by_name():
    assert spec(("batch", None)) == P(("data", "fsdp"), None)
    assert spec(("vocab", "embed")) == P("tensor", "fsdp")
    assert spec((None, "act")) == P(None, None)


def test_an_axis_that_the_mesh_does_not_divide_stays_whole():
    """3 key heads on 2 tensor shards; 4 of them are split."""
    mesh = make_mesh(2, 2, 2)
    assert spec(("kv_heads", "embed"), (3, 8), mesh) == P(None, "fsdp")
    assert spec(("kv_heads", "embed"), (4, 8), mesh) == P("tensor", "fsdp")
    assert spec(("batch",), (6,), mesh) == P(None)
    x = jax.device_put(jnp.ones((3, 8)), named(mesh, ("kv_heads", "embed"), (3, 8)))
    assert x.addressable_shards[0].data.shape == (3, 4)


def test_an_unknown_axis_is_named():
    text = f"no logical axis called 'emebd'; sharding.RULES has {', '.join(RULES)}."
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        spec(("batch", "emebd"))


def test_constrain_pins_inside_a_mesh_and_is_the_identity_outside():
    x = jnp.arange(32.0).reshape(16, 2)
    assert constrain(x, "batch", "act") is x
    mesh = make_mesh(4, 2, 1)
    with jax.set_mesh(mesh):
        pinned = jax.jit(lambda x: constrain(x * 2, "batch", "act"))(x)
    assert pinned.sharding.is_equivalent_to(row_sharding(mesh), 2)
    np.testing.assert_array_equal(pinned, 2 * x)


def test_micro_batches_keep_whole_groups_and_lose_no_row():
    """Twelve rows, groups of two, three micro-batches: groups 0 and 3, 1 and 4, 2 and 5."""
    tree = {"row": jnp.arange(12), "wide": jnp.arange(24).reshape(12, 2)}
    split = microbatches(tree, 3, 2)
    np.testing.assert_array_equal(split["row"], [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]])
    np.testing.assert_array_equal(split["wide"][..., 0] // 2, split["row"])
    one = microbatches(tree, 1, 4)
    np.testing.assert_array_equal(one["row"], np.arange(12)[None])


def test_every_micro_batch_is_spread_over_all_devices():
    """32 rows on 8 devices, in 2 micro-batches of groups of 2: each device keeps its own rows, so nothing moves."""
    mesh = make_mesh()
    rows = row_sharding(mesh)
    columns = named(mesh, (None, "batch"))
    split = jax.jit(lambda x: microbatches(x, 2, 2), in_shardings=rows, out_shardings=columns)
    text = split.lower(jnp.zeros((32, 4))).compile().as_text()
    assert not re.search(r"all-gather|all-to-all|collective-permute|all-reduce", text)
    got = split(jnp.arange(32)[:, None] * jnp.ones((1, 4)))
    for shard in got.addressable_shards:
        device_rows = np.unique(np.asarray(shard.data)[..., 0]).astype(int)
        assert (device_rows // 4 == device_rows[0] // 4).all()


def test_rows_that_do_not_split_are_an_error():
    text = "12 rows do not split into 5 micro-batches of blocks of 2 rows."
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        microbatches(jnp.zeros(12), 5, 2)


def test_a_replicated_array_is_whole_everywhere():
    x = jax.device_put(jnp.arange(4.0), replicated(make_mesh()))
    assert all(s.data.shape == (4,) for s in x.addressable_shards) and len(x.addressable_shards) == 8
