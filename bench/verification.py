"""Verdicts per second, and what they cost a step when they are made while other answers are decoded.

    python bench/verification.py                   # 4096 maths and 512 code verdicts, then with sampling beside them
    python bench/verification.py --workers 4

Answers are demonstrations of the tasks' samples; of maths every second one is to another problem, so wrong. Code needs
bubblewrap. Beside
sampling: SmolLM2-135M's shape with random weights answers 8 prompts 8 times each, 64 + 128 tokens; for each row that is
over, one of those answers is judged. The same requests run with and without a judge in turns, and the difference of the medians
is what verdicts cost, in seconds and as a share of the sampling, of which a training step has more than that.
"""

import dataclasses
import itertools
import json
import statistics
import sys
import time
from collections import Counter

import tyro

from rlvr_jax.rollout.bench import ours
from rlvr_jax.rollout.bench.measure import Clocked, model_of
from rlvr_jax.rollout.bench.workload import SamplerBench
from rlvr_jax.rollout.engine import structure
from rlvr_jax.rollout.judge import Judge, judging
from rlvr_jax.tasks.base import Task
from rlvr_jax.tasks.code import Code
from rlvr_jax.tasks.maths import Math


@dataclasses.dataclass(frozen=True)
class Bench:
    maths: int = 4096
    """Verdicts."""
    code: int = 512
    """Verdicts."""
    workers: int = 2
    """Processes that judge."""
    repeats: int = 3
    """Requests of each kind; 0: no sampling beside verdicts."""


def answers(task: Task, count: int) -> list[tuple[dict, str]]:
    """Records with a demonstration each."""
    told = ((record, task.demonstration(record)) for record in task.records("train"))
    return list(itertools.islice(itertools.cycle([(r, text) for r, text in told if text]), count))


def mixed_up(asked: list[tuple[dict, str]]) -> list[tuple[dict, str]]:
    """Every second record with the answer of the one before it."""
    return [(record, asked[i - 1 if i % 2 else i][1]) for i, (record, _) in enumerate(asked)]


def throughput(judge: Judge, asked: list[tuple[dict, str]]) -> dict:
    judge.verdicts(
        [judge.submit(*asked[0]) for _ in range(8)]
    )  # processes are there, and have loaded the verifier
    start = time.perf_counter()
    found = judge.verdicts([judge.submit(*each) for each in asked])
    seconds = time.perf_counter() - start
    reasons = Counter(verdict.reason.value for verdict in found)
    return {
        "verdicts": len(found),
        "seconds": seconds,
        "per_second": len(found) / seconds,
        "reasons": dict(reasons),
    }


def beside_sampling(judge: Judge, asked: list[tuple[dict, str]], repeats: int) -> dict:
    bench = SamplerBench()
    graphdef, params, config, _, stop = model_of(bench)
    clocked = Clocked(structure(graphdef, params), params, stop, 0)
    clocked.compile(bench.workload, lambda _: None)
    engine = clocked.engine(bench.workload)
    alone, judged = [], []
    for repeat in range(repeats):
        request = ours.request(bench.workload, config.vocab_size, 1 + repeat)
        start = time.perf_counter()
        engine.sample(request)
        alone.append(time.perf_counter() - start)
        verdicts = []
        start = time.perf_counter()
        engine.sample(request, lambda row, _: verdicts.append(judge.submit(*asked[row % len(asked)])))  # noqa: B023
        judge.verdicts(verdicts)
        judged.append(time.perf_counter() - start)
    cost = statistics.median(judged) - statistics.median(alone)
    return {"sampling_seconds": alone, "judged_seconds": judged, "share": cost / statistics.median(alone)}


def main(bench: Bench) -> None:
    maths, code = Math(), Code()
    code.check()
    given = {"maths": mixed_up(answers(maths, bench.maths)), "code": answers(code, bench.code)}
    for task, (name, asked) in zip((maths, code), given.items(), strict=True):
        with judging(task, workers=bench.workers) as judge:
            line = {"task": name, "workers": bench.workers, **throughput(judge, asked)}
            if bench.repeats:
                line["beside_sampling"] = beside_sampling(judge, asked, bench.repeats)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Bench)))
