"""Held-out pass@k: sample n answers to each prompt, verify them, and say how sure the figure is."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rlvr_jax.analysis.diversity import variance_by_response
from rlvr_jax.analysis.evaluation import DIVERSE, Answers, Evaluation, by_problem
from rlvr_jax.config import Config
from rlvr_jax.distributed import merged, mine
from rlvr_jax.rollout.collect import Collected, Early, collect
from rlvr_jax.rollout.judge import Judge
from rlvr_jax.rollout.prompts import PromptBatch, evaluation_batches, fingerprint
from rlvr_jax.rollout.protocol import Request, Samples
from rlvr_jax.rollout.sampling import RowSampling, Sampling
from rlvr_jax.tasks.base import Split, Task
from rlvr_jax.train.program import Program
from rlvr_jax.train.rundir import write_whole

EVALUATION_SEED_OFFSET = 1_000_003
"""Added to the run's seed, so that held-out prompts are not sampled with the noise of training prompts."""

EVALUATIONS = "evaluations.jsonl"


@dataclasses.dataclass(frozen=True, eq=False)
class Asked:
    """What is asked: `samples` answers, drawn in the way of `sampling`, to each problem (a batch of one prompt)."""

    task: Task
    problems: tuple[PromptBatch, ...]
    samples: int
    sampling: Sampling

    @classmethod
    def of(
        cls,
        program: Program,
        prompts: int,
        samples: int,
        task: Task | None = None,
        sampling: Sampling | None = None,
        split: Split = "test",
    ) -> "Asked":
        """The first `prompts` records of a split; task and sampling are the run's where they are not given."""
        config = program.config
        task = config.task if task is None else task
        limit, policy = config.prompts.max_tokens, config.prompts.too_long
        problems = evaluation_batches(
            task, program.tokenizer, split, 1, prompts, max_prompt_tokens=limit, policy=policy
        )
        return cls(task, tuple(problems), samples, config.sampling if sampling is None else sampling)


@dataclasses.dataclass(frozen=True)
class Share:
    """`count` answers to one problem (its place among those asked), the first of which is its sample `first`."""

    problem: int
    first: int
    count: int


def chunks(program: Program, asked: Asked, have: Mapping[int, int]) -> list[list[Share]]:
    """What is left to sample, in requests of the run's batch. `have` says how many answers to a problem (by its prompt id)
    there are.

    A problem's shares follow each other, so requests are filled with answers to few problems rather than with surplus ones,
    and the first problems are finished first.
    """
    size, rows = program.spec.group_size, program.config.batch.prompts
    shares = [
        Share(i, first, min(size, asked.samples - first))
        for i, problem in enumerate(asked.problems)
        for first in range(have.get(int(problem.prompt_id[0]), 0), asked.samples, size)
    ]
    return [shares[i : i + rows] for i in range(0, len(shares), rows)]


def ask(program: Program, judge: Judge, asked: Asked, chunk: Sequence[Share]) -> Callable[[], list[Answers]]:
    """Sample the answers of a chunk with the weights that the sampler was given last; what is returned waits for their
    verdicts.

    What only fills up the request (whole shares of the last one, answers over `samples`) ends after one token.
    """
    size = program.spec.group_size
    empty = dataclasses.replace(chunk[-1], count=0)
    shares = [*chunk, *[empty] * (program.config.batch.prompts - len(chunk))]
    batch = _stacked([asked.problems[share.problem] for share in shares])
    wanted = np.concatenate([np.arange(size) < share.count for share in shares])
    early = Early(judge, program.tokenizer, batch.records, size)
    request = Request(
        batch=batch,
        first_sample=np.array([share.first for share in shares], np.int32),
        group_size=size,
        seed=program.config.seed + EVALUATION_SEED_OFFSET,
        step=0,
        overrides=_overrides(asked.sampling, wanted),
    )
    samples = program.sampler.sample(request, early.on_row)

    def judged() -> list[Answers]:
        found = collect(asked.task, program.tokenizer, batch, samples, early.answers())
        own = [row for row in range(len(wanted)) if mine(row)]
        votes = [
            judge.said(batch.records[row // size], found.completions[row]) if wanted[row] else None
            for row in own
        ]
        said = merged([vote and vote.result() for vote in votes], len(wanted))
        return _as_answers(program, asked, chunk, samples, found, said)

    return judged


def in_turn(
    program: Program,
    judge: Judge,
    asked: Asked,
    todo: Iterable[Sequence[Share]],
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[list[Answers]]:
    """The answers of one chunk after the other; the last verdicts come in while the next chunk is sampled. Where `stop` says
    so, nothing more is sampled."""
    waiting: Callable[[], list[Answers]] | None = None
    for chunk in todo:
        if stop():
            break
        sampled = ask(program, judge, asked, chunk)
        if waiting is not None:
            yield waiting()
        waiting = sampled
    if waiting is not None:
        yield waiting()


def evaluate(
    program: Program,
    params: Any,
    judge: Judge,
    *,
    prompts: int,
    samples: int,
    k: Sequence[int],
    task: Task | None = None,
    sampling: Sampling | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """`samples` answers to each of the first `prompts` held-out records, in requests of the training batch's shape.

    So it compiles nothing new. Task and sampling are the run's where they are not given. `progress(done, total)` is called
    after each request.
    """
    asked = Asked.of(program, prompts, samples, task, sampling)
    judge = judge.of(asked.task)
    program.sampler.push(params, version=0)
    todo = chunks(program, asked, {})
    parts: list[Answers] = []
    for i, answers in enumerate(in_turn(program, judge, asked, todo)):
        parts += answers
        progress(i + 1, len(todo))
    return Evaluation.of(by_problem(parts).values(), samples, k)


def _stacked(problems: Sequence[PromptBatch]) -> PromptBatch:
    """Batches of one prompt as one."""
    width = max(problem.tokens.shape[1] for problem in problems)
    tokens = [np.pad(problem.tokens, ((0, 0), (0, width - problem.tokens.shape[1]))) for problem in problems]
    rows = {
        name: np.concatenate([getattr(problem, name) for problem in problems])
        for name in ("length", "prompt_id", "occurrence", "valid")
    }
    records = tuple(record for problem in problems for record in problem.records)
    return PromptBatch(tokens=np.concatenate(tokens), records=records, **rows)


def _overrides(sampling: Sampling, wanted: np.ndarray) -> dict[str, np.ndarray]:
    """Each row's sampling; rows that are not wanted end as soon as they can."""
    names = [field.name for field in dataclasses.fields(RowSampling)]  # type: ignore[arg-type]
    rows = {name: np.full(len(wanted), getattr(sampling, name)) for name in names}
    rows["max_new_tokens"] = np.where(wanted, rows["max_new_tokens"], 1)
    rows["min_new_tokens"] = np.where(wanted, rows["min_new_tokens"], 0)
    return rows


def _as_answers(
    program: Program,
    asked: Asked,
    chunk: Sequence[Share],
    samples: Samples,
    found: Collected,
    said: Sequence[str | None],
) -> list[Answers]:
    size = program.spec.group_size
    special = {*program.stop, *program.tokenizer.all_special_ids}
    variance = jax.device_get(variance_by_response(samples.logprob, samples.mask))

    def tokens(row: int) -> tuple[int, ...]:
        drawn = samples.tokens[row][samples.mask[row] > 0]
        return tuple(token for token in drawn.tolist() if token not in special)

    out = []
    for i, share in enumerate(chunk):
        problem = asked.problems[share.problem]
        rows = range(i * size, i * size + share.count)
        out.append(
            Answers(
                problem=int(problem.prompt_id[0]),
                id=str(problem.records[0].get("id", problem.prompt_id[0])),
                record=fingerprint(problem.records),
                kind=asked.task.kind(problem.records[0]),
                first=share.first,
                reasons=tuple(found.verdicts[row].reason.value for row in rows),
                lengths=tuple(int(samples.length[row]) for row in rows),
                truncated=tuple(bool(samples.truncated[row]) for row in rows),
                said=tuple(said[row] for row in rows),
                variance=tuple(_digits(variance[row]) for row in rows),
                tokens=tuple(tokens(row) for row in list(rows)[: max(0, DIVERSE - share.first)]),
            )
        )
    return out


def _digits(values: Iterable[Any]) -> tuple[float | None, ...]:
    """Six decimals, enough for a mean and short in a file; None for what is not finite."""
    return tuple(round(float(v), 6) if np.isfinite(v) else None for v in values)


def check_held_out(config: Config) -> None:
    """Raise ValueError where a run cannot be evaluated as it says: too few held-out prompts, answers longer than there is
    room for, words that a model from scratch does not know."""
    wanted = config.evaluation
    if not wanted.prompts:
        return
    task = wanted.task or config.task
    there = len(task.records("test"))
    if wanted.prompts > there:
        raise ValueError(
            f"evaluation.prompts={wanted.prompts}, but task {task.name!r} holds out {there} records: ask for fewer."
        )
    longest = wanted.sampling.over(config.sampling).max_new_tokens
    if longest > config.sampling.max_new_tokens:
        raise ValueError(
            f"evaluation.sampling.max_new_tokens={longest} is more than sampling.max_new_tokens="
            f"{config.sampling.max_new_tokens}, for which there is room: raise that, or evaluate with `rlvr-jax eval`."
        )
    unknown = set(task.vocabulary() or ()) - set(config.task.vocabulary() or ())
    if config.model.scratch is not None and (task.vocabulary() is None or unknown):
        raise ValueError(
            f"a model from scratch knows the words of task {config.task.name!r} alone, and evaluation.task {task.name!r} has "
            "others: leave it out, or set model.path instead of model.scratch."
        )


def save_evaluation(run_dir: pathlib.Path, step: int, evaluation: Evaluation) -> None:
    """Add a line to evaluations.jsonl, all or nothing. Lines of this step or later ones are replaced."""
    kept = {s: row for s, row in load_evaluations(run_dir).items() if s < step}
    rows = {**kept, step: evaluation.as_json()}
    write_whole(
        run_dir / EVALUATIONS, "".join(json.dumps({"step": s, **row}) + "\n" for s, row in rows.items())
    )


def load_evaluations(run_dir: pathlib.Path) -> dict[int, dict[str, Any]]:
    """What `save_evaluation` wrote, by step."""
    path = run_dir / EVALUATIONS
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {row.pop("step"): row for row in rows}
