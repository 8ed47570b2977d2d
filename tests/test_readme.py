"""What the README shows in Python runs as it stands, and so do the commands on what it leaves behind."""

import json
import pathlib
import re
import subprocess
import sys

import pytest
import yaml

from rlvr_jax.cli import main

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
TINY = {
    "run_dir": "run",
    "steps": 9,
    "task": {"name": "maze", "size": 5, "test_size": 1},
    "model": {"scratch": {"num_layers": 1, "dim": 16, "num_heads": 2, "num_kv_heads": 1, "mlp_dim": 16}},
    "sampling": {"max_new_tokens": 4},
    "prompts": {"max_tokens": 48},
    "batch": {"prompts": 8, "group_size": 2},
    "logging": {"tensorboard": False},
}


def script():
    """The one block of Python."""
    (code,) = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    return code


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder in which the script was run for two steps, outside the package and in a process of its own."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "unsure.py").write_text(script(), encoding="utf-8")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY), encoding="utf-8")
    words = [sys.executable, "unsure.py", "tiny.yaml", "--steps", "2"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_script_has_fifteen_lines():
    assert len(script().splitlines()) <= 15


@pytest.mark.slow
def test_the_script_trains_with_the_stage_that_it_defines(trained):
    rows = [json.loads(line) for line in (trained / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    config = yaml.safe_load((trained / "run" / "config.yaml").read_text())
    assert config["objective"]["token_weight"] == [{"name": "unsure", "alpha": 0.2}]
    assert [stage["name"] for stage in config["objective"]["advantage"]] == ["group", "focal"]


@pytest.mark.parametrize(
    "words", [["eval", "run"], ["sample", "run", "--prompt", "x"], ["train", "run/config.yaml"]]
)
def test_a_command_that_does_not_know_the_stage_of_a_run_says_what_to_import(
    words, tmp_path, capsys, monkeypatch
):
    (tmp_path / "run").mkdir()
    tree = TINY | {"objective": {"token_weight": [{"name": "unsure", "alpha": 0.2}]}}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert capsys.readouterr().err == (
        "rlvr-jax: no token_weight called 'unsure'. Known: probability, sampler_correction, top_entropy; one of your own "
        "is known once the module that registers it is imported.\n"
    )


@pytest.mark.slow
def test_the_commands_work_where_the_stage_has_been_imported(trained):
    definition = script().partition("\nconfig = ")[0]
    (trained / "own_stage.py").write_text(definition, encoding="utf-8")
    code = "import sys, own_stage, rlvr_jax.cli; sys.exit(rlvr_jax.cli.main())"
    words = [sys.executable, "-c", code, "eval", "run", "--samples", "2", "--json"]
    done = subprocess.run(words, cwd=trained, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])
