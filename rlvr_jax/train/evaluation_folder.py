"""The folder of an evaluation: what determines its answers, the answers so far, and what they came to.

    settings.yaml      weights, task, sampling, seed: answers to other ones do not come in here
    answers.jsonl      one line for each share of a problem's answers, on disk before the next ones are sampled
    evaluation.json    the figures, and the right answers of each problem
    evaluation.png     pass@k over k, and the problems by their share of right answers

What stands in answers.jsonl is not sampled again: not after a stop, nor for more prompts, more samples, or another k.
"""

import dataclasses
import hashlib
import json
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import yaml

from rlvr_jax.analysis.evaluation import Answers, Evaluation, by_problem
from rlvr_jax.analysis.evaluation_plot import plot_evaluation
from rlvr_jax.configfile import to_plain
from rlvr_jax.distributed import barrier, is_first
from rlvr_jax.rollout.judge import Judge
from rlvr_jax.rollout.prompts import PromptBatch, fingerprint
from rlvr_jax.train.evaluate import Asked, chunks, in_turn
from rlvr_jax.train.metrics import JsonLines, read_rows
from rlvr_jax.train.program import Program
from rlvr_jax.train.rundir import differences, write_whole

SETTINGS, ANSWERS = "settings.yaml", "answers.jsonl"
RESULT, PICTURE = "evaluation.json", "evaluation.png"


class EvaluationFolder:
    """Opened for settings (plain data), which must be those that it was made with. `answers` is what it holds, by problem.

    A last line that a crash cut short is dropped. Of several processes all read, and the first one writes.

    Raises ValueError for a folder of other settings, and for one that is no evaluation.
    """

    def __init__(self, path: pathlib.Path, settings: Mapping[str, Any]):
        self.path = path
        self._open(settings)
        lines = read_rows(path / ANSWERS) if (path / ANSWERS).exists() else []
        self.requests = 1 + max((line["step"] for line in lines), default=-1)
        self.answers = by_problem(_answers(line) for line in lines)
        barrier()  # nobody writes while others read
        self._lines = JsonLines(path / ANSWERS, start_step=sys.maxsize) if is_first() else None

    def _open(self, settings: Mapping[str, Any]) -> None:
        path = self.path / SETTINGS
        if path.is_file():
            other = differences(yaml.safe_load(path.read_text(encoding="utf-8")), settings)
            if other:
                lines = [f"  {key}: {before} there, {now} now" for key, (before, now) in other.items()]
                raise ValueError(
                    f"{self.path} is another evaluation, with other\n" + "\n".join(lines) + "\n"
                    "Go back to its values, or name another folder with --output."
                )
        elif self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ValueError(
                f"{self.path} exists and is no evaluation (it has no {SETTINGS}): name another folder."
            )
        barrier()
        if not path.is_file() and is_first():
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(path, yaml.safe_dump(dict(settings), sort_keys=False))

    def __enter__(self) -> "EvaluationFolder":
        return self

    def __exit__(self, *error: object) -> None:
        if self._lines is not None:
            self._lines.close()

    def check(self, problems: Sequence[PromptBatch]) -> None:
        """Raise ValueError where a record is not the one that was answered here."""
        for problem in problems:
            held = self.answers.get(int(problem.prompt_id[0]))
            if held is not None and held.record != fingerprint(problem.records):
                raise ValueError(
                    f"problem {held.problem} is not the record that was answered in {self.path}: go back to its data, or "
                    "name another folder with --output."
                )

    def add(self, answers: Sequence[Answers]) -> None:
        """The answers of one request, on disk when this returns."""
        if self._lines is not None:
            self._lines.append({"step": self.requests, **dataclasses.asdict(each)} for each in answers)
        self.requests += 1
        self.answers = by_problem([*self.answers.values(), *answers])

    def finish(self, found: Evaluation, about: Mapping[str, Any], title: str) -> dict[str, Any]:
        """Write the figures and the picture; returns the figures as plain data."""
        result = {
            **about,
            **found.as_json(),
            "diversity": found.diversity(),
            "problems": [
                {"problem": each.problem, "id": each.id, "record": each.record, "right": sum(each.correct)}
                for each in found.answers
            ],
        }
        if is_first():
            plot_evaluation(result, self.path / PICTURE, title)
            write_whole(self.path / RESULT, json.dumps(result, indent=1) + "\n")
        return result


def evaluate_into(
    folder: EvaluationFolder,
    program: Program,
    params: Any,
    judge: Judge,
    asked: Asked,
    k: Sequence[int],
    progress: Callable[[int, int], None] = lambda done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """`evaluate`, each request's answers kept in a folder; only those that it lacks are sampled. None where `stop` said so:
    it is asked before each request."""
    folder.check(asked.problems)
    have = {problem: held.count for problem, held in folder.answers.items()}
    todo = chunks(program, asked, have)
    if todo:
        program.sampler.push(params, version=0)
    done = 0
    for answers in in_turn(program, judge, asked, todo, stop):
        folder.add(answers)
        done += 1
        progress(done, len(todo))
    if done < len(todo):
        return None
    wanted = (int(problem.prompt_id[0]) for problem in asked.problems)
    return Evaluation.of([folder.answers[problem] for problem in wanted], asked.samples, k)


def read_result(path: pathlib.Path) -> dict[str, Any]:
    """The figures of an evaluation's folder, or of its evaluation.json.

    Raises ValueError for anything else, and for an evaluation that is not finished.
    """
    file = path / RESULT if path.is_dir() else path
    if not file.is_file():
        held = path.is_dir() and (path / ANSWERS).exists()
        why = (
            "the evaluation there is not finished: go on with it"
            if held
            else "name the folder of an evaluation"
        )
        raise ValueError(f"{path} has no {RESULT}; {why}.")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {**found, "problems": list(found["problems"]), "task": dict(found["task"])}
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"{file} is not what `rlvr-jax eval` writes: name the folder of an evaluation."
        ) from None


def settings_apart(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """In what two results were sampled differently, as texts by dotted key: the policy, its step, sampling, seed, samples."""
    names = ("policy", "step", "weights", "seed", "sampling", "samples")
    return differences(*({name: result[name] for name in names} for result in (first, second)))


def settings_of(program: Program, params: Any, asked: Asked, split: str) -> dict[str, Any]:
    """Everything that determines the answers to a problem, as plain data; not how many problems, samples and devices."""
    config = to_plain(program.config)
    first = asked.problems[0]
    return {
        "weights": weights_print(params),
        "task": config["task"],
        "split": split,
        "seed": config["seed"],
        "sampling": config["sampling"],
        "turns": config["turns"],
        "vllm": config["vllm"],
        "prompts": config["prompts"],
        "dtype": config["model"]["dtype"],
        "cache": config["decoding"]["cache"],
        "first_prompt": _digest(first.tokens[0, : first.length[0]].tolist()),
    }


def folder_name(settings: Mapping[str, Any]) -> str:
    """A name of its own for each settings."""
    return f"{settings['task']['name']}-{settings['split']}-{_digest(settings)}"


def weights_print(params: Any) -> str:
    """A fingerprint of every bit of all parameters, the same on every mesh."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    sums = jax.device_get(_checksums([leaf for _, leaf in leaves]))
    lines = [
        [jax.tree_util.keystr(path), list(leaf.shape), str(leaf.dtype), int(total)]
        for (path, leaf), total in zip(leaves, sums, strict=True)
    ]
    return _digest(sorted(lines))


@jax.jit
def _checksums(leaves: list[jax.Array]) -> list[jax.Array]:
    """Sums of the bits, each times an odd number of its place, modulo 2^32: exact in any order, so on any mesh."""

    def total(x: jax.Array) -> jax.Array:
        bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}")).astype(jnp.uint32)
        place = jnp.zeros(x.shape, jnp.uint32)
        for axis, size in enumerate(x.shape):
            place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
        return (bits * (2 * place + 1)).sum(dtype=jnp.uint32)

    return [total(x) for x in leaves]


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _answers(line: Mapping[str, Any]) -> Answers:
    fields = {f.name: line[f.name] for f in dataclasses.fields(Answers)}
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    nested = {name: tuple(map(tuple, fields[name])) for name in ("variance", "tokens")}
    return Answers(**{**fields, **lists, **nested})
