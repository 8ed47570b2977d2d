"""launch/local.sh and launch/slurm.sbatch with two processes of the real program, on a real Slurm of one host.

The test starts and stops Slurm itself, without systemd, on ports and in a folder of its own.
"""

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "sinfo", "scancel")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"

# Two GPUs that are none, so that the script's own options stand; no cgroups, which a container may not use; a requeued
# job waits cred_expire + 1 seconds, by default two minutes; another number for each test, as JAX's port depends on it.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
FirstJobId={job}
GresTypes=gpu
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES
"""
GPUS = "NodeName=localhost Name=gpu File=/dev/null\nNodeName=localhost Name=gpu File=/dev/zero\n"

CONFIG = {
    "steps": 2,
    "task": {"name": "maze", "size": 5, "test_size": 1},
    "model": {"scratch": {"num_layers": 1, "dim": 16, "num_heads": 2, "num_kv_heads": 2, "mlp_dim": 16}},
    "objective": "grpo",
    "sampling": {"max_new_tokens": 4},
    "prompts": {"max_tokens": 48},
    "batch": {"prompts": 4, "group_size": 2},
    "evaluation": {"prompts": 1, "samples": 2, "k": [1]},
    "logging": {"tensorboard": False},
}


def until(condition, seconds, what):
    """Wait for a condition; its value."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, what()
        time.sleep(0.1)
    return found


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def processes_of(folder):
    """Processes that were started with the folder's configuration, daemons and tasks alike."""
    found = []
    for path in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if path.name.isdigit() and str(folder).encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
    return found


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    """Of a process on one CPU device. What one test has compiled, the next need not."""
    return {
        "PATH": f"{pathlib.Path(sys.executable).parent}:{PATH}",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def write(folder):
    """A config in a folder, and its run directory there."""
    (folder / "tiny.yaml").write_text(yaml.safe_dump({"run_dir": str(folder / "run"), **CONFIG}))
    return folder / "run"


def check(run):
    """Two processes with a device each made both steps together, and one of them wrote."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1]
    (versions,) = json.loads((run / "versions.json").read_text())
    assert versions["devices"] == {"kind": "cpu", "count": 2, "processes": 2}


@pytest.mark.slow
def test_local_sh_trains_one_run_with_two_processes(tmp_path, variables):
    run = write(tmp_path)
    script = subprocess.Popen(
        [ROOT / "launch" / "local.sh", "--processes", "2", tmp_path / "tiny.yaml"],
        env=os.environ | variables | {"JAX_NUM_CPU_DEVICES": "2"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = script.communicate(timeout=300)
    finally:  # where it takes too long, nothing of it goes on
        with contextlib.suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
        script.communicate()
    assert script.returncode == 0, said
    check(run)
    assert [line.split()[1] for line in said.splitlines() if line.startswith("maze ")] == [
        "1/2",
        "2/2",
    ]


@pytest.fixture
def slurm():
    """`slurm(*words)`: what a command of Slurm prints; `slurm.folder` is for the test, and what was written there."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not here; Debian's slurm-wlm and munge have them.")
    if os.getuid() != 0:
        pytest.skip("Slurm's daemons need root.")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)  # munged has a user of its own, who is not let through pytest's folders
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "JAX_", "XLA_"))} | {
        "PATH": PATH,
        "SLURM_CONF": str(folder / "slurm.conf"),
    }

    def call(*words, **variables):
        done = subprocess.run(words, env=environment | variables, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    call.folder = folder
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        stack.callback(end_all, folder)
        start_daemons(folder, environment, stack)
        until(lambda: call("sinfo", "-h", "-o", "%t") == "idle\n", 60, lambda: logs(folder))
        yield call


def start_daemons(folder, environment, stack):
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir()
    munge = folder / "munge"
    (munge / "key").write_bytes(random.randbytes(128))
    (munge / "key").chmod(0o400)
    for path in (munge, munge / "key"):
        shutil.chown(path, "munge", "munge")
    (folder / "gres.conf").write_text(GPUS)
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            folder=folder,
            user="root",
            host=socket.gethostname(),
            ports=free_ports(2),
            job=random.randrange(1, 9**6),
        )
    )
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    munged = ["munged", "--foreground", "--num-threads=1"]
    munged += [f"--{option}={munge / name}" for option, name in files.items()]

    def start(words, **how):
        daemon = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL, cwd=folder, **how)
        stack.callback(daemon.wait)
        stack.callback(daemon.terminate)

    start(munged, user="munge", group="munge", extra_groups=[])
    until((munge / "socket").exists, 60, lambda: logs(folder))
    start(["slurmctld", "-D"])
    start([*named_host(), "slurmd", "-D", "-N", "localhost"])


def named_host():
    """JAX's processes on CPUs look up the name of their host. Where nobody knows it, they get one that all know."""
    with contextlib.suppress(OSError):
        socket.getaddrinfo(socket.gethostname(), None)
        return []
    return ["unshare", "--uts", "sh", "-c", 'hostname localhost && exec "$@"', "sh"]


def end_all(folder):
    """What the daemons have left, if anything: tasks of a job outlive them."""
    for process in processes_of(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    until(lambda: not processes_of(folder), 10, lambda: processes_of(folder))


def logs(folder):
    """All that was written, for the message of a test that failed."""
    found = sorted([*folder.glob("*.log"), *folder.glob("munge/log")])
    return "\n".join(f"---- {path.name}\n{path.read_text()[-4000:]}" for path in found)


@pytest.mark.slow
def test_two_tasks_of_slurm_train_one_run_and_go_on_after_a_preemption(slurm, variables):
    run = write(slurm.folder)
    submit = ("sbatch", "--parsable", "--ntasks-per-node=2", "--gpus-per-node=2")
    job = slurm(*submit, ROOT / "launch" / "slurm.sbatch", "tiny.yaml", **variables).strip()
    log = slurm.folder / f"rlvr-jax-{job}.log"

    def state():
        words = slurm("scontrol", "show", "job", job).split()
        return next(word.removeprefix("JobState=") for word in words if word.startswith("JobState="))

    def wait_for(condition, seconds):
        """It holds before the job has ended otherwise."""
        last = until(
            lambda: condition() or state() not in ("PENDING", "RUNNING", "COMPLETING"),
            seconds,
            lambda: logs(slurm.folder),
        )
        assert last and condition(), logs(slurm.folder)

    # The evaluation of the start has been written: now the first step is being compiled.
    started = run / "evaluations.jsonl"
    wait_for(lambda: started.exists() and started.read_text(), 180)
    slurm("scancel", "--signal=TERM", job)
    wait_for(lambda: state() == "PENDING", 180)
    assert "launch/slurm.sbatch: the run was preempted; it is queued again" in log.read_text()
    done = len((run / "metrics.jsonl").read_text().splitlines())
    assert done < 2 and (run / "checkpoints" / str(done)).is_dir()
    wait_for(lambda: state() == "COMPLETED", 180)
    check(run)
    # Each attempt went on where the one before had stopped; the second task did the same work and is silent.
    lines = log.read_text().splitlines()
    assert [line.split()[1] for line in lines if line.startswith("maze ")] == ["1/2", "2/2"]
