"""Sampling one step ahead: weights one step old and not older, said of every row; and a resumed run is the run."""

import dataclasses
import shutil
import threading
from collections import Counter

import jax
import numpy as np
import pytest
from tiny_task import Vowels

from rlvr_jax.configfile import parse
from rlvr_jax.rollout.collect import decode
from rlvr_jax.train import batches, loop
from rlvr_jax.train.batches import lags
from rlvr_jax.train.checkpoint import Checkpoints
from rlvr_jax.train.loop import fit
from rlvr_jax.train.metrics import METRICS, ROLLOUTS, read_rows, without_times
from rlvr_jax.train.program import assemble

STEPS, P, G, ROUNDS, SIZE = 4, 8, 2, 3, 40
pytestmark = pytest.mark.slow

CORRECTED = [{"name": "sampler_correction"}]
TREE = {
    "steps": STEPS,
    "model": {"scratch": {"num_layers": 1, "dim": 32, "num_heads": 4, "num_kv_heads": 2, "mlp_dim": 32}},
    "objective": {"preset": "dapo", "token_weight": CORRECTED},
    "sampling": {"max_new_tokens": 4},
    "prompts": {"max_tokens": 16},
    "batch": {"prompts": P, "group_size": G, "max_rounds": ROUNDS, "ahead": 1},
    "mesh": {"data": 2, "fsdp": 2, "tensor": 2},  # programs of two threads, both with collectives
    "optimizer": {"learning_rate": 1e-2},
    "checkpoint": {"every": 1, "keep": 20},
    "logging": {"tensorboard": False},
}


def config(run_dir):
    return dataclasses.replace(parse({**TREE, "run_dir": str(run_dir)}), task=Vowels(size=SIZE))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run in which each batch is trained on only when sampling for the next has begun: without overlap it would not end."""
    begun = [threading.Event() for _ in range(STEPS + 1)]
    begun[STEPS].set()  # after the last one there is nothing to sample
    gather, learn = batches.Batches._gather, loop.Run.learn

    def gathering(self, step):
        begun[step].set()
        return gather(self, step)

    def learning(self, state, filled):
        assert begun[int(state.step) + 1].wait(60)
        return learn(self, state, filled)

    folder = tmp_path_factory.mktemp("ahead") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batches.Batches, "_gather", gathering)
        patched.setattr(loop.Run, "learn", learning)
        assert fit(config(folder)).complete
    return folder


def same_runs(one, other):
    figures = [[without_times(row) for row in read_rows(folder / METRICS)] for folder in (one, other)]
    assert figures[0] == figures[1]
    assert (one / ROLLOUTS).read_bytes() == (other / ROLLOUTS).read_bytes()
    program = assemble(config(one), num_prompts=SIZE)
    found = []
    for folder in (one, other):
        with Checkpoints(folder / "checkpoints", keep=20) as checkpoints:
            like = program.abstract
            found.append((checkpoints.restore(like.changing), checkpoints.behind(like.params)))
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_every_row_says_its_weights_and_none_is_older_than_is_allowed(whole):
    versions = {step: set() for step in range(STEPS)}
    for row in read_rows(whole / ROLLOUTS):
        versions[row["step"]].add(row["version"])
    assert versions == {step: {max(step - 1, 0)} for step in range(STEPS)}
    figures = read_rows(whole / METRICS)
    assert figures[0]["lag/0"] == 1
    assert all(row["lag/0"] == 0 and row["lag/1"] + row["lag/2"] == 1 for row in figures[2:])
    for row, after in zip(figures[1:], figures[2:], strict=False):  # what was left over is two steps old
        assert after["lag/2"] == pytest.approx(row["groups/left_over"])


def test_no_group_is_lost(whole):
    """What passed the filter is trained on, waits for the next step, or passed it after the last one."""
    answers, figures = read_rows(whole / ROLLOUTS), read_rows(whole / METRICS)
    waiting = 0
    for row in figures:
        right = Counter(
            (a["prompt_id"], a["sample"] // G) for a in answers if a["step"] == row["step"] and a["correct"]
        )
        mixed = sum(0 < n < G for n in right.values())
        trained = round(row["groups/kept"] * P)
        left = round(row["groups/left_over"] * P)
        assert waiting + mixed == trained + left
        waiting = left
    assert sum(row["groups/kept"] for row in figures) > 0


def test_the_weights_are_those_of_the_step_before(whole):
    """Sampled once more, from the checkpoint before: the same answers; from that of the step itself: others."""
    program = assemble(config(whole), num_prompts=SIZE)
    step = STEPS - 1
    rows = [row for row in read_rows(whole / ROLLOUTS) if row["step"] == step][: P * G]
    stream = program.stream(P)
    told = []
    with jax.set_mesh(program.mesh), Checkpoints(whole / "checkpoints", keep=20) as checkpoints:
        _, data = checkpoints.restore(program.abstract.changing, step)
        for version in (step - 1, step):
            stream.set_state(data["stream"])
            state, _ = checkpoints.restore(program.abstract.changing, version)
            program.sampler.push(state.params, version)
            samples = program.sample_batch(next(stream), step=step, seed=program.config.seed)
            told.append(decode(program.tokenizer, samples.tokens, samples.length))
    answers = [row["completion"] for row in rows]
    assert told[0] == answers and told[1] != answers


@pytest.mark.parametrize("done", [0, 3])
def test_a_resumed_run_is_the_run_to_the_bit(whole, tmp_path, done):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for step in range(done + 1, STEPS + 1):
        shutil.rmtree(run / "checkpoints" / str(step))
    assert fit(config(run)).complete
    same_runs(whole, run)


@pytest.mark.parametrize("when", ["sampling", "training"])
def test_a_run_that_is_stopped_goes_on_as_if_it_had_not_been(whole, tmp_path, monkeypatch, when):
    where, name = {"sampling": (batches.Batches, "_gather"), "training": (loop.Run, "learn")}[when]
    original = getattr(where, name)
    calls = []

    def asked(self, *args):
        calls.append(args)
        if len(calls) == 3:
            (self._stop if when == "sampling" else self.stop).asked = True
        return original(self, *args)

    monkeypatch.setattr(where, name, asked)
    run = tmp_path / "run"
    outcome = fit(config(run))
    assert not outcome.complete and 0 < outcome.steps < STEPS
    monkeypatch.undo()
    assert fit(config(run)).complete
    same_runs(whole, run)


def test_a_fault_of_the_sampling_thread_ends_the_run(tmp_path, monkeypatch):
    def broken(self, step):
        raise ZeroDivisionError("in the thread")

    monkeypatch.setattr(batches.Batches, "_gather", broken)
    with pytest.raises(ZeroDivisionError, match="in the thread"):
        fit(config(tmp_path / "run"))


def test_a_row_from_the_future_or_too_old_is_a_fault():
    assert lags(np.array([0, 0]), oldest=0) == {}
    shares = {name: mean.value() for name, mean in lags(np.array([1, 1, 2, 0]), oldest=2).items()}
    assert shares == {"lag/0": 0.25, "lag/1": 0.5, "lag/2": 0.25}
    for lag in ([-1], [3]):
        with pytest.raises(RuntimeError, match="0 to 2 are allowed"):
            lags(np.array(lag), oldest=2)


def test_old_weights_need_a_correction():
    with pytest.raises(ValueError, match="add sampler_correction to objective.token_weight"):
        parse({"objective": "grpo", "batch": {"ahead": 1}})
    with pytest.raises(ValueError, match=r"batch.ahead is 0 \(on policy\) or 1"):
        parse({"objective": {"preset": "grpo", "token_weight": CORRECTED}, "batch": {"ahead": 2}})
