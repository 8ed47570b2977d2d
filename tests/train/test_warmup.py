"""The supervised warm-up: maximum likelihood of demonstrations, on the mesh, until it is good enough."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx
from tiny_task import Vowels

from rlvr_jax.configfile import parse
from rlvr_jax.rollout.prompts import PromptStream
from rlvr_jax.train import warmup as module
from rlvr_jax.train.program import assemble
from rlvr_jax.train.warmup import check_demonstrations, demonstrations, warm_up
from rlvr_jax.types import Mean

TREE = {
    "model": {"scratch": {"num_layers": 2, "dim": 16, "num_heads": 4, "num_kv_heads": 2, "mlp_dim": 24}},
    "sampling": {"max_new_tokens": 5, "temperature": 0.6},
    "prompts": {"max_tokens": 16},
    "batch": {"prompts": 4, "group_size": 4},
    "warmup": {"steps": 100, "batch": 16, "learning_rate": 0.01, "target": 0.5, "check_every": 20},
    "mesh": {"data": 2, "fsdp": 2, "tensor": 2},
}
LONGEST = 5
"""Up to four words and the stop token."""


def config(task=None, **sections):
    return dataclasses.replace(parse({**TREE, **sections}), task=task or Vowels())


@pytest.fixture(scope="module")
def program():
    return assemble(config(), num_prompts=40)


@pytest.fixture(scope="module")
def warmed(program):
    """(state before, state after, [(step, loss, rate)]) of a warm-up whose third look finds it good enough."""
    reports, rates = [], iter((0.1, 0.49, 0.5))

    def report(step, loss, rate):
        reports.append((step, loss, rate))
        return True

    with jax.set_mesh(program.mesh):
        state = program.fresh_state()
        before = jax.device_get(state.params)
        after = warm_up(program, state, lambda params: next(rates), report)
    return before, after, reports


def first_batch(program):
    settings = program.config
    source = PromptStream(settings.task, program.tokenizer, "train", 16, 16, "error", settings.seed)
    return next(source)


def test_the_first_loss_is_the_cross_entropy_of_all_tokens_of_the_batch(program, warmed):
    """The mean over tokens, not over rows; at temperature 1, whatever the sampling temperature is; in float64 outside."""
    before, _, reports = warmed
    rollout = demonstrations(program.config, program, first_batch(program))
    assert len(set(rollout.length.tolist())) > 2

    @jax.jit
    def logits(params):
        model = nnx.merge(program.forward.graphdef, params)
        prefix = model.prefill(jnp.asarray(rollout.prompt[:, :-1]), jnp.asarray(rollout.prompt_length - 1))
        last = rollout.prompt[np.arange(16), rollout.prompt_length - 1]
        inputs = np.concatenate([last[:, None], rollout.tokens[:, :-1]], axis=1)
        return jnp.einsum(
            "btd,vd->btv", model.hidden(jnp.asarray(inputs), prefix), model.head(), precision="highest"
        )

    logp = tiny.log_softmax(logits(before))
    total = sum(logp[i, t, rollout.tokens[i, t]] for i in range(16) for t in range(rollout.length[i]))
    assert reports[0][0] == 1
    # A float32 forward on another mesh: logits differ by some 1e-6.
    np.testing.assert_allclose(reports[0][1], -total / rollout.length.sum(), rtol=1e-5)


def test_the_loss_falls_and_the_warm_up_ends_at_its_target(warmed):
    _, _, reports = warmed
    assert [step for step, _, _ in reports] == list(range(1, 61))
    assert [(step, rate) for step, _, rate in reports if rate is not None] == [
        (20, 0.1),
        (40, 0.49),
        (60, 0.5),
    ]
    losses = [loss for _, loss, _ in reports]
    assert abs(losses[0] - math.log(29)) < 0.5  # about uniform over the vocabulary at first
    assert np.mean(losses[-5:]) < 0.75 * losses[0]


def test_training_starts_from_the_warm_parameters_with_a_new_optimiser_where_the_mesh_wants_them(
    program, warmed
):
    before, after, _ = warmed
    assert int(after.step) == 0
    changed = [
        np.abs(np.asarray(a) - b).max()
        for a, b in zip(*map(jax.tree.leaves, (after.params, before)), strict=True)
    ]
    assert min(changed) > 0
    assert all((np.asarray(x) == 0).all() for x in jax.tree.leaves(after.opt))
    for kept, wanted in zip(*map(jax.tree.leaves, (after, program.abstract)), strict=True):
        assert kept.sharding.is_equivalent_to(wanted.sharding, kept.ndim), (kept.sharding, wanted.sharding)


def test_a_demonstration_is_a_right_answer_with_its_stop_token(program):
    batch = first_batch(program)
    rollout = demonstrations(program.config, program, batch)
    task, eos = program.config.task, program.tokenizer.eos_token_id
    for i, record in enumerate(batch.records):
        ids = program.tokenizer(task.demonstration(record), add_special_tokens=False)["input_ids"] + [eos]
        row, n = rollout.tokens[i], rollout.length[i]
        assert row[:n].tolist() == ids and (row[n:] == 0).all()
        assert rollout.mask[i].tolist() == [1.0] * n + [0.0] * (LONGEST - n)
    np.testing.assert_array_equal(rollout.prompt, batch.tokens)
    assert not rollout.truncated.any()


def course(monkeypatch, program, warmed, pass_rate, report):
    """A warm-up whose steps do nothing, so that only its own course is left."""

    def make(*_):
        loss = Mean(total=jnp.ones(()), count=jnp.ones(()))
        return lambda state, *rest: (state, {"loss": loss})

    monkeypatch.setattr(module, "make_update", make)
    with jax.set_mesh(program.mesh):
        places = jax.tree.map(lambda x: x.sharding, program.abstract.params)
        warm_up(program, program.state_of(jax.device_put(warmed[0], places)), pass_rate, report)


@pytest.mark.parametrize(
    "warmup, rate, last",
    [
        ({"target": None, "steps": 7}, None, 7),  # no target: no look at it, all the steps
        ({"target": 0.9, "steps": 7, "check_every": 3}, 0.2, 7),  # never reached
        ({"target": 0.9, "steps": 7, "check_every": 3}, 0.9, 3),
    ],
)
def test_a_warm_up_ends_at_its_target_or_after_its_steps(program, warmed, monkeypatch, warmup, rate, last):
    program = dataclasses.replace(program, config=config(warmup={**TREE["warmup"], **warmup}))
    steps = []
    course(monkeypatch, program, warmed, lambda params: rate, lambda step, *_: steps.append(step) or True)
    assert steps == list(range(1, last + 1))


def test_a_warm_up_ends_where_its_report_says_so(program, warmed, monkeypatch):
    steps = []
    course(monkeypatch, program, warmed, lambda params: 0.0, lambda step, *_: steps.append(step) or step < 2)
    assert steps == [1, 2]


# ---- what cannot be learnt from ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Mute(Vowels):
    """A task without right answers to show."""

    name = "mute"

    def demonstration(self, record):
        return None


def test_a_warm_up_needs_demonstrations():
    settings = config(Mute())
    with pytest.raises(ValueError) as error:
        check_demonstrations(settings)
    assert str(error.value) == "warmup.steps=100, but task 'mute' has no demonstrations: set it to 0."
    check_demonstrations(dataclasses.replace(settings, warmup=dataclasses.replace(settings.warmup, steps=0)))
    check_demonstrations(config())


def test_a_demonstration_fits_into_a_response(program):
    short = config(sampling={"max_new_tokens": 4})
    with pytest.raises(ValueError) as error:
        demonstrations(short, program, first_batch(program))
    assert str(error.value) == "a demonstration has 5 tokens, more than sampling.max_new_tokens=4: raise it."
