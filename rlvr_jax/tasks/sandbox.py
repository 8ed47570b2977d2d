"""A sandbox for programs that a model wrote: Python without network, files, other processes, or more than its share.

    result = run("print(int(input()) + 1)", stdin="41")
    result.stdout  # "42\\n"

Bubblewrap (`bwrap`) gives the program namespaces of its own: no network, no sight of other processes, and a file system
that holds the interpreter and the system's libraries, read-only, and nothing else: no home, no data, no installed packages.
A seccomp filter refuses sockets, new processes (threads are allowed) and the calls that get memory past the limits, so that
those, set on one process, are the limits of all of it. `/tmp` is private and limited; with bubblewrap before 0.7, which
cannot limit it, it is read-only. When the caller dies, or its time is over, the kernel ends everything.

It stands as long as the kernel does: this is no virtual machine. Started by root, the program gets a user id without
rights; started by another, a user namespace, which the system has to allow. Calls may come from any process or thread,
and block; from asyncio use `asyncio.to_thread(run, ...)`.
"""

import contextlib
import ctypes
import dataclasses
import enum
import functools
import json
import math
import os
import pathlib
import platform
import random
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from rlvr_jax.tasks.seccomp import MACHINES, seccomp_filter

INSIDE = pathlib.Path(__file__).with_name("sandboxed.py")
"""What Python runs inside: it sets the limits before it becomes the program."""
STDERR_TAIL = 4096
"""Bytes kept of the errors."""
TIME_STATUS = 128 + 9
"""The status of a program that the kernel ended for its CPU time."""


class SandboxError(RuntimeError):
    """The sandbox itself does not work: no fault of the program."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a program may take: seconds of wall clock (and, rounded up, of CPU time), and bytes of the rest.

    Raises: ValueError for a limit that is not positive and finite, or so small that Python does not start.
    """

    seconds: float = 5.0
    memory: int = 512 << 20
    """Address space of the process. What is in /tmp comes on top."""
    disk: int = 16 << 20
    """All of /tmp, and any one file."""
    output: int = 1 << 20
    """Of stdout, and of stderr. A program that writes more is ended."""
    threads: int = 32

    def __post_init__(self):
        if not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise ValueError(f"seconds={self.seconds}: a program has a positive, finite number of seconds.")
        for name, least in (("memory", 64 << 20), ("disk", 1 << 12), ("output", 1), ("threads", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: a sandbox takes {least} or more.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Confined:
    """Fields of what runs programs of a model. Raises: ValueError for limits out of range."""

    seconds: float = 4.0
    """Wall clock."""
    memory_mb: int = 512

    def __post_init__(self):
        _ = self.limits

    @property
    def limits(self) -> Limits:
        return Limits(seconds=self.seconds, memory=self.memory_mb << 20)


class End(enum.StrEnum):
    """How a program came to its end."""

    EXIT = "exit"
    TIME = "time"
    OUTPUT = "output"


@dataclasses.dataclass(frozen=True)
class Result:
    """What a program did: its exit status (128 + n after signal n; 0 is success) and what it wrote."""

    end: End
    status: int
    stdout: str
    stderr: str
    """The last `STDERR_TAIL` bytes."""

    @property
    def timed_out(self) -> bool:
        return self.end is End.TIME


# ----------------------------------------------------------------------------------------------------------------- command


@functools.cache
def _interpreter() -> pathlib.Path:
    """The interpreter itself: a virtual environment's is a link to it."""
    return pathlib.Path(getattr(sys, "_base_executable", sys.executable)).resolve()


@functools.cache
def _file_system() -> tuple[str, ...]:
    """The part of the command that says which files there are; all else is not there."""
    python, prefix = _interpreter(), pathlib.Path(sys.base_prefix).resolve()
    places = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/nix/store", f"{prefix}/lib", f"{prefix}/lib64")
    roots = [root for root in dict.fromkeys(places) if os.path.isdir(root)]
    # A folder that bwrap makes on the way to a mount is closed to all but root; one that it is told of is open.
    parents = {parent for root in (*roots, python) for parent in pathlib.Path(root).parents} - {
        pathlib.Path("/")
    }
    binds = [word for parent in sorted(parents) for word in ("--dir", str(parent))]
    for root in roots:  # under one name each, so that what is hidden there is hidden
        real = str(pathlib.Path(root).resolve())
        binds += ["--symlink", real, root] if real != root and real in roots else ["--ro-bind", root, root]
    binds += ["--ro-bind", str(python), str(python), "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    # Installed packages may hold the very answers that a program is judged by, and this package does.
    hidden = [
        path
        for root in {pathlib.Path(root).resolve() for root in roots}
        for pattern in ("python3*/site-packages", "python3*/dist-packages")
        for path in root.glob(pattern)
    ]
    package = INSIDE.parent.parent
    if any(package.is_relative_to(pathlib.Path(root).resolve()) for root in roots):
        hidden.append(package)
    for path in hidden:
        binds += ["--tmpfs", str(path)]
    for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
        binds += ["--dev-bind", device, device]
    # Some interpreters name their own library as $ORIGIN/../lib/..., and the loader asks this link where they are.
    binds += ["--dir", "/proc", "--dir", "/proc/self", "--symlink", str(python), "/proc/self/exe"]
    return (*binds, "--ro-bind", str(INSIDE), f"/{INSIDE.name}")


@functools.cache
def _limits_tmp(bwrap: str) -> bool:
    """Whether this bubblewrap has --size, which came with 0.7."""
    return "--size" in subprocess.run([bwrap, "--help"], capture_output=True, text=True).stdout


def _bwrap() -> str:
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxError(
            "programs of a model run in a sandbox, and there is no `bwrap` on this machine: install bubblewrap "
            "(apt-get install bubblewrap, or dnf install bubblewrap)."
        )
    return found


def _unnamed_file(stack: contextlib.ExitStack, content: bytes) -> int:
    """A descriptor that reads `content`, and cannot write it; gone with the last who has it."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        descriptor = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    return descriptor


def start(
    script: str,
    files: Mapping[str, str],
    limits: Limits,
    ready: int = -1,
    arguments: Sequence[str] = (),
    descriptors: Sequence[int] = (),
    stdin: str = "",
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
) -> "Running":
    """A script, one of the `files` (path to text), as Python's main program in a sandbox of its own, with these arguments and
    descriptors. One byte comes out of `ready` before it begins.

    Who starts it has to `end` it. The thread that starts it has to live so long too.

    Raises: SandboxError where there is no bubblewrap.
    """
    bwrap = _bwrap()
    _adopt_orphans()
    spaces = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if (
        os.geteuid() == 0
    ):  # for whom, and whose other names in a user namespace, the limit on threads does not hold
        spaces += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        spaces += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    tmp = ["--dir", "/tmp"]
    if _limits_tmp(bwrap):
        tmp = ["--perms", "1777", "--size", str(limits.disk), "--tmpfs", "/tmp"]
    with contextlib.ExitStack() as stack:
        seccomp = _unnamed_file(stack, seccomp_filter(platform.machine()))
        data = {path: _unnamed_file(stack, text.encode("utf-8", "replace")) for path, text in files.items()}
        info, theirs = os.pipe()
        stack.callback(os.close, theirs)
        command = [bwrap, "--die-with-parent", "--new-session", "--info-fd", str(theirs)]
        command += [*spaces, *_file_system(), *tmp]
        for path, descriptor in data.items():
            command += ["--perms", "0444", "--ro-bind-data", str(descriptor), path]
        command += ["--remount-ro", "/", "--chdir", "/tmp", "--seccomp", str(seccomp), "--clearenv"]
        # Equal hashes make equal verdicts; one arena keeps threads from reserving address space.
        command += ["--setenv", "PYTHONHASHSEED", "0", "--setenv", "MALLOC_ARENA_MAX", "1"]
        command += ["--setenv", "PYTHONIOENCODING", "utf-8", "--setenv", "HOME", "/tmp"]
        seconds, uid = math.ceil(limits.seconds), random.SystemRandom().randrange(20_000, 60_000)
        numbers = [limits.memory, limits.disk, limits.threads, seconds, uid, ready]
        command += [str(_interpreter()), "-PsSB", f"/{INSIDE.name}", script, *map(str, numbers), *arguments]
        given = [*descriptors, *([ready] if ready >= 0 else [])]
        try:
            process = subprocess.Popen(
                command,
                stdin=_unnamed_file(stack, stdin.encode("utf-8", "replace")),
                stdout=stdout,
                stderr=stderr,
                pass_fds=(theirs, seccomp, *data.values(), *given),
            )
        except OSError:
            os.close(info)
            raise
    return Running(process, info)


@functools.cache
def _adopt_orphans() -> None:
    """Let what this process's children leave behind become its own children (prctl PR_SET_CHILD_SUBREAPER).

    Bubblewrap leaves the first process of a sandbox to process 1, and in many containers that is no init: the dead would
    never be buried, and in a long run use up the process numbers.
    """
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)


@dataclasses.dataclass(frozen=True)
class Running:
    """A sandbox: bubblewrap's process, and a descriptor that tells the number of the first process inside."""

    process: subprocess.Popen[bytes]
    info: int

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self.process

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill all that is inside, wait until it is gone, and give back the pipes.

        The first process inside is killed, whose end is that of all others. Killing bubblewrap would do as well only
        once the two are bound to each other, which takes it a moment.
        """
        with open(self.info, "rb") as info:
            said = info.read()
        first = json.loads(said)["child-pid"] if said else None
        if first is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)
        self.process.wait()
        if first is not None:
            with contextlib.suppress(ChildProcessError):  # where bubblewrap itself has waited for it
                os.waitid(os.P_PID, first, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                os.kill(first, signal.SIGKILL)
                os.waitpid(first, 0)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


# --------------------------------------------------------------------------------------------------------------------- run


def run(program: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008  (it is frozen)
    """Run a Python program to its end, or to a limit. It sees its own text as /program.py.

    Raises: SandboxError where the sandbox, and not the program, fails.
    """
    deadline = time.monotonic() + limits.seconds
    ready, theirs = os.pipe()
    with open(ready, "rb", buffering=0) as started:
        try:
            running = start(
                "/program.py",
                {"/program.py": program},
                limits,
                ready=theirs,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        finally:
            os.close(theirs)
        with running as process:
            end, stdout, stderr = _read(process, deadline, limits.output)
            if end is End.EXIT:
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:  # it closed its outputs, and goes on
                    end = End.TIME
        if not started.read(1) and end is not End.TIME:
            raise SandboxError(f"the sandbox did not start: {_said(stderr)}")
    if end is End.EXIT and process.returncode == TIME_STATUS:
        end = End.TIME
    text = stdout[: limits.output].decode("utf-8", "replace")
    return Result(end, process.returncode, text, stderr[-STDERR_TAIL:].decode("utf-8", "replace"))


def _said(stderr: bytes) -> str:
    return stderr[-STDERR_TAIL:].decode("utf-8", "replace").strip() or "it said nothing"


def _read(process: subprocess.Popen[bytes], deadline: float, limit: int) -> tuple[End, bytes, bytes]:
    """Both outputs to their ends, to `limit` bytes of one, or to the deadline."""
    assert process.stdout is not None and process.stderr is not None
    texts = {process.stdout: bytearray(), process.stderr: bytearray()}
    end = End.EXIT
    with selectors.DefaultSelector() as selector:
        for pipe in texts:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map() and end is End.EXIT:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready and time.monotonic() >= deadline:
                end = End.TIME
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                texts[key.fileobj] += chunk  # type: ignore[index]
                if len(texts[key.fileobj]) > limit:  # type: ignore[index]
                    end = End.OUTPUT
            if time.monotonic() >= deadline and selector.get_map():
                end = End.TIME if end is End.EXIT else end
    return end, bytes(texts[process.stdout]), bytes(texts[process.stderr])


@functools.cache
def require_sandbox() -> None:
    """Try the sandbox once in this process. Raises: SandboxError that says what this machine lacks."""
    if not sys.platform.startswith("linux") or platform.machine() not in MACHINES:
        raise SandboxError(
            f"programs of a model run in a sandbox, which there is for Linux on {' or '.join(MACHINES)}; "
            f"this is {sys.platform} on {platform.machine()}."
        )
    _bwrap()
    try:
        result = run("print(6 * 7)", limits=Limits(seconds=30.0))
        problem = "" if result.stdout == "42\n" else f"a program ended so: {result}"
    except SandboxError as error:
        problem = str(error)
    if problem:
        raise SandboxError(
            f"programs of a model run in a sandbox, and bubblewrap cannot make one here ({problem}). As an ordinary user it "
            "needs user namespaces (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces above 0, on Ubuntu "
            "kernel.apparmor_restrict_unprivileged_userns=0); in a container, root with CAP_SYS_ADMIN, or a seccomp profile "
            "that allows them."
        )
