"""Samples and records to a `Rollout`: decode, verify, and lay the rows out for the trainer."""

import dataclasses
from concurrent.futures import Future
from typing import Any, TypeAlias

import numpy as np

from rlvr_jax.distributed import merged, mine
from rlvr_jax.rollout.judge import Judge
from rlvr_jax.rollout.prompts import PromptBatch
from rlvr_jax.rollout.protocol import Samples
from rlvr_jax.tasks.base import Reason, Task, Verdict
from rlvr_jax.types import Mean, Metrics, Rollout, Stat

Answers: TypeAlias = tuple[list[str], tuple[Verdict, ...]]
"""The text of each response, and what was said of it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Collected:
    """A verified batch: the rollout (NumPy leaves), its log-probabilities, and what a person wants to read."""

    rollout: Rollout
    logprob: np.ndarray
    version: np.ndarray
    """[B], of the weights that a row was sampled with."""
    completions: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    metrics: Metrics


def verify(task: Task, records: tuple[dict, ...], completions: list[str]) -> tuple[Verdict, ...]:
    """A verdict for each completion; `len(completions) / len(records)` consecutive ones answer each record."""
    share = len(completions) // len(records)
    return tuple(task.verify(records[i // share], text) for i, text in enumerate(completions))


def decode(tokenizer: Any, tokens: np.ndarray, length: np.ndarray) -> list[str]:
    """Text of each response, special tokens left out."""
    return [
        tokenizer.decode(row[:n].tolist(), skip_special_tokens=True)
        for row, n in zip(tokens, length, strict=True)
    ]


class Early:
    """Answers go to a judge as they are finished, while others are sampled: give `on_row` to the sampler, then `answers`
    to `collect`. Of several processes each judges its own rows, and all have every verdict."""

    def __init__(self, judge: Judge, tokenizer: Any, records: tuple[dict, ...], group_size: int):
        self._judge, self._tokenizer, self._records, self._size = judge, tokenizer, records, group_size
        self._texts: dict[int, str] = {}
        self._asked: dict[int, Future[Verdict]] = {}

    def on_row(self, row: int, tokens: np.ndarray) -> None:
        (text,) = decode(self._tokenizer, tokens[None], np.array([len(tokens)]))
        self._texts[row] = text
        if mine(row):
            self._asked[row] = self._judge.submit(self._records[row // self._size], text)

    def answers(self) -> Answers:
        """In the order of the rows; waits for those that are missing."""
        rows = range(len(self._records) * self._size)
        own = self._judge.verdicts([self._asked[row] for row in rows if mine(row)])
        return [self._texts[row] for row in rows], tuple(merged(own, len(rows)))


def collect(
    task: Task,
    tokenizer: Any,
    batch: PromptBatch,
    samples: Samples,
    answers: Answers | None = None,
) -> Collected:
    """Decode and verify the samples of a prompt batch, where that has not been done (`Early`).

    A response is rejected, and counted, where a log-probability of it is not finite or where there is no finite reward:
    nothing of it is trained, and its group is judged by the others.
    """
    tokens, length = np.asarray(samples.tokens), np.asarray(samples.length)
    group_size = len(tokens) // len(batch.length)
    if answers is None:
        texts = decode(tokenizer, tokens, length)
        answers = texts, verify(task, batch.records, texts)
    completions, verdicts = answers
    verdicts = tuple(map(of_whole, verdicts, map(bool, samples.truncated)))
    mask = samples.mask.copy()
    broken = ~np.isfinite(np.where(mask > 0, samples.logprob, 0)).all(1)
    reward = np.array([np.nan if v.reward is None else v.reward for v in verdicts], np.float32)
    judged = np.isfinite(reward)
    mask *= (judged & ~broken)[:, None]
    rollout = Rollout(
        prompt=np.repeat(batch.tokens, group_size, axis=0),
        prompt_length=np.repeat(batch.length, group_size),
        tokens=tokens,
        length=length,
        mask=mask,
        reward=np.where(judged, reward, 0),
        correct=np.array([v.correct for v in verdicts], np.float32),
        prompt_id=np.repeat(batch.prompt_id, group_size),
        truncated=np.asarray(samples.truncated),
    )
    return Collected(
        rollout=rollout,
        logprob=samples.logprob,
        version=samples.version,
        completions=tuple(completions),
        verdicts=verdicts,
        metrics=_metrics(rollout, samples.stats, verdicts, judged)
        | _by_kind(task, batch.records, rollout.correct)
        | {"rollout/nonfinite": _share(broken), "rollout/unjudged": _share(~judged)},
    )


def of_whole(verdict: Verdict, truncated: bool) -> Verdict:
    """The verdict on an answer that may have been cut: what was not said yet is neither wrong nor unparsable."""
    if truncated and verdict.reason in (Reason.WRONG, Reason.UNPARSABLE):
        return dataclasses.replace(verdict, reason=Reason.TRUNCATED)
    return verdict


def _by_kind(task: Task, records: tuple[dict, ...], correct: np.ndarray) -> dict[str, Mean]:
    """The share of right answers for each kind of record, where the task tells kinds apart."""
    kinds = [task.kind(record) for record in records]
    rows = correct.reshape(len(records), -1)
    return {
        f"correct/{kind}": _share(rows[[i for i, each in enumerate(kinds) if each == kind]])
        for kind in sorted({each for each in kinds if each is not None})
    }


def _by_part(verdicts: tuple[Verdict, ...]) -> dict[str, Mean]:
    """Each of several rewards, without its weight and with it, over the answers that have it."""
    parts = [part for verdict in verdicts for part in verdict.parts]
    found = {}
    for name in dict.fromkeys(part.name for part in parts):
        mine = [part for part in parts if part.name == name]
        found[f"rewards/{name}"] = _share([part.value for part in mine])
        found[f"rewards/{name}/weighted"] = _share([part.value * part.weight for part in mine])
    return found


def _share(flags: Any) -> Mean:
    return Mean(total=float(np.sum(flags)), count=float(np.size(flags)))


def _metrics(
    rollout: Rollout, stats: dict[Stat, np.ndarray], verdicts: tuple[Verdict, ...], judged: np.ndarray
) -> dict[str, Mean]:
    return {
        "reward/mean": _share(rollout.reward[judged]),
        "reward/correct": _share(rollout.correct),
        **_by_part(verdicts),
        **{f"verdict/{r.value}": _share([v.reason is r for v in verdicts]) for r in Reason},
        "length/mean": _share(rollout.length),
        "length/truncated": _share(rollout.truncated),
        # Where the log-probability is not finite the entropy seldom is, and nan * 0 is nan.
        **{
            f"policy/{stat.value}": Mean(
                total=float(np.sum(np.where(rollout.mask > 0, values, 0.0))),
                count=float(np.sum(rollout.mask)),
            )
            for stat, values in stats.items()
        },
    }
