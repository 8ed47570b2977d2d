"""Gains against loops over the papers' equations, and their gradients against finite differences."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.objective.clips import Ppo, Unclipped, ppo_gain
from rlvr_jax.types import Stats

NONE = Stats(values={})
RATIOS = np.array([0.1, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 1.27, 1.29, 3.0], np.float32)
ADVANTAGES = np.array([-2.0, -0.5, 0.0, 0.5, 2.0], np.float32)
GRID = tuple(jnp.asarray(x) for x in np.meshgrid(RATIOS, ADVANTAGES, indexing="ij"))


def slow_ppo(ratio, advantage, low, high):
    clipped = ratio if ratio > 1 - low else 1 - low
    clipped = clipped if clipped < 1 + high else 1 + high
    return min(ratio * advantage, clipped * advantage)


@pytest.mark.parametrize("low, high", [(0.2, 0.2), (0.2, 0.28), (0.0, 0.0), (1.0, 5.0)])
@pytest.mark.parametrize(
    "wrap", [lambda f: f, lambda f: jax.jit(f, static_argnums=(2, 3))], ids=["eager", "jit"]
)
def test_ppo_matches_the_paper(wrap, low, high):
    ratio, advantage = GRID
    expected = [[slow_ppo(float(r), float(a), low, high) for a in ADVANTAGES] for r in RATIOS]
    np.testing.assert_allclose(wrap(ppo_gain)(ratio, advantage, low, high), expected, rtol=1e-6)


def test_by_hand():
    """Only moves that the advantage asks for are bounded: up for A > 0, down for A < 0."""
    ratio, advantage = jnp.asarray([[1.5, 1.5, 0.5, 0.5]]), jnp.asarray([[2.0, -2.0, 2.0, -2.0]])
    np.testing.assert_allclose(ppo_gain(ratio, advantage, 0.2, 0.28), [[2.56, -3.0, 1.0, -1.6]], rtol=1e-6)


def test_the_gradient_matches_finite_differences():
    """The gain is piecewise linear in the ratio; the grid keeps 1e-2 from the edges, so the step 4e-3 crosses none. A gain
    up to 6 has an ulp of 5e-7, which a central difference divides by 8e-3: 6e-5, and 5e-4 leaves room."""
    ratio, advantage = GRID
    step = 4e-3
    finite = (ppo_gain(ratio + step, advantage, 0.2, 0.28) - ppo_gain(ratio - step, advantage, 0.2, 0.28)) / (
        2 * step
    )
    got = jax.grad(lambda r: ppo_gain(r, advantage, 0.2, 0.28).sum())(ratio)
    np.testing.assert_allclose(got, finite, rtol=1e-4, atol=5e-4)


def test_the_gradient_ends_where_the_clip_is_in_force():
    """A inside and on the edge, 0 beyond it on the side that the advantage asks for, A on the other."""
    above, below = float(np.nextafter(np.float32(1.2), 2)), float(np.nextafter(np.float32(0.8), 0))
    ratio = jnp.asarray([[1.2, above, below, 0.8, below, above]])
    advantage = jnp.asarray([[3.0, 3.0, 3.0, -3.0, -3.0, -3.0]])
    got = jax.grad(lambda r: ppo_gain(r, advantage, 0.2, 0.2).sum())(ratio)
    np.testing.assert_array_equal(got, [[3.0, 0.0, 3.0, -3.0, 0.0, -3.0]])


@pytest.mark.parametrize("low, high", [(0.0, 0.0), (0.0, 0.2), (0.2, 0.0)])
def test_an_on_policy_token_has_its_whole_gradient_even_without_room(low, high):
    """At ratio 1 exactly, every clipped surrogate has gradient A; ties of min and clip would give fractions of it."""
    gain = lambda log_ratio, a: Ppo(low, high).gain(log_ratio, a, NONE).sum()  # noqa: E731
    got = jax.grad(gain)(jnp.zeros((1, 2)), jnp.asarray([[2.0, -2.0]]))
    np.testing.assert_array_equal(got, [[2.0, -2.0]])


def test_a_wide_clip_is_no_clip():
    ratio, advantage = GRID
    np.testing.assert_array_equal(ppo_gain(ratio, advantage, 1.0, np.inf), ratio * advantage)
    assert not Ppo(1.0, np.inf).clipped(jnp.log(ratio), advantage, NONE).any()


def test_a_positive_weight_may_be_taken_out_of_the_surrogate():
    """min(r w A, clip(r) w A) = w min(r A, clip(r) A): why advantages and weights are one signed credit."""
    ratio, advantage = GRID
    weight = jnp.full_like(ratio, 0.37)
    inside = ppo_gain(ratio, weight * advantage, 0.2, 0.28)
    np.testing.assert_allclose(inside, weight * ppo_gain(ratio, advantage, 0.2, 0.28), rtol=1e-6)


def test_clipped_says_where_the_gradient_is_cut():
    ratio, advantage = GRID
    clip = Ppo(0.2, 0.28)
    gradient = jax.grad(lambda r: ppo_gain(r, advantage, 0.2, 0.28).sum())(ratio)
    marked = clip.clipped(jnp.log(ratio), advantage, NONE)
    np.testing.assert_array_equal(marked, (gradient == 0) & (advantage != 0))


def test_ppo_takes_logarithms_and_unclipped_multiplies_them():
    log_ratio, advantage = jnp.log(GRID[0]), GRID[1]
    np.testing.assert_allclose(Ppo().gain(log_ratio, advantage, NONE), ppo_gain(*GRID, 0.2, 0.2), rtol=1e-5)
    np.testing.assert_array_equal(Unclipped().gain(log_ratio, advantage, NONE), advantage * log_ratio)
    assert not Unclipped().clipped(log_ratio, advantage, NONE).any()


@pytest.mark.parametrize("low, high", [(-0.1, 0.2), (1.1, 0.2), (0.2, -0.1), (0.2, float("nan"))])
def test_errors(low, high):
    text = f"ppo keeps the ratio in [1 - low, 1 + high]: low is in [0, 1] and high >= 0, got low={low}, high={high}."
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        Ppo(low, high)
