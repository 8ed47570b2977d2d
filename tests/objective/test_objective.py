"""Whole objectives against loops over the papers' losses, and the promises of the slots."""

import dataclasses
import functools
import re
from typing import ClassVar

import chex
import jax
import numpy as np
import pytest
from toys import SPEC, B, G, T, batch, soil, take

from rlvr_jax.objective import Objective, Stateless, chain, preset
from rlvr_jax.objective.advantages import Center, Focal, Group
from rlvr_jax.objective.aggregates import TokenMean
from rlvr_jax.objective.base import Gate
from rlvr_jax.objective.presets import from_config
from rlvr_jax.objective.regularisers import KL, Entropy
from rlvr_jax.types import BatchSpec, Needs, Pass, Stat, Stats, UndeclaredStatError, needs

NEW = (Pass.NEW, Stat.LOGPROB)


@functools.partial(jax.jit, static_argnums=0)
def loss_of(objective, rollout, stats):
    """Loss, its gradient in the new log-probabilities, and metrics."""
    credit, _, metrics = objective.credit(rollout, stats, SPEC, objective.init(SPEC))
    weight = objective.weights(credit, SPEC, 0)
    run = jax.value_and_grad(lambda x: objective.loss(stats.merge({NEW: x}), credit, weight), has_aux=True)
    (loss, found), gradient = run(stats.values[NEW])
    return loss, gradient, {**metrics, **found}


class Slow:
    """Losses by loops. Every method returns the loss and d loss / d log pi, from one paper's equation."""

    def __init__(self, rollout, stats):
        self.reward, self.correct = np.asarray(rollout.reward, float), np.asarray(rollout.correct, float)
        self.tokens = [(i, t) for i in range(B) for t in range(T) if rollout.mask[i, t]]
        self.length = np.asarray(rollout.mask, float).sum(1)
        self.new, self.old = (np.asarray(stats.get(p, Stat.LOGPROB), float) for p in (Pass.NEW, Pass.OLD))

    def group(self, x, i):
        return x[i // G * G : (i // G + 1) * G]

    def normalised(self, i):
        group = self.group(self.reward, i)
        return (self.reward[i] - group.mean()) / (group.std(ddof=1) + 1e-6)

    def ppo(self, advantage, weight, low, high):
        loss, gradient = 0.0, np.zeros((B, T))
        for i, t in self.tokens:
            a, r = advantage(i), np.exp(self.new[i, t] - self.old[i, t])
            bounded = min(max(r, 1 - low), 1 + high)
            loss -= weight(i) * min(r * a, bounded * a)
            if r * a <= bounded * a:
                gradient[i, t] = -weight(i) * r * a
        return loss, gradient

    def likelihood(self, advantage, weight):
        loss, gradient = 0.0, np.zeros((B, T))
        for i, t in self.tokens:
            loss -= weight(i) * advantage(i) * self.new[i, t]
            gradient[i, t] = -weight(i) * advantage(i)
        return loss, gradient

    def by_sequence(self, i):
        return 1 / self.length[i] / B

    def by_token(self, i):
        return 1 / self.length.sum()

    def by_budget(self, i):
        return 1 / SPEC.length / B

    def focal(self, i):
        return (1 - self.group(self.correct, i).mean()) ** 0.5 * self.normalised(i)

    def others(self, i):
        return self.reward[i] - (self.group(self.reward, i).sum() - self.reward[i]) / (G - 1)

    def grpo(self):
        return self.ppo(self.normalised, self.by_sequence, 0.2, 0.2)

    def dr_grpo(self):
        return self.ppo(
            lambda i: self.reward[i] - self.group(self.reward, i).mean(), self.by_budget, 0.2, 0.2
        )

    def dapo(self):
        """Overlong punishment over the last fifth (1 token of 5), tokens of mixed groups alone."""
        mixed = [0 < self.group(self.correct, i).sum() < G for i in range(B)]
        self.reward = self.reward + np.clip(T - 1 - self.length, -1, 0)
        self.tokens = [(i, t) for i, t in self.tokens if mixed[i]]
        return self.ppo(self.normalised, lambda i: 1 / len(self.tokens), 0.2, 0.28)

    def f_grpo(self):
        return self.ppo(self.focal, self.by_token, 0.2, 0.2)

    def f_dapo(self):
        return self.ppo(self.focal, self.by_token, 0.2, 0.28)

    def rloo(self):
        """log pi of a response is the sum over its tokens; the constant 1 / budget only scales the step."""
        return self.likelihood(self.others, self.by_budget)

    def imitation(self):
        return self.likelihood(lambda i: self.reward[i], self.by_token)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "f_grpo", "f_dapo", "rloo", "imitation"])
@pytest.mark.parametrize("seed", [0, 1])
def test_presets_match_their_papers_in_value_and_gradient(name, seed):
    rollout, stats = batch(seed)
    expected, slope = getattr(Slow(rollout, stats), name)()
    loss, gradient, _ = loss_of(preset(name), rollout, stats)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)  # 60 float32 terms below 0.1
    np.testing.assert_allclose(gradient, slope, rtol=2e-5, atol=1e-7)
    assert np.abs(slope).max() > 1e-3


def test_a_penalty_is_subtracted_and_reported():
    rollout, stats = batch()
    penalised = loss_of(Objective(regularisers=(KL(0.5, "k2"),)), rollout, stats)
    slow, (plain, _) = Slow(rollout, stats), Slow(rollout, stats).grpo()
    gap = slow.new - np.asarray(stats.get(Pass.REF, Stat.LOGPROB), float)
    kl = 0.5 * np.exp(slow.new - slow.old) * gap**2 / 2
    np.testing.assert_allclose(
        penalised[0], plain + sum(kl[i, t] / slow.length[i] / B for i, t in slow.tokens), rtol=1e-5
    )
    reported = penalised[2]["regulariser/kl"]
    np.testing.assert_allclose(reported.value(), np.mean([kl[i, t] for i, t in slow.tokens]), rtol=1e-5)


def test_the_first_minibatch_has_ratio_one_and_clips_nothing():
    rollout, stats = batch()
    same = stats.merge({NEW: stats.get(Pass.OLD, Stat.LOGPROB)})
    for name in ("grpo", "f_dapo", "f_grpo"):
        _, gradient, metrics = loss_of(preset(name), rollout, same)
        assert metrics["policy/clip_fraction"].total == 0
        assert metrics["policy/clip_fraction"].count == rollout.mask.sum()
        _, slope = getattr(Slow(rollout, same), name)()  # - A / denominator: the policy gradient
        np.testing.assert_allclose(gradient, slope, rtol=2e-5, atol=1e-7)


def test_the_clip_fraction_counts_tokens_that_are_cut():
    rollout, stats = batch()
    _, gradient, metrics = loss_of(Objective(), rollout, stats)
    slow = Slow(rollout, stats)
    cut = sum(gradient[i, t] == 0 and slow.normalised(i) != 0 for i, t in slow.tokens)
    assert metrics["policy/clip_fraction"].total == cut > 0


def test_rows_of_a_batch_add_up():
    """With the weights of the whole step, the loss of any split is the sum over its parts."""
    rollout, stats = batch()
    objective = Objective(aggregate=TokenMean(), regularisers=(KL(0.1), Entropy(0.1)))
    credit, _, _ = objective.credit(rollout, stats, SPEC, objective.init(SPEC))
    weight = objective.weights(credit, SPEC, 0)
    loss = jax.jit(lambda *x: objective.loss(*x)[0])
    splits = [[0, 3, 5, 11], [10, 9, 8, 2], [1, 7, 4, 6]]
    parts = [loss(*take((stats, credit, weight), rows)) for rows in splits]
    np.testing.assert_allclose(sum(parts), loss(stats, credit, weight), rtol=1e-5)


@dataclasses.dataclass(frozen=True)
class Careless(Gate):
    """A gate that passes on what lies under the padding."""

    slot, name = "gate", "careless"
    needs: ClassVar[Needs] = needs(new=Stat.ENTROPY)

    def weight(self, stats, mask):
        return stats.get(Pass.NEW, Stat.ENTROPY)


def test_padding_stays_out_of_the_loss_even_for_a_careless_part():
    rollout, stats = batch()
    objective = Objective(gates=(Careless(),))
    loss, gradient, _ = loss_of(objective, rollout, stats)
    soiled, soiled_gradient, _ = loss_of(objective, *soil(rollout, stats, np.nan))
    assert soiled == loss
    np.testing.assert_array_equal(soiled_gradient, gradient)


def test_a_gate_weighs_the_gain_and_has_no_gradient():
    rollout, stats = batch()
    weighed, plain = (loss_of(Objective(gates=g), rollout, stats)[1] for g in ((Careless(),), ()))
    entropy = (Pass.NEW, Stat.ENTROPY)
    np.testing.assert_allclose(weighed, plain * stats.values[entropy], rtol=1e-5, atol=1e-8)
    credit, _, _ = Objective().credit(rollout, stats, SPEC, Objective().init(SPEC))
    gated = Objective(gates=(Careless(),))
    slope = jax.grad(lambda x: gated.loss(stats.merge({entropy: x}), credit, credit.mask)[0])(
        stats.values[entropy]
    )
    assert not np.any(slope)


def test_no_gradient_flows_through_the_credit():
    rollout, stats = batch()
    objective = preset("f_grpo")

    def total(reward):
        changed = dataclasses.replace(rollout, reward=reward)
        return objective.credit(changed, stats, SPEC, objective.init(SPEC))[0].advantage.sum()

    assert not jax.grad(total)(rollout.reward).any()


def test_needs_are_the_union_of_the_slots():
    new, old, ref = (frozenset({(p, Stat.LOGPROB)}) for p in (Pass.NEW, Pass.OLD, Pass.REF))
    assert Objective().credit_needs == frozenset()
    assert Objective().loss_needs == Objective().needs == new | old
    assert preset("imitation").needs == preset("rloo").needs == new
    both = Objective(regularisers=(KL(), Entropy()), advantage=chain(Group(), Honest()))
    assert both.credit_needs == {(Pass.OLD, Stat.ENTROPY)}
    assert both.loss_needs == new | old | ref | {(Pass.NEW, Stat.ENTROPY)}
    assert both.wants(Pass.NEW) == {Stat.LOGPROB, Stat.ENTROPY} and both.wants(Pass.OLD) == {
        Stat.LOGPROB,
        Stat.ENTROPY,
    }
    assert both.wants(Pass.REF) == {Stat.LOGPROB} and both.wants(Pass.SAMPLER) == frozenset()


@dataclasses.dataclass(frozen=True)
class Cheat(Stateless):
    """Reads without declaring."""

    slot, name = "advantage", "cheat"
    needs: ClassVar[Needs] = needs(old=Stat.LOGPROB)

    def transform(self, x, ctx):
        return x + ctx.stats.get(Pass.OLD, Stat.ENTROPY)[:, 0]


@dataclasses.dataclass(frozen=True)
class Honest(Cheat):
    """Declares what it reads."""

    name = "honest"
    needs: ClassVar[Needs] = needs(old=Stat.ENTROPY)


def test_an_undeclared_read_raises_although_a_neighbour_declared_it():
    rollout, stats = batch()
    objective = Objective(advantage=chain(Honest(), Cheat()))
    text = "cheat read old.entropy without declaring it: add it to `needs` (it declares old.logprob)."
    with pytest.raises(UndeclaredStatError, match=f"^{re.escape(text)}$"):
        objective.credit(rollout, stats, SPEC, objective.init(SPEC))


def test_only_what_is_needed_has_to_be_there():
    rollout, stats = batch()
    objective = Objective(regularisers=(KL(0.1),))
    least = Stats(values={k: v for k, v in stats.values.items() if k in objective.needs})
    chex.assert_trees_all_equal(loss_of(objective, rollout, least)[0], loss_of(objective, rollout, stats)[0])


def test_equal_objectives_do_not_retrace():
    chex.clear_trace_counter()

    def traced(objective, rollout, stats):
        credit, _, _ = objective.credit(rollout, stats, SPEC, objective.init(SPEC))
        return objective.loss(stats, credit, objective.weights(credit, SPEC, 0))[0]

    run = jax.jit(chex.assert_max_traces(traced, n=1), static_argnums=0)
    config = {"advantage": ["group", {"name": "focal", "gamma": 0.5}], "aggregate": "token_mean"}
    run(preset("f_grpo"), *batch())
    run(from_config("f_grpo"), *batch(1))
    run(from_config(config), *batch(2))  # equal by value: written out, built anew
    assert hash(from_config(config)) == hash(preset("f_grpo"))
    with pytest.raises(AssertionError, match="traced > 1 times"):
        run(Objective(), *batch())


def test_a_chain_numbers_what_repeats_and_flattens():
    inner = chain(Group(), Focal(0.5))
    twice = chain(inner, Focal(1.0))
    assert twice == chain(Group(), Focal(0.5), Focal(1.0))
    assert twice.labels == ("group", "focal", "focal2")
    rollout, stats = batch()
    (a, b) = (
        Objective(advantage=c).credit(rollout, stats, SPEC, Objective(advantage=c).init(SPEC))[0]
        for c in (inner, twice)
    )
    rate = np.repeat(np.asarray(rollout.correct).reshape(-1, G).mean(1), G)
    np.testing.assert_allclose(
        b.advantage, np.asarray(a.advantage) * (1 - rate)[:, None], rtol=1e-5, atol=1e-7
    )


def test_an_empty_chain_is_the_identity_and_state_is_keyed_by_name():
    rollout, stats = batch()
    state = preset("f_grpo").init(SPEC)
    assert state["advantage"] == {"group": (), "focal": ()} and state["reward"] == {}
    credit, _, _ = preset("imitation").credit(rollout, stats, SPEC, preset("imitation").init(SPEC))
    np.testing.assert_array_equal(
        credit.advantage, np.asarray(rollout.mask) * np.asarray(rollout.reward)[:, None]
    )


def test_the_state_of_another_chain_is_refused():
    rollout, stats = batch()
    text = "chain state holds ['group'], its stages are ['center']; call init on this chain first."
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        Objective(advantage=chain(Center())).credit(rollout, stats, SPEC, Objective().init(SPEC))


def test_rows_that_are_not_those_of_the_batch_are_refused():
    rollout, stats = take(batch(), range(8))
    with pytest.raises(AssertionError, match="prefix"):
        Objective().credit(rollout, stats, SPEC, Objective().init(SPEC))


def test_a_group_of_one_is_refused_with_group_advantages_only():
    spec = BatchSpec(groups=4, group_size=1, length=5, num_prompts=4)
    preset("imitation").check(spec)
    text = (
        "advantage 'group' compares the responses of a group, and group_size=1 leaves nothing to compare: every advantage "
        "would be 0. Set batch.group_size to 2 or more."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        preset("grpo").check(spec)
