"""What everything registered for an objective must satisfy. A new stage is picked up from the registry, without an edit here."""

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
from typing import ClassVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from toys import SPEC, B, G, T, batch, context, pad, soil, take

from rlvr_jax import registry
from rlvr_jax.objective import Objective, Stateless, chain
from rlvr_jax.objective.objective import CREDIT_SLOTS
from rlvr_jax.objective.presets import PRESETS, from_config, to_config
from rlvr_jax.types import BatchSpec, Needs, Pass, Stat, Stats, UndeclaredStatError, needs

LOSS_SLOTS = ("ratio", "clip", "gate", "regulariser")
SLOTS = (*CREDIT_SLOTS, "passes", "aggregate", *LOSS_SLOTS)
CASES = [(slot, name) for slot in SLOTS for name in registry.names(slot)]
LOSS_CASES = [(slot, name) for slot, name in CASES if slot in LOSS_SLOTS]

every_part = pytest.mark.parametrize("slot, name", CASES, ids=[f"{s}-{n}" for s, n in CASES])
every_loss_part = pytest.mark.parametrize("slot, name", LOSS_CASES, ids=[f"{s}-{n}" for s, n in LOSS_CASES])

ROUNDING = {"rtol": 2e-5, "atol": 1e-6}
"""Float32 sums of up to 60 terms of order 1 in another order: a few ulp (6e-8) each, and exponentials that multiply them."""


def outputs(part, rollout, stats: Stats, declared: Needs | None = None, spec: BatchSpec = SPEC) -> dict:
    """What a part of any slot makes of a batch: values per row, the new state and the metrics; nothing under the padding."""
    declared = part.needs if declared is None else declared
    stats = stats.view(declared, part.name)
    ctx = context(rollout, stats, spec)
    state, metrics = (), {}
    if part.slot in CREDIT_SLOTS:
        signed = jnp.broadcast_to(rollout.reward[:, None] - 0.3, rollout.mask.shape)
        start = {"reward": rollout.reward, "mask": rollout.mask, "advantage": rollout.reward}
        x = start.get(part.slot, signed if part.slot == "token_weight" else rollout.reward - 0.3)
        found, state, metrics = part.apply(x, ctx, part.init(spec))
    elif part.slot == "passes":
        found = part.split(ctx)
    elif part.slot == "aggregate":
        found = part.coefficients(rollout.mask, spec)
    elif part.slot == "ratio":
        found = part.log_ratio(stats, rollout.mask)
    elif part.slot == "clip":
        given = _log_ratio(rollout), jnp.where(rollout.mask > 0, rollout.reward[:, None] - 0.3, 0.0), stats
        found = jnp.stack([part.gain(*given), part.clipped(*given)], 1)
    else:
        found = (part.weight if part.slot == "gate" else part.penalty)(stats, rollout.mask)
    if found.ndim > 1:
        mask = rollout.mask if found.ndim == 2 else rollout.mask[:, None]
        found = jnp.where(mask > 0, found, 0.0)
    return {"found": found, "state": state, "metrics": metrics}


def _log_ratio(rollout) -> jax.Array:
    """Some log-ratios inside and outside every clip, 0 under the padding: a function of the row alone."""
    wave = jnp.sin(rollout.reward[:, None] + jnp.arange(rollout.mask.shape[1], dtype=jnp.float32)[None])
    return jnp.where(rollout.mask > 0, wave, 0.0)


def objective_with(part) -> Objective:
    """GRPO with one slot changed; a ratio or a clip that the other refuses gets the first partner that takes it."""
    if part.slot in CREDIT_SLOTS:
        return Objective(**{part.slot: chain(part)})
    if part.slot in ("gate", "regulariser"):
        return Objective(**{f"{part.slot}s": (part,)})
    other = {"ratio": "clip", "clip": "ratio"}.get(part.slot)
    partners = [{}] + [{other: registry.build(other, n)} for n in registry.names(other or "")]
    for partner in partners:
        try:
            return Objective(**{part.slot: part}, **partner)
        except ValueError:
            continue
    raise AssertionError(f"nothing goes with {part.slot} {part.name!r}")


@functools.partial(jax.jit, static_argnames=("objective", "spec"))
def loss_and_gradient(objective: Objective, rollout, stats: Stats, spec: BatchSpec = SPEC):
    """The loss of a whole batch, and its gradient in the statistics of the new policy."""
    credit, state, metrics = objective.credit(rollout, stats, spec, objective.init(spec))
    weight = sum(objective.weights(credit, spec, k) for k in range(credit.passes.shape[1]))
    fixed = Stats(values={k: v for k, v in stats.values.items() if k[0] is not Pass.NEW})
    new = {k: v for k, v in stats.values.items() if k[0] is Pass.NEW}
    loss, grads = jax.value_and_grad(lambda new: objective.loss(fixed.merge(new), credit, weight)[0])(new)
    return {"loss": loss, "state": state, "metrics": metrics}, grads


def same(a, b, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **(tolerance or ROUNDING)), a, b)


def check_padding_is_invisible(part):
    plain = batch()
    expected = outputs(part, *plain)
    for fill in (np.nan, np.inf, -np.inf):
        got = outputs(part, *pad(*soil(*plain, fill), 3, fill))
        if got["found"].ndim > 1:
            got["found"] = got["found"][..., :T]
        same(got, expected)


def check_order_is_irrelevant(part):
    order = np.arange(B).reshape(-1, G)[:, [2, 0, 3, 1]].ravel()
    a, b = outputs(part, *batch()), outputs(part, *take(batch(), order))
    same(b["found"], np.asarray(a["found"])[order])
    same((b["state"], b["metrics"]), (a["state"], a["metrics"]))


def check_source_is_cited(part):
    assert re.search(r"Reference:.*?arXiv:\d{4}\.\d{4,5}", inspect.getdoc(type(part)) or "", re.DOTALL)


@every_part
def test_jit_agrees_with_eager(slot, name):
    part = registry.build(slot, name)
    same(jax.jit(functools.partial(outputs, part))(*batch()), outputs(part, *batch()))


@every_part
def test_padding_is_invisible_whatever_lies_under_it(slot, name):
    check_padding_is_invisible(registry.build(slot, name))


@every_part
def test_the_gradient_under_the_padding_is_zero_whatever_lies_there(slot, name):
    objective = objective_with(registry.build(slot, name))
    rollout, stats = batch()
    value, grads = loss_and_gradient(objective, rollout, stats)
    for fill in (np.nan, np.inf, -np.inf):
        soiled, soiled_grads = loss_and_gradient(objective, *soil(rollout, stats, fill))
        same((soiled, soiled_grads), (value, grads))
        for leaf in jax.tree.leaves(soiled_grads):
            assert not np.where(rollout.mask > 0, 0, leaf).any()


@every_part
def test_order_within_a_group_is_irrelevant(slot, name):
    check_order_is_irrelevant(registry.build(slot, name))


@every_part
@pytest.mark.parametrize("reward", [0.0, 0.95, 1.0])
def test_equal_rewards_stay_finite_in_value_and_gradient(slot, name, reward):
    part = registry.build(slot, name)
    rollout, stats = batch(reward=reward)
    chex.assert_tree_all_finite(outputs(part, rollout, stats))
    chex.assert_tree_all_finite(loss_and_gradient(objective_with(part), rollout, stats))


@every_part
@pytest.mark.parametrize("empty", [[1], [4, 5, 6, 7], range(B)], ids=["a row", "a group", "all"])
def test_empty_rows_stay_finite_in_value_and_gradient(slot, name, empty):
    part = registry.build(slot, name)
    mask = np.array(batch()[0].mask)
    mask[empty] = 0
    rollout, stats = soil(*batch(mask=mask), np.nan)
    chex.assert_tree_all_finite(outputs(part, rollout, stats)["found"])
    value, grads = loss_and_gradient(objective_with(part), rollout, stats)
    chex.assert_tree_all_finite((value["loss"], grads))
    if not mask.any():
        assert value["loss"] == 0 and not any(np.any(g) for g in jax.tree.leaves(grads))


def with_rejected(rewards) -> tuple[tuple, tuple, np.ndarray]:
    """A batch with a row of each group rejected and filled with nan, the batch without these rows, and the others."""
    rejected = np.array([0, 6, 11])
    others = np.setdiff1d(np.arange(B), rejected)
    rollout, stats = batch(reward=rewards)
    gone = jnp.isin(jnp.arange(B), rejected)
    soiled = dataclasses.replace(
        rollout,
        mask=jnp.where(gone[:, None], 0.0, rollout.mask),
        reward=jnp.where(gone, jnp.nan, rollout.reward),
        correct=jnp.where(gone, 1 - rollout.correct, rollout.correct),
        truncated=rollout.truncated ^ gone,
    )
    return soil(soiled, stats, np.nan), take((rollout, stats), others), others


FEWER = dataclasses.replace(SPEC, group_size=G - 1)
UNIFORM_BUT_FOR_REJECTED_ROWS = [0, 1, 1, 1, 0, 1, 0, 0, 1, 1, 1, 0]


@every_part
@pytest.mark.parametrize("rewards", [None, np.repeat([0, 1, 0], G), UNIFORM_BUT_FOR_REJECTED_ROWS])
def test_a_rejected_row_is_as_if_it_had_never_been(slot, name, rewards):
    """For the others of its group, for the state and for the metrics; an advantage of its own it has none."""
    part = registry.build(slot, name)
    rejected, without, others = with_rejected(rewards)
    got, expected = outputs(part, *rejected), outputs(part, *without, spec=FEWER)
    if slot == "advantage":
        assert not np.delete(got["found"], others).any()
    got["found"] = got["found"][others]
    for each in (got, expected):  # K comes from the full group size, before it is cut to each group
        each["metrics"] = {k: v for k, v in each["metrics"].items() if k != "virtual_rewards"}
    same(got, expected)


@pytest.mark.parametrize("name", PRESETS)
def test_a_rejected_row_has_no_part_in_the_loss_of_a_preset(name):
    rejected, without, others = with_rejected(UNIFORM_BUT_FOR_REJECTED_ROWS)
    got, grads = loss_and_gradient(PRESETS[name], *rejected)
    expected, fewer = loss_and_gradient(PRESETS[name], *without, spec=FEWER)
    got["metrics"].pop("advantage/virtual/virtual_rewards", None)
    expected["metrics"].pop("advantage/virtual/virtual_rewards", None)
    same((got, jax.tree.map(lambda x: x[others], grads)), (expected, fewer))
    assert not any(np.delete(x, others, axis=0).any() for x in jax.tree.leaves(grads))


@every_part
def test_state_keeps_its_structure_under_scan(slot, name):
    part = registry.build(slot, name)
    if slot not in CREDIT_SLOTS:
        assert not hasattr(part, "init"), "only stages keep state; a part of the loss is differentiated"
        return
    batches = jax.tree.map(lambda *x: jnp.stack(x), *(batch(seed) for seed in range(3)))

    def step(state, x):
        rollout, stats = x
        ctx = context(rollout, stats.view(part.needs, name))
        start = rollout.mask if slot in ("mask", "token_weight") else rollout.reward
        return part.apply(start, ctx, state)[1], None

    before = part.init(SPEC)
    after, _ = jax.lax.scan(step, before, batches)  # scan itself refuses a carry of another structure
    chex.assert_trees_all_equal_shapes_and_dtypes(before, after)
    chex.assert_tree_all_finite(after)


@every_part
def test_config_round_trips(slot, name):
    part = registry.build(slot, name)
    assert registry.build(slot, name, **dataclasses.asdict(part)) == part
    objective = objective_with(part)
    assert from_config(yaml.safe_load(yaml.safe_dump(to_config(objective)))) == objective


@pytest.mark.parametrize("name", PRESETS)
def test_presets_round_trip_through_yaml(name):
    assert from_config(yaml.safe_load(yaml.safe_dump(to_config(PRESETS[name])))) == PRESETS[name]


@every_part
def test_the_source_is_cited(slot, name):
    check_source_is_cited(registry.build(slot, name))


@every_part
def test_every_field_has_a_default_and_is_read(slot, name):
    cls = registry.lookup(slot, name)
    read = set()
    for base in cls.__mro__:
        if base.__module__.startswith("rlvr_jax"):
            for function in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))):
                if isinstance(function, ast.FunctionDef) and function.name != "__post_init__":
                    read |= {
                        node.attr
                        for node in ast.walk(function)
                        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "self"
                    }
    for field in dataclasses.fields(cls):
        assert field.default is not dataclasses.MISSING, f"{field.name} has no default"
        assert field.name in read, f"nothing but its validation reads {field.name}"
        assert field.name not in ("slot", "name", "needs"), (
            f"{field.name} is what the registry calls the class"
        )


@every_part
def test_equal_parts_hash_equal_and_others_differ(slot, name):
    one, two = registry.build(slot, name), registry.build(slot, name)
    assert one == two and hash(one) == hash(two) and one is not two
    assert dataclasses.is_dataclass(one) and type(one).__dataclass_params__.frozen
    for field in dataclasses.fields(one):
        if isinstance(field.default, float):
            assert dataclasses.replace(one, **{field.name: field.default * 0.7 + 0.11}) != one


@every_part
def test_what_is_declared_is_read_and_what_is_read_is_declared(slot, name):
    part = registry.build(slot, name)
    outputs(part, *batch())
    for which, stat in part.needs:
        rest = part.needs - {(which, stat)}
        have = ", ".join(sorted(f"{p}.{s}" for p, s in rest)) or "nothing"
        text = f"{name} read {which}.{stat} without declaring it: add it to `needs` (it declares {have})."
        with pytest.raises(UndeclaredStatError, match=f"^{re.escape(text)}$"):
            outputs(part, *batch(), declared=rest)


@every_loss_part
def test_a_part_of_the_loss_looks_at_one_row_at_a_time(slot, name):
    part = registry.build(slot, name)
    whole = outputs(part, *batch())["found"]
    for row in (0, 5, B - 1):
        same(outputs(part, *take(batch(), [row]))["found"], whole[row : row + 1])


@pytest.mark.parametrize("name", registry.names("passes"))
def test_passes_share_the_mask_out(name):
    rollout, stats = batch()
    split = outputs(registry.build("passes", name), rollout, stats)["found"]
    assert split.shape[1] == registry.build("passes", name).count
    np.testing.assert_array_equal(split.sum(1), rollout.mask)
    assert (split >= 0).all()


@pytest.mark.parametrize("name", registry.names("mask"))
def test_a_mask_only_removes_tokens(name):
    rollout, stats = batch()
    assert (outputs(registry.build("mask", name), rollout, stats)["found"] <= rollout.mask).all()


def test_a_gate_weighs_and_never_turns_a_sign():
    for name in registry.names("gate"):
        assert (outputs(registry.build("gate", name), *batch())["found"] >= 0).all()


class Leaky(Stateless):
    """Averages over the padding, and the first row of a group counts double."""

    slot, name = "advantage", "leaky"
    needs: ClassVar[Needs] = needs(old=Stat.ENTROPY)

    def transform(self, x, ctx):
        return x * (1 + (jnp.arange(x.shape[0]) % G == 0)) + ctx.stats.get(Pass.OLD, Stat.ENTROPY).mean(1)


@pytest.mark.parametrize(
    "check", [check_padding_is_invisible, check_order_is_irrelevant, check_source_is_cited]
)
def test_the_contract_would_notice(check):
    with pytest.raises(AssertionError):
        check(Leaky())
