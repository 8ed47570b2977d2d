"""Writing programs that read stdin and write stdout, judged by pairs of input and output (competitive programming).

The program runs once for each test, in a sandbox of its own (`sandbox.py`) that holds the input alone. The expected output
stays outside, and is compared there, so what a program does to its own process changes nothing; it has to print the answer.
"""

import dataclasses
import functools
import itertools
import math
import re
import time
from collections.abc import Sequence
from typing import Any

from rlvr_jax.registry import register
from rlvr_jax.tasks.base import Reason, Split, Task, Verdict
from rlvr_jax.tasks.code import LONGEST_PROGRAM, fenced
from rlvr_jax.tasks.final_answer import after_reasoning
from rlvr_jax.tasks.records import LazySequence, Placed, RecordError, converted
from rlvr_jax.tasks.sandbox import Confined, End, Limits, SandboxError, require_sandbox, run
from rlvr_jax.tasks.sources import read_records
from rlvr_jax.tasks.splits import SAMPLES

TOLERANCE = 1e-6
_DECIMAL = re.compile(r"[+-]?[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?")


def same_output(given: str, expected: str) -> bool:
    """Whether two outputs have the same words, apart from white space. Where the expected one is a number with a point,
    any number within 1e-6 of it is the same, absolutely or relatively."""
    words = itertools.zip_longest(given.split(), expected.split())
    return all(word is not None and wanted is not None and _same_word(word, wanted) for word, wanted in words)


def _same_word(word: str, wanted: str) -> bool:
    if word == wanted or not _DECIMAL.fullmatch(wanted):
        return word == wanted
    try:
        return math.isclose(float(word), float(wanted), rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except ValueError:
        return False


def read_record(split: Split, index: int, where: str, line: dict[str, Any]) -> dict[str, Any]:
    """A line as a record `id`, `prompt`, `tests` (each `input`, `output`), `seconds` (for one test, `None` where the line
    sets none) and `solution` ("" where it has none).

    Raises: RecordError for tests of another form.
    """
    tests = line["tests"]
    fits = isinstance(tests, list) and all(
        isinstance(test, dict) and isinstance(test.get("input"), str) and isinstance(test.get("output"), str)
        for test in tests
    )
    if not fits or not tests:
        raise RecordError(
            f"{where}: field 'tests' has to be a list of objects with the texts 'input' and 'output', at least one."
        )
    seconds = line.get("time_limit_s")
    return {
        "id": str(line.get("id", f"programs-{split}-{index}")),
        "prompt": line["prompt"],
        "tests": [{"input": test["input"], "output": test["output"]} for test in tests],
        "seconds": None if seconds is None else float(seconds),
        "solution": line.get("solution", ""),
    }


def extract(text: str) -> str | None:
    """The program of an answer: its last fenced block of Python; `None` where it has none."""
    blocks = fenced(after_reasoning(text) or "")
    return blocks[-1] if blocks and blocks[-1].strip() and len(blocks[-1]) <= LONGEST_PROGRAM else None


def judge(tests: Sequence[dict], program: str, each: Limits, seconds: float) -> Reason:
    """Test after test to the first that fails; all of them have `seconds`, and one the limits `each`.

    Raises: SandboxError where the sandbox fails.
    """
    deadline = time.monotonic() + seconds
    for test in tests:
        left = deadline - time.monotonic()
        if left <= 0:
            return Reason.TIMEOUT
        limits = dataclasses.replace(each, seconds=min(each.seconds, left))
        result = run(program, test["input"], limits)
        if result.end is End.TIME:
            return Reason.TIMEOUT
        if result.end is not End.EXIT or result.status or not same_output(result.stdout, test["output"]):
            return Reason.WRONG
    return Reason.CORRECT


@register("task", "programs")
@dataclasses.dataclass(frozen=True)
class Programs(Confined, Task):
    """Programs from stdin to stdout, judged by running them in a sandbox: CodeContests (Li et al., arXiv:2203.07814) and
    files with its fields `prompt` and `tests`.

    `path` holds the splits; `None` is a sample of small problems. Judged is the last fenced block of Python. It has to
    print the expected words in each test and to exit with 0. Records with `may_have_many_answers` are left out, for
    comparing cannot judge them.

    Needs Linux and bubblewrap. Raises: ValueError for limits out of range.
    """

    path: str | None = None
    instruction: str = (
        "Write a Python program that reads the input from stdin and writes the output to stdout. Answer with one block of "
        "code between ```python and ```."
    )
    seconds: float = 8.0
    """For all tests of an answer, wall clock, below `verification.deadline`. A record's own `time_limit_s` holds for each
    of its tests."""

    @property
    def processes(self) -> int:
        return 2

    def check(self) -> None:
        require_sandbox()

    def records(self, split: Split) -> Sequence[dict]:
        lines = read_records(self.path or str(SAMPLES / self.name), split, ("prompt", "tests"))
        return converted(unambiguous(lines), functools.partial(read_record, split))

    def prompt(self, record: dict) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{record['prompt']}\n\n{self.instruction}".strip()}]

    def verify(self, record: dict, completion: str) -> Verdict:
        program = extract(completion)
        if program is None:
            return Verdict.of(Reason.UNPARSABLE)
        each = dataclasses.replace(self.limits, seconds=record["seconds"] or self.seconds)
        try:
            return Verdict.of(judge(record["tests"], program, each, self.seconds))
        except (SandboxError, OSError):  # of this machine, which may have no process or memory left
            return Verdict.of(Reason.ERROR)

    def demonstration(self, record: dict) -> str | None:
        return f"```python\n{record['solution'].strip()}\n```" if record["solution"] else None


def unambiguous(lines: Sequence[Placed]) -> Sequence[Placed]:
    """Those that are not marked `may_have_many_answers`."""
    keep = [i for i, (_, line) in enumerate(lines) if not line.get("may_have_many_answers")]
    if not keep:
        raise RecordError(
            f"{lines[0][0]} and all after it are marked may_have_many_answers: none can be judged."
        )
    return [lines[i] for i in keep] if isinstance(lines, list) else _Chosen(lines, keep)


class _Chosen(LazySequence):
    def __init__(self, lines: Sequence[Placed], keep: list[int]):
        self._lines, self._keep = lines, keep

    def __len__(self) -> int:
        return len(self._keep)

    def item(self, index: int) -> Placed:
        return self._lines[self._keep[index]]
