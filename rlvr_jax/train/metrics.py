"""What a run writes down: metrics.jsonl, rollouts.jsonl, warnings.jsonl; and the seconds of its phases.

A line of metrics.jsonl is a flat JSON object, `step` and names like `policy/entropy`. Whatever depends on the clock
goes under `time/`, so two runs of one config differ there and nowhere else. A run that was killed and resumed leaves
the same file as one that was not: what lies at or after the step it resumes from is cut off first. In a run of several
processes one of them writes.
"""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import pathlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsFloat, TypeAlias

import jax

from rlvr_jax.types import Mean

METRICS = "metrics.jsonl"
ROLLOUTS = "rollouts.jsonl"
WARNINGS = "warnings.jsonl"
TIME = "time/"

Row: TypeAlias = dict[str, Any]


def plain(metrics: Mapping[str, Mean | SupportsFloat]) -> dict[str, float | int]:
    """Python numbers of metrics that may still be on devices, in one transfer; the mean of a `Mean`, integers kept."""
    fetched = jax.device_get(dict(metrics))
    return {name: _number(value) for name, value in fetched.items()}


def _number(value: Mean | SupportsFloat) -> float | int:
    if isinstance(value, Mean):
        return value.value()
    return int(value) if isinstance(value, int) else float(value)


class JsonLines:
    """An append-only file of JSON objects with a `step`, each batch of lines on disk before `append` returns.

    Opening drops the lines from `start_step` on, and a last line that was cut short by a crash.
    Raises ValueError, with file and line number, where a line before that is not such an object.
    """

    def __init__(self, path: pathlib.Path, start_step: int) -> None:
        earlier = itertools.takewhile(lambda line: line[1]["step"] < start_step, _rows(path))
        keep = sum(size for size, _ in earlier) if path.exists() else 0
        self._file = open(path, "ab")
        self._file.truncate(keep)
        self._sync()

    def append(self, rows: Iterable[Row]) -> None:
        """Numbers that are not finite are written as null: JSON has no name for them."""
        lines = (
            json.dumps(_finite(row), sort_keys=True, ensure_ascii=False, allow_nan=False) for row in rows
        )
        # A lone surrogate cannot be encoded; as an escape (\ud800) it is valid JSON.
        self._file.write("".join(line + "\n" for line in lines).encode("utf-8", "backslashreplace"))
        self._sync()

    def close(self) -> None:
        self._file.close()

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())


def _finite(row: Row) -> Row:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def _rows(path: pathlib.Path) -> Iterator[tuple[int, Row]]:
    """Each whole line's size in bytes and its object. A last line without its line end was cut short: left out."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            row = _parse(line)
            if row is None:
                raise ValueError(
                    f"{path}, line {number} is no JSON object with a step: {line[:80]!r}. "
                    "Mend the line, or move the file away."
                )
            yield len(line), row


def _parse(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def read_rows(path: pathlib.Path) -> list[Row]:
    """The objects of a file of JSON lines, also of a run that is still writing."""
    return [row for _, row in _rows(path)]


def rows_by_step(path: pathlib.Path) -> Iterator[tuple[int, list[Row]]]:
    """Each step of a file of JSON lines with its objects, read as one goes on; nothing of a file that is not there."""
    rows = (row for _, row in _rows(path)) if path.exists() else iter(())
    for step, found in itertools.groupby(rows, key=lambda row: row["step"]):
        yield step, list(found)


def without_times(row: Row) -> Row:
    """What two runs of one config must agree on."""
    return {name: value for name, value in row.items() if not name.startswith(TIME)}


class MetricsWriter:
    """One line of metrics.jsonl a step.

    Names with `time/` in front are the only ones that may depend on the clock. A figure that is not finite is null.
    """

    def __init__(self, run_dir: pathlib.Path, start_step: int = 0) -> None:
        self._lines = JsonLines(run_dir / METRICS, start_step)

    def write(self, step: int, metrics: Mapping[str, Mean | SupportsFloat]) -> dict[str, float | int]:
        """Write the metrics of a step; returns them as Python numbers."""
        values = plain(metrics)
        if "step" in values:
            raise ValueError(
                "a metric is called 'step', which is the name of the step itself; call it otherwise."
            )
        self._lines.append([{"step": step, **values}])
        return values

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutRow:
    """One sampled answer, for people to read. `length` counts tokens, the stop token included; `version` is the number of
    steps that its weights had been trained for."""

    prompt_id: int
    sample: int
    prompt: str
    completion: str
    reward: float | None
    correct: bool
    reason: str
    length: int
    truncated: bool
    version: int


class RolloutWriter:
    """rollouts.jsonl: one line an answer, with the step it was sampled in."""

    def __init__(self, run_dir: pathlib.Path, start_step: int = 0) -> None:
        self._lines = JsonLines(run_dir / ROLLOUTS, start_step)

    def write(self, step: int, rows: Sequence[RolloutRow]) -> None:
        self._lines.append({"step": step, **dataclasses.asdict(row)} for row in rows)

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> "RolloutWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Phases:
    """Seconds of the named phases of a step: `with phases("sample"): ...`, any number of times, then `collect()`.

    Work that was only dispatched to a device is not waited for: end a phase with a value fetched or
    `jax.block_until_ready`.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = clock()
        self._seconds: dict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = self._clock()
        try:
            yield
        finally:
            self._seconds[name] += self._clock() - start

    def collect(self) -> dict[str, float]:
        """`time/NAME` for each phase since the last call, and `time/step`, all that passed since then; starts anew."""
        now = self._clock()
        seconds = {f"{TIME}{name}": value for name, value in self._seconds.items()}
        seconds[f"{TIME}step"] = now - self._start
        self._start = now
        self._seconds.clear()
        return seconds
