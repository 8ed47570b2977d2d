"""FLOPs counted in jaxprs, against counts by hand and the field's 6 N T."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
import tiny
from flax import nnx

from rlvr_jax.models.layout import layer_layout
from rlvr_jax.models.splash import splash
from rlvr_jax.plan.flops import flops, kernel_flops


def count(f, *shapes, turns=1, dtype=jnp.float32):
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return flops(jax.jit(f).trace(*arguments).jaxpr, turns=turns)


def test_a_product_is_two_m_k_n_and_its_batches_multiply():
    assert count(lambda a, b: a @ b, (3, 5), (5, 7)) == 2 * 3 * 5 * 7
    assert count(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (4, 3, 5), (4, 5, 7)) == 4 * 2 * 3 * 5 * 7


def test_a_loop_counts_as_often_as_it_runs():
    def scanned(a, b):
        inner = lambda x: jax.lax.scan(lambda x, _: (x @ b, None), x, length=6)[0]  # noqa: E731
        return jax.lax.fori_loop(0, 11, lambda _, x: inner(x), a)

    assert count(scanned, (4, 4), (4, 4)) == 11 * 6 * 2 * 4**3


def test_a_loop_that_ends_by_a_condition_makes_the_turns_it_is_said_to():
    def until(a, b):
        return jax.lax.while_loop(lambda x: x.sum() < 3, lambda x: x @ b, a)

    assert count(until, (4, 4), (4, 4), turns=5) == 5 * 2 * 4**3


def test_of_branches_the_longest_counts():
    def either(a, b):
        return jax.lax.cond(a.sum() > 0, lambda: a @ b @ b, lambda: a @ b)

    assert count(either, (4, 4), (4, 4)) == 2 * 2 * 4**3


def test_the_mesh_multiplies_what_each_device_does():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.PartitionSpec("x")
    with jax.set_mesh(mesh):
        f = jax.shard_map(lambda a, b: a @ b, in_specs=(rows, jax.sharding.PartitionSpec()), out_specs=rows)
        assert count(f, (16, 4), (4, 4)) == 2 * 16 * 4 * 4


@pytest.mark.parametrize("policy, products", [("none", 6), ("full", 8)])
def test_a_decoder_has_six_operations_for_each_weight_and_token(policy, products):
    """Forward 2, gradient 4, rematerialisation 2 more, for each weight of a matrix; and attention beside it."""
    c = dataclasses.replace(tiny.CONFIG, num_layers=3)
    graphdef, params = tiny.decoder(c)
    graphdef = nnx.graphdef(_with_policy(nnx.merge(graphdef, params), policy))
    rows, length = 4, 10

    def loss(params, tokens):
        model = nnx.merge(graphdef, params)
        nothing = model._empty_prefix(rows)
        return model.hidden(tokens, nothing).astype(jnp.float32).sum()

    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    got = flops(jax.jit(jax.grad(loss)).trace(params, tokens).jaxpr)
    weights = c.num_layers * sum(
        functools.reduce(lambda a, b: a * b, leaf.shape) for leaf in layer_layout(c).values() if leaf.inputs
    )
    matrices = products * weights * rows * length
    scores = products * c.num_layers * 2 * rows * c.num_heads * c.head_dim * length**2
    assert (
        matrices < got <= (matrices + scores) * 1.02
    )  # what is no matrix of the model: sums that are written as products


def _with_policy(model, policy):
    model.remat = policy
    return model


def test_a_kernel_counts_for_the_blocks_that_it_visits():
    """Rows of 256 behind a prefix of 128, in blocks of 128: of 2 x 3 blocks a row sees the prefix twice and 1 + 2 own ones."""
    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.bfloat16)  # noqa: E731
    heads, kv_heads, width, rows, prompts = 4, 2, 128, 6, 3

    def forward(q, pk, pv, k, v, length):
        return splash(q, pk, pv, k, v, length, None, window=0, scale=1.0)

    arguments = (
        shape(rows, 256, heads, width),
        *[shape(prompts, 128, kv_heads, width)] * 2,
        *[shape(rows, 256, kv_heads, width)] * 2,
        jax.ShapeDtypeStruct((prompts,), jnp.int32),
    )
    jaxpr = jax.jit(forward).trace(*arguments).jaxpr
    visited = rows * heads * (2 + 3)
    assert kernel_flops(jaxpr) == visited * 2 * 2 * 128 * 128 * width == flops(jaxpr)
