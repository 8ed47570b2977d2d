"""The sandbox: what a program gets, what it cannot, that nothing of it stays, and that a machine without one is told so."""

import asyncio
import concurrent.futures
import os
import pathlib
import platform
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import pytest
from hostile import marked, needs_bwrap, nothing_stays

from rlvr_jax.tasks import sandbox
from rlvr_jax.tasks.sandbox import End, Limits, SandboxError, require_sandbox, run
from rlvr_jax.tasks.seccomp import seccomp_filter

LIMITS = Limits(seconds=30.0, memory=256 << 20, disk=1 << 20, output=10_000, threads=8)


# --------------------------------------------------------------------------------------------------------------- programs


@needs_bwrap
def test_a_program_reads_writes_and_ends():
    program = "import sys\nprint(input()[::-1], 'ü')\nprint('oops', file=sys.stderr)\nsys.exit(3)"
    result = run(program, stdin="olé\n", limits=LIMITS)
    assert (result.end, result.status, result.stdout, result.stderr) == (End.EXIT, 3, "élo ü\n", "oops\n")
    assert not result.timed_out


@needs_bwrap
def test_an_exception_shows_the_program_and_nothing_of_ours():
    assert run("x = 1\n1 / (x - 1)", limits=LIMITS).stderr == (
        'Traceback (most recent call last):\n  File "/program.py", line 2, in <module>\n    1 / (x - 1)\n    ~~^~~~~~~~~\n'
        "ZeroDivisionError: division by zero\n"
    )


@needs_bwrap
def test_a_program_is_main_and_has_the_standard_library():
    program = """
import asyncio, dataclasses, json, math, random, re, sqlite3, sys, threading, typing
@dataclasses.dataclass
class Point:
    x: "typing.Any"
def main():
    print(__name__, Point(json.loads("[1]")), sys.modules["__main__"].Point is Point)
    asyncio.run(asyncio.sleep(0))
sys.setrecursionlimit(10**6)
threading.stack_size(1 << 26)  # what programs for competitions do
thread = threading.Thread(target=main)
thread.start()
thread.join()
print(hash("equal in each run"))
"""
    first, second = run(program, limits=LIMITS), run(program, limits=LIMITS)
    assert first.stdout.startswith("__main__ Point(x=[1]) True\n"), first
    assert first == second


def refused(call):
    """A program that makes a call of the C library."""
    return (
        f"import ctypes, os\nif ctypes.CDLL(None, use_errno=True).{call} < 0:\n"
        "    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))"
    )


TRIES = {
    "memory": ("x = bytearray(10**9)", "MemoryError"),
    "memory bit by bit": ("x = []\nwhile True: x.append(bytearray(10**6))", "MemoryError"),
    "process": ("import os; os.fork()", "PermissionError"),
    "command": ("import subprocess; subprocess.run(['/bin/true'])", "PermissionError"),
    "another program": ("import os; os.execv('/bin/true', ['true'])", "FileNotFoundError"),
    "threads": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        "RuntimeError: can't start new thread",
    ),
    "large file": ("open('x', 'wb').write(bytes(10**7))", "OSError"),
    "many files": (
        "for i in range(99): open(str(i), 'wb').write(bytes(10**5))",
        "No space left on device",
    ),
    "file elsewhere": ("open('/x', 'w')", "Read-only file system"),
    "file in the library": ("import os; open(os.__file__, 'a')", "Error: [Errno "),
    "network": ("import socket; socket.socket()", "PermissionError"),
    "home": ("import os; os.listdir('/home')", "FileNotFoundError"),
    "proc": ("open('/proc/self/mem', 'r+b')", "FileNotFoundError"),
    "limits": (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        "ValueError: not allowed to raise maximum limit",
    ),
    "root": ("import os; os.setuid(0)", "PermissionError"),
    "shared memory": (refused("shmget(0, 4096, 0o1600)"), "PermissionError"),
    "memory file": (refused("memfd_create(b'x', 0)"), "PermissionError"),
    "own packages": ("import numpy", "ModuleNotFoundError"),
    "stdin": ("import os; os.write(0, b'x')", "Bad file descriptor"),
}


@needs_bwrap
@pytest.mark.parametrize("what", TRIES)
def test_a_program_is_refused(what):
    program, error = TRIES[what]
    result = run(program, limits=LIMITS)
    assert (result.end, result.status) == (End.EXIT, 1)
    assert error in result.stderr.splitlines()[-1], result.stderr


@needs_bwrap
def test_a_program_sees_the_library_and_no_answers(tmp_path):
    repository = pathlib.Path(sandbox.__file__).parents[2]
    places = [
        str(repository),
        str(pathlib.Path(sandbox.__file__).parent / "data"),
        str(tmp_path),
        "/etc/passwd",
        "/bin",
    ]
    program = f"""
import os, sys
print(os.getcwd(), os.listdir("."), sorted(os.environ), [place for place in {places} if os.path.exists(place)])
print([folder for folder, _, files in os.walk("/") if "rlvr" in folder or "sandboxed.py" in files])
print([os.listdir(os.path.dirname(os.__file__) + "/site-packages"), os.path.exists("/usr/lib/python3/dist-packages/pip")])
"""
    names = [
        "HOME",
        "LC_CTYPE",
        "MALLOC_ARENA_MAX",
        "PWD",
        "PYTHONHASHSEED",
        "PYTHONIOENCODING",
    ]
    assert run(program, limits=LIMITS).stdout == f"/tmp [] {names} []\n['/']\n[[], False]\n"


ENDLESS = [
    "while True: pass",
    "import time\ntime.sleep(99)",
    "import os\nos.close(1), os.close(2)\nwhile True: pass",
    "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
    "import threading, zlib\nx = bytes(10**7)\ndef work():\n    while True: zlib.crc32(x)\n"
    "for _ in range(4): threading.Thread(target=work).start()",
]


@needs_bwrap
def test_a_program_without_end_is_ended_and_what_it_wrote_is_kept(mark):
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor() as threads:
        calls = [threads.submit(run, f"print(1, flush=True)\n{each}", limits=Limits(2.0)) for each in ENDLESS]
        results = [call.result() for call in calls]
    assert time.monotonic() - begun < 10
    for program, result in zip(ENDLESS, results, strict=True):
        assert (result.end, result.stdout, result.timed_out) == (End.TIME, "1\n", True), program
    assert nothing_stays(mark)


@needs_bwrap
@pytest.mark.parametrize("stream, kept", [("stdout", 10_000), ("stderr", 0)])
def test_a_program_that_writes_without_end_is_ended(mark, stream, kept):
    result = run(f"import sys\nwhile True: sys.{stream}.write('x' * 99)", limits=LIMITS)
    assert (result.end, result.stdout, result.timed_out) == (End.OUTPUT, "x" * kept, False)
    assert nothing_stays(mark)


@needs_bwrap
def test_a_program_dies_with_its_caller(mark):
    caller = "from rlvr_jax.tasks.sandbox import *; run('import time; time.sleep(99)', limits=Limits(seconds=99.0))"
    process = subprocess.Popen([sys.executable, "-c", caller])
    end = time.monotonic() + 60
    while not any(command.startswith(b"bwrap") or b"/bwrap" in command for command in marked(mark)):
        assert time.monotonic() < end, "the program was never there"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert nothing_stays(mark)


ENDING = """
import os, pathlib, time
from rlvr_jax.tasks.sandbox import Limits, run, start
for delay in (0.0, 0.001, 0.002, 0.004, 0.008, 0.03) * 3:
    running = start("/x.py", {"/x.py": "import time; time.sleep(99)"}, Limits())
    time.sleep(delay)
    running.end()
run("pass")
print(pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())  # the dead are among them
"""


@needs_bwrap
def test_a_sandbox_can_be_ended_at_any_moment_and_leaves_no_dead(mark):
    ran = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True)
    assert ran.stdout == "[]\n", ran.stderr
    assert nothing_stays(mark)


@needs_bwrap
def test_threads_and_asyncio_may_run_programs(mark):
    async def several():
        calls = (asyncio.to_thread(run, f"print({i} ** 2)", limits=LIMITS) for i in range(4))
        return [result.stdout for result in await asyncio.gather(*calls)]

    assert asyncio.run(several()) == ["0\n", "1\n", "4\n", "9\n"]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        results = threads.map(lambda i: run("print(input())", f"{i}\n", LIMITS).stdout, range(8))
    assert list(results) == [f"{i}\n" for i in range(8)]
    assert nothing_stays(mark)


@pytest.fixture
def open_folder():
    """One that other users may read; those of pytest are closed."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield folder


@needs_bwrap
def test_an_ordinary_user_has_the_same_sandbox(open_folder):
    python = shutil.which("python3", path="/usr/bin")
    if os.geteuid() != 0 or python is None or shutil.which("setpriv") is None:
        pytest.skip("needs root, setpriv and /usr/bin/python3, to become an ordinary user")
    version = subprocess.run(
        [python, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True
    )
    if version.stdout != b"True\n":
        pytest.skip("needs a /usr/bin/python3 of 3.11 or newer")
    package = pathlib.Path(open_folder) / "rlvr_jax" / "tasks"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    for file in ("sandbox.py", "sandboxed.py", "seccomp.py"):
        shutil.copy(pathlib.Path(sandbox.__file__).with_name(file), package)
    script = (
        f"import sys; sys.path.insert(0, {open_folder!r}); import os; from rlvr_jax.tasks import sandbox; assert os.getuid() == 65534\n"
        "for line in sys.stdin.read().split('\\0'): print(repr(sandbox.run(line, limits=sandbox.Limits(30.0)).stdout))"
    )
    programs = [
        "print(6 * 7)",
        "import os\ntry: os.fork()\nexcept PermissionError: print('no process')",
        "import threading, time\nn = 0\ntry:\n    while True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start(); n += 1\n"
        "except RuntimeError: print(20 < n < 32)",
    ]
    ran = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python, "-B", "-c", script],
        input="\0".join(programs),
        capture_output=True,
        text=True,
    )
    if "CLONE_NEWUSER" in ran.stderr or "user namespace" in ran.stderr:
        pytest.skip(f"an ordinary user may make no user namespaces here: {ran.stderr}")
    assert ran.stdout.splitlines() == [repr("42\n"), repr("no process\n"), repr("True\n")], ran.stderr


@needs_bwrap
@pytest.mark.slow
def test_64_programs_at_once_are_contained(mark):
    hogs = [
        "while True: pass",
        "x = []\nwhile True: x.append(bytearray(10**6))",
        "while True: print('x' * 999)",
    ]
    hogs += ["import os\nwhile True: os.fork()"]
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(64) as threads:
        results = list(threads.map(lambda i: run(hogs[i % 4], limits=Limits(seconds=5.0)), range(64)))
    # Each is ended after 5 s; starting and ending 64 of them on two busy cores may take as long again.
    assert time.monotonic() - begun < 45
    assert all(result.end is not End.EXIT or result.status for result in results)
    assert nothing_stays(mark)


# ----------------------------------------------------------------------------------------------------------------- seccomp


def filtered(program, arch, number, argument=0):
    """What the kernel does with a call, from the definition of the BPF machine in linux/filter.h."""
    data = struct.pack("=iIQQ", number, arch, 0, argument)
    code = [struct.unpack_from("=HBBI", program, 8 * i) for i in range(len(program) // 8)]
    place = accumulator = 0
    while True:
        kind, yes, no, k = code[place]
        place += 1
        if kind == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, k)
        elif kind == 0x06:
            return k
        else:
            holds = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[kind]
            place += yes if holds else no


ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x80000000
X86, ARM = 0xC000003E, 0xC00000B7
THREAD, FORK = 0x3D0F00, 0x1200011  # the flags with which glibc makes a thread, and a process


@pytest.mark.parametrize(
    "machine, arch, number, argument, action",
    [
        ("x86_64", X86, 0, 0, ALLOW),  # read
        ("x86_64", X86, 59, 0, ALLOW),  # execve: bwrap's own comes after the filter
        ("x86_64", X86, 57, 0, EPERM),  # fork
        ("x86_64", X86, 58, 0, EPERM),  # vfork
        ("x86_64", X86, 56, THREAD, ALLOW),
        ("x86_64", X86, 56, FORK, EPERM),
        ("x86_64", X86, 435, 0, ENOSYS),  # clone3
        ("x86_64", X86, 41, 1, EPERM),  # socket
        ("x86_64", X86, 53, 1, ALLOW),  # socketpair
        ("x86_64", X86, 101, 0, EPERM),  # ptrace
        ("x86_64", X86, 0x40000000 + 57, 0, EPERM),  # fork by its x32 number
        ("x86_64", 0x40000003, 2, 0, KILL),  # fork of i386
        ("aarch64", ARM, 63, 0, ALLOW),  # read
        ("aarch64", ARM, 220, THREAD, ALLOW),
        ("aarch64", ARM, 220, FORK, EPERM),
        ("aarch64", ARM, 435, 0, ENOSYS),
        ("aarch64", ARM, 198, 1, EPERM),  # socket
        ("aarch64", ARM, 279, 0, EPERM),  # memfd_create
        ("aarch64", ARM, 57, 0, ALLOW),  # close, whose number is fork's on x86_64
        ("aarch64", X86, 57, 0, KILL),
    ],
)
def test_the_filter_refuses_by_the_tables_of_the_kernel(machine, arch, number, argument, action):
    assert filtered(seccomp_filter(machine), arch, number, argument) == action


# ------------------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"seconds": 0.0}, "seconds=0.0: a program has a positive, finite number of seconds."),
        ({"seconds": float("inf")}, "seconds=inf: a program has a positive, finite number of seconds."),
        ({"memory": 1000}, "memory=1000: a sandbox takes 67108864 or more."),
        ({"output": 0}, "output=0: a sandbox takes 1 or more."),
    ],
)
def test_impossible_limits_are_refused(fields, message):
    with pytest.raises(ValueError) as error:
        Limits(**fields)
    assert str(error.value) == message


@pytest.fixture
def afresh():
    require_sandbox.cache_clear()
    yield
    require_sandbox.cache_clear()


def test_without_bubblewrap_one_error_says_what_to_install(monkeypatch, tmp_path, afresh):
    monkeypatch.setenv("PATH", str(tmp_path))
    for call in (require_sandbox, lambda: run("print(1)")):
        with pytest.raises(SandboxError) as error:
            call()
        assert str(error.value) == (
            "programs of a model run in a sandbox, and there is no `bwrap` on this machine: install bubblewrap "
            "(apt-get install bubblewrap, or dnf install bubblewrap)."
        )


def test_a_bubblewrap_that_does_not_work_is_an_error_with_its_own_words(monkeypatch, tmp_path, afresh):
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxError) as error:
        require_sandbox()
    assert str(error.value).startswith(
        "programs of a model run in a sandbox, and bubblewrap cannot make one here (the sandbox did not start: bwrap: No "
        "permissions to create new namespace). As an ordinary user it needs user namespaces "
    )


def test_another_machine_is_an_error(monkeypatch, afresh):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(SandboxError) as error:
        require_sandbox()
    assert str(error.value) == (
        "programs of a model run in a sandbox, which there is for Linux on x86_64 or aarch64; this is linux on riscv64."
    )
