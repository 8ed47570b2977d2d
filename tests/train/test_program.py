"""The program of a run: what is computed and what is not, once for each bucket, on the mesh, in place."""

import contextlib
import dataclasses
import json
from typing import Any

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_task import WORDS, Vowels

from rlvr_jax.configfile import parse
from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.families import to_huggingface
from rlvr_jax.models.names import stored_shapes
from rlvr_jax.models.tokenizer import word_tokenizer
from rlvr_jax.rollout.collect import collect
from rlvr_jax.rollout.prompts import PromptStream
from rlvr_jax.train.program import Program, assemble, check_devices, old_stats, updates_per_step
from rlvr_jax.train.step import TrainState
from rlvr_jax.types import Pass, Stat, Stats

SCRATCH = {"num_layers": 2, "dim": 16, "num_heads": 4, "num_kv_heads": 2, "mlp_dim": 24}
TREE = {
    "steps": 5,
    "model": {"scratch": SCRATCH, "vocab_chunk": 16},
    "objective": "f_grpo",
    "sampling": {"max_new_tokens": 6, "temperature": 0.6},
    "prompts": {"max_tokens": 32},
    "batch": {"prompts": 4, "group_size": 4},
    "optimizer": {"learning_rate": 1e-3},
    "mesh": {"data": 2, "fsdp": 2, "tensor": 2},
}


def config(task=None, **sections):
    return dataclasses.replace(parse({**TREE, **sections}), task=task or Vowels(long=20))


def SAMPLER(buckets):
    """How often the sampler's functions are traced: the weights have no bucket."""
    return {"weights": 1, "prefill": buckets, "start": buckets, "advance": buckets}


def step(program, state, stream, number=0, reference=None):
    """One batch through all the functions, as the loop does it: (state, [metrics of each update], bucket)."""
    settings = program.config
    batch = next(stream)
    program.sampler.push(state.params, version=number)
    samples = program.sample_batch(batch, step=number, seed=settings.seed)
    found = collect(settings.task, program.tokenizer, batch, samples)
    rollout = program.rows(found.rollout)
    stats = Stats(values={(Pass.SAMPLER, Stat.LOGPROB): program.rows(found.logprob)})
    if program.score is not None:
        stats = stats.merge(program.score(state.params, rollout, program.score_plan(found.rollout)))
    if program.score_ref is not None:
        stats = stats.merge(program.score_ref(reference, rollout, program.score_plan(found.rollout)))
    credit, objective, _ = program.credit(rollout, stats, state.objective)
    state = dataclasses.replace(state, objective=objective, step=state.step + 1)
    seen = []
    live = jax.device_get(program.live(credit))
    for j in range(settings.batch.minibatches):
        plan = program.update_plan(found.rollout, live, j)
        state, metrics = program.update(state, rollout, stats, credit, plan, 0, j)
        seen.append({name: mean.value() for name, mean in jax.device_get(metrics).items()})
    return state, seen, batch.tokens.shape[1], stats


@contextlib.contextmanager
def compilations():
    """Names of the functions that are compiled meanwhile, operations outside of `jit` included."""
    names = []

    def listen(event, seconds, fun_name="?", **_):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def stream(program):
    settings = program.config
    return PromptStream(
        settings.task,
        program.tokenizer,
        "train",
        settings.batch.prompts,
        settings.prompts.max_tokens,
        shuffle=False,
    )


# ---- one run over two buckets ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """A run of five steps: the state before (also its parameters on the host) and after, and of each step its bucket,
    metrics and compilations."""

    program: Program
    first: TrainState
    started: Any
    state: TrainState
    buckets: list
    metrics: list
    compiled: list


@pytest.fixture(scope="module")
def trained():
    """Five steps over batches of two widths in turn."""
    task = Vowels(long=20, size=8)  # half of the prompts need a bucket of 32; with long=4 none does
    program = assemble(config(task), num_prompts=8)
    short = dataclasses.replace(config(task), task=Vowels(long=4, size=8))
    streams = [stream(program), stream(dataclasses.replace(program, config=short))]
    buckets, metrics, compiled = [], [], []
    with jax.set_mesh(program.mesh):
        state = first = program.fresh_state()
        started = jax.tree.map(np.array, first.params)
        for number in range(5):
            with compilations() as names:
                state, seen, bucket, _ = step(program, state, streams[number % 2], number)
            buckets.append(bucket)
            compiled.append(names)
            metrics += seen
    return Trained(program, first, started, state, buckets, metrics, compiled)


def test_each_function_is_compiled_once_for_each_bucket_of_prompt_lengths(trained):
    """Nothing at all is compiled once both buckets have been seen, though the state comes from another function then."""
    assert trained.buckets == [32, 16, 32, 16, 32]
    assert dict(trained.program.traces) == SAMPLER(2) | {"credit": 2, "update": 2}
    assert [names.count("jit(traced)") for names in trained.compiled] == [6, 5, 0, 0, 0], trained.compiled
    assert trained.compiled[2:] == [[], [], []]


def test_one_update_a_batch_needs_no_second_forward_and_has_no_ratio(trained):
    program, metrics = trained.program, trained.metrics
    assert program.score is None and program.score_ref is None
    assert all(m["policy/kl_old"] == 0.0 and m["policy/clip_fraction"] == 0.0 for m in metrics)
    assert all(abs(m["policy/kl_sampler"]) < 1e-8 for m in metrics)  # a gap of 1e-6 nats, squared


def test_training_moves_parameters_and_gives_the_old_ones_up(trained):
    first, state = trained.first, trained.state
    assert any(m["optimizer/grad_norm"] > 0 for m in trained.metrics)
    assert all(x.is_deleted() for x in jax.tree.leaves((first.params, first.opt)))  # donated
    assert int(state.step) == 5
    before = jax.tree.leaves(trained.started)
    after = map(np.asarray, jax.tree.leaves(state.params))
    moved = [np.abs(a - b).max() for a, b in zip(after, before, strict=True)]
    assert min(moved) > 0


def test_the_state_stays_where_the_mesh_wants_it(trained):
    program, state = trained.program, trained.state
    for kept, wanted in zip(*map(jax.tree.leaves, (state, program.abstract)), strict=True):
        assert (kept.shape, kept.dtype) == (wanted.shape, wanted.dtype)
        assert kept.sharding.is_equivalent_to(wanted.sharding, kept.ndim), (kept.sharding, wanted.sharding)
    split = [x.sharding.spec for x in jax.tree.leaves(state.params)]
    assert any("fsdp" in str(s) for s in split) and any("tensor" in str(s) for s in split)
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {np.dtype("float32")}


def test_another_seed_is_another_model(trained):
    program = trained.program
    other = dataclasses.replace(program, config=dataclasses.replace(program.config, seed=1))
    pairs = zip(
        *map(jax.tree.leaves, (trained.started, jax.device_get(other.fresh_state().params))), strict=True
    )
    matrices = [(a, b) for a, b in pairs if a.ndim > 2]
    assert matrices and all((a != b).mean() > 0.99 for a, b in matrices)


# ---- with a reference and several updates ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def anchored():
    """One step of two mini-batches with a KL penalty: (program, reference, metrics of both updates, statistics)."""
    objective = {"preset": "grpo", "regularisers": [{"name": "kl", "coef": 0.1}]}
    settings = config(
        Vowels(long=4),
        objective=objective,
        batch={"prompts": 8, "group_size": 2, "minibatches": 2},
        optimizer={"learning_rate": 0.05},
        mesh={},
    )
    program = assemble(settings, num_prompts=40)
    with jax.set_mesh(program.mesh):
        state = program.fresh_state()
        reference = jax.tree.map(lambda x: x.copy(), state.params)
        before = jax.device_get(reference)
        _, metrics, _, stats = step(program, state, stream(program), 0, reference)
    return program, before, jax.device_get(reference), metrics, jax.device_get(stats.values)


def test_at_the_start_the_reference_is_the_policy_at_the_sampling_temperature(anchored):
    program, _, _, (first, second), stats = anchored
    np.testing.assert_array_equal(stats[Pass.REF, Stat.LOGPROB], stats[Pass.OLD, Stat.LOGPROB])
    gap = stats[Pass.REF, Stat.LOGPROB] - stats[Pass.SAMPLER, Stat.LOGPROB]
    inside = stats[Pass.SAMPLER, Stat.LOGPROB] != 0
    assert (
        np.abs(gap[inside]).max() < 1e-5
    )  # the sampler's temperature, 0.6: at 1 it would be off by some 0.5
    assert abs(first["policy/kl_ref"]) < 1e-8 and abs(first["regulariser/kl"]) < 1e-6
    assert second["policy/kl_ref"] > 1e-4 and second["policy/kl_old"] > 1e-4  # the first update has moved it


def test_the_reference_stays_as_it_is(anchored):
    _, before, after, _, _ = anchored
    chex.assert_trees_all_equal(before, after)


def test_old_statistics_are_computed_where_several_updates_read_them(anchored):
    program = anchored[0]
    assert program.score is not None and program.score_ref is not None
    assert old_stats(program.config) == {Stat.LOGPROB} and old_stats(config()) == frozenset()
    assert updates_per_step(program.config) == 2
    assert updates_per_step(config(batch={**TREE["batch"], "minibatches": 2, "epochs": 3})) == 6
    assert dict(program.traces) == SAMPLER(1) | {"score_old": 1, "score_ref": 1, "credit": 1, "update": 1}


def test_the_learning_rate_of_a_step_counts_its_updates():
    settings = config(
        batch={**TREE["batch"], "minibatches": 2},
        optimizer={"learning_rate": 1.0, "warmup_steps": 2, "schedule": "linear"},
        steps=4,
    )
    program = assemble(settings, num_prompts=40)
    rates = [program.learning_rate_at(n) for n in range(4)]
    # Updates 0 and 2 of a rise over 4 (never 0), then down to 0 at the end of step 4 over 4 updates.
    np.testing.assert_allclose(rates, [1 / 5, 3 / 5, 1.0, 0.5], rtol=1e-6)


# ---- what does not fit -------------------------------------------------------------------------------------------


def refused(message, function, *arguments):
    with pytest.raises(ValueError) as error:
        function(*arguments)
    assert str(error.value) == message


def test_a_mesh_has_as_many_places_as_there_are_devices():
    refused(
        "mesh {'data': 3, 'fsdp': 1, 'tensor': 1, 'sequence': 1} does not fill 8 devices: the sizes must multiply to 8; "
        "set one of them to -1.",
        check_devices,
        config(mesh={"data": 3}),
        8,
    )
    refused(
        "mesh sizes are positive, and one of them may be -1 (what is left); got {'data': -1, 'fsdp': -1, 'tensor': 1, 'sequence': 1}.",
        check_devices,
        config(mesh={"fsdp": -1}),
        8,
    )
    check_devices(config(mesh={"data": 2, "tensor": -1}), 8)
    check_devices(config(mesh={}), 1)


def test_prompts_spread_over_the_shards_and_so_do_demonstrations():
    fix = "make it a multiple, or give more devices to mesh.tensor or mesh.sequence."
    refused(
        f"batch.prompts=4 does not spread over the 8 data and fsdp shards of 8 devices: {fix}",
        check_devices,
        config(mesh={}),
        8,
    )
    refused(
        "sampling.max_new_tokens=12 does not split into the mesh.sequence=8 equal parts of a row: make it 16, or mesh.sequence "
        "a divisor of it.",
        check_devices,
        config(mesh={"sequence": -1, "data": 1}, sampling={"max_new_tokens": 12}),
        8,
    )
    uneven = {"steps": 3, "batch": 6}
    refused(
        f"warmup.batch=6 does not spread over the 4 data and fsdp shards of 8 devices: {fix}",
        check_devices,
        config(warmup=uneven),
        8,
    )
    check_devices(config(warmup={**uneven, "steps": 0}), 8)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A Hugging Face directory with 24 positions, two stop ids and weights of zero."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = word_tokenizer(WORDS)
    tokenizer.save_pretrained(path)
    model = ModelConfig(
        vocab_size=len(tokenizer),
        num_layers=1,
        dim=8,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        mlp_dim=8,
        max_positions=24,
    )
    (path / "config.json").write_text(json.dumps(to_huggingface(model) | {"eos_token_id": 2}))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    save_file(
        {name: np.zeros(shape, np.float32) for name, shape in stored_shapes(model).items()},
        path / "model.safetensors",
    )
    return path


def test_a_model_directory_brings_its_tokenizer_and_all_its_stop_ids(directory):
    program = assemble(config(model={"path": str(directory)}, prompts={"max_tokens": 18}), num_prompts=40)
    assert program.stop == (2, 5) and len(program.tokenizer) == program.model_config.vocab_size == 29


def test_prompts_and_responses_fit_into_the_models_positions(directory):
    refused(
        "prompts.max_tokens + sampling.max_new_tokens = 25 is more than the 24 positions of the model: lower one of them.",
        assemble,
        config(model={"path": str(directory)}, prompts={"max_tokens": 19}),
        40,
    )


def test_a_path_that_is_not_there_is_said_to_be_missing(tmp_path):
    path = str(tmp_path / "nowhere")
    refused(
        f"model.path={path!r} does not exist: give a Hugging Face directory or a .gguf file.",
        assemble,
        config(model={"path": path}),
        40,
    )
