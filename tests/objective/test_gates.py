"""Gates against loops over eq. 20, their limits, and what they report."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import SPEC, B, T, batch

from rlvr_jax.objective import Objective
from rlvr_jax.objective.gates import Confidence, StandardisedConfidence, confidence_weight
from rlvr_jax.types import Pass, Stat, Stats

CONSTANTS = {"alpha": 2.0, "tau": 9.0, "mu": 0.25, "lower": 1.0, "upper": 1.4}


def slow_confidence(h, alpha, tau, mu, lower, upper):
    return min(max(alpha * (1 / (1 + math.exp(-h / tau)) - mu), lower), upper)


def logits(stats):
    return np.asarray(stats.get(Pass.NEW, Stat.LOGIT), float)


def test_confidence_matches_a_loop():
    rollout, stats = batch()
    got = Confidence().weight(stats, rollout.mask)
    for i in range(B):
        for t in range(T):
            if rollout.mask[i, t]:
                expected = slow_confidence(logits(stats)[i, t], **CONSTANTS)
                np.testing.assert_allclose(got[i, t], expected, rtol=1e-6)


def test_confidence_by_hand():
    """1 up to 9 ln 3 = 9.89, 1.4 from 9 ln 19 = 26.5."""
    logit = jnp.asarray([[-5.0, 9.88, 12.0, 15.0, 20.0, 26.6, 100.0]])
    expected = [[1.0, 1.0, 1.083, 1.182, 1.304, 1.4, 1.4]]
    np.testing.assert_allclose(confidence_weight(logit, **CONSTANTS), expected, atol=5e-4)


def test_no_gradient_flows_through_the_weight():
    logit = jnp.asarray([[12.0, 15.0]])
    assert not jax.grad(lambda h: confidence_weight(h, **CONSTANTS).sum())(logit).any()


def slow_standardised(row, mask):
    inside = [h for h, m in zip(row, mask, strict=True) if m]
    mean = sum(inside) / len(inside)
    std = math.sqrt(sum((h - mean) ** 2 for h in inside) / len(inside))
    return [slow_confidence((h - mean) / std if std else 0.0, 2.0, 1.0, 0.0, 1.0, 1.4) for h in row]


def test_standardised_confidence_matches_a_loop():
    rollout, stats = batch()
    got = StandardisedConfidence().weight(stats, rollout.mask)
    for i in range(B):
        expected = slow_standardised(logits(stats)[i], rollout.mask[i])
        for t in range(T):
            if rollout.mask[i, t]:
                np.testing.assert_allclose(got[i, t], expected[t], rtol=2e-6)


def test_standardised_confidence_ignores_an_offset_of_the_head():
    rollout, stats = batch()
    moved = stats.merge({(Pass.NEW, Stat.LOGIT): stats.get(Pass.NEW, Stat.LOGIT) + 64.0})
    one, two = (
        np.where(rollout.mask > 0, StandardisedConfidence().weight(s, rollout.mask), 0)
        for s in (stats, moved)
    )
    np.testing.assert_allclose(one, two, rtol=1e-5)  # logits near 100 have an ulp of 8e-6
    assert (np.asarray(Confidence().weight(moved, rollout.mask))[np.asarray(rollout.mask) > 0] > 1.38).all()


@pytest.mark.parametrize(
    "gate", [Confidence(lower=1.0, upper=1.0), StandardisedConfidence(lower=1.0, upper=1.0)]
)
def test_equal_bounds_of_one_are_the_base_method(gate):
    rollout, stats = batch()
    credit, _, _ = Objective().credit(rollout, stats, SPEC, Objective().init(SPEC))
    gated, plain = (
        jax.value_and_grad(
            lambda x, o=o: o.loss(
                Stats(values={**stats.values, (Pass.NEW, Stat.LOGPROB): x}),
                credit,
                o.weights(credit, SPEC, 0),
            )[0]
        )(stats.get(Pass.NEW, Stat.LOGPROB))
        for o in (Objective(gates=(gate,)), Objective())
    )
    jax.tree.map(np.testing.assert_array_equal, gated, plain)


@pytest.mark.parametrize("gate", [Confidence(), StandardisedConfidence()])
def test_shares_of_tokens_at_the_bounds_are_reported(gate):
    rollout, stats = batch()
    objective = Objective(gates=(gate,))
    credit, _, _ = objective.credit(rollout, stats, SPEC, objective.init(SPEC))
    metrics = objective.loss(stats, credit, objective.weights(credit, SPEC, 0))[1]
    inside = np.asarray(gate.weight(stats, rollout.mask))[np.asarray(rollout.mask) > 0]
    found = {k: metrics[f"gate/{gate.name}/{k}"] for k in ("at_lower", "inside", "at_upper")}
    assert found["at_lower"].total == (inside == 1.0).sum() > 0
    assert found["at_upper"].total == (inside == np.float32(1.4)).sum() > 0
    assert found["inside"].total == ((inside > 1.0) & (inside < np.float32(1.4))).sum() > 0
    assert all(m.count == len(inside) for m in found.values())


@pytest.mark.parametrize("cls", [Confidence, StandardisedConfidence])
def test_errors(cls):
    text = f"{cls.name} alpha and tau are positive: the weight rises with confidence; got alpha=2.0, tau=0.0."
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        cls(tau=0.0)
    text = f"{cls.name} weights are in [lower, upper] with 0 <= lower <= upper, got lower=1.5, upper=1.4."
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        cls(lower=1.5)
