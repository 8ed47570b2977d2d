"""`rlvr-jax export`: a run becomes a directory that gives the same answers; what cannot be written is one line."""

import json

import pytest
from test_cli import refused, run, write

from rlvr_jax.train import program


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of a run of two steps, whose entropy bonus moves the parameters whatever the rewards are."""
    folder = tmp_path_factory.mktemp("export")
    objective = {"preset": "grpo", "regularisers": [{"name": "entropy", "coef": 0.1}]}
    config = write(folder, evaluation=None, objective=objective, optimizer={"learning_rate": 0.01})
    assert run("train", config, "--steps", 2, "--logging.tensorboard", "false")[0] == 0
    return folder / "run"


def test_an_exported_run_is_a_model_that_gives_the_same_answers(trained, tmp_path):
    out = tmp_path / "out"
    assert run("export", trained, out, "--max-shard-size", "20KB") == (0, [str(out)])
    assert len(list(out.glob("model-*.safetensors"))) > 1
    words = ("--prompt", "PATH_START", "--samples", 4, "--sampling.max-new-tokens", 6)
    words = (*words, "--prompts.max-tokens", 48)  # positions that the run has
    (status, want), (again, got) = (run("sample", policy, *words) for policy in (trained, out))
    assert status == again == 0 and len(set(want)) > 1 and got == want
    half = tmp_path / "half"  # a directory of ours is a model like any other
    words = ("--dtype", "bfloat16", "--sampling.max-new-tokens", 6, "--prompts.max-tokens", 48)
    assert run("export", out, half, *words) == (0, [str(half)])
    assert json.loads((half / "config.json").read_text())["dtype"] == "bfloat16"
    assert (half / "tokenizer.json").read_bytes() == (out / "tokenizer.json").read_bytes()


def test_an_export_that_cannot_be_made_is_one_line(trained, tmp_path, capsys, monkeypatch):
    for name in ("_decoder", "load_params"):
        monkeypatch.setattr(program, name, None)  # no model is built
    refused(
        capsys,
        ["export", trained, trained],
        f"{trained} exists and is not empty: name a new directory for the model.",
    )
    out = tmp_path / "out"
    refused(
        capsys,
        ["export", trained, out, "--max-shard-size", "five"],
        "'five' is no size of a file: give a number with KB, MB or GB, such as 5GB.",
    )
    refused(
        capsys,
        ["export", tmp_path, out, "--step", 3],
        f"{tmp_path} is no run, so it has no step 3: leave --step out.",
    )
    assert not out.exists()


def test_only_a_step_that_was_kept_is_exported(trained, tmp_path, capsys):
    refused(
        capsys,
        ["export", trained, tmp_path / "out", "--step", 1],
        f"no checkpoint of step 1 in {(trained / 'checkpoints').resolve()}: there are those of 0, 2.",
    )
    outs = [tmp_path / "start", tmp_path / "end"]
    for step, out in zip((0, 2), outs, strict=True):
        assert run("export", trained, out, "--step", step)[0] == 0
    start, end = ((out / "model.safetensors").read_bytes() for out in outs)
    assert start != end and len(start) == len(end)
