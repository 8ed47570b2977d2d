"""What one sees while a run trains: a bar with the time left, and the figures of the last step."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("reward", "reward/mean", ".3f"),
    ("pass", "reward/correct", ".1%"),
    ("ACR", "acr/all", ".1%"),
    ("loss", "warmup/loss", ".4f"),
    ("entropy", "policy/entropy", ".3f"),
    ("KL ref", "policy/kl_ref", ".1e"),
    ("KL old", "policy/kl_old", ".1e"),
    ("clip", "policy/clip_fraction", ".1%"),
    ("length", "length/mean", ".1f"),
    ("grad", "optimizer/grad_norm", ".2g"),
    ("tokens/s", "time/tokens_per_second", ",.0f"),
)
"""Label, metric and format of the figures shown, in this order; one without a metric is left out."""

_NO_PHASE = ("time/tokens_per_second", "time/step", "time/traces")
_RECENT = 20  # steps whose median is the pace: the first ones compile, and evaluations come between


def figures(metrics: Mapping[str, float]) -> dict[str, str]:
    """The figures of COLUMNS that are there, as text by label; "-" for what this step has none of."""
    return {label: _text(metrics[name], form) for label, name, form in COLUMNS if name in metrics}


def _text(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def phases(metrics: Mapping[str, float]) -> dict[str, str]:
    """Seconds of each phase (`time/NAME`), as text by name, in the order given."""
    times = {
        k.removeprefix("time/"): v for k, v in metrics.items() if k.startswith("time/") and k not in _NO_PHASE
    }
    return {name: f"{seconds:.2f}s" for name, seconds in times.items()}


def duration(seconds: float) -> str:
    """Hours, minutes and seconds: 1:02:03, 2:03, 0:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class TrainProgress:
    """A bar over `total` steps of which `done` are behind us. On a terminal it is live, with the figures below it;
    elsewhere a line is printed for the first and last step and at most every `interval` seconds between.

        with TrainProgress("f_grpo", total=200) as progress:
            progress.update(metrics)      # after each step
    """

    def __init__(
        self,
        title: str,
        total: int,
        done: int = 0,
        *,
        interval: float = 10.0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title, self.total, self.done = title, total, done
        self._interval, self._clock = interval, clock
        self._console = console or Console(stderr=True)
        self._last_step = clock()
        self._last_line: float | None = None
        self._pace: deque[float] = deque(maxlen=_RECENT)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            expand=True,
        )
        self._task = self._bar.add_task(title, total=total, completed=done, left="")
        terminal = (
            self._console.is_terminal and not self._console.is_dumb_terminal and not self._console.is_jupyter
        )
        self._live = Live(self._bar, console=self._console, refresh_per_second=4) if terminal else None

    def __enter__(self) -> "TrainProgress":
        if self._live:
            self._live.start()
        self._last_step = self._clock()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, metrics: Mapping[str, float], warnings: int = 0) -> None:
        """One more step is done; these are its figures. `warnings` counts those that are not over."""
        now = self._clock()
        self._pace.append(now - self._last_step)
        self._last_step = now
        self.done += 1
        self._bar.update(self._task, completed=self.done, left=f"{duration(self.seconds_left)} left")
        if self._live:
            told = [Text(_warned(warnings), style="yellow")] if warnings else []
            self._live.update(Group(self._bar, _table(metrics, self._console.width), *told))
        elif self._last_line is None or self.done >= self.total or now - self._last_line >= self._interval:
            self._last_line = now
            self._console.print(self.line(metrics, warnings), soft_wrap=True, markup=False, highlight=False)

    @property
    def seconds_left(self) -> float:
        """The steps that are left at the median pace of the last ones; 0 before the first."""
        pace = statistics.median(self._pace) if self._pace else 0.0
        return pace * max(self.total - self.done, 0)

    def line(self, metrics: Mapping[str, float], warnings: int = 0) -> str:
        """The step as one line of text."""
        words = [f"{self.title} {self.done}/{self.total}"]
        words += [f"{name} {text}" for name, text in (figures(metrics) | phases(metrics)).items()]
        return "  ".join(
            [*words, *[_warned(warnings)] * bool(warnings), f"{duration(self.seconds_left)} left"]
        )


def _warned(count: int) -> str:
    return f"{count} warning{'s' * (count > 1)}"


def _table(metrics: Mapping[str, float], width: int) -> Table:
    """The figures under their labels, on as many rows as `width` characters ask for, and the seconds of the phases below."""
    rows: list[list[tuple[str, str]]] = [[]]
    used = 0
    for label, text in figures(metrics).items():
        size = max(len(label), len(text)) + 2
        if used + size > width and rows[-1]:
            rows.append([])
            used = 0
        rows[-1].append((label, text))
        used += size
    whole = Table.grid()
    for row in rows:
        table = Table.grid(padding=(0, 2))
        for _ in row:
            table.add_column(justify="right", no_wrap=True)
        table.add_row(*(label for label, _ in row), style="dim")
        table.add_row(*(text for _, text in row))
        whole.add_row(table)
    whole.add_row("  ".join(f"{name} {text}" for name, text in phases(metrics).items()), style="dim")
    return whole
