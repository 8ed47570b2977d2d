"""A run that is killed and started again ends as one that was not: same parameters, figures and samples."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
import yaml

from rlvr_jax.configfile import parse
from rlvr_jax.train.checkpoint import Checkpoints
from rlvr_jax.train.metrics import METRICS, ROLLOUTS, read_rows, without_times
from rlvr_jax.train.program import assemble

CONFIG = {
    "steps": 12,
    "task": {"name": "maze", "size": 5, "test_size": 1},
    "model": {"scratch": {"num_layers": 2, "dim": 32, "num_heads": 4, "num_kv_heads": 2, "mlp_dim": 64}},
    # The entropy bonus moves the parameters in every step, whatever the rewards are.
    "objective": {
        "preset": "f_grpo",
        "regularisers": [{"name": "kl", "coef": 0.01}, {"name": "entropy", "coef": 0.1}],
    },
    "sampling": {"max_new_tokens": 12},
    "prompts": {"max_tokens": 64},
    "batch": {"prompts": 4, "group_size": 4, "minibatches": 2, "epochs": 2},
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 3},
    "warmup": {"steps": 6, "batch": 8, "learning_rate": 3e-3},
    "checkpoint": {"every": 2, "keep": 20},
    "evaluation": {"prompts": 1, "samples": 4, "k": [1]},
}
PROGRAM = """
import sys
from rlvr_jax.cli import main
sys.exit(main(sys.argv[1:]))
"""


def start(folder: pathlib.Path, *words: str) -> subprocess.Popen:
    """`rlvr-jax train` in a process of its own, on one device."""
    folder.mkdir(exist_ok=True)
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(CONFIG | {"run_dir": str(folder / "run")}))
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "train", str(config), *words],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> None:
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


def wait_for_steps(folder: pathlib.Path, process: subprocess.Popen, steps: int) -> None:
    """Until metrics.jsonl has that many lines."""
    path = folder / "run" / METRICS
    deadline = time.monotonic() + 300
    while not path.exists() or len(path.read_bytes().splitlines()) < steps:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "the run did not get that far"
        time.sleep(0.002)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> pathlib.Path:
    """A run of 12 steps that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "w"
    finish(start(folder))
    assert all(row["optimizer/grad_norm"] > 0 for row in read_rows(folder / "run" / METRICS))
    return folder / "run"


def assert_same_run(run: pathlib.Path, whole: pathlib.Path) -> None:
    """Figures, samples, and every leaf of the final state are equal to the bit."""
    figures = [[without_times(row) for row in read_rows(r / METRICS)] for r in (run, whole)]
    assert figures[0] == figures[1]
    assert [row["step"] for row in figures[0]] == list(range(12))
    assert (run / ROLLOUTS).read_bytes() == (whole / ROLLOUTS).read_bytes()
    config = parse(CONFIG | {"run_dir": str(run), "mesh": {"data": 1, "tensor": 8}})
    like = assemble(config, num_prompts=len(config.task.records("train"))).abstract
    states = []
    for directory in (run, whole):
        with Checkpoints(directory / "checkpoints", keep=20) as checkpoints:
            assert checkpoints.latest() == 12
            states.append(checkpoints.restore(like))
    (state, data), (other, other_data) = states
    assert data == other_data
    jax.tree.map(np.testing.assert_array_equal, state, other)


@pytest.mark.slow
def test_kill_in_step_seven_and_resume_is_bit_identical(whole, tmp_path):
    process = start(tmp_path / "k")
    wait_for_steps(tmp_path / "k", process, 7)  # step 7 of 0..11 has begun
    process.kill()
    process.communicate()
    assert len(read_rows(tmp_path / "k" / "run" / METRICS)) < 12, "killed too late to show anything"
    finish(start(tmp_path / "k"))
    assert_same_run(tmp_path / "k" / "run", whole)


@pytest.mark.slow
def test_sigterm_saves_what_is_done_and_resume_is_bit_identical(whole, tmp_path):
    process = start(tmp_path / "t", "--checkpoint.every", "100")
    wait_for_steps(tmp_path / "t", process, 5)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert "the same command goes on from there" in errors
    finish(start(tmp_path / "t"))
    assert_same_run(tmp_path / "t" / "run", whole)


@pytest.mark.slow
def test_sigterm_in_the_warm_up_keeps_half_of_nothing(tmp_path):
    process = start(tmp_path / "h", "--warmup.steps", "1000000")
    deadline = time.monotonic() + 120
    while not (tmp_path / "h" / "run" / "checkpoints").is_dir():  # made after the signal is caught
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    assert "stopped before step 0; the same command starts from there" in errors
    assert list((tmp_path / "h" / "run" / "checkpoints").iterdir()) == []


@pytest.mark.slow
def test_two_runs_of_one_config_agree_but_for_times(whole, tmp_path):
    finish(start(tmp_path / "again"))
    assert_same_run(tmp_path / "again" / "run", whole)


@pytest.mark.slow
def test_a_config_that_differs_is_refused_by_its_keys(whole, tmp_path):
    folder = tmp_path / "r"
    folder.mkdir()
    shutil.copytree(whole, folder / "run")
    before = (folder / "run" / METRICS).read_bytes()
    process = start(folder, "--sampling.temperature", "0.5", "--seed", "3", "--checkpoint.keep", "1")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "  sampling.temperature: 1.0 in the run, 0.5 now" in errors
    assert "  seed: 0 in the run, 3 now" in errors
    assert "checkpoint.keep" not in errors
    assert (folder / "run" / METRICS).read_bytes() == before


@pytest.mark.slow
def test_a_disk_that_fills_up_leaves_the_previous_checkpoint(whole, tmp_path):
    """No file may grow beyond 40 kB, as on a full disk. A checkpoint here has one of 45 kB or more, nothing else has
    (but for the rollouts so far, which are taken away)."""
    folder = tmp_path / "d"
    folder.mkdir()
    shutil.copytree(whole, folder / "run")
    (folder / "run" / ROLLOUTS).unlink()
    limited = PROGRAM.replace(
        "sys.exit", "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\nsys.exit"
    )
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(CONFIG | {"run_dir": str(folder / "run"), "steps": 14}))
    words = ["--logging.tensorboard", "false"]
    done = subprocess.run(
        [sys.executable, "-c", limited, "train", str(config), *words],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    assert "the previous checkpoint stays" in done.stderr
    with Checkpoints(folder / "run" / "checkpoints", keep=20) as checkpoints:
        assert checkpoints.latest() == 12  # and it can be read: the run goes on from it
    finish(start(folder, "--steps", "14"))
    assert json.loads((folder / "run" / METRICS).read_text().splitlines()[-1])["step"] == 13
