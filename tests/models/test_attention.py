"""Attention on XLA against loops over queries and keys, and which kernel is chosen where."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attentions import SCALE, arrays, cotangent, looped, places, value_and_gradients
from jax.sharding import AbstractDevice, AbstractMesh

from rlvr_jax.models import attention
from rlvr_jax.models.attention import attend, dense, plain
from rlvr_jax.products import platform_in_use

CLOSE = dict(rtol=0, atol=1e-5)
"""Float32 sums of up to some 100 terms of order 1, and the exponentials of scores of order 5: 1e-6, with room to spare."""


@functools.partial(jax.jit, static_argnums=0)
def attended(how, rows, places, window):
    prefix_mask, mask = places.seen(window)
    return how(*rows[:3], prefix_mask, *rows[3:], mask, SCALE)


@pytest.mark.parametrize("how", [plain, dense])
@pytest.mark.parametrize("window", [0, 3])
def test_a_group_attends_to_its_prefix_and_each_row_to_itself(how, window):
    rows, lengths = arrays(prompts=3, group=2, prefix=4, length=5, heads=4, kv_heads=2, width=8), [4, 0, 2]
    got = attended(how, rows, places(lengths, rows), jnp.asarray(window))
    np.testing.assert_allclose(got, looped(*rows, lengths, window=window), **CLOSE)


@pytest.mark.parametrize("how", [plain, dense])
def test_packed_texts_see_only_themselves(how):
    rows, segments = arrays(prompts=2, group=1, prefix=0, length=6), [[0, 0, 1, 1, 1, 4], [3] * 6]
    got = attended(how, rows, places([0, 0], rows, segments), jnp.asarray(2))
    np.testing.assert_allclose(got, looped(*rows, [0, 0], segments, window=2), **CLOSE)


def test_the_gradient_of_dense_is_that_of_plain():
    rows = arrays(prompts=2, group=3, prefix=4, length=5, heads=4, kv_heads=2, width=8)
    prefix_mask, mask = places([4, 0], rows).seen(None)

    def over(how):
        return lambda q, pk, pv, k, v: how(q, pk, pv, prefix_mask, k, v, mask, SCALE)

    for got, want in zip(
        value_and_gradients(over(dense), rows), value_and_gradients(over(plain), rows), strict=True
    ):
        np.testing.assert_allclose(got, want, **CLOSE)


def test_dense_multiplies_bfloat16_with_bfloat16_in_the_gradient_too():
    rows = [x.astype(jnp.bfloat16) for x in arrays(prompts=2, group=2, prefix=4, length=5)]
    prefix_mask, mask = places([4, 2], rows).seen(None)

    def both(q, pk, pv, k, v):
        out, back = jax.vjp(lambda *x: dense(*x[:3], prefix_mask, *x[3:], mask, SCALE), q, pk, pv, k, v)
        return out, back(cotangent(q))

    lowered = jax.jit(both).lower(*rows).as_text()
    kinds = re.findall(
        r"dot_general.* : \(tensor<\w+x(\w+)>, tensor<\w+x(\w+)>\) -> tensor<\w+x(\w+)>", lowered
    )
    assert kinds == [("bf16", "bf16", "f32")] * 6
    exact = value_and_gradients(
        lambda q, pk, pv, k, v: plain(q, pk, pv, prefix_mask, k, v, mask, SCALE),
        [x.astype(jnp.float32) for x in rows],
    )
    # three roundings to 2^-9 on the way to each of up to 10 terms of order 1 of a sum
    for got, want in zip(
        value_and_gradients(lambda *x: dense(*x[:3], prefix_mask, *x[3:], mask, SCALE), rows),
        exact,
        strict=True,
    ):
        np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=0, atol=0.06)


def chosen(monkeypatch, platform, rows, lengths, segments=None):
    """Names of the functions that `attend` calls on a platform."""
    from rlvr_jax.models import splash

    calls = []

    def record(name):
        def call(q, *_, **__):
            calls.append(name)
            return q

        return call

    monkeypatch.setattr(attention, "platform_in_use", lambda: platform)
    monkeypatch.setattr(splash, "splash", record("splash"))
    for name in ("cudnn", "dense", "plain"):
        monkeypatch.setattr(attention, name, record(name))
    q, prefix_k, prefix_v, k, v = rows
    attend(q, prefix_k, prefix_v, k, v, places(lengths, rows, segments), None, windows=(), scale=SCALE)
    return calls


def narrow(**sizes):
    return [x.astype(jnp.bfloat16) for x in arrays(**sizes)]


def test_whole_rows_in_bfloat16_run_on_the_kernel_of_the_platform(monkeypatch):
    rows = narrow(prompts=2, group=2, prefix=4, length=5, width=64)
    for platform, kernel in (("tpu", "splash"), ("gpu", "cudnn"), ("cpu", "dense")):
        assert chosen(monkeypatch, platform, rows, [4, 2]) == [kernel]


@pytest.mark.parametrize("platform", ["tpu", "gpu", "cpu"])
def test_float32_and_single_queries_stay_with_xla(monkeypatch, platform):
    sizes = dict(prompts=2, group=2, prefix=4, width=64)
    assert chosen(monkeypatch, platform, arrays(**sizes, length=5), [4, 2]) == ["dense"]
    assert chosen(monkeypatch, platform, narrow(**sizes, length=1), [4, 2]) == ["plain"]


def test_heads_that_cudnn_does_not_have_stay_with_xla(monkeypatch):
    for width in (12, 256):
        rows = narrow(prompts=1, group=2, prefix=4, length=3, width=width)
        assert chosen(monkeypatch, "gpu", rows, [4]) == ["dense"]


def test_the_platform_is_that_of_the_mesh_in_use():
    device = AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    assert platform_in_use() == "cpu"
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), abstract_device=device)):
        assert platform_in_use() == "tpu"
    assert platform_in_use() == "cpu"
