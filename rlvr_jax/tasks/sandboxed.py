"""What runs inside the sandbox (`sandbox.py`): this file and the standard library are all that is there.

    sandboxed.py MODE MEMORY DISK THREADS SECONDS UID DESCRIPTOR...

`program` runs /program.py. `answer` runs it too, and then answers calls of its functions. `tests` runs the tests of
/job.json, in which those functions are calls of the process with the answer. Between the two go lines of JSON.
"""

import builtins
import itertools
import math
import os
import resource
import sys
import types
from collections.abc import Callable, Iterator
from typing import IO, Any

PROGRAM = "/program.py"
LONGEST_LINE = 16 << 20
"""Bytes of a value between the two. An answer that is longer is a wrong one."""
LONGEST_ITERATION = 100_000
"""So many elements are taken of an iterable that an answer gives; of a longer one, the first."""


class Opaque:
    """What an answer gave that is no plain value: true, and equal to nothing."""


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
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def execute(name: str, path: str) -> types.ModuleType:
    """Run a file as the module `name`, and give the module."""
    module = types.ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    with open(path, encoding="utf-8") as file:
        source = file.read()
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def program(ready: int) -> None:
    """Run the program as a script. The byte says that whatever happens from here on is its doing."""
    os.write(ready, b"+")
    os.close(ready)
    sys.argv = [PROGRAM]
    sys.excepthook = _show
    execute("__main__", PROGRAM)


def _show(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


# ------------------------------------------------------------------------------------------------------------------ values


def encode(value: Any) -> Any:
    """A value as JSON can hold it, types and all; lists, text, booleans, `None` and finite numbers as they are.

    A subclass becomes its plain base, whatever its `__eq__` says; an iterable of another kind becomes an iterator over
    what it gives; and what is left {"opaque": 0}.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        plain = int(value)
        return plain if abs(plain) < 1 << 63 else {"int": hex(plain)}
    if isinstance(value, float):
        plain = float(value)
        return plain if math.isfinite(plain) else {"float": repr(plain)}
    if isinstance(value, complex):
        return {"complex": [encode(value.real), encode(value.imag)]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, list):
        return [encode(each) for each in value]
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(each)] for key, each in value.items()]}
    for kind in (tuple, set, frozenset, bytes, bytearray):
        if isinstance(value, kind):
            return {kind.__name__: [encode(each) for each in value]}
    if hasattr(type(value), "__iter__"):
        return {"iterator": [encode(each) for each in itertools.islice(value, LONGEST_ITERATION)]}
    return {"opaque": 0}


DECODERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "float": float,
    "complex": lambda parts: complex(*map(decode, parts)),
    "range": lambda parts: range(*parts),
    "dict": lambda pairs: {decode(key): decode(each) for key, each in pairs},
    "tuple": lambda items: tuple(map(decode, items)),
    "set": lambda items: set(map(decode, items)),
    "frozenset": lambda items: frozenset(map(decode, items)),
    "bytes": bytes,
    "bytearray": bytearray,
    "iterator": lambda items: iter(list(map(decode, items))),
    "opaque": lambda _: Opaque(),
}


def decode(value: Any) -> Any:
    """The value that `encode` was given. Raises: many things for JSON that is not of its making."""
    if isinstance(value, list):
        return [decode(each) for each in value]
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        return DECODERS[kind](content)
    return value


def agree(value: Any, expected: Any, atol: float) -> bool:
    """Whether a value is as expected; floats within 1e-7 of the expected one, relatively, or `atol`, and at least 1e-6.

    That is the rule of EvalPlus (Liu et al., arXiv:2305.01210), here for floats anywhere in lists, tuples and dicts.
    """
    if isinstance(expected, float) and type(value) in (int, float):
        if not math.isfinite(expected):
            return value == expected or (math.isnan(value) and math.isnan(expected))
        return abs(value - expected) <= (atol or 1e-6) + 1e-7 * abs(expected)
    if isinstance(expected, list | tuple) and type(value) is type(expected):
        return len(value) == len(expected) and all(map(agree, value, expected, itertools.repeat(atol)))
    if isinstance(expected, dict) and isinstance(value, dict):
        return value.keys() == expected.keys() and all(agree(value[k], expected[k], atol) for k in expected)
    if isinstance(expected, Iterator):
        return isinstance(value, Iterator) and agree(list(value), list(expected), atol)
    if isinstance(expected, Opaque):  # a match of a regular expression, say: another may have said True
        return bool(value)
    return value == expected


# ----------------------------------------------------------------------------------------------------------- answer, tests

READY, PASSED, FAILED, GONE = b"r", b"p", b"f", b"g"
"""What is said of the tests: they begin; then that they passed, or failed, or that the process with the answer is gone."""


class Gone(BaseException):
    """The process with the answer has ended, or does not keep to the form. No test catches this."""


def answer(calls: int, answers: int) -> None:
    """Serve calls of what the program defines, [name, arguments, named arguments], until there are no more."""
    import json

    with open(calls, "rb") as incoming, open(answers, "wb") as outgoing:
        outgoing.write(READY)
        outgoing.flush()
        module = execute("answer", PROGRAM)
        for line in incoming:
            name, args, named = json.loads(line)
            try:
                reply = {"value": encode(getattr(module, name)(*decode(args), **decode(named)))}
            except Exception as error:
                known = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
                reply = {"raised": known[0], "message": str(error)[:1000]}
            outgoing.write(json.dumps(reply).encode() + b"\n")
            outgoing.flush()


class Remote:
    """A function that is called in the other process: plain values go there, and plain values come back."""

    def __init__(self, name: str, calls: IO[bytes], answers: IO[bytes]):
        self.name, self._calls, self._answers = name, calls, answers

    def __call__(self, *args: Any, **named: Any) -> Any:
        import json

        try:
            call = json.dumps([self.name, encode(list(args)), encode(named)])
            self._calls.write(call.encode() + b"\n")
            self._calls.flush()
            line = self._answers.readline(LONGEST_LINE)
        except OSError as error:
            raise Gone from error
        if not line.endswith(b"\n"):
            raise Gone
        reply = json.loads(line)
        if "raised" in reply:
            kind = getattr(builtins, str(reply["raised"]), None)
            # One that ends iterations is none of an answer's: all(map(candidate, cases)) would be true.
            ends = (StopIteration, StopAsyncIteration)
            if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(kind, ends):
                kind = RuntimeError
            raise kind(str(reply["message"]))
        return decode(reply["value"])


def tests(verdict: int, calls: int, answers: int) -> None:
    """Run the tests, and say what came of it in one byte, after one that says that they begin.

    /job.json has `setup` and `tests` (source), `names` (what the answer has to define), and `inputs`, lists of arguments,
    encoded. On each of them the first name has to give what it gives as `setup` defines it (`agree` within `atol`), or a
    value at which the function `zero` of `setup` is 0 within `atol`.
    """
    import json

    with open("/job.json", encoding="utf-8") as file:
        job = json.load(file)
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    space, atol, first = module.__dict__, job["atol"], job["names"][0]
    exec(compile(job["setup"], "/setup.py", "exec"), space)
    reference: Any = space.get(first)
    expected = [decode(encode(reference(*decode(args)))) for args in job["inputs"]]
    with open(calls, "wb") as outgoing, open(answers, "rb") as incoming:
        if incoming.read(1) != READY:
            sys.exit("the sandbox of the answer did not start")
        for name in job["names"]:
            space[name] = Remote(name, outgoing, incoming)
        space["candidate"] = space[first]
        os.write(verdict, READY)
        try:
            exec(compile(job["tests"], "/tests.py", "exec"), space)
            for args, wanted in zip(job["inputs"], expected, strict=True):
                given = space[first](*decode(args))
                if job["zero"]:
                    right = abs(space[job["zero"]](*decode(args), given)) <= atol
                else:
                    right = agree(given, wanted, atol)
                if not right:
                    raise AssertionError
            said = PASSED
        except Gone:
            said = GONE
        except BaseException:
            said = FAILED
        os.write(verdict, said)
        os._exit(0)  # nothing that the tests left may still say something


if __name__ == "__main__":
    mode, *numbers = sys.argv[1:]
    memory, disk, threads, seconds, uid, *descriptors = map(int, numbers)
    confine(memory, disk, threads, seconds, uid)
    {"program": program, "answer": answer, "tests": tests}[mode](*descriptors)
