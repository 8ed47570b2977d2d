"""Whole presets of later papers against loops over their losses, in value and gradient."""

import functools
import math

import jax
import numpy as np
import pytest
from test_objective import NEW, Slow, loss_of
from toys import SPEC, B, T, batch

from rlvr_jax.objective import preset
from rlvr_jax.sharding import make_mesh, row_sharding
from rlvr_jax.types import BatchSpec, Pass, Stat


class SlowPapers(Slow):
    """Losses by loops; every method returns the loss and d loss / d log pi."""

    def __init__(self, rollout, stats):
        super().__init__(rollout, stats)
        self.stats = stats

    def weighted_likelihood(self, advantage, weight, coefficient):
        """- sum weight * sg[coefficient] * A * log pi."""
        loss, gradient = 0.0, np.zeros((B, T))
        for i, t in self.tokens:
            gradient[i, t] = -weight(i) * coefficient(i, t) * advantage(i)
            loss += gradient[i, t] * self.new[i, t]
        return loss, gradient

    def ratio(self, i, t):
        return np.exp(self.new[i, t] - self.old[i, t])

    def cispo(self):
        return self.weighted_likelihood(
            self.normalised, self.by_token, lambda i, t: min(max(self.ratio(i, t), 0.0), 6.0)
        )

    def f_cispo(self):
        return self.weighted_likelihood(
            self.focal, self.by_token, lambda i, t: min(max(self.ratio(i, t), 0.0), 6.0)
        )

    def gspo(self):
        loss, gradient = 0.0, np.zeros((B, T))
        for i in range(B):
            mine = [t for j, t in self.tokens if j == i]
            s = np.exp(np.mean([self.new[i, t] - self.old[i, t] for t in mine]))
            a, bounded = self.normalised(i), min(max(s, 1 - 3e-4), 1 + 4e-4)
            loss -= min(s * a, bounded * a) / B
            for t in mine:
                gradient[i, t] = -s * a / len(mine) / B if s * a <= bounded * a else 0.0
        return loss, gradient

    gspo_token = gspo

    def dual(self, advantage, kept, low, high, cap=10.0):
        """DAPO's loss over some tokens, which alone are the denominator, with the dual clip."""
        loss, gradient = 0.0, np.zeros((B, T))
        for i, t in kept:
            a, r = advantage(i, t), self.ratio(i, t)
            bounded = min(max(r, 1 - low), 1 + high)
            gain = max(min(r * a, bounded * a), cap * a if a < 0 else -np.inf)
            loss -= gain / len(kept)
            gradient[i, t] = -r * a / len(kept) if gain == r * a else 0.0
        return loss, gradient

    def probability(self, i, t):
        return math.exp(self.old[i, t])

    def advantage_reweighting(self):
        weigh = lambda i, t: (0.2 * self.probability(i, t) + 0.8) * self.normalised(i)  # noqa: E731
        return self.dual(weigh, self.tokens, 0.2, 0.24)

    def uncertain(self):
        entropy = np.asarray(self.stats.get(Pass.OLD, Stat.ENTROPY))
        order = sorted(self.tokens, key=lambda at: -entropy[at])
        return order[: math.ceil(round(0.2 * len(order), 9))]

    def rule_80_20(self):
        return self.dual(lambda i, t: self.normalised(i), self.uncertain(), 0.2, 0.28)

    def grpo_sg(self):
        logit = np.asarray(self.stats.get(Pass.NEW, Stat.LOGIT), float)
        _, gradient = self.grpo()
        loss = 0.0
        for i, t in self.tokens:
            w = min(max(2 * (1 / (1 + math.exp(-logit[i, t] / 9)) - 0.25), 1.0), 1.4)
            a, r = self.normalised(i), self.ratio(i, t)
            loss -= self.by_sequence(i) * min(w * r * a, w * min(max(r, 0.8), 1.2) * a)
            gradient[i, t] *= w
        return loss, gradient

    def occurrence(self, i):
        """min(1 / (G pbar), 5) over its mean in the group."""

        def raw(j):
            mine = [self.old[j, t] for k, t in self.tokens if k == j]
            return min(math.exp(-sum(mine) / len(mine)) / SPEC.group_size, 5.0)

        first = i // SPEC.group_size * SPEC.group_size
        return raw(i) / np.mean([raw(j) for j in range(first, first + SPEC.group_size)])

    def variance(self, kept, high):
        """sum keep w r_var A grad log pi over the kept tokens, and the value with r_var where the ratio stood."""
        loss, gradient = 0.0, np.zeros((B, T))
        weight = [self.occurrence(i) for i in range(B)]
        for i, t in kept:
            a, r = weight[i] * self.normalised(i), self.ratio(i, t)
            p, q = math.exp(self.new[i, t]), math.exp(self.old[i, t])
            if not (a > 0 and r > 1 + high or a < 0 and r < 0.8):
                gradient[i, t] = -p * (1 - p) / (q * (1 - q)) * a / len(kept)
                loss += gradient[i, t]
        return loss, gradient

    def reco(self):
        return self.variance(self.tokens, 0.2)

    def reco_dapo(self):
        return self.variance(self.tokens, 0.28)

    def reco_80_20(self):
        return self.variance(self.uncertain(), 0.28)


ONE_PASS = (
    "cispo f_cispo gspo gspo_token advantage_reweighting rule_80_20 grpo_sg reco reco_dapo reco_80_20"
).split()


@pytest.mark.parametrize("name", ONE_PASS)
@pytest.mark.parametrize("seed", [0, 1])
def test_presets_match_their_papers_in_value_and_gradient(name, seed):
    rollout, stats = batch(seed)
    expected, slope = getattr(SlowPapers(rollout, stats), name)()
    loss, gradient, _ = loss_of(preset(name), rollout, stats)
    # 60 float32 terms below 1; 1 - p for p near 1 costs ReCo three digits of a few of them.
    exact = 2e-3 if name.startswith("reco") else 2e-5
    np.testing.assert_allclose(loss, expected, rtol=exact, atol=1e-5)
    np.testing.assert_allclose(gradient, slope, rtol=exact, atol=1e-7)
    assert np.abs(slope).max() > 1e-3


@functools.partial(jax.jit, static_argnums=(0, 1))
def gradient_of_pass(objective, k, rollout, stats):
    credit, _, _ = objective.credit(rollout, stats, SPEC, objective.init(SPEC))
    weight = objective.weights(credit, SPEC, k)
    return jax.grad(lambda x: objective.loss(stats.merge({NEW: x}), credit, weight)[0])(stats.values[NEW])


@pytest.mark.parametrize("name, alpha, eta", [("lopti", 0.0, 0.4), ("ar_lopti", 0.3, 0.5)])
def test_the_updates_of_lopti_match_the_paper(name, alpha, eta):
    """Advantages are zeroed outside the pass; the denominator is that of all tokens."""
    rollout, stats = batch()
    slow = SlowPapers(rollout, stats)
    weigh = lambda i, t: alpha * slow.probability(i, t) + 1 - alpha  # noqa: E731
    for k, mine in ((0, lambda p: p <= eta), (1, lambda p: p > eta)):

        def advantage(i, t, mine=mine):
            return weigh(i, t) * slow.normalised(i) * mine(slow.probability(i, t))

        _, slope = slow.dual(advantage, slow.tokens, 0.2, 0.24)
        got = gradient_of_pass(preset(name), k, rollout, stats)
        np.testing.assert_allclose(got, slope, rtol=2e-5, atol=1e-7)
        assert np.abs(slope).max() > 1e-3


@pytest.mark.parametrize("name", ["avspo", "dcpo", "rule_80_20", "reco_80_20"])
def test_what_looks_across_the_batch_is_the_same_on_any_number_of_devices(name):
    """Eight devices with a group each."""
    spec = BatchSpec(groups=8, group_size=4, length=5, num_prompts=9)
    reward = np.repeat([1, 0, 1, 0, 0, 1, 0, 1], 4) * (np.arange(32) % 4 > 1 - np.repeat(np.arange(8) % 3, 4))
    given = batch(spec=spec, reward=reward)
    objective = preset(name)
    run = jax.jit(lambda rollout, stats: objective.credit(rollout, stats, spec, objective.init(spec)))
    one, many = run(*given), run(*jax.device_put(given, row_sharding(make_mesh())))
    # Sums of 32 numbers in another order, and powers of them.
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6), one, many)
    assert np.abs(one[0].advantage).max() > 0
