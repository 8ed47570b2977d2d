"""Verdicts on answers, made in worker processes while others are still decoded.

with judging(task, workers=2, deadline=5.0, batch_deadline=60.0) as judge:
    asked = [judge.submit(record, text) for text in answers]
    rewards = [verdict.reward for verdict in judge.verdicts(asked)]
"""

import concurrent.futures
import contextlib
import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from rlvr_jax.rollout.workers import Done, Installed, Outcome, TimedOut, Workers, then
from rlvr_jax.tasks.base import Reason, Task, Verdict


class Judge:
    """Asks a task's verifier. The task travels once to each process.

    Too long is `Reason.TIMEOUT`; a verifier that raised, died, or gave no verdict is `Reason.ERROR`: neither is a wrong
    answer. Raises: ValueError for a task that cannot be pickled.
    """

    def __init__(self, task: Task, workers: Workers, batch_deadline: float):
        self._task, self._workers, self._batch_deadline = task, workers, batch_deadline
        self._verify = workers.install(task.verify)

    def of(self, task: Task) -> "Judge":
        """The judge of a task, in the same processes."""
        return self if task == self._task else Judge(task, self._workers, self._batch_deadline)

    def submit(self, record: dict, completion: str) -> "Future[Verdict]":
        """A future whose result is a `Verdict`; it never raises on account of the answer."""
        return then(self._workers.submit(self._verify, record, completion), verdict)

    def verdicts(self, asked: "Sequence[Future[Verdict]]") -> tuple[Verdict, ...]:
        """In the order of the askers. What is not there after `batch_deadline` seconds has timed out, and is not begun any
        more."""
        done, late = concurrent.futures.wait(asked, timeout=self._batch_deadline)
        for each in late:
            each.cancel()
        return tuple(each.result() if each in done else Verdict.of(Reason.TIMEOUT) for each in asked)

    def said(self, record: dict, completion: str) -> "Future[str | None]":
        """A future of what the answer votes for (`Task.answer`); `None` where that cannot be told."""
        return then(self._workers.submit(self._answer, record, completion), _text_or_none)

    @functools.cached_property
    def _answer(self) -> Installed:
        return self._workers.install(self._task.answer)


@contextlib.contextmanager
def judging(
    task: Task,
    workers: int | None = None,
    deadline: float = 10.0,
    batch_deadline: float = 600.0,
    memory_gb: float = 4.0,
    others: Sequence[Task] = (),
) -> Iterator[Judge]:
    """A judge with processes of its own: `workers` of them, or as many as the task (or one of `others`, which it will judge
    too) asks for, with so many GiB for each."""
    wanted = max(each.processes for each in (task, *others))
    count, memory = wanted if workers is None else workers, int(memory_gb * 2**30)
    with Workers(count, deadline, memory=memory) as processes:
        yield Judge(task, processes, batch_deadline)


def verdict(outcome: Outcome) -> Verdict:
    """What a verifier's call says about an answer."""
    if isinstance(outcome, TimedOut):
        return Verdict.of(Reason.TIMEOUT)
    if isinstance(outcome, Done) and isinstance(outcome.value, Verdict):
        return outcome.value
    return Verdict.of(Reason.ERROR)


def _text_or_none(outcome: Outcome) -> str | None:
    return outcome.value if isinstance(outcome, Done) and isinstance(outcome.value, str) else None
