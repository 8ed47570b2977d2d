"""What runs inside the two sandboxes of `code.py`, and the values that go between them as lines of JSON.

    code_inside.py answer CALLS ANSWERS             has the program, and answers calls of its functions
    code_inside.py tests VERDICT CALLS ANSWERS      has the tests, and makes these calls

The standard library is all that is there.
"""

import builtins
import contextlib
import itertools
import json
import math
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import IO, Any

LONGEST_LINE = 16 << 20
"""Bytes of a value between the two. An answer that is longer is a wrong one."""
PIPE_BYTES = 4096
"""What every pipe takes in before it is read: so much can be asked at once, and nobody waits for the other's reading."""
LONGEST_ITERATION = 100_000
"""So many elements are taken of an iterable that an answer gives; of a longer one, the first."""


class Opaque:
    """What an answer gave that is no plain value: true, and equal to nothing."""


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


def execute(name: str, path: str) -> types.ModuleType:
    """Run a file as the module `name`, and give the module."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    with open(path, encoding="utf-8") as file:
        source = file.read()
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def answer(calls: int, answers: int) -> None:
    """Serve calls of what the program defines, [name, arguments, named arguments], until there are no more.

    The program is not run before the first, so it cannot delay the tests' beginning.
    """
    module = None
    with open(calls, "rb") as incoming, open(answers, "wb") as outgoing:
        outgoing.write(READY)
        outgoing.flush()
        for line in incoming:
            module = module or execute("answer", "/program.py")
            name, args, named = json.loads(line)
            try:
                reply = {"value": encode(getattr(module, name)(*decode(args), **decode(named)))}
            except Exception as error:
                known = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
                reply = {"raised": known[0], "message": str(error)[:1000]}
            outgoing.write(json.dumps(reply).encode() + b"\n")
            outgoing.flush()


class Remote:
    """A function that is called in the other process: plain values go there, and plain values come back.

    Where that process has ended, or does not keep to the form, this one says so and ends too: no test can catch that.
    """

    def __init__(self, name: str, verdict: int, calls: IO[bytes], answers: IO[bytes]):
        self.name, self._verdict, self._calls, self._answers = name, verdict, calls, answers

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.ask(self.call(encode(list(args)), encode(named)))
        return self.reply()

    def call(self, args: Any, named: Any) -> bytes:
        return json.dumps([self.name, args, named]).encode() + b"\n"

    def ask(self, calls: bytes) -> None:
        with contextlib.suppress(OSError):  # the reply, which does not come then, says the same
            self._calls.write(calls)
            self._calls.flush()

    def reply(self) -> Any:
        """The value of the earliest call that has had no reply."""
        line = self._answers.readline(LONGEST_LINE)
        if not line.endswith(b"\n"):
            os.write(self._verdict, GONE)
            os._exit(0)
        reply = json.loads(line)
        if "raised" in reply:
            kind = getattr(builtins, str(reply["raised"]), None)
            # One that ends iterations is none of an answer's: all(map(candidate, cases)) would be true.
            ends = (StopIteration, StopAsyncIteration)
            if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(kind, ends):
                kind = RuntimeError
            raise kind(str(reply["message"]))
        return decode(reply["value"])


def ask_all(remote: Remote, inputs: list[Any]) -> Iterator[Any]:
    """The value on each input. Many short calls go at once, for changing between processes costs more than they do."""
    waiting = b""
    asked = 0
    for args in inputs:
        call = remote.call(args, {"dict": []})
        if len(waiting) + len(call) > PIPE_BYTES and asked:
            remote.ask(waiting)
            yield from (remote.reply() for _ in range(asked))
            waiting, asked = b"", 0
        waiting, asked = waiting + call, asked + 1
    remote.ask(waiting)
    yield from (remote.reply() for _ in range(asked))


def tests(verdict: int, calls: int, answers: int) -> None:
    """Run the tests, and say what came of it in one byte, after one that says that they begin.

    /setup.py is source that they need. /job.json has `tests` (source), `names` (what the answer has to define), and
    `inputs`, lists of arguments, encoded. On each of them the first name has to give what it gives as the setup defines it
    (`agree` within `atol`), or a value at which the setup's function `zero` is 0 within `atol`.
    """
    with open("/job.json", encoding="utf-8") as file:
        job = json.load(file)
    space, atol, first = execute("tests", "/setup.py").__dict__, job["atol"], job["names"][0]
    reference: Any = space.get(first)
    expected = [decode(encode(reference(*decode(args)))) for args in job["inputs"]]
    with open(calls, "wb") as outgoing, open(answers, "rb") as incoming:
        if incoming.read(1) != READY:
            sys.exit("the sandbox of the answer did not start")
        for name in job["names"]:
            space[name] = Remote(name, verdict, outgoing, incoming)
        space["candidate"] = space[first]
        os.write(verdict, READY)
        said = FAILED
        try:
            exec(compile(job["tests"], "/tests.py", "exec"), space)
            values = ask_all(space[first], job["inputs"])
            for args, wanted, given in zip(job["inputs"], expected, values, strict=True):
                if job["zero"]:
                    right = abs(space[job["zero"]](*decode(args), given)) <= atol
                else:
                    right = agree(given, wanted, atol)
                if not right:
                    raise AssertionError
            said = PASSED
        finally:
            os.write(verdict, said)
            os._exit(0)  # nothing that the tests left may still say something


if __name__ == "__main__":
    role, *descriptors = sys.argv[1:]
    {"answer": answer, "tests": tests}[role](*map(int, descriptors))
