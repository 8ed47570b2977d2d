"""ReCo's token level: the ratio of Bernoulli variances, its gradient, and PPO's region around it."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_objective import loss_of
from toys import SPEC, B, T, batch

from rlvr_jax.objective import Objective, preset
from rlvr_jax.objective.clips import Ppo, PpoRegion
from rlvr_jax.objective.describe import describe
from rlvr_jax.objective.ratios import (
    BernoulliVariance,
    BernoulliVarianceInside,
    bernoulli_variance_ratio,
)
from rlvr_jax.types import Pass, Stat, Stats

NEW, OLD = (Pass.NEW, Stat.LOGPROB), (Pass.OLD, Stat.LOGPROB)
P = np.array([1e-9, 1e-4, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999])
GRID = np.meshgrid(P, P, indexing="ij")


def slow_variance(p, old):
    return p * (1 - p) / (old * (1 - old))


def test_the_ratio_of_variances_matches_a_loop():
    """The largest p is 1 - 1e-3: float32's log has it to 6e-8, so 1 - p to 1e-4 relative at the worst."""
    new, old = (jnp.asarray(np.log(x), jnp.float32) for x in GRID)
    expected = [[slow_variance(p, q) for q in P] for p in P]
    np.testing.assert_allclose(bernoulli_variance_ratio(new, old), expected, rtol=1e-4)


def test_by_hand_and_on_policy():
    new, old = jnp.log(jnp.asarray([[0.5, 0.9]])), jnp.log(jnp.asarray([[0.9, 0.5]]))
    np.testing.assert_allclose(bernoulli_variance_ratio(new, old), [[25 / 9, 9 / 25]], rtol=1e-5)
    assert (bernoulli_variance_ratio(new, new) == 1).all()


def test_certain_and_impossible_tokens_stay_finite():
    new, old = jnp.asarray([[0.0, -500.0, -0.5]]), jnp.asarray([[-0.5, -0.5, 0.0]])
    assert np.isfinite(bernoulli_variance_ratio(new, old)).all()
    assert np.isfinite(jax.grad(lambda n: bernoulli_variance_ratio(n, old).sum())(new)).all()
    assert (bernoulli_variance_ratio(jnp.zeros((1, 1)), jnp.zeros((1, 1))) == 1).all()


def slopes(stage, new, old):
    """d exp(log ratio) / d log pi of each token."""
    mask = jnp.ones(new.shape)
    total = lambda x: jnp.exp(stage.log_ratio(Stats(values={NEW: x, OLD: old}), mask)).sum()  # noqa: E731
    return jax.grad(total)(new)


def test_the_coefficient_is_detached_and_the_inner_reading_turns_the_sign():
    """r_var grad log p, against r_var (1 - 2p) / (1 - p) grad log p, which finite differences give."""
    inner = (slice(1, -1), slice(1, -1))
    p, q = (x[inner] for x in GRID)
    new, old = (jnp.asarray(np.log(x), jnp.float32) for x in (p, q))
    np.testing.assert_allclose(slopes(BernoulliVariance(), new, old), slow_variance(p, q), rtol=1e-4)
    step = 1e-6
    finite = slow_variance(p * np.exp(step), q) - slow_variance(p * np.exp(-step), q)
    got = slopes(BernoulliVarianceInside(), new, old)
    np.testing.assert_allclose(got, finite / (2 * step), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got, slow_variance(p, q) * (1 - 2 * p) / (1 - p), rtol=1e-4, atol=1e-5)
    assert (np.asarray(got)[p > 0.5] < 0).all()


@pytest.mark.parametrize("low, high", [(0.2, 0.2), (0.2, 0.28)])
def test_the_region_is_where_ppo_has_a_gradient(low, high):
    """With the ordinary ratio, both clips have one gradient."""
    rollout, stats = batch()
    region, ppo = (
        loss_of(Objective(clip=clip), rollout, stats) for clip in (PpoRegion(low, high), Ppo(low, high))
    )
    np.testing.assert_array_equal(region[1], ppo[1])
    assert region[2]["policy/clip_fraction"].total == ppo[2]["policy/clip_fraction"].total > 0


def test_one_update_per_batch_makes_it_the_method_without_it():
    rollout, stats = batch()
    same = stats.merge({NEW: stats.get(*OLD)})
    plain = Objective(clip=PpoRegion(), ratio=Objective().ratio)
    variance = Objective(clip=PpoRegion(), ratio=BernoulliVariance())
    jax.tree.map(
        np.testing.assert_array_equal, loss_of(variance, rollout, same), loss_of(plain, rollout, same)
    )


def test_a_user_is_told_so():
    note = (
        "ratio 'bernoulli_variance' is 1 everywhere with one update per batch, and does nothing: set batch.minibatches "
        "or batch.epochs above 1."
    )
    for name in ("reco", "reco_dapo", "reco_80_20"):
        assert preset(name).notes == (note,)
        assert " ".join(describe(name).text.split()).endswith(f"note: {note}")
        assert describe(name).data["notes"] == [note]
    assert preset("grpo").notes == () == tuple(describe("grpo").data["notes"])


def test_the_clip_of_the_ratio_itself_bounds_the_variance():
    """Ratio bernoulli_variance with clip ppo: min(r_var A, clip(r_var) A), with the quoted gradient where it is free."""
    rollout, stats = batch()
    new, old = (np.asarray(stats.values[k], float) for k in (NEW, OLD))
    r = slow_variance(np.exp(new), np.exp(old))
    objective = Objective(ratio=BernoulliVariance())
    credit, _, _ = objective.credit(rollout, stats, SPEC, objective.init(SPEC))
    gradient = loss_of(objective, rollout, stats)[1]
    weight = np.asarray(objective.weights(credit, SPEC, 0))
    for i in range(B):
        for t in range(T):
            a = float(credit.advantage[i, t])
            free = not (a > 0 and r[i, t] > 1.2 or a < 0 and r[i, t] < 0.8)
            expected = -weight[i, t] * r[i, t] * a * free
            np.testing.assert_allclose(gradient[i, t], expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("low, high", [(-0.1, 0.2), (1.1, 0.2), (0.2, float("nan"))])
def test_errors(low, high):
    text = (
        "ppo_region keeps tokens whose ratio is in [1 - low, 1 + high]: low is in [0, 1] and high >= 0, got "
        f"low={low}, high={high}."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        PpoRegion(low, high)
