"""Response weights against loops over ReCo's equation, with our cap and normalisation."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import B, G, batch, context

from rlvr_jax.objective.response_weights import InverseOccurrence, inverse_occurrence
from rlvr_jax.types import Pass, Stat

MEANS = jnp.asarray(-np.random.default_rng(0).exponential(0.7, 12), jnp.float32)


def slow_inverse(means, size, cap, normalize):
    out = []
    for first in range(0, len(means), size):
        group = [1 / (size * math.exp(float(m))) for m in means[first : first + size]]
        group = [min(w, cap) if cap is not None else w for w in group]
        total = sum(group) / size
        out += [w / total if normalize else w for w in group]
    return out


@pytest.mark.parametrize("cap", [None, 0.5, 5.0])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("size", [1, 4, 6])
def test_inverse_occurrence_matches_a_loop(cap, normalize, size):
    run = jax.jit(lambda m: inverse_occurrence(m, size, cap=cap, normalize=normalize))
    np.testing.assert_allclose(run(MEANS), slow_inverse(MEANS, size, cap, normalize), rtol=2e-6)


def test_by_hand():
    """Likelihoods .5 and .25 in a group of two: 1 and 2; capped at 1.5 and normalised: .8 and 1.2."""
    means = jnp.log(jnp.asarray([0.5, 0.25]))
    np.testing.assert_allclose(inverse_occurrence(means, 2), [1.0, 2.0], rtol=1e-6)
    np.testing.assert_allclose(inverse_occurrence(means, 2, cap=1.5, normalize=True), [0.8, 1.2], rtol=1e-6)


def test_normalised_weights_keep_the_size_of_a_step_and_equal_responses_their_advantage():
    weight = inverse_occurrence(MEANS, 4, cap=5.0, normalize=True)
    np.testing.assert_allclose(weight.reshape(-1, 4).mean(1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(inverse_occurrence(jnp.full(8, -0.3), 4, normalize=True), jnp.ones(8))


def test_an_impossible_response_has_a_finite_weight():
    assert np.isfinite(inverse_occurrence(jnp.asarray([-500.0, 0.0]), 2, normalize=True)).all()


def test_the_stage_takes_the_likelihood_of_the_whole_response():
    """Also where a mask leaves some of its tokens out of the loss."""
    rollout, stats = batch()
    logprob = np.asarray(stats.get(Pass.OLD, Stat.LOGPROB), float)
    means = [np.mean([x for x, m in zip(logprob[i], rollout.mask[i], strict=True) if m]) for i in range(B)]
    x = rollout.reward - 0.3
    ctx = context(rollout, stats)
    expected = np.asarray(x) * slow_inverse(means, G, 5.0, True)
    np.testing.assert_allclose(InverseOccurrence().transform(x, ctx), expected, rtol=1e-5)
    narrow = type(ctx)(rollout, stats, ctx.spec, ctx.reward, ctx.mask.at[:, 0].set(0.0))
    np.testing.assert_allclose(InverseOccurrence().transform(x, narrow), expected, rtol=1e-5)


def test_errors():
    text = "inverse_occurrence cap is the largest weight and above 0 (None: no cap), got 0.0."
    for make in (lambda: InverseOccurrence(cap=0.0), lambda: inverse_occurrence(MEANS, 4, cap=0.0)):
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            make()
