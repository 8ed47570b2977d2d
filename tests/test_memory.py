"""What malloc does with memory that was freed, in a process of its own."""

import platform
import subprocess
import sys

import pytest

from rlvr_jax.memory import keep_buffers

PROGRAM = """
import ctypes, resource, sys
from rlvr_jax.memory import keep_buffers
if sys.argv[1] == "kept":
    assert keep_buffers("cpu")
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes, libc.memset.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    address = libc.malloc(64 << 20)
    libc.memset(address, 1, 64 << 20)
    libc.free(address)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is not glibc's")
def test_what_was_freed_is_taken_again_without_the_kernel():
    counts = [
        int(
            subprocess.run(
                [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
            ).stdout
        )
        for how in ("kept", "not")
    ]
    assert counts[0] < 100 < 10_000 < counts[1], counts  # 64 MiB are 16384 pages


def test_where_an_accelerator_computes_malloc_stays_as_it_is(tmp_path):
    assert not keep_buffers("tpu") and not keep_buffers("cuda,cpu")
    (tmp_path / "accel0").touch()
    assert not keep_buffers("", tmp_path)
