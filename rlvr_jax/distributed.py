"""Several processes that run one program on one mesh: how they join, and what they tell each other.

Every process runs the same program in the same order; what only one of them does (files, the console) asks nothing of
the others. Between them travel arrays spread over the mesh, and what one of them alone knows: who was asked to stop, a
verdict, a tool's answer. With one process all of this is the identity.
"""

import contextlib
import functools
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from rlvr_jax.cluster import Cluster, TpuPod

T = TypeVar("T")

LOST = 75
"""Exit status of a process that lost another one: EX_TEMPFAIL, for whoever starts it again."""
_HEARTBEAT = 20
"""Seconds without a sign of life after which a process is taken for dead; JAX waits for 100."""
_SIGNS_OF_LOSS = (
    "gloo",
    "nccl",
    "connection closed by peer",
    "connection reset",
    "coordination",
    "heartbeat",
)


@contextlib.contextmanager
def joined(
    cluster: Cluster | TpuPod | None,
    failed: Callable[[BaseException], int],
    patience: int = 300,
) -> Iterator[None]:
    """Be one of several processes; before anything touches a device. Nothing where `cluster` is None.

    A process that fails leaves at once: it does not wait for the others, who may wait for it. `failed` says what happened
    and gives the exit status; where it was another process that was lost, one sentence does and the status is `LOST`.
    Where the others are not there within `patience` seconds, the process ends with a sentence.
    """
    if cluster is None:
        yield
        return
    jax.config.update(
        "jax_enable_preemption_service", False
    )  # it would take SIGTERM, which `StopRequest` does
    with _patience(cluster, patience):
        _initialize(cluster, patience)
    try:
        yield
    except BaseException as error:
        _leave(_status(error, failed))


def _initialize(cluster: Cluster | TpuPod, patience: int) -> None:
    how: dict[str, Any] = {
        "heartbeat_timeout_seconds": _HEARTBEAT,
        "initialization_timeout": patience + 60,  # then JAX ends the process, with a trace of its own
    }
    if isinstance(cluster, Cluster):
        how |= {
            "coordinator_address": cluster.coordinator,
            "num_processes": cluster.processes,
            "process_id": cluster.process,
            "local_device_ids": cluster.devices,
            "cluster_detection_method": "deactivate",
        }
    jax.distributed.initialize(**how)


@contextlib.contextmanager
def _patience(cluster: Cluster | TpuPod, seconds: int) -> Iterator[None]:
    """Connecting cannot be interrupted, so a thread ends the process where it takes too long."""
    if isinstance(cluster, Cluster):
        whom = f"process {cluster.process} of {cluster.processes}"
        where = f"the coordinator {cluster.coordinator}, which is process 0"
    else:
        whom, where = "a worker of a TPU pod", "the first worker"

    def give_up() -> None:
        print(
            f"rlvr-jax: {whom} did not meet the others at {where}, within {seconds} seconds: start all of them, with one "
            "address that every host can reach.",
            file=sys.stderr,
        )
        _leave(LOST)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _status(error: BaseException, failed: Callable[[BaseException], int]) -> int:
    if is_loss(error):
        print(
            f"rlvr-jax: process {jax.process_index()} of {jax.process_count()} lost another one, which was killed or failed "
            f"(its own output says why), and ends: {_first_line(error)}. The same command on all processes goes on from the "
            "last checkpoint.",
            file=sys.stderr,
        )
        return LOST
    try:
        return failed(error)
    except BaseException as other:  # what says the error did not know this one
        traceback.print_exception(other)
        return 1


def is_loss(error: BaseException) -> bool:
    """Whether an error says that another process is gone."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, jax.errors.JaxRuntimeError):
            return any(sign in str(seen).lower() for sign in _SIGNS_OF_LOSS)
        seen = seen.__cause__ or seen.__context__
    return False


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200].rstrip(".")


def _leave(status: int) -> None:
    """End the process without JAX's farewell, which waits for all processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def count() -> int:
    """Processes."""
    return jax.process_count()


def is_first() -> bool:
    """Whether this process writes files and speaks."""
    return jax.process_index() == 0


def mine(item: int) -> bool:
    """Whether an item of work is this process's: each takes every n-th, whatever their number."""
    return item % count() == jax.process_index()


def exchanged(value: T) -> list[T]:
    """The value of each process, in their order. All have to call it, at one place of the program; values are pickled."""
    if count() == 1:
        return [value]
    from jax.experimental.multihost_utils import process_allgather

    data = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = process_allgather(np.array(len(data), np.int32))
    room = 1 << (int(sizes.max()) - 1).bit_length()  # few shapes, as each is compiled
    rows = process_allgather(np.pad(data, (0, room - len(data))))
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def merged(own: Sequence[T], total: int) -> list[T]:
    """All of `total` items, where each process gives those that are `mine`."""
    parts = exchanged(list(own))
    return [parts[item % count()][item // count()] for item in range(total)]


def from_first(value: T) -> T:
    """What process 0 says."""
    return exchanged(value)[0]


def agreed(flag: bool) -> bool:
    """Whether any process says so; all hear it at the same place of the program."""
    if count() == 1:
        return flag
    from jax.experimental.multihost_utils import process_allgather

    return bool(process_allgather(np.array(flag)).any())


def barrier() -> None:
    """Nobody goes on before all are here."""
    exchanged(None)


def replicated(tree: T, mesh: Mesh | None) -> T:
    """Arrays that every process can read, where several share a mesh. It is begun at once, and waited for by nobody."""
    return tree if mesh is None or count() == 1 else _copy_to_all(mesh)(tree)


@functools.cache
def _copy_to_all(mesh: Mesh) -> Callable:
    return jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, PartitionSpec()))


def put(tree: Any, sharding: Sharding) -> Any:
    """Host arrays, which every process has whole, laid out over the devices of all of them."""
    if count() == 1:
        return jax.device_put(tree, sharding)

    def placed(x: Any) -> jax.Array:
        host = np.asarray(x)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(placed, tree)
