"""A run with adapters: the base stays as it is and is there once, and the run goes on and is exported like any other."""

import dataclasses
import json

import chex
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from tiny_task import Vowels

from rlvr_jax.configfile import parse
from rlvr_jax.rollout.collect import collect
from rlvr_jax.train.checkpoint import Checkpoints
from rlvr_jax.train.loop import fit
from rlvr_jax.train.metrics import METRICS, read_rows, without_times
from rlvr_jax.train.policy import export_policy, open_policy
from rlvr_jax.train.program import assemble
from rlvr_jax.types import Pass, Stat, Stats

SIZE = 16


def config(run_dir, steps=3, **model):
    model = {
        "scratch": {"num_layers": 2, "dim": 32, "num_heads": 4, "num_kv_heads": 2, "mlp_dim": 48},
        "lora": {"rank": 2, "targets": ["q", "v", "down"]},
        **model,
    }
    tree = {
        "run_dir": str(run_dir),
        "steps": steps,
        "model": {k: v for k, v in model.items() if v is not None},
        # The entropy bonus moves the parameters in every step, whatever the rewards are.
        "objective": {
            "preset": "grpo",
            "regularisers": [{"name": "kl", "coef": 0.01}, {"name": "entropy", "coef": 0.1}],
        },
        "sampling": {"max_new_tokens": 4},
        "prompts": {"max_tokens": 16},
        "batch": {"prompts": 8, "group_size": 2, "minibatches": 2},
        "mesh": {"data": 2, "fsdp": 2, "tensor": 2},
        "optimizer": {"learning_rate": 0.01},
        "checkpoint": {"every": 1, "keep": 9},
        "logging": {"tensorboard": False},
    }
    return dataclasses.replace(parse(tree), task=Vowels(long=4, size=SIZE))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of a run of three steps."""
    run_dir = tmp_path_factory.mktemp("lora") / "run"
    assert fit(config(run_dir)).complete
    return run_dir


@pytest.fixture(scope="module")
def program():
    return assemble(config("unused"), num_prompts=SIZE)


def restored(run_dir, program, step):
    with Checkpoints(run_dir / "checkpoints", keep=9) as checkpoints:
        return checkpoints.restore(program.abstract.changing, step)[0]


def test_every_adapter_moves_and_nothing_else_is_saved(trained, program):
    start, end = (restored(trained, program, step) for step in (0, 3))
    names = {f"{n}_lora_{part}" for n in ("q", "v", "down") for part in "ab"}
    assert set(end.params["layers"]) == names
    for name in names:
        assert not np.array_equal(start.params["layers"][name][...], end.params["layers"][name][...]), name
    saved = ocp.PyTreeCheckpointer().metadata(trained / "checkpoints" / "3" / "state").item_metadata.tree
    parameters = {key for key in saved if key.startswith("params/")}
    assert parameters == {f"params/layers/{name}/value" for name in names}
    moments = [key for key in saved if key.startswith("opt/") and "layers" in key]
    assert len(moments) == 2 * len(names)
    assert not [key for key in saved if key.startswith("frozen") or "embedding" in key or "norm" in key]


def test_the_kl_to_the_reference_is_zero_before_the_first_update_and_not_after(trained):
    """Two programs, each with float32 sums of its own: gaps of 1e-6 nats, which k3 squares."""
    rows = read_rows(trained / METRICS)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[1]["policy/kl_ref"] > 1e-6 and rows[2]["policy/kl_ref"] > 1e-6
    assert all(row["optimizer/grad_norm"] > 0 for row in rows)


def test_policy_and_reference_start_as_one_function_to_the_bit(trained, program):
    """What a step of the loop computes: the reference's adapter, kept at the start, on the weights of the policy."""
    state = program.fresh_state()
    with jax.set_mesh(program.mesh):
        batch = next(program.stream(8))
        program.sampler.push(state.policy, version=0)
        samples = program.sample_batch(batch, step=0, seed=0)

        told = collect(program.config.task, program.tokenizer, batch, samples).rollout
        rollout, plan = program.rows(told), program.score_plan(told)
        old = program.score(state.policy, rollout, plan)
        with Checkpoints(trained / "checkpoints", keep=9) as checkpoints:
            kept = checkpoints.reference(program.abstract.params, state.params)
        reference = dataclasses.replace(state, params=kept)
        ref = program.score_ref(reference.policy, rollout, plan)
    (old,), (ref,) = old.values(), ref.values()
    np.testing.assert_array_equal(old, ref)
    # no second set: the arrays themselves are the policy's
    shared = {id(x) for x in jax.tree.leaves(state.policy)} & {
        id(x) for x in jax.tree.leaves(reference.policy)
    }
    assert len(shared) == len(jax.tree.leaves(state.frozen)) > 0


def test_an_update_hands_the_frozen_weights_on_in_place(program):
    """To the bit and in the buffers that they came in, while what is trained is updated in its own."""
    state = program.fresh_state()
    before = jax.device_get(state.frozen)
    where = [x.addressable_shards[0].data.unsafe_buffer_pointer() for x in jax.tree.leaves(state.frozen)]
    with jax.set_mesh(program.mesh):
        batch = next(program.stream(8))
        program.sampler.push(state.policy, version=0)
        samples = program.sample_batch(batch, step=0, seed=0)

        told = collect(program.config.task, program.tokenizer, batch, samples).rollout
        rollout, plan = program.rows(told), program.score_plan(told)
        stats = Stats(values={(Pass.SAMPLER, Stat.LOGPROB): program.rows(samples.logprob)})
        stats = stats.merge(program.score(state.policy, rollout, plan))
        stats = stats.merge(program.score_ref(state.policy, rollout, plan))
        credit, _, _ = program.credit(rollout, stats, state.objective)
        after, metrics = program.update(
            state, rollout, stats, credit, program.update_plan(told, np.ones(len(told.length), bool), 0), 0, 0
        )
    assert metrics["policy/kl_ref"].value() < 1e-10
    chex.assert_trees_all_equal(jax.device_get(after.frozen), before)
    now = [x.addressable_shards[0].data.unsafe_buffer_pointer() for x in jax.tree.leaves(after.frozen)]
    assert now == where
    assert all(x.is_deleted() for x in jax.tree.leaves(state.params))


@pytest.mark.slow
def test_a_run_that_is_continued_equals_one_that_was_not(trained, program, tmp_path):
    run_dir = tmp_path / "run"
    assert fit(config(run_dir, steps=2)).complete
    assert fit(config(run_dir)).complete
    figures = [[without_times(row) for row in read_rows(folder / METRICS)] for folder in (run_dir, trained)]
    assert figures[0] == figures[1] and len(figures[0]) == 3
    chex.assert_trees_all_equal(
        *(jax.device_get(restored(folder, program, 3)) for folder in (run_dir, trained))
    )


def test_a_run_is_exported_merged_and_as_an_adapter_and_trained_on_from_there(trained, tmp_path):
    """A new run from the exported base has the adapters of the exported folder's model beneath it."""
    out = tmp_path / "out"
    export_policy(trained, config(trained), out, "float32", None, 10**9)
    settings = json.loads((out / "adapter" / "adapter_config.json").read_text())
    assert settings["r"] == 2 and settings["target_modules"] == ["q_proj", "v_proj", "down_proj"]
    there = config(tmp_path / "next", scratch=None, path=str(out))
    _, params = open_policy(out, there)
    merged = config(tmp_path / "next", scratch=None, path=str(out), lora=None)
    _, whole = open_policy(out, merged)
    np.testing.assert_array_equal(params["layers"]["q"][...], whole["layers"]["q"][...])
    assert params["layers"]["q_lora_a"][...].any() and not params["layers"]["q_lora_b"][...].any()
    assert "q_lora_a" not in whole["layers"]
    _, run = open_policy(trained, config(trained))
    added = np.einsum("ldr,lrnh->ldnh", run["layers"]["q_lora_a"][...], run["layers"]["q_lora_b"][...])
    want = run["layers"]["q"][...] + 32.0 / 2 * added
    np.testing.assert_allclose(
        whole["layers"]["q"][...], want, rtol=0, atol=1e-6
    )  # of order 1, one sum of two
