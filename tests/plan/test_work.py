"""Compiled programs read from their text: those of this machine's compiler against counts by hand, and pieces of TPU text."""

import jax
import jax.numpy as jnp
import pytest

from rlvr_jax.plan.hlo import parse
from rlvr_jax.plan.work import Traffic, total, work

AXIS = "x"


@pytest.fixture(scope="module")
def compiled():
    """Of 8 devices: rows split, weights split, so each turn gathers w; then the gradient's sum, and a sum of numbers."""
    mesh = jax.make_mesh((8,), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(AXIS))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def f(x, w):
        def body(x, w):
            gathered = jax.lax.with_sharding_constraint(w, whole)
            return jnp.tanh(x @ gathered), None

        x, _ = jax.lax.scan(body, x, w)
        return x, (x**2).sum()

    x = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=split)
    w = jax.ShapeDtypeStruct(
        (5, 32, 32),
        jnp.float32,
        sharding=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, AXIS)),
    )
    return work(parse(jax.jit(f, out_shardings=(split, whole)).lower(x, w).compile().as_text()))


def test_products_count_as_often_as_their_loop_runs(compiled):
    assert sum(w.times * w.flops for w in compiled) == 5 * 2 * (64 / 8) * 32 * 32


def test_collectives_count_what_a_device_sends(compiled):
    found = total(compiled)
    assert found["all-gather"].count == 5
    assert found["all-gather"].bytes == 5 * 7 * (32 * 32 * 4 / 8)
    assert found["all-reduce"] == Traffic(1.0, 2 * 4 * 7 / 8)
    assert set(found) == {"all-gather", "all-reduce"}


def test_memory_holds_at_least_the_operands_and_results_of_products(compiled):
    moved = sum(w.times * w.bytes for w in compiled)
    least = 5 * 4 * (32 * 32 + 2 * 8 * 32)
    assert least < moved < 20 * least


def text(*lines, condition="lt = pred[] compare(%i, %n), direction=LT", step=1):
    """A module of a loop with these lines in its body, as the TPU compiler writes them."""
    body = "\n".join(f"  %{line}" for line in lines)
    return f"""HloModule jit_f, is_scheduled=true

%body (p: (s32[], bf16[8,16])) -> (s32[], bf16[8,16]) {{
  %p = (s32[], bf16[8,16]{{1,0:T(8,128)(2,1)}}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = bf16[8,16] get-tuple-element(%p), index=1
  %one = s32[] constant({step})
  %next = s32[] add(%i, %one)
{body}
  ROOT %both = (s32[], bf16[8,16]) tuple(%next, %x)
}}

%condition (p.1: (s32[], bf16[8,16])) -> pred[] {{
  %n = s32[]{{:T(128)}} constant(7)
  %p.1 = (s32[], bf16[8,16]{{1,0:T(8,128)(2,1)}}) parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%p.1), index=0
  ROOT %{condition}
}}

ENTRY %main (x: bf16[8,16]) -> (s32[], bf16[8,16]) {{
  %x = bf16[8,16]{{1,0:T(8,128)(2,1)}} parameter(0)
  %start = (s32[], /*index=1*/bf16[8,16]{{1,0}}) tuple(%x)
  ROOT %loop = (s32[], bf16[8,16]{{1,0}}) while(%start), condition=%condition, body=%body, metadata={{op_name="a(b) c"}}
}}
"""


MESH = "replica_groups=mesh['axis_0'=1,'axis_1'=4] {'axis_1'}"


@pytest.mark.parametrize(
    "lines, flops, sent",
    [
        (
            ["w = bf16[16,32] parameter(1)", "c = f32[8,32] convolution(%x, %w), dim_labels=bf_io->bf"],
            2 * 8 * 32 * 16,
            0,
        ),
        (  # a sum over two places of a window: both are products
            [
                "l = bf16[2,8,16] parameter(2)",
                "w = bf16[2,16,32] parameter(1)",
                "c = f32[8,32,1] convolution(%l, %w), window={size=2}, dim_labels=0bf_0io->bf0",
            ],
            2 * 8 * 32 * 16 * 2,
            0,
        ),
        (  # a batch of two: each result meets one place of the window
            [
                "l = bf16[2,8,16] parameter(2)",
                "w = bf16[2,16,32] parameter(1)",
                "c = f32[2,8,32] convolution(%l, %w), window={size=2 stride=1 lhs_dilate=2}, dim_labels=0bf_0io->0bf",
            ],
            2 * 2 * 8 * 32 * 16,
            0,
        ),
        (  # parts of the outputs as places of a window that slides over the only place of x: all others meet nothing
            [
                "l = bf16[1,8,16] parameter(2)",
                "w = bf16[16,2,32] parameter(1)",
                "c = f32[8,2,32] convolution(%l, %w), window={size=2 pad=1_1 rhs_reversal=1}, dim_labels=0bf_i0o->b0f",
            ],
            2 * 8 * 2 * 32 * 16,
            0,
        ),
        (
            ["w = bf16[4,16] parameter(1)", f"g = bf16[16,16] all-gather(%w), {MESH}, dimensions={{0}}"],
            0,
            3 * 4 * 16 * 2,
        ),
        (
            ["w = f32[8] parameter(1)", "g = f32[8] all-reduce(%w), replica_groups=[2,4]<=[8]"],
            0,
            2 * 8 * 4 * 3 / 4,
        ),
        (
            [
                "w = f32[8] parameter(1)",
                "g = f32[2] reduce-scatter(%w), replica_groups={{0,1,2,3},{4,5,6,7}}",
            ],
            0,
            8 * 4 * 3 / 4,
        ),
        (
            [
                "w = f32[8] parameter(1)",
                "g = (f32[8], f32[8]) collective-permute-start(%w), source_target_pairs={{0,1}}",
            ],
            0,
            32,
        ),
        (["w = f32[8] parameter(1)", "g = f32[8] all-reduce-done(%w), replica_groups=[2,4]<=[8]"], 0, 0),
    ],
    ids=["product", "window", "batch", "sliding", "gather", "reduce", "scatter", "permute", "done"],
)
def test_each_way_to_write_it_is_understood(lines, flops, sent):
    found = work(parse(text(*lines)))
    assert sum(w.times * w.flops for w in found) == 7 * flops
    assert sum(w.times * w.sent for w in found) == 7 * sent


def test_turns_that_are_written_as_one_are_one():
    lines = ["w = bf16[16,32] parameter(1)", "c = f32[8,32] convolution(%x, %w), dim_labels=bf_io->bf"]
    found = work(parse(text(*lines, step=2)))  # the counter goes up to 7 by two
    assert sum(w.times * w.flops for w in found) == 4 * 2 * 8 * 32 * 16


def test_a_loop_without_a_bound_makes_the_turns_it_is_said_to():
    lines = ["w = bf16[16,32] parameter(1)", "c = f32[8,32] convolution(%x, %w), dim_labels=bf_io->bf"]
    open_end = text(*lines, condition="lt = pred[] and(%i, %n)")
    for turns in (1, 32):
        found = work(parse(open_end, turns=turns))
        assert sum(w.times * w.flops for w in found) == turns * 2 * 8 * 32 * 16


def test_what_is_on_the_chip_is_no_traffic_of_memory():
    there = work(parse(text("w = f32[8] parameter(1)", "g = f32[8]{0:S(1)} add(%w, %w)")))
    here = work(parse(text("w = f32[8]{0:S(1)} parameter(1)", "g = f32[8]{0:S(1)} add(%w, %w)")))
    assert sum(w.times * w.bytes for w in there) == 7 * 32 and sum(w.bytes for w in here) == 0


def test_what_is_written_into_an_array_in_place_is_all_that_it_costs():
    """One row of a thousand in each of eight places: by an index for each of them, as a cache of answers is written."""

    def write(cache, new, where):
        return cache.at[jnp.arange(8), where].set(new)

    shapes = [((8, 1000, 64), jnp.float32), ((8, 64), jnp.float32), ((8,), jnp.int32)]
    arguments = (jax.ShapeDtypeStruct(*shape) for shape in shapes)
    lowered = jax.jit(write, donate_argnums=0).lower(*arguments).compile().as_text()
    moved = sum(w.times * w.bytes for w in work(parse(lowered)))
    assert 2 * 8 * 64 * 4 <= moved < 8 * 1000 * 64 * 4 / 10


def test_of_a_stack_that_is_cut_inside_a_fusion_of_a_fusion_the_cut_is_read():
    """As a TPU reads one layer's matrix out of those of all layers."""
    hlo = """HloModule m

%cut (s: f32[30,8,8], i: s32[]) -> f32[8,8] {
  %s = f32[30,8,8]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %z = s32[] constant(0)
  %d = f32[1,8,8]{2,1,0} dynamic-slice(%s, %i, %z, %z), dynamic_slice_sizes={1,8,8}
  ROOT %b = f32[8,8]{1,0} bitcast(%d)
}

%outer (t: f32[30,8,8], j: s32[]) -> f32[8,8] {
  %t = f32[30,8,8]{2,1,0} parameter(0)
  %j = s32[] parameter(1)
  %f = f32[8,8]{1,0} fusion(%t, %j), kind=kLoop, calls=%cut
  ROOT %a = f32[8,8]{1,0} add(%f, %f)
}

ENTRY %main (p: f32[30,8,8], n: s32[]) -> f32[8,8] {
  %p = f32[30,8,8]{2,1,0} parameter(0)
  %n = s32[] parameter(1)
  ROOT %r = f32[8,8]{1,0} fusion(%p, %n), kind=kLoop, calls=%outer
}
"""
    assert sum(w.times * w.bytes for w in work(parse(hlo))) == 2 * 8 * 8 * 4


def test_of_two_branches_the_shorter_one_is_counted():
    def f(yes, x):
        return jax.lax.cond(yes, lambda x: jnp.tanh(x @ x) @ x @ x, lambda x: x + 1, x)

    arguments = jax.ShapeDtypeStruct((), bool), jax.ShapeDtypeStruct((32, 32), jnp.float32)
    found = work(parse(jax.jit(f).lower(*arguments).compile().as_text()))
    assert sum(w.times * w.flops for w in found) == 0
    assert sum(w.times * w.bytes for w in found) < 10 * 32 * 32 * 4
