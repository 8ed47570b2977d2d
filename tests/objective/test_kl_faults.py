"""What goes wrong with a KL penalty elsewhere: the wrong ratio, the coefficient twice, a reference that nobody needs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import SPEC, B, batch

from rlvr_jax import registry
from rlvr_jax.objective import Credit, Objective
from rlvr_jax.objective.clips import Ppo
from rlvr_jax.objective.presets import PRESETS, from_config
from rlvr_jax.objective.ratios import Sequence
from rlvr_jax.objective.regularisers import KL, KL_KINDS
from rlvr_jax.types import BatchSpec, Pass, Stat, Stats

NEW = (Pass.NEW, Stat.LOGPROB)


@functools.partial(jax.jit, static_argnums=0)
def gradient(objective, rollout, stats):
    """d loss / d log pi, over all passes."""
    credit, _, _ = objective.credit(rollout, stats, SPEC, objective.init(SPEC))
    weight = sum(objective.weights(credit, SPEC, k) for k in range(objective.passes.count))
    return jax.grad(lambda x: objective.loss(stats.merge({NEW: x}), credit, weight)[0])(stats.values[NEW])


COMBINATIONS = [
    *({"ratio": name} for name in registry.names("ratio") if registry.build("ratio", name).is_ratio),
    *({"clip": name} for name in registry.names("clip")),
    {"ratio": "none", "clip": "unclipped"},
    {"ratio": "sequence", "clip": {"name": "ppo", "low": 3e-4, "high": 4e-4}},
    *({"gates": [name]} for name in registry.names("gate")),
]


@pytest.mark.parametrize("slots", COMBINATIONS, ids=str)
def test_a_tokens_kl_has_its_own_ratio_whatever_weighs_the_gain(slots):
    """pi / pi_old of the token, neither that of the response nor clipped nor gated: coef r (log pi - log pi_ref)."""
    rollout, stats = batch(noise=1.0)
    kl = {"name": "kl", "coef": 0.1}
    extra = gradient(from_config({**slots, "regularisers": [kl]}), rollout, stats) - gradient(
        from_config(slots), rollout, stats
    )
    new, old, ref = (np.asarray(stats.get(p, Stat.LOGPROB), float) for p in (Pass.NEW, Pass.OLD, Pass.REF))
    mask = np.asarray(rollout.mask, float)
    expected = 0.1 * np.exp(new - old) * (new - ref) * mask / mask.sum(1, keepdims=True) / B
    # The difference of two float32 gradients, of which a ratio may be e^3 and more.
    np.testing.assert_allclose(extra, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["dr_grpo", "cispo", "gspo", "reco", "grpo_sg", "lopti", "dcpo"])
def test_twice_the_coefficient_doubles_the_penalty_and_nothing_else(name):
    """On every path that a preset's loss takes: sequential updates, sums, gates."""
    rollout, stats = batch()
    none, once, twice = (
        gradient(from_config({"preset": name, "regularisers": r}), rollout, stats)
        for r in ([], [{"name": "kl", "coef": 0.1}], [{"name": "kl", "coef": 0.2}])
    )
    assert np.abs(none).max() > 1e-3 and np.abs(once - none).max() > 1e-3
    np.testing.assert_allclose(twice - once, once - none, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", PRESETS)
def test_only_a_penalty_asks_for_a_reference(name):
    objective = PRESETS[name]
    assert objective.wants(Pass.REF) == frozenset()
    for part in ({"regularisers": [{"name": "kl"}]}, {"reward": ["kl_in_reward"]}):
        assert from_config({"preset": name, **part}).wants(Pass.REF) == {Stat.LOGPROB}


# ---- responses of two tokens, enumerated -------------------------------------------------------------------------

V = 4
LOGITS = {
    which: np.random.default_rng(i).normal(size=(V + 1, V))
    for i, which in enumerate((Pass.NEW, Pass.OLD, Pass.REF))
}
"""Rows: logits of the first token, and of the second after each first one."""
WORDS = np.stack(np.meshgrid(np.arange(V), np.arange(V), indexing="ij"), -1).reshape(-1, 2)
TWO = BatchSpec(groups=1, group_size=V * V, length=2, num_prompts=1)


def logprobs(logits):
    """[V * V, 2]: of both tokens of every response."""
    table = jax.nn.log_softmax(jnp.asarray(logits, jnp.float32))
    return jnp.stack([table[0, WORDS[:, 0]], table[WORDS[:, 0] + 1, WORDS[:, 1]]], 1)


def token_kl(new, prefixes):
    """sum over both positions of KL(pi || pi_ref) at the prefixes that a fixed policy visits, in float64."""
    p, q = (np.exp(z) / np.exp(z).sum(-1, keepdims=True) for z in (new, LOGITS[Pass.REF]))
    kl = (p * np.log(p / q)).sum(-1)
    return kl[0] + (prefixes * kl[1:]).sum()


@pytest.mark.parametrize("kind", KL_KINDS)
@pytest.mark.parametrize("sampler", [Pass.NEW, Pass.OLD], ids=["on-policy", "off-policy"])
def test_the_value_of_the_penalty_is_the_estimators_mean_under_the_new_policy(kind, sampler):
    """Of k1 and k3 that is the KL; of k2 it is the mean of d^2 / 2, which is not."""
    sampled = LOGITS[sampler]
    visits = np.exp(np.asarray(logprobs(sampled), float).sum(1))
    logits = {**LOGITS, Pass.OLD: sampled}
    stats = Stats(values={(p, Stat.LOGPROB): logprobs(z) for p, z in logits.items()})
    got = jax.jit(KL(1.0, kind).penalty)(stats, jnp.ones((V * V, 2)))
    p, q = (np.exp(z) / np.exp(z).sum(-1, keepdims=True) for z in (LOGITS[Pass.NEW], LOGITS[Pass.REF]))
    gap = np.log(p / q)
    each = (p * (gap**2 / 2 if kind == "k2" else gap)).sum(-1)  # at the start, and after each first token
    expected = each[0], visits.reshape(V, V).sum(1) @ each[1:]
    np.testing.assert_allclose(visits @ np.asarray(got, float), expected, rtol=2e-5)


@pytest.mark.parametrize("kind", KL_KINDS)
@pytest.mark.parametrize(
    "slots", [{"ratio": Sequence(), "clip": Ppo(3e-4, 4e-4)}, {}], ids=["sequence", "token"]
)
def test_the_penalty_of_whole_responses_has_the_gradient_of_the_kl_of_each_token(kind, slots):
    """Sampled by the old policy, whatever the ratio of the gain: at each position KL(pi || pi_ref), weighed by how often
    the old policy comes there. Its gradient by central differences."""
    old = np.exp(np.asarray(logprobs(LOGITS[Pass.OLD]), float).sum(1))
    objective = Objective(regularisers=(KL(1.0, kind),), **slots)
    stats = Stats(values={(p, Stat.LOGPROB): logprobs(z) for p, z in LOGITS.items()})
    weight = jnp.asarray(np.repeat(old[:, None], 2, 1), jnp.float32)
    ones = jnp.ones((V * V, 2))
    credit = Credit(advantage=0 * ones, passes=ones[:, None], mask=ones)

    def loss(new):
        return objective.loss(stats.merge({NEW: logprobs(new)}), credit, weight)[0]

    got = jax.jit(jax.grad(loss))(jnp.asarray(LOGITS[Pass.NEW], jnp.float32))
    first = old.reshape(V, V).sum(1)
    expected, step = np.zeros((V + 1, V)), 1e-5
    for at in np.ndindex(expected.shape):
        up, down = LOGITS[Pass.NEW].copy(), LOGITS[Pass.NEW].copy()
        up[at] += step
        down[at] -= step
        expected[at] = (token_kl(up, first) - token_kl(down, first)) / (2 * step)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
