"""Ratios against loops, and their safety where policies are far apart."""

import jax
import jax.numpy as jnp
import numpy as np
from toys import B, T, batch

from rlvr_jax.objective.ratios import (
    LOG_RATIO_LIMIT,
    GspoToken,
    NoRatio,
    Sequence,
    Token,
    sequence_ratio,
    token_ratio,
)
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


def slow_sequence(new, old, mask):
    """GSPO, eq. 7: the likelihood of the response to the power 1 / |o|, by products of probabilities."""
    out = []
    for n, o, m in zip(new, old, mask, strict=True):
        product, length = 1.0, 0
        for t in range(len(m)):
            if m[t]:
                product, length = product * np.exp(n[t]) / np.exp(o[t]), length + 1
        out.append(product ** (1 / length) if length else 1.0)
    return np.array(out)


def test_sequence_ratio_matches_a_loop_in_value_and_gradient():
    rollout, stats = batch()
    mask = rollout.mask.at[4].set(0.0)
    new, old = (stats.get(p, Stat.LOGPROB) for p in (Pass.NEW, Pass.OLD))
    expected = slow_sequence(np.asarray(new, float), np.asarray(old, float), mask)
    got = sequence_ratio(new, old, mask)
    assert got.shape == (B, 1)
    np.testing.assert_allclose(got[:, 0], expected, rtol=2e-6)
    assert got[4, 0] == 1
    # d s / d log pi_t = s / |o|, of every token of the response
    slope = jax.grad(lambda n: sequence_ratio(n, old, mask).sum())(new)
    each = expected / np.maximum(np.asarray(mask).sum(1), 1)
    np.testing.assert_allclose(slope, each[:, None] * np.asarray(mask), rtol=1e-5)


def test_the_sequence_ratio_of_long_responses_stays_in_log_space():
    """4000 tokens of ratio 1.1: their product is 1e165, their geometric mean 1.1."""
    new, old = jnp.full((1, 4000), jnp.log(1.1)), jnp.zeros((1, 4000))
    np.testing.assert_allclose(sequence_ratio(new, old, jnp.ones((1, 4000))), [[1.1]], rtol=1e-5)


def test_the_stages_of_gspo_share_values_and_their_gradients_agree_for_one_advantage():
    rollout, stats = batch()
    new, rest = (Pass.NEW, Stat.LOGPROB), stats.values
    advantage = (rollout.reward - 0.3)[:, None]

    def total(stage, x):
        ratio = jnp.exp(stage.log_ratio(Stats(values={**rest, new: x}), rollout.mask))
        return (ratio * advantage * rollout.mask / rollout.mask.sum(1, keepdims=True)).sum()

    one, two = (stage.log_ratio(stats, rollout.mask) for stage in (Sequence(), GspoToken()))
    np.testing.assert_allclose(one, two, rtol=1e-6)
    expected = np.log(
        slow_sequence(*(np.asarray(rest[p, Stat.LOGPROB], float) for p in (Pass.NEW, Pass.OLD)), rollout.mask)
    )
    np.testing.assert_allclose(one, expected[:, None] * np.asarray(rollout.mask), rtol=2e-5, atol=1e-6)
    a, b = (jax.grad(lambda x, s=s: total(s, x))(rest[new]) for s in (Sequence(), GspoToken()))
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8)


def test_the_gradient_of_gspo_token_is_that_of_its_own_token():
    """s_i grad log pi(o_it), so that tokens of one response may have different advantages."""
    rollout, stats = batch()
    new = (Pass.NEW, Stat.LOGPROB)
    picked = jnp.zeros((B, T)).at[:, 0].set(1.0)

    def first(x):
        ratio = jnp.exp(GspoToken().log_ratio(Stats(values={**stats.values, new: x}), rollout.mask))
        return (ratio * picked).sum()

    old = stats.get(Pass.OLD, Stat.LOGPROB)
    expected = picked * sequence_ratio(stats.values[new], old, rollout.mask)
    np.testing.assert_allclose(jax.grad(first)(stats.values[new]), expected, rtol=1e-5)


def test_equal_policies_have_sequence_ratio_one_exactly():
    rollout, stats = batch()
    same = stats.merge({(Pass.NEW, Stat.LOGPROB): stats.get(Pass.OLD, Stat.LOGPROB)})
    for stage in (Sequence(), GspoToken()):
        assert not stage.log_ratio(same, rollout.mask).any()
