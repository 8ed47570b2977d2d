"""The simulation of one token, against NumPy, and the first-order changes of masses against actual ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.analysis.categorical import Categorical, draw, mass_change

SMALL = Categorical(actions=40, right=10, steps=30)


def in_numpy(setup, samples, gamma, seed):
    """Adam on the mean of (R_j - mean R) log p_j, from the same draws."""
    z = np.zeros(setup.actions)
    z[: setup.right], z[0] = setup.right_logit, setup.anchor_logit
    softmax = lambda z: np.exp(z - z.max()) / np.exp(z - z.max()).sum()  # noqa: E731
    before, m, v, out = softmax(z)[: setup.right], 0.0, 0.0, []
    for t, key in enumerate(jax.random.split(jax.random.key(seed), setup.steps), 1):
        p = softmax(z)
        counts = np.asarray(draw(key, jnp.asarray(p, jnp.float32), samples), np.float64)
        rewards = np.repeat(np.where(np.arange(setup.actions) < setup.right, 1.0, -1.0), counts.astype(int))
        sampled = np.repeat(np.arange(setup.actions), counts.astype(int))
        g = np.zeros(setup.actions)
        for action, reward in zip(sampled, rewards - rewards.mean(), strict=True):
            g[action] += reward / samples
            g -= reward / samples * p
        g *= (1 - (rewards > 0).mean()) ** gamma
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        out.append((p[: setup.right].sum(), p[: setup.right][counts[: setup.right] == 0].sum()))
        z = z + setup.learning_rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    right = softmax(z)[: setup.right]
    return np.array(out), right.sum(), 1 - np.maximum(0, before - right).sum() / before.sum()


@pytest.mark.parametrize("samples, gamma", [(4, 0.0), (16, 1.0), (64, 0.5)])
def test_a_course_is_that_of_a_loop_over_samples(samples, gamma):
    found = SMALL.run(samples, gamma, seed=3)
    rows, mass, retained = in_numpy(SMALL, samples, gamma, seed=3)
    # float32 against float64: 30 steps of 0.01, where a gradient of nearly 0 may move a logit by one of them
    np.testing.assert_allclose(found.right, rows[:, 0], atol=2e-3)
    np.testing.assert_allclose(found.unsampled, rows[:, 1], atol=2e-3)
    np.testing.assert_allclose(found.end, [mass, retained], atol=2e-3)
    assert found.retained[0] == pytest.approx(1)


@pytest.mark.parametrize("samples", [7, 5000])
def test_draws_have_the_frequencies_of_the_policy(samples):
    p = jax.nn.softmax(jnp.arange(6.0))
    counts = jax.vmap(lambda key: draw(key, p, samples))(
        jax.random.split(jax.random.key(0), 4000 // samples + 200)
    )
    assert (counts.sum(1) == samples).all() and (counts >= 0).all()
    n = counts.sum()
    expected = n * p
    assert (
        (counts.sum(0) - expected) ** 2 / expected
    ).sum() < 20.5  # chi-square, 5 degrees of freedom: 0.1 %


def test_masses_change_as_the_formulas_say():
    """A small step's change over its rate, in float64, where the second order is a millionth."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        z, counts = rng.normal(size=30), rng.integers(0, 3, 30)
        right, p = np.arange(30) < 12, np.exp(z) / np.exp(z).sum()
        reward = np.where(counts > 0, np.where(right, 1.0, -1.0), 0.0)
        rate = 1e-3
        z2 = z + rate / counts.sum() * p * (reward - (p * reward).sum())
        after = np.exp(z2) / np.exp(z2).sum()
        found = mass_change(jnp.asarray(p), jnp.asarray(right), jnp.asarray(counts), rate=1.0)
        unsampled = right & (counts == 0)
        np.testing.assert_allclose(found.right, (after - p)[right].sum() / rate, rtol=1e-3, atol=1e-7)
        np.testing.assert_allclose(found.unsampled, (after - p)[unsampled].sum() / rate, rtol=1e-3, atol=1e-7)
