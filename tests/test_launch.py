"""launch/local.sh, run for real around a stand-in for `rlvr-jax`."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

from rlvr_jax.distributed import LOST
from rlvr_jax.train.stop import STOPPED

ROOT = pathlib.Path(__file__).resolve().parents[1]
USAGE = "usage: launch/local.sh [--processes N] CONFIG [--field value ...]\n"
DEVICES = {"JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "CUDA_VISIBLE_DEVICES"}


@pytest.fixture
def local(tmp_path):
    """`local(body, *arguments, **variables)`: start a copy of launch/local.sh; `body` is what `rlvr-jax` does there."""
    (tmp_path / "launch").mkdir()
    (tmp_path / "bin").mkdir()
    script = shutil.copy(ROOT / "launch" / "local.sh", tmp_path / "launch")
    runs: list[subprocess.Popen] = []

    def start(body, *arguments, **variables):
        if body is not None:
            stand_in = tmp_path / "bin" / "rlvr-jax"
            stand_in.write_text(f'#!/usr/bin/env bash\necho "$@" >> {tmp_path}/calls\n{body}\n')
            stand_in.chmod(0o755)
        path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
        run = subprocess.Popen(
            [script, *arguments],
            env={k: v for k, v in os.environ.items() if k not in DEVICES} | {"PATH": path} | variables,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        runs.append(run)
        return run

    start.calls = lambda: (
        (tmp_path / "calls").read_text().splitlines() if (tmp_path / "calls").exists() else []
    )
    start.folder, start.script = tmp_path, pathlib.Path(script)
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


@pytest.mark.parametrize("arguments", [(), ("--seed", "1"), ("--processes", "2")])
def test_without_a_config_it_says_how_to_use_it(local, arguments):
    run = local("exit 0", *arguments)
    _, errors = run.communicate(timeout=10)
    assert (run.returncode, errors) == (2, USAGE)


def test_without_the_package_it_says_what_to_do(local):
    run = local(None, "c.yaml")
    _, errors = run.communicate(timeout=10)
    assert run.returncode == 127
    assert errors == (
        f"launch/local.sh: no rlvr-jax on this host: run `make setup` in {local.folder}, or pip install rlvr_jax.\n"
    )


def test_the_scripts_mean_by_an_exit_code_what_the_program_does():
    said = {
        path.name: dict(re.findall(r"(preempted|lost)=(\d+)", path.read_text()))
        for path in (ROOT / "launch").glob("*.s*")
    }
    both = {"preempted": str(STOPPED), "lost": str(LOST)}
    assert said == {"local.sh": both, "tpu_pod.sh": both, "slurm.sbatch": {"preempted": str(STOPPED)}}
    assert f"values: [{STOPPED}]" in (ROOT / "launch" / "gke_jobset.yaml").read_text()
    assert f"values: [{LOST}]" in (ROOT / "launch" / "gke_jobset.yaml").read_text()


def test_the_readme_says_of_each_file_how_it_was_tried():
    tried = (ROOT / "launch" / "README.md").read_text().split("## What has been tried")[1].split("\n## ")[0]
    files = {path.name for path in (ROOT / "launch").iterdir()} - {"README.md", "Dockerfile.dockerignore"}
    assert set(re.findall(r"^\| `([^`]+)` \|", tried, re.MULTILINE)) == files


# ---- several processes -------------------------------------------------------------------------------------------


SHOW = """
    echo "${@: -1} cpu=${JAX_NUM_CPU_DEVICES:-} gpu=${CUDA_VISIBLE_DEVICES:-}" >> "${0%/bin/*}/shares"
"""


def shares(local):
    return sorted((local.folder / "shares").read_text().splitlines())


def test_processes_get_one_coordinator_and_a_number_each(local):
    run = local(SHOW, "--processes", "3", "c.yaml", "--seed", "1", JAX_PLATFORMS="cpu")
    run.communicate(timeout=10)
    assert run.returncode == 0
    pattern = r"train c\.yaml --seed 1 --coordinator 127\.0\.0\.1:(\d+) --processes 3 --process (\d)"
    found = [re.fullmatch(pattern, call) for call in sorted(local.calls())]
    assert [match[2] for match in found] == ["0", "1", "2"]
    assert len({match[1] for match in found}) == 1
    assert shares(local) == ["0 cpu= gpu=", "1 cpu= gpu=", "2 cpu= gpu="]


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}, ["0 cpu=4 gpu=", "1 cpu=4 gpu="]),
        ({"CUDA_VISIBLE_DEVICES": "3,1,0,2"}, ["0 cpu= gpu=3,1", "1 cpu= gpu=0,2"]),
        ({}, ["0 cpu= gpu=0,1", "1 cpu= gpu=2,3"]),  # what nvidia-smi lists
        ({"JAX_PLATFORMS": "cpu"}, ["0 cpu= gpu=", "1 cpu= gpu="]),
    ],
)
def test_each_process_gets_an_equal_share_of_the_devices(local, variables, expected):
    smi = local.folder / "bin" / "nvidia-smi"
    smi.write_text("#!/bin/sh\nprintf '%s\\n' 0 1 2 3\n")
    smi.chmod(0o755)
    run = local(SHOW, "--processes", "2", "c.yaml", **variables)
    run.communicate(timeout=10)
    assert (run.returncode, shares(local)) == (0, expected)


@pytest.mark.parametrize(
    "processes, variables, message",
    [
        ("3", {"CUDA_VISIBLE_DEVICES": "0,1"}, "2 GPUs cannot be shared equally by 3 processes: {}"),
        (
            "2",
            {"JAX_NUM_CPU_DEVICES": "3"},
            "3 devices of JAX_NUM_CPU_DEVICES cannot be shared equally by 2 processes: {}",
        ),
        ("0", {}, "--processes is '0', and must be a number from 1 on."),
    ],
)
def test_devices_that_cannot_be_shared_equally_are_an_error(local, processes, variables, message):
    run = local("exit 0", "--processes", processes, "c.yaml", **{"JAX_PLATFORMS": "", **variables})
    _, errors = run.communicate(timeout=10)
    expected = f"launch/local.sh: {message.format('choose a number that divides it.')}\n"
    assert (run.returncode, errors, local.calls()) == (2, expected, [])


def test_a_process_that_fails_ends_the_others_and_its_exit_code_is_the_runs(local):
    """One of the others notices and ends with 75, which says nothing of what happened, and may be seen first."""
    body = """
        case ${@: -1} in
        0) exit 75 ;;
        1) sleep 0.3; exit 7 ;;
        2) while :; do sleep 0.05; done ;;
        esac
    """
    run = local(body, "--processes", "3", "c.yaml")
    run.communicate(timeout=5)
    assert run.returncode == 7
    assert len(local.calls()) == 3


def test_a_process_that_does_not_end_after_another_failed_is_killed(local):
    text = local.script.read_text()
    assert text.count("? 60 : 10") == 1
    local.script.write_text(text.replace("? 60 : 10", "? 60 : 1"))  # for this test to take no longer
    body = """
        here=${0%/bin/*}
        if [[ ${@: -1} == 0 ]]; then
            trap : TERM
            echo $$ > "$here/child"
            while :; do sleep 0.05; done
        fi
        while [[ ! -s $here/child ]]; do sleep 0.02; done
        exit 7
    """
    run = local(body, "--processes", "2", "c.yaml")
    _, errors = run.communicate(timeout=10)
    assert run.returncode == 7
    assert errors.splitlines()[0] == (  # then bash says itself what was killed
        "launch/local.sh: one process ended with 7, and 1 did not end after it: killed."
    )
    assert not pathlib.Path("/proc", (local.folder / "child").read_text().strip()).exists()


def test_all_processes_are_told_once_and_all_may_save(local):
    """A second signal would end a run that is saving: so none is sent to those that take longer than the first."""
    body = """
        here=${0%/bin/*}
        trap 'trap - TERM; sleep 0.$((${@: -1} * 4)); echo "saved ${@: -1}" >> "$here/saved"; exit 143' TERM
        echo >> "$here/ready"
        while :; do sleep 0.05; done
    """
    run = local(body, "--processes", "3", "c.yaml")
    ready = local.folder / "ready"
    while not (ready.exists() and ready.read_text() == "\n\n\n"):
        time.sleep(0.02)
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=10)
    assert run.returncode == 143
    assert (local.folder / "saved").read_text().splitlines() == ["saved 0", "saved 1", "saved 2"]
    assert len(local.calls()) == 3


def test_a_preempted_run_of_several_processes_is_started_again_as_a_whole(local):
    run = local(
        'sleep 0.${@: -1}; [[ $(wc -l < "${0%/bin/*}/calls") -gt 2 ]] || exit 143',
        "--processes",
        "2",
        "c.yaml",
    )
    _, errors = run.communicate(timeout=10)
    assert run.returncode == 0
    assert [call.split()[-1] for call in local.calls()[2:]] in (["0", "1"], ["1", "0"])
    assert errors == "launch/local.sh: the run was preempted; it goes on from its last checkpoint.\n"
