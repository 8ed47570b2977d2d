"""A repetition says bit-identical where every figure, answer and parameter is, and else where the two part and by how much."""

import json
import shutil

import pytest

from rlvr_jax.cli import main
from rlvr_jax.configfile import parse
from rlvr_jax.train import reproduce
from rlvr_jax.train.loop import fit
from rlvr_jax.train.metrics import METRICS, ROLLOUTS
from rlvr_jax.train.rundir import VERSIONS

CONFIG = {
    "steps": 3,
    "task": {"name": "maze", "size": 5, "test_size": 1},
    "model": {"scratch": {"num_layers": 1, "dim": 16, "num_heads": 2, "num_kv_heads": 2, "mlp_dim": 16}},
    # Moves the parameters in every step, whatever the rewards are.
    "objective": {"preset": "grpo", "regularisers": [{"name": "entropy", "coef": 0.1}]},
    "optimizer": {"learning_rate": 1e-3, "schedule": "linear"},
    "sampling": {"max_new_tokens": 5},
    "prompts": {"max_tokens": 40},
    "batch": {"prompts": 8, "group_size": 2},
    "checkpoint": {"every": 1, "keep": 2},
    "logging": {"tensorboard": False},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce")
    assert fit(parse({**CONFIG, "run_dir": str(folder / "run")})).complete
    return folder / "run"


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


def test_a_repetition_is_bit_identical_as_far_as_it_was_asked_to_go(run, capsys):
    """Of a run whose learning rate follows the number of steps, two of three; the third on being asked again."""
    for steps, words in ((2, ["--steps", "2"]), (3, [])):
        assert main(["reproduce", str(run), "--json", *words]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["verdict"], found["first"]) == ("identical", None)
        assert found["metrics"]["steps"] == found["rollouts"]["steps"] == list(range(steps))
        assert [each["step"] for each in found["parameters"]] == list(range(2, steps + 1))
        assert all(each["largest"] == 0 and each["numbers"] > 1000 for each in found["parameters"])


def test_another_seed_parts_at_its_first_step(run, tmp_path, capsys):
    words = ["reproduce", str(run), "--out", str(tmp_path / "seed"), "--steps", "1", "--seed", "1"]
    assert main(words) == 1
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"{run} and {tmp_path / 'seed'} part at step 0, in their rollouts"
    assert lines[0] == "  config: seed 0 and 1"
    assert any(
        line.startswith("  rollouts: from step 0 on, in 1 of 1 step; in step 0 prompt ") for line in lines
    )
    assert main(words[:-2]) == 2
    assert (
        "is a run of another config:\n  seed: 1 there, 0 now\nName another --out." in capsys.readouterr().err
    )


def change(path, line, text, other):
    lines = path.read_text().splitlines(keepends=True)
    assert text in lines[line]
    path.write_text("".join([*lines[:line], lines[line].replace(text, other), *lines[line + 1 :]]))


def against(run, copy, capsys, *words):
    status = main(["reproduce", str(run), "--against", str(copy), "--json", *words])
    return status, json.loads(capsys.readouterr().out)


def test_the_first_step_with_another_figure_is_named_with_both_values(run, copy, capsys):
    change(copy / METRICS, 1, '"optimizer/updates": 1.0', '"optimizer/updates": 1.5')
    status, found = against(run, copy, capsys)
    assert (status, found["first"]) == (1, {"step": 1, "in": "metrics"})
    assert found["metrics"]["differences"] == [{"name": "optimizer/updates", "first": 1.0, "second": 1.5}]
    assert main(["reproduce", str(run), "--against", str(copy)]) == 1
    assert (
        "  metrics: from step 1 on, in 1 of 3 steps; in step 1 optimizer/updates: 1 and 1.5 (+0.5)"
        in capsys.readouterr().out
    )
    assert against(run, copy, capsys, "--steps", "1")[0] == 0


def test_times_are_no_difference_and_an_answer_is(run, copy, capsys):
    change(copy / METRICS, 0, '"time/step": ', '"time/step": 1')
    assert against(run, copy, capsys)[0] == 0
    change(copy / ROLLOUTS, 17, '"completion": "', '"completion": "GOAL ')
    status, found = against(run, copy, capsys)
    assert (status, found["first"]) == (1, {"step": 1, "in": "rollouts"})
    (difference,) = found["rollouts"]["differences"]
    assert difference["name"].endswith("sample 1, completion") and difference["second"].startswith("GOAL")


def test_parameters_that_differ_are_told_by_how_much(run, copy, capsys):
    """Checkpoint 3 of the copy is its checkpoint 2."""
    shutil.rmtree(copy / "checkpoints" / "3")
    shutil.copytree(copy / "checkpoints" / "2", copy / "checkpoints" / "3")
    status, found = against(run, copy, capsys)
    assert (status, found["first"]) == (1, {"step": 3, "in": "parameters"})
    same, other = found["parameters"]
    assert same["largest"] == 0
    # One step of Adam, at the last third of a rate of 1e-3, moves no parameter much further than that.
    assert 1e-4 < other["largest"] < 1e-3 and other["array"].startswith("params/")


def test_other_versions_are_warned_of_before_anything_runs(run, copy, capsys, monkeypatch):
    text = (copy / VERSIONS).read_text()
    (copy / VERSIONS).write_text(
        text.replace('"backend": "cpu"', '"backend": "tpu"').replace('"jax": "', '"jax": "9')
    )
    monkeypatch.setattr(reproduce, "fit", lambda *_: pytest.fail(capsys.readouterr().err))
    with pytest.raises(pytest.fail.Exception) as error:
        main(["reproduce", str(copy)])
    assert "warning: the two were made with other versions or hardware" in str(error.value)
    assert "  backend: 'tpu' and 'cpu'\n" in str(error.value) and "  jax: '9" in str(error.value)


@pytest.mark.parametrize(
    "words, text",
    [
        (["{tmp}/none"], "{tmp}/none is no run (it has no config.yaml): name the directory of one."),
        (["{run}", "--steps", "4"], "--steps is 1 to 3, the steps that {run} has done; got 4."),
        (["{run}", "--out", "{run}"], "--out {run} is the run itself: name a new directory."),
        (["{run}", "--against", "{run}", "--seed", "1"], "takes --steps alone; got '--seed 1' beside it."),
    ],
)
def test_what_cannot_be_repeated_is_one_line(run, tmp_path, capsys, words, text):
    names = {"run": run, "tmp": tmp_path}
    assert main(["reproduce", *(word.format(**names) for word in words)]) == 2
    assert text.format(**names) in capsys.readouterr().err
