"""Starting scripts, run for real around a stand-in for `rlvr-jax`."""

import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture
def local(tmp_path):
    """`local(body, *arguments)`: start a copy of launch/local.sh; `body` is what `rlvr-jax` does there."""
    (tmp_path / "launch").mkdir()
    (tmp_path / "bin").mkdir()
    script = shutil.copy(ROOT / "launch" / "local.sh", tmp_path / "launch")
    runs: list[subprocess.Popen] = []

    def start(body, *arguments):
        if body is not None:
            stand_in = tmp_path / "bin" / "rlvr-jax"
            stand_in.write_text(f'#!/usr/bin/env bash\necho "$@" >> {tmp_path}/calls\n{body}\n')
            stand_in.chmod(0o755)
        path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
        run = subprocess.Popen(
            [script, *arguments],
            env={**os.environ, "PATH": path},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        runs.append(run)
        return run

    start.calls = lambda: (
        (tmp_path / "calls").read_text().splitlines() if (tmp_path / "calls").exists() else []
    )
    start.folder = tmp_path
    # Where these tests run in the background, SIGINT is ignored, and a shell cannot trap what was ignored before it began.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield start
    signal.signal(signal.SIGINT, before)
    for run in runs:  # where a test failed, nothing of it goes on
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
        run.communicate()


@pytest.mark.parametrize("code", [0, 1, 2, 130])
def test_arguments_and_exit_code_pass_through(local, code):
    run = local(f"exit {code}", "c.yaml", "--seed", "1", "--task.name", "a b")
    run.communicate(timeout=10)
    assert run.returncode == code
    assert local.calls() == ["train c.yaml --seed 1 --task.name a b"]


def test_a_preempted_run_is_started_again(local):
    run = local('[[ $(wc -l < "${0%/bin/*}/calls") -ge 2 ]] || exit 143', "c.yaml", "--seed", "1")
    _, errors = run.communicate(timeout=10)
    assert run.returncode == 0
    assert local.calls() == ["train c.yaml --seed 1"] * 2
    assert errors == "launch/local.sh: the run was preempted; it goes on from its last checkpoint.\n"


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_lets_the_run_save_and_does_not_start_it_again(local, sent):
    body = """
        here=${0%/bin/*}
        trap 'sleep 0.3; echo saved >> "$here/saved"; exit 143' TERM
        touch "$here/ready"
        while :; do sleep 0.05; done
    """
    run = local(body, "c.yaml")
    while not (local.folder / "ready").exists():
        time.sleep(0.02)
    run.send_signal(sent)
    run.communicate(timeout=10)
    assert run.returncode == 143
    assert (local.folder / "saved").read_text() == "saved\n"
    assert len(local.calls()) == 1


def test_told_to_stop_while_it_starts_the_run_it_still_tells_the_run(local):
    """The run itself sends the signal, at once: before the script knows the run's process, or just after."""
    body = """
        here=${0%/bin/*}
        trap 'echo saved >> "$here/saved"; exit 143' TERM
        kill -TERM "$PPID"
        while :; do sleep 0.05; done
    """
    run = local(body, "c.yaml")
    run.communicate(timeout=10)
    assert run.returncode == 143
    assert (local.folder / "saved").read_text() == "saved\n"


@pytest.mark.parametrize("arguments", [(), ("--seed", "1")])
def test_without_a_config_it_says_how_to_use_it(local, arguments):
    run = local("exit 0", *arguments)
    _, errors = run.communicate(timeout=10)
    assert (run.returncode, errors) == (2, "usage: launch/local.sh CONFIG [--field value ...]\n")


def test_without_the_package_it_says_what_to_do(local):
    run = local(None, "c.yaml")
    _, errors = run.communicate(timeout=10)
    assert run.returncode == 127
    assert errors == (
        f"launch/local.sh: no rlvr-jax on this host: run `make setup` in {local.folder}, or pip install rlvr_jax.\n"
    )
