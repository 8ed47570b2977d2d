"""Reductions that stay exact on padding and finite on empty input, against loops."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.numerics import group_mean, group_std, grouped, masked_mean, masked_sum, safe_divide

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 5)).astype(np.float32)
MASK = (np.arange(5) < np.array([5, 3, 1, 0, 2, 0])[:, None]).astype(np.float32)


def test_masked_reductions_match_a_loop():
    for i in range(6):
        inside = [float(X[i, t]) for t in range(5) if MASK[i, t]]
        np.testing.assert_allclose(masked_sum(jnp.asarray(X), jnp.asarray(MASK))[i], sum(inside), rtol=1e-5)
        mean = sum(inside) / len(inside) if inside else 0.0
        np.testing.assert_allclose(masked_mean(jnp.asarray(X), jnp.asarray(MASK))[i], mean, rtol=1e-5)


@pytest.mark.parametrize("function", [masked_sum, masked_mean])
@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf])
def test_what_lies_under_the_mask_changes_neither_value_nor_gradient(function, wild):
    def total(x):
        value = function(x, jnp.asarray(MASK))
        return value.sum(), value

    soiled = jnp.asarray(np.where(MASK > 0, X, np.float32(wild)))
    (_, value), gradient = jax.value_and_grad(total, has_aux=True)(soiled)
    (_, expected), expected_gradient = jax.value_and_grad(total, has_aux=True)(jnp.asarray(X))
    np.testing.assert_array_equal(value, expected)
    np.testing.assert_array_equal(gradient, expected_gradient)


def test_nothing_over_nothing_is_zero_with_zero_gradients():
    with jax.debug_nans(True):
        value, gradients = jax.value_and_grad(lambda a, b: safe_divide(a, b).sum(), (0, 1))(
            jnp.asarray([1.0, 3.0, -2.0]), jnp.asarray([0.0, 2.0, 0.0])
        )
    assert value == 1.5
    np.testing.assert_allclose(gradients[0], [0, 0.5, 0])
    np.testing.assert_allclose(gradients[1], [0, -0.75, 0])


def test_group_statistics_match_a_loop():
    x = RNG.normal(size=12).astype(np.float32)
    for p in range(3):
        group = [float(v) for v in x[4 * p : 4 * p + 4]]
        mean = sum(group) / 4
        np.testing.assert_allclose(group_mean(jnp.asarray(x), 4)[p, 0], mean, rtol=1e-5, atol=1e-7)
        for ddof in (0, 1):
            std = (sum((v - mean) ** 2 for v in group) / (4 - ddof)) ** 0.5
            np.testing.assert_allclose(group_std(jnp.asarray(x), 4, ddof=ddof)[p, 0], std, rtol=1e-5)


@pytest.mark.parametrize("value", [0.95, 1 / 3, 1e6, -0.1])
def test_the_deviation_of_equal_values_is_exactly_zero_and_has_a_gradient(value):
    """E[x^2] - E[x]^2 gives 4.6e-4 for eight rewards of 0.95; sqrt at 0 has no finite slope."""
    x = jnp.asarray(np.full(8, value, np.float32))
    std, gradient = jax.value_and_grad(lambda x: group_std(x, 8, ddof=1)[0, 0])(x)
    assert std == 0
    np.testing.assert_array_equal(gradient, np.zeros(8))


def test_a_large_offset_does_not_touch_the_deviation():
    """Two-pass and centred on a member: 4096.5 and 4096.25 are exact, and so is their spread."""
    x = jnp.asarray([0.5, 0.25, 0.5, 0.25], jnp.float32)
    np.testing.assert_array_equal(group_std(x + 4096, 4, ddof=0), group_std(x, 4, ddof=0))


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: grouped(jnp.zeros(10), 4), "10 rows are no whole number of groups of 4."),
        (
            lambda: group_std(jnp.zeros(4), 1, ddof=1),
            "a standard deviation with ddof=1 needs groups of more than 1, got 1.",
        ),
    ],
)
def test_errors(make, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        make()
