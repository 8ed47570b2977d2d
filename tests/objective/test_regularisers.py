"""Penalties against exact gradients: a softmax bandit of one token, whose vocabulary is enumerated."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import SPEC, batch

from rlvr_jax.objective import Credit, Objective
from rlvr_jax.objective.regularisers import KL, KL_KINDS, Entropy, kl_estimate
from rlvr_jax.stats import token_stats
from rlvr_jax.types import Pass, Stat, Stats

V = 6
NEW, OLD, REF = (np.random.default_rng(seed).normal(size=V).astype(np.float32) for seed in range(3))
POLICIES = {"on-policy": NEW, "off-policy": OLD}
PRECISE = {"rtol": 2e-5, "atol": 2e-7}
"""Sums of six float32 terms of order 0.1 to 1."""


def softmax(z):
    z = np.exp(np.asarray(z, np.float64))
    return z / z.sum()


def exact_kl(new, ref):
    p, q = softmax(new), softmax(ref)
    return float((p * np.log(p / q)).sum())


def exact_kl_gradient(new, ref):
    """d KL(p || q) / d z_j = p_j (log p_j - log q_j - KL), for logits z of p."""
    p, q = softmax(new), softmax(ref)
    return p * (np.log(p / q) - exact_kl(new, ref))


def enumerate_bandit(new, old):
    """Every token of the vocabulary as one row, as if each had been sampled once."""
    values = {
        Pass.NEW: jax.nn.log_softmax(new),
        Pass.OLD: jax.nn.log_softmax(old),
        Pass.REF: jax.nn.log_softmax(REF),
    }
    return Stats(values={(p, Stat.LOGPROB): v[:, None] for p, v in values.items()})


def expected(part, old):
    """Mean of the penalty over tokens sampled by the old policy, as a function of the new policy's logits."""
    weight = jnp.asarray(softmax(old), jnp.float32)
    return lambda new: (weight * part.penalty(enumerate_bandit(new, old), jnp.ones((V, 1)))[:, 0]).sum()


@pytest.mark.parametrize("kind", KL_KINDS)
@pytest.mark.parametrize("old", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("coef", [1.0, 0.04])
def test_the_expected_gradient_is_that_of_the_kl(kind, old, coef):
    got = jax.grad(expected(KL(coef, kind), old))(jnp.asarray(NEW))
    np.testing.assert_allclose(got, coef * exact_kl_gradient(NEW, REF), **PRECISE)


@pytest.mark.parametrize("kind", ["k1", "k3"])
@pytest.mark.parametrize("old", POLICIES.values(), ids=POLICIES)
def test_the_expected_value_is_the_kl_for_the_unbiased_estimators(kind, old):
    np.testing.assert_allclose(
        expected(KL(0.5, kind), old)(jnp.asarray(NEW)), 0.5 * exact_kl(NEW, REF), rtol=2e-5
    )


def test_plain_autodiff_of_the_estimators_would_be_wrong():
    """What the penalty must not do: k1 has gradient 0 in expectation, k3 that of the forward KL(ref || pi)."""
    p = jnp.asarray(softmax(NEW), jnp.float32)

    def gradient(kind):
        ref = jax.nn.log_softmax(REF)[:, None]
        return jax.grad(lambda z: (p * kl_estimate(jax.nn.log_softmax(z)[:, None], ref, kind)[:, 0]).sum())(
            NEW
        )

    np.testing.assert_allclose(gradient("k1"), np.zeros(V), atol=1e-6)
    np.testing.assert_allclose(gradient("k2"), exact_kl_gradient(NEW, REF), **PRECISE)
    np.testing.assert_allclose(gradient("k3"), softmax(NEW) - softmax(REF), **PRECISE)


def test_values_by_hand():
    """d = log 2 and log 1/2: k1 = +-0.693147, k2 = 0.2402265, k3 = 1/2 - 1 + log 2 and 2 - 1 - log 2."""
    logprob, ref = jnp.log(jnp.asarray([[0.5, 0.25]])), jnp.log(jnp.asarray([[0.25, 0.5]]))
    np.testing.assert_allclose(kl_estimate(logprob, ref, "k1"), [[0.693147, -0.693147]], rtol=2e-6)
    np.testing.assert_allclose(kl_estimate(logprob, ref, "k2"), [[0.2402265, 0.2402265]], rtol=2e-6)
    np.testing.assert_allclose(kl_estimate(logprob, ref, "k3"), [[0.193147, 0.306853]], rtol=2e-6)


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_small_gaps_lose_no_sign_or_precision(kind):
    """k2 and k3 agree to third order; e^-d - 1 + d by plain exponentials would be noise of 6e-8 around values of 5e-9."""
    gap = jnp.asarray([[-1e-4, 1e-4, 0.0]])
    got = kl_estimate(gap, jnp.zeros_like(gap), kind)
    np.testing.assert_allclose(got, [[5e-9, 5e-9, 0.0]], rtol=2e-3)


@pytest.mark.parametrize("kind", KL_KINDS)
def test_equal_policies_have_no_penalty_and_no_gradient(kind):
    stats = enumerate_bandit(REF, REF)
    same = Stats(values={**stats.values, (Pass.NEW, Stat.LOGPROB): stats.get(Pass.REF, Stat.LOGPROB)})
    assert not KL(1.0, kind).penalty(same, jnp.ones((V, 1))).any()
    np.testing.assert_allclose(
        jax.grad(expected(KL(1.0, kind), REF))(jnp.asarray(REF)), np.zeros(V), atol=1e-7
    )


def gradient_of(objective, rollout, stats):
    """d loss / d new log-probability."""
    credit, _, _ = objective.credit(rollout, stats, SPEC, objective.init(SPEC))
    weight = objective.weights(credit, SPEC, 0)
    new = (Pass.NEW, Stat.LOGPROB)
    return jax.grad(lambda x: objective.loss(stats.merge({new: x}), credit, weight)[0])(stats.values[new])


def test_twice_the_coefficient_doubles_only_the_gradient_of_the_kl():
    rollout, stats = batch()
    none, once, twice = (
        gradient_of(Objective(regularisers=r), rollout, stats) for r in ((), (KL(0.1),), (KL(0.2),))
    )
    assert np.abs(none).max() > 0.01 and np.abs(once - none).max() > 0.001
    np.testing.assert_allclose(twice - once, once - none, rtol=1e-4, atol=1e-7)


def test_the_kl_of_a_token_is_weighted_by_its_own_ratio_and_not_by_the_clip():
    """Its importance weight is pi / pi_old of that token, whatever ratio or clip the gain uses: same gradient."""
    from rlvr_jax.objective.clips import Ppo, Unclipped
    from rlvr_jax.objective.ratios import NoRatio

    rollout, stats = batch()
    extra = []
    for parts in ({"clip": Ppo(0.01, 0.01)}, {"ratio": NoRatio(), "clip": Unclipped()}):
        with_kl, without = (
            gradient_of(Objective(**parts, regularisers=r), rollout, stats) for r in ((KL(0.1),), ())
        )
        extra.append(with_kl - without)
    np.testing.assert_allclose(extra[0], extra[1], rtol=1e-4, atol=1e-7)
    new, old, ref = (
        np.asarray(stats.get(p, Stat.LOGPROB), np.float64) for p in (Pass.NEW, Pass.OLD, Pass.REF)
    )
    mask = np.asarray(rollout.mask, np.float64)
    expected_gradient = 0.1 * np.exp(new - old) * (new - ref) * mask / mask.sum(1, keepdims=True) / len(mask)
    np.testing.assert_allclose(extra[0], expected_gradient, rtol=1e-4, atol=1e-7)


def test_the_entropy_bonus_has_the_exact_gradient():
    """d H / d z_j = - p_j (log p_j + H); the penalty is - coef H. Through the statistics of a head that is the identity."""
    zero = jnp.zeros((1, 1), jnp.int32)

    def penalty(z):
        found = token_stats(z[None, None], jnp.eye(V), zero, {Stat.ENTROPY}, chunk=4)
        stats = Stats(values={(Pass.NEW, s): v for s, v in found.items()})
        return Entropy(0.1).penalty(stats, jnp.ones((1, 1)))[0, 0]

    p = softmax(NEW)
    entropy = -(p * np.log(p)).sum()
    value, gradient = jax.value_and_grad(penalty)(jnp.asarray(NEW))
    np.testing.assert_allclose(value, -0.1 * entropy, rtol=1e-5)
    np.testing.assert_allclose(gradient, 0.1 * p * (np.log(p) + entropy), **PRECISE)


def test_the_entropy_bonus_is_in_the_loss_and_in_the_metrics():
    rollout, stats = batch()
    objective = Objective(regularisers=(Entropy(0.5),))
    ones = Credit(advantage=jnp.zeros_like(rollout.mask), passes=rollout.mask[:, None], mask=rollout.mask)
    loss, metrics = objective.loss(stats, ones, objective.weights(ones, SPEC, 0))
    mask, entropy = np.asarray(rollout.mask), np.asarray(stats.get(Pass.NEW, Stat.ENTROPY))
    np.testing.assert_allclose(loss, -0.5 * ((mask * entropy).sum(1) / mask.sum(1)).mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["regulariser/entropy"].total, -0.5 * (mask * entropy).sum(), rtol=1e-5)
    assert metrics["regulariser/entropy"].count == mask.sum()


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: KL(1e-3, "k4"), "no KL estimator called 'k4': there are k1, k2, k3."),
        (
            lambda: kl_estimate(jnp.zeros((1, 1)), jnp.zeros((1, 1)), "K1"),
            "no KL estimator called 'K1': there are k1, k2, k3.",
        ),
        (lambda: KL(0.0), "a KL penalty has a coefficient > 0 (leave it out for none), got 0.0."),
        (lambda: KL(float("nan")), "a KL penalty has a coefficient > 0 (leave it out for none), got nan."),
        (lambda: Entropy(-1.0), "an entropy bonus has a coefficient > 0 (leave it out for none), got -1.0."),
    ],
)
def test_errors(make, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        make()
