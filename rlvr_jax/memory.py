"""The memory of a process whose arrays are computed on the processors of its machine."""

import ctypes
import os
import pathlib

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
"""Parameters of glibc's mallopt(3)."""

_ACCELERATORS = ("nvidia0", "accel0", "vfio/0", "kfd")
"""What there is in /dev on a machine with a GPU (NVIDIA, AMD) or a TPU."""


def keep_buffers(platforms: str | None = None, devices: pathlib.Path = pathlib.Path("/dev")) -> bool:
    """Make glibc's malloc keep what is freed, for this process, before it has threads; whether that was done.

    On a CPU every step allocates the same buffers anew. Large ones come straight from the kernel and go back to it, which
    then clears every page of them again: a third of the time of an update. Kept are they in one heap, which grows to
    the most that was ever in use at once and never shrinks.

    Nothing is done where JAX computes elsewhere, by `platforms` (the variable JAX_PLATFORMS without it) or, where that says
    nothing, by an accelerator among `devices`; nor where malloc is another one.
    """
    wanted = os.environ.get("JAX_PLATFORMS", "") if platforms is None else platforms
    on_processors = (
        wanted.split(",")[0] == "cpu"
        if wanted
        else not any((devices / name).exists() for name in _ACCELERATORS)
    )
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if not on_processors or mallopt is None:
        return False
    _told.append(all([mallopt(_ARENA_MAX, 1), mallopt(_MMAP_MAX, 0), mallopt(_TRIM_THRESHOLD, -1)]))
    return keeps_buffers()


def keeps_buffers() -> bool:
    """Whether malloc was told so in this process."""
    return any(_told)


_told: list[bool] = []
