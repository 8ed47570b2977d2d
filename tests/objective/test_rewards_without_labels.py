"""Rewards from the policy's own statistics, and the KL inside the reward, against loops."""

import dataclasses
import re

import jax.numpy as jnp
import numpy as np
import pytest
from toys import SPEC, B, batch, context

from rlvr_jax.objective import preset
from rlvr_jax.objective.rewards import KLInReward, NegativeEntropy, SelfCertainty
from rlvr_jax.types import Pass, Stat


def of_tokens(rollout, stats, which, stat):
    """Values of each response's tokens, as lists."""
    values = np.asarray(stats.get(which, stat), float)
    return [[v for v, m in zip(values[i], rollout.mask[i], strict=True) if m] for i in range(B)]


@pytest.mark.parametrize("keep", [0.0, 0.5])
def test_self_certainty_matches_a_loop(keep):
    rollout, stats = batch()
    own = [sum(x) / len(x) for x in of_tokens(rollout, stats, Pass.OLD, Stat.SELF_CERTAINTY)]
    got = SelfCertainty(keep).transform(rollout.reward, context(rollout, stats))
    np.testing.assert_allclose(got, keep * np.asarray(rollout.reward) + own, rtol=2e-6)


@pytest.mark.parametrize("keep", [0.0, 0.5])
def test_negative_entropy_matches_a_loop(keep):
    rollout, stats = batch()
    own = [-sum(x) / len(x) for x in of_tokens(rollout, stats, Pass.OLD, Stat.ENTROPY)]
    got = NegativeEntropy(keep).transform(rollout.reward, context(rollout, stats))
    np.testing.assert_allclose(got, keep * np.asarray(rollout.reward) + own, rtol=2e-6, atol=1e-7)


def test_kl_in_reward_matches_a_loop():
    rollout, stats = batch()
    old, ref = (of_tokens(rollout, stats, p, Stat.LOGPROB) for p in (Pass.OLD, Pass.REF))
    kl = [sum(a) - sum(b) for a, b in zip(old, ref, strict=True)]
    got = KLInReward(0.1).transform(rollout.reward, context(rollout, stats))
    np.testing.assert_allclose(got, np.asarray(rollout.reward) - 0.1 * np.array(kl), rtol=1e-5, atol=1e-6)


def test_a_reference_that_is_the_policy_changes_no_reward():
    rollout, stats = batch()
    stats = stats.merge({(Pass.REF, Stat.LOGPROB): stats.get(Pass.OLD, Stat.LOGPROB)})
    np.testing.assert_array_equal(
        KLInReward(1.0).transform(rollout.reward, context(rollout, stats)), rollout.reward
    )


@pytest.mark.parametrize("name", ["intuitor", "rent"])
def test_the_presets_need_no_labels(name):
    """Credit is the same whatever the verifier said, and is not that of a constant reward."""
    rollout, stats = batch()
    other = dataclasses.replace(rollout, reward=1 - rollout.reward, correct=jnp.zeros(B))
    objective = preset(name)
    one, two = (objective.credit(r, stats, SPEC, objective.init(SPEC))[0] for r in (rollout, other))
    np.testing.assert_array_equal(one.advantage, two.advantage)
    assert np.abs(one.advantage).max() > 0.5


@pytest.mark.parametrize(
    "name, stat, sign", [("intuitor", Stat.SELF_CERTAINTY, 1), ("rent", Stat.ENTROPY, -1)]
)
def test_their_advantages_are_those_of_group_normalised_statistics(name, stat, sign):
    rollout, stats = batch()
    own = np.array([sign * np.mean(x) for x in of_tokens(rollout, stats, Pass.OLD, stat)]).reshape(-1, 4)
    expected = (own - own.mean(1, keepdims=True)) / (own.std(1, ddof=1, keepdims=True) + 1e-6)
    credit, _, _ = preset(name).credit(rollout, stats, SPEC, preset(name).init(SPEC))
    np.testing.assert_allclose(credit.advantage[:, 0], expected.ravel(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "make, text",
    [
        (
            lambda: SelfCertainty(-1.0),
            "self_certainty keep is the weight of the reward before it and >= 0, got -1.0.",
        ),
        (
            lambda: NegativeEntropy(-1.0),
            "negative_entropy keep is the weight of the reward before it and >= 0, got -1.0.",
        ),
        (lambda: KLInReward(0.0), "kl_in_reward has a coefficient > 0 (leave it out for none), got 0.0."),
    ],
)
def test_errors(make, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        make()
