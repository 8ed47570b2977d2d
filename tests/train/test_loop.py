"""What `fit` does around its steps: what a run leaves behind, and what stands in the way of starting one."""

import json

import pytest
from test_resume import CONFIG

from rlvr_jax.configfile import parse, to_plain
from rlvr_jax.train import loop
from rlvr_jax.train.evaluate import load_evaluations
from rlvr_jax.train.loop import fit, free_keys
from rlvr_jax.train.metrics import METRICS, ROLLOUTS, read_rows

pytestmark = pytest.mark.slow

TINY = CONFIG | {"steps": 3, "warmup": {"steps": 0}, "batch": {"prompts": 8, "group_size": 2}}


def config(run_dir, **changes):
    return parse(TINY | {"run_dir": str(run_dir)} | changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of three steps on the 8 devices, and its outcome."""
    folder = tmp_path_factory.mktemp("loop") / "run"
    return folder, fit(config(folder))


def test_every_step_has_its_figures_and_every_answer_its_line(run):
    folder, outcome = run
    assert outcome.complete and outcome.steps == 3
    rows = read_rows(folder / METRICS)
    assert [row["step"] for row in rows] == [0, 1, 2]
    wanted = "reward/mean reward/correct acr/all policy/entropy policy/kl_ref policy/kl_old policy/clip_fraction length/mean"
    for name in [
        *wanted.split(),
        "optimizer/grad_norm",
        "time/tokens_per_second",
        "time/sample",
        "time/update",
    ]:
        assert isinstance(rows[0][name], float | int), name
    answers = read_rows(folder / ROLLOUTS)
    assert len(answers) == 3 * 8 * 2
    for step in range(3):
        mine = [a for a in answers if a["step"] == step]
        assert sum(a["reward"] for a in mine) / len(mine) == pytest.approx(rows[step]["reward/mean"])
        assert sum(a["length"] for a in mine) / len(mine) == pytest.approx(rows[step]["length/mean"])


def test_the_sampler_and_the_trainer_agree_in_every_step(run):
    """One optimiser step a batch: the policy that is updated is the one that sampled. k3 of a gap of 1e-5 is 5e-11."""
    for row in read_rows(run[0] / METRICS):
        assert abs(row["policy/kl_sampler"]) < 1e-9


def test_each_function_is_traced_once(run):
    """The sampler's four, score_ref, credit, update; evaluation has the shape of training and adds none."""
    assert read_rows(run[0] / METRICS)[-1]["time/traces"] == 7


def test_it_is_evaluated_before_and_after_but_never_twice(run):
    folder, outcome = run
    assert sorted(outcome.evaluations) == [0, 3]
    before = (folder / "evaluations.jsonl").read_bytes()
    assert fit(config(folder)).complete  # nothing is left to do
    assert (folder / "evaluations.jsonl").read_bytes() == before
    assert load_evaluations(folder)[0]["prompts"] == 1


def test_the_resolved_config_repeats_the_run(run):
    folder, _ = run
    import yaml

    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert parse(saved) == config(folder) and saved == to_plain(config(folder))
    packages = json.loads((folder / "versions.json").read_text())[-1]["packages"]
    assert packages["jax"]


def test_the_reference_stays_where_the_run_began(run):
    """With a KL penalty the reference is a copy: at step 0 it is the policy itself, later the policy has left it."""
    kl = [row["policy/kl_ref"] for row in read_rows(run[0] / METRICS)]
    assert kl[0] == 0.0 and kl[2] > 0


def test_a_run_that_failed_before_its_first_checkpoint_may_be_started_with_another_config(
    tmp_path, monkeypatch
):
    class Failed(Exception):
        pass

    def fail(self, until):
        raise Failed

    with monkeypatch.context() as patch:
        patch.setattr(loop.Run, "train", fail)
        with pytest.raises(Failed):
            fit(config(tmp_path / "run", seed=7))
    assert (tmp_path / "run" / "config.yaml").exists()
    with monkeypatch.context() as patch:
        patch.setattr(loop.Run, "train", fail)
        with pytest.raises(Failed):  # and not: the run was made with another config
            fit(config(tmp_path / "run", seed=8))


def test_steps_may_change_only_where_the_learning_rate_does_not_follow_them(tmp_path):
    assert "steps" in free_keys(config(tmp_path))
    assert "steps" not in free_keys(config(tmp_path, optimizer={"schedule": "cosine"}))


def test_a_ratio_that_does_nothing_on_policy_is_noted(tmp_path, capsys, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "assemble", stop)
    for updates, noted in ((1, True), (2, False)):
        batch = {"prompts": 8, "group_size": 2, "minibatches": updates}
        with pytest.raises(KeyboardInterrupt):
            fit(config(tmp_path, objective="reco", batch=batch))
        assert ("note: ratio 'bernoulli_variance' is 1 everywhere" in capsys.readouterr().err) == noted


def test_a_top_p_that_biases_the_gradient_is_noted(tmp_path, capsys, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "assemble", stop)
    with pytest.raises(KeyboardInterrupt):
        fit(config(tmp_path, sampling={"max_new_tokens": 12, "top_p": 0.9}))
    assert "note: top_k or top_p draws from a part of the policy" in capsys.readouterr().err
