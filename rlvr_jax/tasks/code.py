"""Writing Python functions, judged by tests (HumanEval, MBPP, EvalPlus).

What an answer says about itself counts for nothing. Its program runs in one sandbox (`sandbox.py`), the tests in another,
and between the two goes text alone: the tests send a call's arguments, the program sends a value, as JSON. The tests read that
into plain values of Python (`code_inside.decode`), so the `==` that decides is that of `int`, `list` and so on, and of nothing
that the program made. Expected values never leave the tests' sandbox, and only a byte that the tests send after the last of
them, over a pipe that the program does not have, makes an answer right. So a program that exits early, patches `==`,
`assert` or modules, searches memory, frames or descriptors, prints or writes what it likes, or goes on in the background has
no more to gain than one that returns wrong values.

Not protected from: tests that are weak (a program may return what they happen to ask for, and see all arguments that came
before); tests that look at how the program is written, for they see values only. Not seen by tests: changes that a function
makes to its arguments. What a function returns that is no plain value (an object of a class of its own, a `Decimal`) is true
and equal to nothing.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import select
import subprocess
from collections.abc import Sequence
from typing import Literal

from rlvr_jax.registry import register
from rlvr_jax.tasks import code_inside
from rlvr_jax.tasks.base import Prompt, Reason, Split, Task, Verdict
from rlvr_jax.tasks.code_inside import FAILED, GONE, PASSED, READY
from rlvr_jax.tasks.code_records import read_record
from rlvr_jax.tasks.final_answer import after_reasoning
from rlvr_jax.tasks.records import converted
from rlvr_jax.tasks.sandbox import (
    TIME_STATUS,
    Confined,
    Limits,
    Running,
    SandboxError,
    require_sandbox,
    start,
)
from rlvr_jax.tasks.sources import read_records
from rlvr_jax.tasks.splits import SAMPLES

LONGEST_PROGRAM = 100_000
"""Characters. What is longer is no function."""
DYING_SECONDS = 1.0
"""A process that has closed its pipe has so long to end, and to tell how."""
_FENCED = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)
_FUTURE = re.compile(r"^from __future__ import .*$", re.MULTILINE)


def fenced(text: str) -> list[str]:
    """The Python of a text, block after block: between ``` and ```, or the end of the text, with the language
    `python`, `py`, `python3` or none."""
    blocks = _FENCED.findall(text)
    return [block for language, block in blocks if language.lower() in ("", "python", "py", "python3")]


def defines(source: str, name: str) -> bool:
    """Whether a line of a source begins the definition of a name, as a function, a class or a variable."""
    name = re.escape(name)
    pattern = rf"^(?:(?:async\s+)?def\s+{name}\s*[(\[]|class\s+{name}\b|{name}\s*(?::[^=\n]*)?=[^=])"
    return re.search(pattern, source, re.MULTILINE) is not None


def extract(text: str, name: str, head: str = "") -> str | None:
    """The program of an answer: the last fenced block that defines `name`, or without one the text itself, if it does.

    Otherwise, where there is a `head`, the text may go on with it: the head and the lines of the text up to the first that
    is not indented. `None` where all of that gives no program.
    """
    text = after_reasoning(text) or ""
    for block in (*reversed(fenced(text)), text):
        if defines(block, name):
            imports = "\n".join(_FUTURE.findall(block))
            return f"{imports}\n{head}\n{_FUTURE.sub('', block)}" if len(block) <= LONGEST_PROGRAM else None
    body = re.match(r"(?:[ \t][^\n]*(?:\n|\Z)|\n)*", text)
    if not head or body is None or not body[0].strip() or len(body[0]) > LONGEST_PROGRAM:
        return None
    return head + body[0]


def run_tests(record: dict, program: str, limits: Limits) -> Reason:
    """Whether a program passes the tests of a record. The tests get twice the memory, and begin within `limits.seconds`.

    Raises: SandboxError where the tests do not begin: no sandbox, a solution that fails on its own inputs.
    """
    job = json.dumps({field: record[field] for field in ("names", "tests", "inputs", "atol", "zero")})
    twice = dataclasses.replace(limits, memory=2 * limits.memory)
    with contextlib.ExitStack() as ours:
        # Theirs are closed here once both are started: the end of a pipe says that the other has ended.
        with contextlib.ExitStack() as theirs:
            said, says = _pipe(ours, theirs)
            calls_out, calls_in = _pipe(theirs, theirs)
            answers_out, answers_in = _pipe(theirs, theirs)
            files = {"/program.py": program}
            answer = ours.enter_context(_inside("answer", files, limits, calls_out, answers_in))
            files = {"/setup.py": record["setup"], "/job.json": job}
            tests = ours.enter_context(_inside("tests", files, twice, says, calls_in, answers_out))
        if _byte(said, limits.seconds) != READY:
            raise SandboxError(f"the tests of {record['id']} did not begin within {limits.seconds:g} s.")
        verdict = _byte(said, limits.seconds)
        if verdict in (PASSED, FAILED, None):
            return {PASSED: Reason.CORRECT, FAILED: Reason.WRONG, None: Reason.TIMEOUT}[verdict]
        # The program is gone, or what it sent was too much for the tests. How is in the status of that process.
        died = answer if verdict == GONE else tests
        with contextlib.suppress(subprocess.TimeoutExpired):
            died.wait(DYING_SECONDS)
        return Reason.TIMEOUT if died.returncode == TIME_STATUS else Reason.WRONG


@functools.cache
def _script() -> str:
    return pathlib.Path(code_inside.__file__).read_text("utf-8")


def _inside(role: str, files: dict[str, str], limits: Limits, *descriptors: int) -> Running:
    """`code_inside.py ROLE` in a sandbox."""
    arguments = (role, *map(str, descriptors))
    return start(
        "/code_inside.py", files | {"/code_inside.py": _script()}, limits, -1, arguments, descriptors
    )


def _pipe(readers: contextlib.ExitStack, writers: contextlib.ExitStack) -> tuple[int, int]:
    out, into = os.pipe()
    readers.callback(os.close, out)
    writers.callback(os.close, into)
    return out, into


def _byte(descriptor: int, seconds: float) -> bytes | None:
    """The next byte of a pipe, b"" at its end; `None` where none comes in so many seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return os.read(descriptor, 1) if poll.poll(1000 * seconds) else None


@register("task", "code")
@dataclasses.dataclass(frozen=True)
class Code(Confined, Task):
    """Functions in Python, judged by running tests in a sandbox: HumanEval (Chen et al., arXiv:2107.03374), MBPP (Austin et
    al., arXiv:2108.07732), EvalPlus (Liu et al., arXiv:2305.01210), and files with their fields.

    `path` holds the splits; `None` is a sample: MBPP to train, HumanEval to test. Judged is the last fenced block that
    defines the function, or the text itself; a text that only goes on with the head of a function is read as its body
    (`extract`). No program is unparsable; over `seconds` is a timeout; the rest is right or wrong.

    Needs Linux and bubblewrap. Raises: ValueError for limits out of range.
    """

    path: str | None = None
    form: Literal["chat", "completion"] = "chat"
    """`completion`: raw text, the head of the function, for models that only go on with a text. Problems in words are put
    into a comment."""
    instruction: str = "Answer with one block of Python code between ```python and ```."
    seconds: float = 4.0
    """For all tests of an answer, wall clock; getting ready for them may take as long. Below the half of
    `verification.deadline`, after which an answer is judged no more."""

    @property
    def processes(self) -> int:
        return 2

    def check(self) -> None:
        require_sandbox()

    def records(self, split: Split) -> Sequence[dict]:
        lines = read_records(self.path or str(SAMPLES / self.name), split, ("prompt",))
        return converted(lines, functools.partial(read_record, split))

    def prompt(self, record: dict) -> Prompt:
        if self.form == "completion":
            return record["head"] or f'"""\n{record["prompt"]}\n"""\n'
        return [{"role": "user", "content": f"{record['prompt']}\n\n{self.instruction}".strip()}]

    def verify(self, record: dict, completion: str) -> Verdict:
        program = extract(completion, record["names"][0], record["head"])
        if program is None:
            return Verdict.of(Reason.UNPARSABLE)
        try:
            return Verdict.of(run_tests(record, program, self.limits))
        except (SandboxError, OSError):  # of this machine, which may have no process or memory left
            return Verdict.of(Reason.ERROR)

    def demonstration(self, record: dict) -> str | None:
        if not record["solution"]:
            return None
        if self.form == "completion" and record["head"]:
            return record["solution"]
        return f"```python\n{(record['head'] + record['solution']).strip()}\n```"
