"""Products of matrices: float32 is float32, and bfloat16 loses nothing but the rounding of its operands and result."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.products import product, product_by_rows
from rlvr_jax.sharding import make_mesh

M, K, N = 24, 300, 40


def operands(dtype):
    random = np.random.default_rng(0)
    return tuple(jnp.asarray(random.standard_normal(shape), dtype) for shape in ((M, K), (K, N)))


def cotangent():
    return jnp.asarray(np.random.default_rng(1).standard_normal((M, N)), jnp.float32)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("by_rows", [False, True])
def test_the_product_and_its_gradient_are_those_of_float64(dtype, devices, by_rows):
    """On one device operands are written out transposed. A sum of 300 products of order 1 in float32: 300 roundings of 6e-8 of partial sums of order 17, some 1e-4 at the
    worst. In bfloat16 a gradient is rounded to 2^-9 of itself, and so is each cotangent in its sum of up to 40 products,
    whose magnitudes have a mean of 0.64: 40 * 0.64 * 2^-9 = 0.05."""
    x, w = operands(dtype)
    function = (lambda x, w: product_by_rows(x, w.T)) if by_rows else product
    with jax.set_mesh(make_mesh(devices=jax.devices()[:devices])):
        out, back = jax.vjp(jax.jit(function), x, w)
    wide_x, wide_w, g = (np.asarray(a, np.float64) for a in (x, w, cotangent()))
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, wide_x @ wide_w, atol=1e-4)
    with jax.set_mesh(make_mesh(devices=jax.devices()[:devices])):
        got = back(cotangent())
    assert [a.dtype for a in got] == [dtype, dtype]
    tolerance = {"atol": 1e-4} if dtype == jnp.float32 else {"rtol": 2**-9, "atol": 0.05}
    for ours, theirs in zip(got, (g @ wide_w.T, wide_x.T @ g), strict=True):
        np.testing.assert_allclose(np.asarray(ours, np.float64), theirs, **tolerance)


def test_bfloat16_is_multiplied_with_bfloat16_and_summed_in_float32_in_the_gradient_too():
    x, w = operands(jnp.bfloat16)
    lowered = jax.jit(lambda x, w, g: jax.vjp(product, x, w)[1](g)).lower(x, w, cotangent()).as_text()
    kinds = re.findall(
        r"dot_general.* : \(tensor<\w+x(\w+)>, tensor<\w+x(\w+)>\) -> tensor<\w+x(\w+)>", lowered
    )
    assert kinds == [("bf16", "bf16", "f32")] * 2
