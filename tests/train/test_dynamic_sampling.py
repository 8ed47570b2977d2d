"""DAPO's dynamic sampling in a run: full batches of static shape, an end to the search, and nothing lost on resume."""

import dataclasses
import json
import shutil
from collections import Counter

import jax
import numpy as np
import pytest
from tiny_task import Vowels

from rlvr_jax.configfile import parse
from rlvr_jax.rollout.refill import Groups
from rlvr_jax.tasks import Reason, Verdict
from rlvr_jax.train.checkpoint import Checkpoints
from rlvr_jax.train.loop import fit
from rlvr_jax.train.metrics import METRICS, ROLLOUTS, read_rows, without_times
from rlvr_jax.train.program import assemble

pytestmark = pytest.mark.slow

STEPS, P, G, ROUNDS = 6, 4, 2, 8
SIZE = 6  # fewer prompts than a step of two rounds samples: some come twice
TREE = {
    "steps": STEPS,
    "model": {"scratch": {"num_layers": 1, "dim": 32, "num_heads": 4, "num_kv_heads": 2, "mlp_dim": 32}},
    "objective": "dapo",
    "sampling": {"max_new_tokens": 4},
    "prompts": {"max_tokens": 16},
    "batch": {"prompts": P, "group_size": G, "max_rounds": ROUNDS},
    "mesh": {"data": 1, "tensor": -1},
    "optimizer": {"learning_rate": 1e-3},
    "checkpoint": {"every": 1, "keep": 20},
    "logging": {"tensorboard": False},
}


@dataclasses.dataclass(frozen=True)
class Hopeless(Vowels):
    """Everything is wrong, so that every group is uniform; lengths still differ, and with them the shaped rewards."""

    def verify(self, record, completion):
        return Verdict.of(Reason.WRONG)


def config(run_dir, task=None, **sections):
    tree = {**TREE, "run_dir": str(run_dir), **sections}
    return dataclasses.replace(parse(tree), task=task or Vowels(size=SIZE))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("dynamic") / "run"
    assert fit(config(folder)).complete
    return folder


def test_every_batch_is_full_of_mixed_groups_and_nothing_is_compiled_again(whole):
    rows = read_rows(whole / METRICS)
    assert [row["groups/kept"] for row in rows] == [1.0] * STEPS
    assert max(row["groups/rounds"] for row in rows) > 1
    assert {row["time/traces"] for row in rows} == {6.0}  # weights, prefill, start, advance, credit, update
    assert all(row["optimizer/updates"] == 1 and row["optimizer/grad_norm"] > 0 for row in rows)


def test_groups_that_are_over_are_trained_on_in_the_next_step(whole):
    rows = read_rows(whole / METRICS)
    assert rows[0]["groups/from_last_step"] == 0
    assert max(row["groups/left_over"] for row in rows) > 0
    for before, after in zip(rows, rows[1:], strict=False):
        assert after["groups/from_last_step"] == before["groups/left_over"]


def test_figures_and_samples_are_of_all_that_was_sampled(whole):
    """Correctness of the filtered batch is made, not measured; and no answer is sampled twice."""
    answers = read_rows(whole / ROLLOUTS)
    repeated = 0
    for row in read_rows(whole / METRICS):
        mine = [a for a in answers if a["step"] == row["step"]]
        assert len(mine) == row["groups/rounds"] * P * G
        assert np.mean([a["correct"] for a in mine]) == pytest.approx(row["reward/correct"])
        groups = Counter((a["prompt_id"], a["sample"] // G) for a in mine)
        assert set(groups.values()) == {G}
        repeated += len(groups) - len({prompt for prompt, _ in groups})
        right = Counter((a["prompt_id"], a["sample"] // G) for a in mine if a["correct"])
        uniform = sum(right[g] in (0, G) for g in groups)
        assert row["acr/all"] == pytest.approx(uniform / len(groups))
    assert repeated


@pytest.mark.parametrize("done", [2, STEPS - 1])
def test_a_resumed_run_is_the_run_to_the_bit(whole, tmp_path, done):
    """At the last step too, and with groups waiting in the checkpoint."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for step in range(done + 1, STEPS + 1):
        shutil.rmtree(run / "checkpoints" / str(step))
    assert fit(config(run)).complete
    like = assemble(config(run), num_prompts=SIZE).abstract
    found = []
    for folder in (whole, run):
        with Checkpoints(folder / "checkpoints", keep=20) as checkpoints:
            found.append((checkpoints.restore(like), checkpoints.arrays()))
    jax.tree.map(np.testing.assert_array_equal, *found)
    figures = [[without_times(row) for row in read_rows(folder / METRICS)] for folder in (whole, run)]
    assert figures[0] == figures[1]
    assert (run / ROLLOUTS).read_bytes() == (whole / ROLLOUTS).read_bytes()


def test_groups_wait_in_the_checkpoint(whole):
    left = {row["step"] + 1: round(row["groups/left_over"] * P) for row in read_rows(whole / METRICS)}
    assert any(left.values())
    with Checkpoints(whole / "checkpoints", keep=20) as checkpoints:
        for step, groups in left.items():
            waiting = Groups.from_arrays(checkpoints.arrays(step))
            assert (0 if waiting is None else len(waiting)) == groups * G
            if waiting is not None:
                right = waiting.rollout.correct.reshape(-1, G).sum(1)
                assert ((right > 0) & (right < G)).all()


def test_a_constant_reward_ends_the_search_each_step_and_moves_nothing(tmp_path, capsys):
    outcome = fit(
        config(tmp_path / "run", Hopeless(size=SIZE), steps=2, batch={**TREE["batch"], "max_rounds": 3})
    )
    assert outcome.complete
    rows = read_rows(tmp_path / "run" / METRICS)
    assert [row["groups/kept"] for row in rows] == [0, 0]
    assert [row["groups/rounds"] for row in rows] == [3, 3]
    assert [row["optimizer/updates"] for row in rows] == [0, 0]
    assert [row["acr/all_wrong"] for row in rows] == [1, 1]
    like = assemble(config(tmp_path / "run"), num_prompts=SIZE).abstract
    with Checkpoints(tmp_path / "run" / "checkpoints", keep=20) as checkpoints:
        (first, _), (last, _) = checkpoints.restore(like, 0), checkpoints.restore(like, 2)
    jax.tree.map(np.testing.assert_array_equal, (first.params, first.opt), (last.params, last.opt))
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("after 3 rounds 0 of 4 groups passed the objective's filter") == 1
    assert json.loads((tmp_path / "run" / METRICS).read_text().splitlines()[-1])["acr/early"] == 1
