"""Ratios against loops, and their safety where policies are far apart."""

import jax
import jax.numpy as jnp
import numpy as np
from toys import B, T, batch

from rlvr_jax.objective.ratios import LOG_RATIO_LIMIT, NoRatio, Token, token_ratio
from rlvr_jax.types import Pass, Stat, Stats


def test_token_ratio_matches_a_loop():
    rollout, stats = batch()
    new, old = (np.asarray(stats.get(p, Stat.LOGPROB), np.float64) for p in (Pass.NEW, Pass.OLD))
    expected = np.zeros((B, T))
    for i in range(B):
        for t in range(T):
            if rollout.mask[i, t]:
                expected[i, t] = np.log(np.exp(new[i, t]) / np.exp(old[i, t]))
    got = Token().log_ratio(stats, rollout.mask)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=5e-7)  # a difference of float32 numbers up to 8
    ratio = token_ratio(stats.get(Pass.NEW, Stat.LOGPROB), stats.get(Pass.OLD, Stat.LOGPROB))
    np.testing.assert_allclose(ratio, np.exp(new) / np.exp(old), rtol=2e-6)


def test_by_hand():
    new, old = jnp.log(jnp.asarray([[0.5, 0.1]])), jnp.log(jnp.asarray([[0.25, 0.4]]))
    np.testing.assert_allclose(token_ratio(new, old), [[2.0, 0.25]], rtol=1e-6)


def test_equal_policies_have_ratio_one_exactly():
    logprob = batch()[1].get(Pass.OLD, Stat.LOGPROB)
    assert (token_ratio(logprob, logprob) == 1).all()


def test_the_gradient_of_the_ratio_is_the_ratio():
    """d r / d log pi = r."""
    new, old = jnp.asarray([[-0.7, -2.0]]), jnp.asarray([[-1.0, -1.0]])
    gradient = jax.grad(lambda n: token_ratio(n, old).sum())(new)
    np.testing.assert_allclose(gradient, np.exp([[0.3, -1.0]]), rtol=1e-6)


def test_policies_far_apart_stay_finite():
    new, old = jnp.asarray([[0.0, -500.0]]), jnp.asarray([[-500.0, 0.0]])
    np.testing.assert_allclose(
        token_ratio(new, old), np.exp([[LOG_RATIO_LIMIT, -LOG_RATIO_LIMIT]]), rtol=1e-6
    )
    stats = Stats(values={(Pass.NEW, Stat.LOGPROB): new, (Pass.OLD, Stat.LOGPROB): old})
    assert np.isfinite(jax.grad(lambda n: token_ratio(n, old).sum())(new)).all()
    np.testing.assert_array_equal(
        Token().log_ratio(stats, jnp.ones((1, 2))), [[LOG_RATIO_LIMIT, -LOG_RATIO_LIMIT]]
    )


def test_no_ratio_is_the_log_likelihood_inside_the_mask():
    rollout, stats = batch()
    got = NoRatio().log_ratio(stats, rollout.mask)
    np.testing.assert_array_equal(got, np.where(rollout.mask > 0, stats.get(Pass.NEW, Stat.LOGPROB), 0))
    assert {p for p, _ in NoRatio.needs} == {Pass.NEW}
