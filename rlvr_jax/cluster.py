"""Which of several processes this one is, and where the first of them listens: told on the command line, or by the cluster.

These are facts of the machines and no part of a run, which goes on with another number of processes. Slurm and Kubernetes
are read here, as JAX's own reading takes one GPU for each Slurm task whatever the task was given, and asks the Kubernetes
API, for which a pod needs rights. A TPU pod is left to JAX.
"""

import dataclasses
import re
from collections.abc import Mapping

_SLURM_PORTS = 61_440, 4_096
"""The first, and how many: above those that Linux gives to outgoing connections."""
_PORT = "8476"


@dataclasses.dataclass(frozen=True)
class Place:
    """Which of several processes this is, all started with the same command. Without, the variables of Slurm, Kubernetes or a
    TPU pod say it, and else it is one process."""

    coordinator: str | None = None
    """HOST:PORT where process 0 listens."""
    processes: int | None = None
    """How many there are."""
    process: int | None = None
    """Which of them this is, from 0."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Process `process` of `processes`; process 0 listens at `coordinator` (host:port).

    `devices` are this process's accelerators among those that it can see; None: all.
    """

    coordinator: str
    processes: int
    process: int
    devices: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class TpuPod:
    """A machine of a TPU pod, whose metadata JAX reads."""


def find_cluster(environment: Mapping[str, str], told: Place) -> Cluster | TpuPod | None:
    """What the command line says, else what the cluster's variables say; None: one process.

    In this order: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID (Kubeflow sets them); a Kubernetes Indexed
    Job, alone or in a JobSet, that sets JAX_NUM_PROCESSES; a Slurm step; a TPU pod.

    Raises ValueError for half an address, and for a process that is not one of them.
    """
    if told != Place():
        return _explicit(told)
    return _from_variables(environment) or _from_slurm(environment) or _from_tpu(environment)


def _explicit(told: Place) -> Cluster:
    if told.coordinator is None or told.processes is None or told.process is None:
        given = ", ".join(f"{name}={value}" for name, value in dataclasses.asdict(told).items())
        raise ValueError(
            f"one of several processes is told all of --coordinator HOST:PORT, --processes N and --process I; got {given}."
        )
    found = Cluster(told.coordinator, told.processes, told.process)
    return _checked(found, "--coordinator", "--processes", "--process")


def _checked(found: Cluster, coordinator: str, processes: str, process: str) -> Cluster:
    """Raises ValueError in the words of who said it."""
    host, _, port = found.coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{coordinator} is HOST:PORT of process 0, got {found.coordinator!r}.")
    if found.processes < 1 or not 0 <= found.process < found.processes:
        raise ValueError(
            f"{process}={found.process} of {processes}={found.processes}: processes are numbered from 0 to "
            f"{max(found.processes, 1) - 1}."
        )
    return found


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise ValueError(f"the variable {name} is a whole number, got {environment[name]!r}.") from None


def _from_variables(environment: Mapping[str, str]) -> Cluster | None:
    """JAX_NUM_PROCESSES says that the pods of a job belong together: those of a sweep have an index too."""
    if "JAX_NUM_PROCESSES" not in environment:
        return None
    count = _number(environment, "JAX_NUM_PROCESSES")
    if count == 1:
        return None
    index = next((name for name in ("JAX_PROCESS_ID", "JOB_COMPLETION_INDEX") if name in environment), None)
    if index is None:
        raise ValueError(
            f"JAX_NUM_PROCESSES={count}, and nothing says which of them this is: set JAX_PROCESS_ID, or make it an Indexed "
            "Job, whose pods have JOB_COMPLETION_INDEX."
        )
    address = environment.get("JAX_COORDINATOR_ADDRESS") or _first_pod(environment)
    if ":" not in address:
        address = f"{address}:{environment.get('JAX_COORDINATOR_PORT', _PORT)}"
    found = Cluster(address, count, _number(environment, index))
    return _checked(found, "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", index)


def _first_pod(environment: Mapping[str, str]) -> str:
    """A pod of an Indexed Job is called JOB-INDEX; those of a JobSet are found under the set's name."""
    host, index = environment.get("HOSTNAME", ""), environment.get("JOB_COMPLETION_INDEX", "")
    base = host.removesuffix(f"-{index}")
    if not index or base == host or "JOBSET_NAME" not in environment:
        raise ValueError(
            "JAX_NUM_PROCESSES is set, and nothing says where process 0 is: set JAX_COORDINATOR_ADDRESS to its HOST:PORT, "
            "or in a JobSet JOBSET_NAME, from the annotation jobset.sigs.k8s.io/jobset-name."
        )
    return f"{base}-0.{environment['JOBSET_NAME']}"


def _from_slurm(environment: Mapping[str, str]) -> Cluster | None:
    """A step of several tasks. A shell inside an allocation is no step, and a step of one task is one process."""
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
    if any(name not in environment for name in names) or environment["SLURM_STEP_NUM_TASKS"] == "1":
        return None
    job, step, tasks, process = (
        _number(environment, name) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", *names[3:])
    )
    first, count = _SLURM_PORTS
    port = environment.get("JAX_COORDINATOR_PORT", str(first + (job + 997 * step) % count))
    address = f"{first_host(environment['SLURM_STEP_NODELIST'])}:{port}"
    found = Cluster(address, tasks, process, _slurm_devices(environment))
    return _checked(found, "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")


def first_host(nodes: str) -> str:
    """The first host of Slurm's list: node07 of "node[07-12,20],other", with what stands behind the bracket."""
    bracketed = re.match(r"([^,\[]*)\[([^,\-\]]+)[^\]]*\]([^,]*)", nodes)
    return "".join(bracketed.groups()) if bracketed else nodes.split(",")[0]


def _slurm_devices(environment: Mapping[str, str]) -> tuple[int, ...] | None:
    """A task's part of a node's GPUs where all its tasks see all of them; None where Slurm gave each task its own."""
    visible = len([each for each in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if each])
    tasks = _tasks_here(environment)
    if visible < 2 or tasks < 2 or visible < int(environment.get("SLURM_GPUS_ON_NODE") or visible):
        return None
    if visible % tasks:
        raise ValueError(
            f"{tasks} tasks of a node do not share {visible} GPUs evenly: ask for as many GPUs as tasks, or a multiple."
        )
    share, place = visible // tasks, _number(environment, "SLURM_LOCALID")
    return tuple(range(place * share, (place + 1) * share))


def _tasks_here(environment: Mapping[str, str]) -> int:
    """Tasks of the step on this node, of Slurm's list by node: "4(x2),1" is 4, 4, 1."""
    words = environment.get("SLURM_STEP_TASKS_PER_NODE", "1").split(",")
    counts = []
    for word in words:
        tasks, _, times = word.partition("(x")
        counts += [int(tasks)] * int(times.rstrip(")") or 1)
    return counts[min(int(environment.get("SLURM_NODEID", 0)), len(counts) - 1)]


def _from_tpu(environment: Mapping[str, str]) -> TpuPod | None:
    """JAX sets TPU_ML_PLATFORM where it finds TPU chips and their library. One host alone needs nobody."""
    hosts = environment.get("TPU_PROCESS_ADDRESSES", environment.get("TPU_WORKER_HOSTNAMES"))
    alone = hosts is not None and "," not in hosts and "MEGASCALE_NUM_SLICES" not in environment
    return TpuPod() if "TPU_ML_PLATFORM" in environment and not alone else None
