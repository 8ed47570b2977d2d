"""The probability of missing what is rare, against all groups by hand and against draws."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.analysis.tail_miss import active_probability, tail_miss_probability


@pytest.mark.parametrize("size", [2, 3, 5, 7])
@pytest.mark.parametrize("mu, tau", [(0.5, 0.05), (0.8, 0.3), (0.2, 0.19)])
def test_it_is_the_sum_over_all_groups(mu, tau, size):
    """Of answers that are rare and right, right, or wrong."""
    chance = {"rare": tau, "right": mu - tau, "wrong": 1 - mu}
    active = missed = 0.0
    for group in itertools.product(chance, repeat=size):
        mixed = "wrong" in group and len(set(group)) > 1
        active += mixed * math.prod(chance[x] for x in group)
        missed += (mixed and "rare" not in group) * math.prod(chance[x] for x in group)
    np.testing.assert_allclose(active_probability(mu, size), active, rtol=1e-5)
    np.testing.assert_allclose(tail_miss_probability(mu, tau, size), missed, rtol=1e-5)


def test_values_for_large_groups():
    """In double precision by hand; the paper says below 0.001 for the largest."""
    for n in (2, 8, 1024, 32768, 131072):
        exact = (1 - 6.3e-5) ** n - (0.64 - 6.3e-5) ** n - 0.36**n
        np.testing.assert_allclose(tail_miss_probability(0.64, 6.3e-5, n), exact, rtol=2e-4, atol=1e-7)
    assert tail_miss_probability(0.64, 6.3e-5, 131072) < 1e-3


def test_it_goes_through_jit_and_grad_over_arrays():
    mu = jnp.array([0.2, 0.5])
    slope = jax.jit(jax.vmap(jax.grad(lambda m: tail_miss_probability(m, 0.05, 8))))(mu)
    step = 1e-2
    about = (tail_miss_probability(mu + step, 0.05, 8) - tail_miss_probability(mu - step, 0.05, 8)) / (
        2 * step
    )
    np.testing.assert_allclose(slope, about, rtol=0.03)  # third derivatives are of order N^3
