"""Token weights and the 80/20 mask against loops over the papers' definitions."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import SPEC, B, T, batch, context

from rlvr_jax.objective import Objective, chain
from rlvr_jax.objective.aggregates import TokenMean
from rlvr_jax.objective.masks import DropTruncated
from rlvr_jax.objective.token_weights import (
    Probability,
    SamplerCorrection,
    TopEntropy,
    TopEntropyWeight,
    probability_weight,
    top_entropy_mask,
)
from rlvr_jax.sharding import make_mesh, row_sharding
from rlvr_jax.types import Pass, Stat


def test_probability_weight_matches_a_loop():
    rollout, stats = batch()
    logprob = np.asarray(stats.get(Pass.OLD, Stat.LOGPROB), float)
    x = jnp.where(rollout.mask > 0, rollout.reward[:, None] - 0.3, 0.0)
    got = Probability(0.3).transform(x, context(rollout, stats))
    for i in range(B):
        for t in range(T):
            p = math.exp(logprob[i, t])
            np.testing.assert_allclose(got[i, t], (0.3 * p + 1 - 0.3) * x[i, t], rtol=1e-6)


def test_probability_weight_by_hand_and_without_alpha():
    logprob = jnp.log(jnp.asarray([[1.0, 0.5, 1e-6]]))
    np.testing.assert_allclose(probability_weight(logprob, 0.2), [[1.0, 0.9, 0.8]], rtol=1e-6)
    assert (probability_weight(logprob, 0.0) == 1).all()


def slow_top(entropy, mask, fraction):
    """Sort all valid tokens, keep the first ceil(fraction n); equal ones in the order of rows and positions."""
    valid = [(-entropy[i, t], i, t) for i in range(len(mask)) for t in range(len(mask[0])) if mask[i, t]]
    out = np.zeros(mask.shape, bool)
    for _, i, t in sorted(valid)[: math.ceil(round(fraction * len(valid), 9))]:
        out[i, t] = True
    return out


@pytest.mark.parametrize("fraction", [0.01, 0.2, 1 / 3, 0.5, 1.0])
@pytest.mark.parametrize("levels", [None, 3], ids=["distinct", "ties"])
def test_the_top_of_the_entropy_matches_a_sort(fraction, levels):
    rollout, stats = batch()
    entropy = np.asarray(stats.get(Pass.OLD, Stat.ENTROPY))
    if levels:
        entropy = np.floor(entropy * levels).astype(np.float32)
    got = jax.jit(top_entropy_mask, static_argnums=2)(jnp.asarray(entropy), rollout.mask, fraction)
    np.testing.assert_array_equal(got, slow_top(entropy, np.asarray(rollout.mask), fraction))


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.3, 0.7])
def test_the_number_kept_is_exact_where_float32_would_round_it_up(fraction):
    """fraction * n in float32 is above the whole number that it is for some n, and its ceiling one token too many."""
    entropy = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2000)), jnp.float32)

    @jax.jit
    def keep(n):
        return top_entropy_mask(entropy, (jnp.arange(2000) < n).astype(jnp.float32)[None], fraction).sum()

    for n in (0, 1, 5, 10, 15, 35, 70, 110, 990, 1430, 2000):
        assert keep(n) == math.ceil(round(fraction * n, 9))


def test_tokens_that_are_all_certain_are_not_all_kept():
    assert top_entropy_mask(jnp.zeros((4, 5)), jnp.ones((4, 5)), 0.2).sum() == 4


def test_the_quantile_is_that_of_all_rows_on_any_number_of_devices():
    """Two devices hold nothing but padding."""
    rng = np.random.default_rng(0)
    entropy, mask = rng.exponential(1.0, (16, 6)).astype(np.float32), np.ones((16, 6), np.float32)
    mask[4:8] = 0
    one = top_entropy_mask(jnp.asarray(entropy), jnp.asarray(mask), 0.2)
    rows = jax.device_put((entropy, mask), row_sharding(make_mesh(data=-1, fsdp=1, tensor=1)))
    many = jax.jit(top_entropy_mask, static_argnums=2)(*rows, 0.2)
    np.testing.assert_array_equal(one, many)
    np.testing.assert_array_equal(one, slow_top(entropy, mask, 0.2))


def weights(objective, rollout, stats):
    credit, _, _ = objective.credit(rollout, stats, SPEC, objective.init(SPEC))
    return np.asarray(objective.weights(credit, SPEC, 0)), np.asarray(credit.advantage)


def test_the_mask_leaves_the_denominator_and_the_weight_does_not():
    """sum(mask m l) / sum(mask m) as in the authors' code, against sum(mask m l) / sum(mask)."""
    rollout, stats = batch()
    base = Objective(aggregate=TokenMean())
    kept = slow_top(np.asarray(stats.get(Pass.OLD, Stat.ENTROPY)), np.asarray(rollout.mask), 0.2)
    plain_weight, plain_advantage = weights(base, rollout, stats)
    masked = Objective(aggregate=TokenMean(), mask=chain(TopEntropy(0.2)))
    weight, advantage = weights(masked, rollout, stats)
    np.testing.assert_allclose(weight, kept / kept.sum(), rtol=1e-6)
    np.testing.assert_array_equal(advantage, plain_advantage * kept)
    weighed = Objective(aggregate=TokenMean(), token_weight=chain(TopEntropyWeight(0.2)))
    weight, advantage = weights(weighed, rollout, stats)
    np.testing.assert_array_equal(weight, plain_weight)
    np.testing.assert_array_equal(advantage, plain_advantage * kept)


def test_the_quantile_is_over_the_tokens_that_other_masks_left():
    rollout, stats = batch()
    objective = Objective(mask=chain(DropTruncated(), TopEntropy(0.2)))
    credit, _, _ = objective.credit(rollout, stats, SPEC, objective.init(SPEC))
    left = np.asarray(rollout.mask) * ~np.asarray(rollout.truncated)[:, None]
    expected = slow_top(np.asarray(stats.get(Pass.OLD, Stat.ENTROPY)), left, 0.2)
    np.testing.assert_array_equal(credit.mask, expected)


def test_keeping_every_token_is_the_base_method():
    rollout, stats = batch()
    np.testing.assert_array_equal(
        TopEntropy(1.0).transform(rollout.mask, context(rollout, stats)), rollout.mask
    )


def test_sampler_correction_matches_a_loop_and_reports_raw_ratios():
    rollout, stats = batch()
    old = stats.get(Pass.OLD, Stat.LOGPROB)
    shift = jnp.asarray(np.random.default_rng(1).normal(size=(B, T)), jnp.float32)
    stats = stats.merge({(Pass.SAMPLER, Stat.LOGPROB): old - shift})
    x = jnp.where(rollout.mask > 0, rollout.reward[:, None] - 0.3, 0.0)
    got, state, metrics = SamplerCorrection(1.5).apply(x, context(rollout, stats), ())
    raw = []
    for i in range(B):
        for t in range(T):
            if rollout.mask[i, t]:
                raw.append(math.exp(float(shift[i, t])))
                np.testing.assert_allclose(got[i, t], min(raw[-1], 1.5) * x[i, t], rtol=2e-6)
    assert state == () and max(raw) > 1.5
    np.testing.assert_allclose(metrics["ratio"].value(), np.mean(raw), rtol=1e-5)
    assert metrics["truncated"].total == sum(r > 1.5 for r in raw)


def test_a_sampler_that_agrees_is_not_corrected():
    rollout, stats = batch()
    stats = stats.merge({(Pass.SAMPLER, Stat.LOGPROB): stats.get(Pass.OLD, Stat.LOGPROB)})
    x = jnp.ones((B, T))
    np.testing.assert_array_equal(SamplerCorrection().apply(x, context(rollout, stats), ())[0], x)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: Probability(1.2), "probability alpha mixes p and 1 and is in [0, 1], got 1.2."),
        (
            lambda: TopEntropy(0.0),
            "top_entropy fraction is the share of tokens that is kept, in (0, 1], got 0.0.",
        ),
        (
            lambda: TopEntropyWeight(20.0),
            "top_entropy fraction is the share of tokens that is kept, in (0, 1], got 20.0.",
        ),
        (
            lambda: SamplerCorrection(0.0),
            "sampler_correction cap is the largest weight and above 0, got 0.0.",
        ),
    ],
)
def test_errors(make, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        make()
