"""What each step leaves behind: its figures, its rollouts, and a line or a bar for whoever watches."""

import contextlib
import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import Progress

from rlvr_jax.analysis import Collapsed, CollapseRecord
from rlvr_jax.config import Config
from rlvr_jax.configfile import to_plain
from rlvr_jax.distributed import is_first
from rlvr_jax.rollout.collect import Collected, decode
from rlvr_jax.rollout.prompts import PromptBatch
from rlvr_jax.train.advice import Watch
from rlvr_jax.train.credits import CreditRow, CreditWriter
from rlvr_jax.train.metrics import (
    METRICS,
    WARNINGS,
    JsonLines,
    MetricsWriter,
    RolloutRow,
    RolloutWriter,
    read_rows,
)
from rlvr_jax.train.program import Program
from rlvr_jax.train.progress import TrainProgress
from rlvr_jax.train.writers import check_services, shown_of, writers
from rlvr_jax.types import Mean, Metrics


def merge(first: Metrics, second: Metrics) -> Metrics:
    """Metrics of two optimiser steps as one: sums and counts add."""
    both = {name: first[name].merge(mean) if name in first else mean for name, mean in second.items()}
    return {**first, **both}


@dataclasses.dataclass(frozen=True, eq=False)
class Round:
    """Prompts, and the answers that were sampled to them."""

    prompts: PromptBatch
    found: Collected


class Logs:
    """metrics.jsonl, rollouts.jsonl, TensorBoard and the progress bar of a run that stands at step `first`.

    Of several processes all count, and the first one writes.
    """

    def __init__(self, program: Program, run_dir: pathlib.Path, first: int):
        self._program = program
        self._stack = contextlib.ExitStack()
        self._files = (
            self._stack.enter_context(_Files(program.config, run_dir, first)) if is_first() else None
        )

    def __enter__(self) -> "Logs":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def write(
        self,
        step: int,
        rounds: Sequence[Round],
        learned: Metrics,
        collapse: CollapseRecord,
        times: dict[str, float],
        credited: Sequence[CreditRow] = (),
    ) -> None:
        """Everything about one finished step, which is counted in `collapse`. Figures of answers are about all that were
        sampled, whether they were trained on or not."""
        program = self._program
        tokens = float(sum(r.found.rollout.length.sum() for r in rounds))
        times = dict(times)
        times["time/tokens_per_second"] = tokens / max(times["time/step"], 1e-9)
        times["time/traces"] = float(sum(program.traces.values()))
        others = {
            **{f"acr/{name}": rate for name, rate in collapse.add(self._collapsed(rounds)).items()},
            "optimizer/learning_rate": program.learning_rate_at(step),
        }
        sampled = functools.reduce(merge, (r.found.metrics for r in rounds))
        if self._files is not None:
            rows = [row for r in rounds for row in _rows(program, r.prompts, r.found)]
            self._files.write(step, {**sampled, **learned, **others, **times}, rows)
            self._files.credits.write(step, credited)

    def _collapsed(self, rounds: Sequence[Round]) -> Collapsed:
        size = self._program.spec.group_size
        found = (r.found.rollout for r in rounds)
        return sum((Collapsed.of(x.reward, x.correct, x.valid, size) for x in found), start=Collapsed())


class _Files:
    """What the first process alone has."""

    def __init__(self, config: Config, run_dir: pathlib.Path, first: int):
        with contextlib.ExitStack() as stack:
            logging = config.logging
            # First: where a package is missing, nothing of an earlier run has been cut off.
            self._writers = stack.enter_context(writers(logging, run_dir, first, to_plain(config)))
            self._metrics = stack.enter_context(MetricsWriter(run_dir, first))
            self._show_every = logging.show_every
            self._watch, self._warnings = Watch(), JsonLines(run_dir / WARNINGS, first)
            stack.callback(self._warnings.close)
            for row in read_rows(run_dir / METRICS):
                self._watch.add(row)
            self._rollouts = stack.enter_context(RolloutWriter(run_dir, first))
            self.credits = stack.enter_context(CreditWriter(run_dir, first))
            self._progress = stack.enter_context(TrainProgress(config.task.name, config.steps, first))
            self._stack = stack.pop_all()

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def write(self, step: int, metrics: Mapping[str, Mean | float], rows: Sequence[RolloutRow]) -> None:
        figures = self._metrics.write(step, metrics)
        self._rollouts.write(step, rows)
        warned = self._watch.add({"step": step, **figures})
        self._warnings.append(dataclasses.asdict(each) for each in warned)
        finite = {name: value for name, value in figures.items() if math.isfinite(value)}
        due = self._show_every and step % self._show_every == 0
        shown = shown_of(finite, rows if due else (), {f"warnings/{each.name}": str(each) for each in warned})
        for writer in self._writers:
            writer.write(step, shown)
        for each in warned:
            say(f"warning: {each}")
        self._progress.update(figures, warnings=self._watch.active)


def _rows(program: Program, batch: PromptBatch, found: Collected) -> list[RolloutRow]:
    group = program.spec.group_size
    prompts = decode(program.tokenizer, batch.tokens, batch.length)
    return [
        RolloutRow(
            prompt_id=int(batch.prompt_id[i // group]),
            sample=int(batch.occurrence[i // group]) * group + i % group,
            prompt=prompts[i // group],
            completion=found.completions[i],
            reward=verdict.reward,
            correct=verdict.correct,
            reason=verdict.reason.value,
            length=int(found.rollout.length[i]),
            truncated=bool(found.rollout.truncated[i]),
            version=int(found.version[i]),
        )
        for i, verdict in enumerate(found.verdicts)
    ]


@contextlib.contextmanager
def counting(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for work of known size; on anything but a terminal nothing is drawn."""
    console = Console(stderr=True)
    with Progress(
        console=console, transient=True, disable=not (console.is_terminal and is_first())
    ) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def say(text: str) -> None:
    """One line to standard error, from the first process of a run."""
    if is_first():
        Console(stderr=True).print(text, soft_wrap=True, markup=False, highlight=False)


def check_logging(config: Config) -> None:
    """Raise ModuleNotFoundError where the package of a logging service is missing: now, not after the warm-up."""
    check_services(config.logging)


def warn_about(config: Config) -> None:
    """Combinations that work but surprise."""
    if not config.sampling.is_on_policy:
        say(
            "note: top_k or top_p draws from a part of the policy whose full log-probabilities are trained, which biases "
            "the gradient; sampling.top_k=0 and sampling.top_p=1 do not."
        )
    if config.batch.updates == 1:  # what the notes are about: parts that do nothing on policy
        for note in config.objective.notes:
            say(f"note: {note}")
