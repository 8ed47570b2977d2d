"""What the sandbox (`sandbox.py`) starts: it sets limits, and then is the script it is told of.

    sandboxed.py SCRIPT MEMORY DISK THREADS SECONDS UID READY ARGUMENT...

READY is a descriptor that gets one byte when the limits hold, or -1. Most of a short program's time is spent on imports, so
here are few.
"""

import os
import resource
import sys
import types


def confine(memory: int, disk: int, threads: int, seconds: int, uid: int) -> None:
    """Give up root's id where it is root, and set limits that cannot be raised again."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, disk),
        (resource.RLIMIT_NPROC, threads),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        resource.setrlimit(limit, (value, value))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def show(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """Python's own report of an exception, without what is not the script's."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def main(script: str, *numbers: str) -> None:
    """Become the script."""
    memory, disk, threads, seconds, uid, ready = map(int, numbers[:6])
    confine(memory, disk, threads, seconds, uid)
    module = types.ModuleType("__main__")
    module.__file__ = script
    sys.modules["__main__"] = module
    sys.argv = [script, *numbers[6:]]
    sys.excepthook = show
    with open(script, encoding="utf-8") as file:
        source = file.read()
    if ready >= 0:  # from here on whatever happens is the script's doing
        os.write(ready, b"+")
        os.close(ready)
    exec(compile(source, script, "exec"), module.__dict__)


if __name__ == "__main__":
    main(*sys.argv[1:])
