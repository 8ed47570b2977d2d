"""Dual clip, CISPO and DCPO's bounds against loops over the papers' equations, and the limits that they promise."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.objective.clips import (
    Cispo,
    Dual,
    Dynamic,
    Ppo,
    cispo_gain,
    dual_clip_gain,
    dynamic_bounds,
    ppo_gain,
)
from rlvr_jax.types import Pass, Stat, Stats

NONE = Stats(values={})
RATIOS = np.array([0.1, 0.52, 0.79, 0.81, 1.0, 1.19, 1.21, 2.9, 3.1, 12.0], np.float32)
ADVANTAGES = np.array([-2.0, -0.5, 0.0, 0.5, 2.0], np.float32)
GRID = tuple(jnp.asarray(x) for x in np.meshgrid(RATIOS, ADVANTAGES, indexing="ij"))
LOGPROB = jnp.asarray(-np.random.default_rng(0).exponential(2.0, GRID[0].shape), jnp.float32)


def slow_ppo(r, a, least, most):
    return min(r * a, min(max(r, least), most) * a)


def slow_dual(r, a, least, most, cap):
    gain = slow_ppo(r, a, least, most)
    return max(gain, cap * a) if a < 0 else gain


def loop(function, *arrays):
    return np.array(
        [function(*map(float, x)) for x in zip(*(np.ravel(a) for a in arrays), strict=True)]
    ).reshape(np.shape(arrays[0]))


def slope(gain, at, step):
    """Central differences in float64 of a scalar function."""
    return (gain(at + step) - gain(at - step)) / (2 * step)


@pytest.mark.parametrize("low, high, cap", [(0.2, 0.28, 3.0), (0.2, 0.2, 10.0), (0.0, 0.0, 1.1)])
def test_dual_matches_the_paper_in_value_and_gradient(low, high, cap):
    expected = loop(lambda r, a: slow_dual(r, a, 1 - low, 1 + high, cap), *GRID)
    np.testing.assert_allclose(dual_clip_gain(*GRID, low, high, cap), expected, rtol=1e-6)
    if low:  # no ratio of the grid is within 1e-3 of an edge
        gradient = jax.grad(lambda r: dual_clip_gain(r, GRID[1], low, high, cap).sum())(GRID[0])
        by_step = loop(lambda r, a: slope(lambda x: slow_dual(x, a, 1 - low, 1 + high, cap), r, 1e-4), *GRID)
        np.testing.assert_allclose(gradient, by_step, rtol=1e-6, atol=1e-6)


def test_dual_by_hand():
    ratio, advantage = jnp.asarray([[5.0, 5.0, 2.0, 0.5]]), jnp.asarray([[-1.0, 1.0, -1.0, -1.0]])
    np.testing.assert_allclose(dual_clip_gain(ratio, advantage, 0.2, 0.2, 3.0), [[-3.0, 1.2, -2.0, -0.8]])


def test_without_a_cap_dual_is_ppo():
    np.testing.assert_array_equal(dual_clip_gain(*GRID, 0.2, 0.28, np.inf), ppo_gain(*GRID, 0.2, 0.28))
    one, two = (
        jax.grad(lambda r, f=f: f(r).sum())(GRID[0])
        for f in (
            lambda r: dual_clip_gain(r, GRID[1], 0.2, 0.28, np.inf),
            lambda r: ppo_gain(r, GRID[1], 0.2, 0.28),
        )
    )
    np.testing.assert_array_equal(one, two)


def test_dual_leaves_good_tokens_alone_and_bounds_bad_ones():
    gain = np.asarray(Dual(0.2, 0.2, 3.0).gain(jnp.log(GRID[0]), GRID[1], NONE))
    plain = np.asarray(Ppo().gain(jnp.log(GRID[0]), GRID[1], NONE))
    np.testing.assert_array_equal(gain[GRID[1] >= 0], plain[GRID[1] >= 0])
    assert (gain >= 3 * np.minimum(GRID[1], 0)).all() and (plain < 3 * np.minimum(GRID[1], 0)).any()


@pytest.mark.parametrize("clip", [Dual(0.2, 0.28, 3.0), Dynamic(0.16, 0.2, 3.0)])
def test_clipped_says_where_the_gradient_is_cut(clip):
    stats = Stats(values={(Pass.OLD, Stat.LOGPROB): LOGPROB})
    log_ratio, advantage = jnp.log(GRID[0]), GRID[1]
    gradient = jax.grad(lambda x: clip.gain(x, advantage, stats).sum())(log_ratio)
    marked = clip.clipped(log_ratio, advantage, stats)
    np.testing.assert_array_equal(marked, (gradient == 0) & (advantage != 0))
    assert 0 < marked.sum() < (np.asarray(advantage) != 0).sum()


def slow_cispo(r, a, logprob, least, most):
    return min(max(r, least), most) * a * logprob


@pytest.mark.parametrize("low, high", [(1.0, 5.0), (0.2, 0.28), (1.0, 1.0)])
def test_cispo_matches_the_paper(low, high):
    expected = loop(lambda *x: slow_cispo(*x, 1 - low, 1 + high), *GRID, LOGPROB)
    np.testing.assert_allclose(cispo_gain(*GRID, LOGPROB, low, high), expected, rtol=1e-6)


def test_cispo_bounds_are_offsets_from_one():
    """At r = 5.5 and high = 5 the weight is whole: [0, 6], where an absolute bound would cut at 5."""
    ratio = jnp.asarray([[5.5, 6.0, 7.0, 0.01]])
    one = jnp.ones_like(ratio)
    np.testing.assert_allclose(cispo_gain(ratio, one, -one, 1.0, 5.0), [[-5.5, -6.0, -6.0, -0.01]])
    np.testing.assert_array_equal(Cispo().clipped(jnp.log(ratio), one, NONE), [[0, 0, 1, 0]])


def test_the_gradient_of_cispo_is_the_detached_weight():
    """d / d log pi = clip(r) A, also where r is beyond its bound and where log pi < -1, which is where a weight that is
    not detached turns the sign: r A (1 + log pi)."""
    old = LOGPROB - jnp.log(GRID[0])
    gain = lambda x: cispo_gain(jnp.exp(x - old), GRID[1], x, 0.2, 0.28).sum()  # noqa: E731
    expected = loop(lambda r, a: min(max(r, 0.8), 1.28) * a, *GRID)
    np.testing.assert_allclose(jax.grad(gain)(LOGPROB), expected, rtol=1e-5, atol=1e-7)
    assert (LOGPROB < -1).any() and (GRID[0] > 1.28).any()
    fixed = np.clip(np.asarray(GRID[0], float), 0.8, 1.28)  # what is detached does not move with the step
    by_step = loop(lambda w, a, x: slope(lambda y: w * a * y, x, 1e-3), fixed, GRID[1], LOGPROB)
    np.testing.assert_allclose(jax.grad(gain)(LOGPROB), by_step, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("low, high", [(1.0, 5.0), (0.2, 0.2), (0.0, 0.0)])
def test_on_policy_cispo_has_the_gradient_of_ppo(low, high):
    cispo = lambda x: cispo_gain(jnp.exp(x - LOGPROB), GRID[1], x, low, high).sum()  # noqa: E731
    ppo = lambda x: ppo_gain(jnp.exp(x - LOGPROB), GRID[1], low, high).sum()  # noqa: E731
    np.testing.assert_array_equal(jax.grad(cispo)(LOGPROB), jax.grad(ppo)(LOGPROB))


def slow_bounds(logprob, low, high, cap):
    q = np.exp(logprob)
    most = 0.5 + 0.5 * np.sqrt(1 + 4 * high / q)
    return 0.5 + 0.5 * np.sqrt(max(1 - 4 * low / q, 0.0)), min(most, cap)


@pytest.mark.parametrize("low, high, cap", [(0.16, 0.2, 10.0), (0.2, 0.28, 10.0), (0.0, 0.0, 2.0)])
def test_dynamic_bounds_match_the_paper(low, high, cap):
    logprob = jnp.asarray([-np.linspace(0, 15, 40)], jnp.float32)
    expected = np.array([slow_bounds(float(x), low, high, cap) for x in logprob[0]]).T
    got = dynamic_bounds(logprob, low, high, cap=cap)
    np.testing.assert_allclose(got[0][0], expected[0], rtol=2e-6)
    np.testing.assert_allclose(got[1][0], expected[1], rtol=2e-6)


def test_dynamic_bounds_by_hand():
    low, high = dynamic_bounds(jnp.log(jnp.asarray([[1.0, 0.1]])), 0.2, 0.2)
    np.testing.assert_allclose(low, [[0.7236068, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(high, [[1.1708204, 2.0]], rtol=1e-6)


def test_dynamic_bounds_solve_the_equation_that_they_come_from():
    """(1 - lo) lo q = low where that has a solution, (hi - 1) hi q = high below the cap."""
    q = np.linspace(0.65, 1.0, 30)
    lo, hi = dynamic_bounds(jnp.asarray([np.log(q)], jnp.float32), 0.16, 0.2)
    np.testing.assert_allclose((1 - lo[0]) * lo[0] * q, 0.16, rtol=2e-6)
    np.testing.assert_allclose((hi[0] - 1) * hi[0] * q, 0.2, rtol=2e-6)


def test_dynamic_bounds_of_impossible_tokens_are_finite():
    for low, high in ((0.16, 0.2), (0.0, 0.0)):
        lo, hi = dynamic_bounds(jnp.asarray([[-jnp.inf, -500.0]]), low, high)
        np.testing.assert_array_equal(lo, [[0.5, 0.5]] if low else [[1.0, 1.0]])
        np.testing.assert_array_equal(hi, [[10.0, 10.0]] if high else [[1.0, 1.0]])


def test_dynamic_gain_matches_a_loop_in_value_and_gradient():
    stats = Stats(values={(Pass.OLD, Stat.LOGPROB): LOGPROB})
    clip = Dynamic(0.16, 0.2, 4.0)

    def slow(r, a, logprob):
        return slow_dual(r, a, *slow_bounds(logprob, 0.16, 0.2, 4.0), 4.0)

    got = clip.gain(jnp.log(GRID[0]), GRID[1], stats)
    np.testing.assert_allclose(got, loop(slow, *GRID, LOGPROB), rtol=1e-5)
    gradient = jax.grad(lambda x: clip.gain(x, GRID[1], stats).sum())(jnp.log(GRID[0]))
    by_step = loop(lambda r, a, q: r * slope(lambda x: slow(x, a, q), r, 1e-6), *GRID, LOGPROB)
    np.testing.assert_allclose(gradient, by_step, rtol=1e-4, atol=1e-6)


DUAL = (
    "dual keeps the ratio in [1 - low, 1 + high] and that of a negative advantage below cap: low is in [0, 1], high >= 0 "
    "and cap > 1, got low={}, high={}, cap={}."
)
CISPO = "cispo keeps the weight in [1 - low, 1 + high], offsets from 1: low is in [0, 1] and high >= 0, got low={}, high={}."
DYNAMIC = (
    "dynamic bounds the ratio by low >= 0 and high >= 0 over the old probability and by cap > 1, got low={}, high={}, "
    "cap={}."
)


@pytest.mark.parametrize(
    "cls, text, fields",
    [
        (Dual, DUAL, (-0.1, 0.2, 3.0)),
        (Dual, DUAL, (0.2, -0.2, 3.0)),
        (Dual, DUAL, (0.2, 0.2, 1.0)),
        (Cispo, CISPO, (1.5, 5.0)),
        (Cispo, CISPO, (1.0, -5.0)),
        (Dynamic, DYNAMIC, (-0.1, 0.2, 10.0)),
        (Dynamic, DYNAMIC, (0.1, float("nan"), 10.0)),
        (Dynamic, DYNAMIC, (0.1, 0.2, 0.5)),
    ],
)
def test_errors(cls, text, fields):
    with pytest.raises(ValueError, match=f"^{re.escape(text.format(*fields))}$"):
        cls(*fields)
