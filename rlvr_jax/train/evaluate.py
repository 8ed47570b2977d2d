"""Held-out pass@k: sample n answers to each prompt, verify them, and say how sure the figure is."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlvr_jax.analysis import bootstrap_interval, pass_at_k
from rlvr_jax.config import Config
from rlvr_jax.rollout.collect import Early, collect
from rlvr_jax.rollout.prompts import PromptBatch, evaluation_batches
from rlvr_jax.rollout.workers import Judge
from rlvr_jax.tasks.base import Reason
from rlvr_jax.train.program import Program

EVALUATION_SEED_OFFSET = 1_000_003
"""Added to the run's seed, so that held-out prompts are not sampled with the noise of training prompts."""


EVALUATIONS = "evaluations.jsonl"


@dataclasses.dataclass(frozen=True)
class PassRate:
    """pass@k over prompts with its 95 % bootstrap interval."""

    k: int
    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """Right answers of each prompt (`right` of `samples`), and what follows from them."""

    prompt_id: np.ndarray
    right: np.ndarray
    samples: int
    rates: tuple[PassRate, ...]
    reasons: dict[str, int]
    mean_length: float

    def as_json(self) -> dict[str, Any]:
        """Plain data, for files and for `--json`."""
        return {
            "prompts": len(self.right),
            "samples": self.samples,
            "pass_at_k": {str(r.k): {"value": r.value, "low": r.low, "high": r.high} for r in self.rates},
            "reasons": self.reasons,
            "mean_length": self.mean_length,
        }


def check_held_out(config: Config) -> None:
    """Raise ValueError where more held-out prompts are asked for than the task has."""
    there = len(config.task.records("test")) if config.evaluation.prompts else 0
    if config.evaluation.prompts > there:
        raise ValueError(
            f"evaluation.prompts={config.evaluation.prompts}, but task {config.task.name!r} holds out {there} records: "
            "ask for fewer."
        )


def evaluate(
    program: Program,
    params: Any,
    judge: Judge,
    *,
    prompts: int,
    samples: int,
    k: Sequence[int],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """`samples` answers to each of the first `prompts` held-out records, in rounds of the training batch's shape.

    Using that shape compiles nothing new; surplus answers of the last round are not counted. With the sampling
    parameters of the run. `progress(done, total)` is called after each round.
    """
    config, group = program.config, program.spec.group_size
    batches = evaluation_batches(
        config.task,
        program.tokenizer,
        "test",
        config.batch.prompts,
        prompts,
        max_prompt_tokens=config.prompts.max_tokens,
        policy=config.prompts.too_long,
    )
    program.sampler.push(params, version=0)
    rounds = -(-samples // group)
    ids, right, reasons, tokens = [], [], dict.fromkeys(map(str, Reason), 0), 0
    for i, batch in enumerate(batches):
        correct = np.zeros((len(batch.length), 0), bool)
        for r in range(rounds):
            keep = min(group, samples - r * group)
            found = _answers(program, judge, batch, first=r * group)
            correct = np.concatenate([correct, found.correct[:, :keep]], axis=1)
            tokens += int(found.length[batch.valid, :keep].sum())
            for reason in found.reason[batch.valid, :keep].flat:
                reasons[reason] += 1
            progress(i * rounds + r + 1, len(batches) * rounds)
        ids.append(batch.prompt_id[batch.valid])
        right.append(correct[batch.valid].sum(1))
    counts = np.concatenate(right)
    return Evaluation(
        prompt_id=np.concatenate(ids),
        right=counts,
        samples=samples,
        rates=tuple(pass_rate(counts, samples, each) for each in sorted(k)),
        reasons=reasons,
        mean_length=tokens / (len(counts) * samples),
    )


def pass_rate(right: np.ndarray, samples: int, k: int) -> PassRate:
    """pass@k of right answers counted for each prompt."""
    values = np.asarray(pass_at_k(samples, right, k), float)
    low, high = bootstrap_interval(values)
    return PassRate(k=k, value=float(values.mean()), low=low, high=high)


@dataclasses.dataclass(frozen=True, eq=False)
class _Answers:
    """[P, G] of each."""

    correct: np.ndarray
    length: np.ndarray
    reason: np.ndarray


def _answers(program: Program, judge: Judge, batch: PromptBatch, first: int) -> _Answers:
    config = program.config
    # Held-out prompts are each other's only neighbours: occurrence counts fillers, which are not scored.
    early = Early(judge, program.tokenizer, batch.records, program.spec.group_size)
    seed = config.seed + EVALUATION_SEED_OFFSET
    samples = program.sample_batch(batch, step=0, seed=seed, first_sample=first, on_row=early.on_row)
    found = collect(config.task, program.tokenizer, batch, samples, early.answers())
    shape = (len(batch.length), program.spec.group_size)
    return _Answers(
        correct=np.array([v.correct for v in found.verdicts]).reshape(shape),
        length=np.asarray(found.rollout.length).reshape(shape),
        reason=np.array([v.reason.value for v in found.verdicts], object).reshape(shape),
    )


def save_evaluation(run_dir: pathlib.Path, step: int, evaluation: Evaluation) -> None:
    """Add a line to evaluations.jsonl, all or nothing. Lines of this step or later ones are replaced."""
    kept = {s: row for s, row in load_evaluations(run_dir).items() if s < step}
    rows = {**kept, step: evaluation.as_json()}
    path = run_dir / EVALUATIONS
    draft = path.with_suffix(".draft")
    draft.write_text("".join(json.dumps({"step": s, **row}) + "\n" for s, row in rows.items()))
    draft.replace(path)


def load_evaluations(run_dir: pathlib.Path) -> dict[int, dict[str, Any]]:
    """What `save_evaluation` wrote, by step."""
    path = run_dir / EVALUATIONS
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {row.pop("step"): row for row in rows}
