"""Processes that are measured: the memory they take, and one beside ours that takes turns with it."""

import importlib.util
import multiprocessing
import os
import pathlib
import platform
import resource
import sys
from collections.abc import Callable
from typing import Any

import jax

from rlvr_jax.memory import keep_buffers, keeps_buffers

Say = Callable[[str], None]
"""Takes a line about what has just been done."""


def torch_is_there() -> bool:
    """Whether torch is installed."""
    return importlib.util.find_spec("torch") is not None


def surroundings() -> dict[str, Any]:
    """What a figure depends on beside the program: the device, and how this process was started."""
    return {
        "device": jax.devices()[0].device_kind,
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "keeps_buffers": keeps_buffers(),
    }


def peak_bytes() -> int:
    """The most memory that this process has had resident. On Linux `getrusage` would count that of the process which started
    this one, too."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_device_bytes() -> int:
    """Of the device where it counts, else of this process."""
    stats = jax.devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] if stats else peak_bytes()


class Peer:
    """A process with something loaded and warm: `load(job)`, a function of one number. Neither its threads nor its memory are
    ours. Close it.

    Raises ChildProcessError where the process ends; what it had to say is on standard error. `name` is for that.
    """

    def __init__(self, name: str, load: Callable[[Any], Callable[[int], Any]], job: Any):
        context = multiprocessing.get_context("spawn")
        self._name = name
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, load, job), daemon=True)
        self._process.start()
        other.close()
        self._answer()

    def run(self, number: int) -> Any:
        """What its function returns."""
        self._pipe.send(number)
        return self._answer()

    def close(self) -> None:
        self._pipe.close()
        self._process.join()

    def _answer(self) -> Any:
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join()
            raise ChildProcessError(
                f"the process of {self._name} ended with status {self._process.exitcode}; see above, or measure without it "
                "(--no-compare)."
            ) from None


def _serve(pipe: Any, load: Callable[[Any], Callable[[int], Any]], job: Any) -> None:
    keep_buffers()
    run = load(job)
    pipe.send(None)
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            return
        pipe.send(run(number))
