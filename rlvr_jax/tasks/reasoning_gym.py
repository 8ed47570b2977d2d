"""Every generator of the package `reasoning-gym` (arXiv:2505.24760) as a task."""

import ast
import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rlvr_jax.registry import nearest, register
from rlvr_jax.tasks.base import Reason, Split, Task, Verdict, check_split
from rlvr_jax.tasks.records import LazySequence
from rlvr_jax.tasks.tags import ANSWER_FORMAT, last_answer

LONGEST_ANSWER = 10_000
"""Characters."""

READ_AS_PYTHON = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
READ_AS_SYMPY = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
"""Their scorers *run* the answer, as Python or by way of SymPy's parser; `is_harmless` comes first."""

COMPARED = frozenset({"game_of_life_halting"})
"""Answers are compared with the generator's own: the package's scorer takes any text for a right one."""

FUNCTIONS = frozenset("sqrt exp log ln sin cos tan cot sec csc asin acos atan sinh cosh tanh Abs".split())
LARGEST_POWER = 30
LARGEST_NUMBER = 10**30


class Options(dict[str, Any]):
    """Plain values by name, which are not changed any more, so that they can be hashed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(json.dumps(self, sort_keys=True))


def is_harmless(dataset: str, answer: str) -> bool:
    """Whether a dataset's scorer can be given an answer: what it would run has to be sure to end and to do nothing.

    Where answers are read as Python: lists, texts and numbers. Where SymPy reads them: arithmetic, small powers that are
    not raised again, and the functions of `FUNCTIONS`. What is no Python expression at all is refused by the readers.
    """
    if dataset not in READ_AS_PYTHON | READ_AS_SYMPY:
        return True
    if dataset in READ_AS_SYMPY and "!" in answer:  # SymPy's factorial, which is no Python
        return False
    try:
        tree = ast.parse(answer.strip(), mode="eval").body
        return _is_plain(tree) if dataset in READ_AS_PYTHON else _is_tame(tree)
    except (SyntaxError, ValueError):
        return True
    except (RecursionError, MemoryError):
        return False


def _is_plain(node: ast.expr) -> bool:
    match node:
        case ast.Constant() | ast.Name() | ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            return True
        case ast.List(elts=inside) | ast.Tuple(elts=inside):
            return all(map(_is_plain, inside))
    return False


def _is_tame(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=int() | float() as number):
            return abs(number) <= LARGEST_NUMBER
        case ast.Name(id=name):
            return len(name) == 1
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _is_tame(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            powers = any(isinstance(each, ast.Pow) for each in ast.walk(left))
            return not powers and _is_tame(left) and _is_small_power(right)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right=right):
            return _is_tame(left) and _is_tame(right)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
            return name in FUNCTIONS and _is_tame(argument)
    return False


def _is_small_power(node: ast.expr) -> bool:
    """A number, negative or not, or a quotient of such."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return abs(number) <= LARGEST_POWER
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_small_power(operand)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _is_small_power(left) and _is_small_power(right)
    return False


@functools.lru_cache(maxsize=16)
def generator(name: str, size: int, seed: int, config: Options) -> Any:
    """A data set of the package.

    Raises: ModuleNotFoundError without the package, ValueError for unknown names and for configs it does not accept.
    """
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "task reasoning_gym needs the package reasoning-gym: pip install 'rlvr_jax[tasks]'."
        ) from error
    if name == "composite":
        raise ValueError(
            "reasoning_gym dataset 'composite' mixes others; the task 'mixture' does so for all tasks."
        )
    if name not in DATASETS:
        raise ValueError(
            f"no reasoning_gym dataset called {name!r}.{nearest(name, DATASETS)} Known: {', '.join(sorted(DATASETS))}."
        )
    try:
        return create_dataset(name, size=size, seed=seed, **config)
    except (TypeError, AssertionError, ValueError) as error:
        raise ValueError(
            f"reasoning_gym dataset {name!r} cannot be made with size {size} and config {config!r}: {error}"
        ) from error


@functools.lru_cache(maxsize=512)
def problem(name: str, size: int, seed: int, config: Options, index: int) -> dict[str, Any]:
    """The problem at a place of a data set's sequence, as the package has it: more than plain data in places. The answers
    of a group have the same one, which some generators take a second for."""
    return generator(name, size, seed, config)[index]


class GymRecords(LazySequence):
    """A range of what a generator makes, each problem made when it is asked for."""

    def __init__(self, task: "ReasoningGym", split: Split):
        self._task, self._split = task, split
        self._range = range(task.train_size) if split == "train" else range(task.train_size, task.size)

    def __len__(self) -> int:
        return len(self._range)

    def item(self, index: int) -> dict:
        place = self._range[index]
        made = self._task.made(place)
        record_id = f"{self._task.dataset}-{self._split}-{index}"
        return {"id": record_id, "index": place, "question": made["question"], "answer": made["answer"]}


@register("task", "reasoning_gym")
@dataclasses.dataclass(frozen=True)
class ReasoningGym(Task):
    """A generator of `reasoning-gym` (Stojanovski et al., arXiv:2505.24760), judged by its own scorer.

    The splits are two ranges of one sequence of problems, made from different random numbers; a generator with few problems
    makes some in both. A problem is a function of seed and index: another seed is another sequence only where the seeds
    are further apart than the ranges are long.

    Scorers are code of the package. Those that would run an answer get none that could do or cost anything
    (`is_harmless`); what others take long for, and what they raise on, ends in a verification worker with a deadline.

    Raises: ValueError for sizes below 1 and negative seeds; see `generator`.
    """

    dataset: str = "chain_sum"
    """One of the package's about 100 names."""
    config: Mapping[str, Any] = Options()
    """Fields of the generator's config, without `size` and `seed`."""
    train_size: int = 10_000
    test_size: int = 256
    seed: int = 0
    reward: Literal["score", "correct"] = "score"
    """What the scorer gives, which may be a part of 1 for an answer that is nearly right, or well-formed; or 1 for what it
    gives a full 1, and 0 for all else."""

    def __post_init__(self):
        object.__setattr__(self, "config", Options(self.config))
        for name in ("size", "seed"):
            if name in self.config:
                raise ValueError(
                    f"reasoning_gym config has {name!r}: it is a field of the task, train_size, test_size or seed; leave it out."
                )
        for name, least in (("train_size", 1), ("test_size", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"reasoning_gym {name} is {least} or more, got {getattr(self, name)}; raise it."
                )

    @property
    def size(self) -> int:
        """Problems of both splits."""
        return self.train_size + self.test_size

    def made(self, index: int) -> dict[str, Any]:
        """The problem at a place of the sequence: see `problem`."""
        return problem(self.dataset, self.size, self.seed, Options(self.config), index)

    def _generator(self) -> Any:
        return generator(self.dataset, self.size, self.seed, Options(self.config))

    def prepare(self) -> None:
        """Import the package before the clock of a worker runs."""
        self._generator()

    @property
    def processes(self) -> int:
        return 1  # its scorers are not ours

    def check(self) -> None:
        """Raises ModuleNotFoundError without the package, ValueError for what it does not know."""
        self._generator()

    def records(self, split: Split) -> Sequence[dict]:
        check_split(split)
        self._generator()
        return GymRecords(self, split)

    def prompt(self, record: dict) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{record['question']}\n\n{ANSWER_FORMAT}"}]

    def verify(self, record: dict, completion: str) -> Verdict:
        """Between no <answer> tags, longer than 10 000 characters, or not harmless: unparsable. Correct is a score of 1."""
        given = last_answer(completion)
        if given is None or len(given) > LONGEST_ANSWER or not is_harmless(self.dataset, given):
            return Verdict.of(Reason.UNPARSABLE)
        try:
            made = self.made(record["index"])
            compared = self.dataset in COMPARED
            score = given == made["answer"] if compared else self._generator().score_answer(given, made)
            score = float(score)
        except Exception:  # scorers raise what they like on a text that they cannot read
            return Verdict.of(Reason.ERROR)
        if not math.isfinite(score):
            return Verdict.of(Reason.ERROR)
        reason = Reason.CORRECT if score >= 1 else Reason.WRONG
        return Verdict(score if self.reward == "score" else float(score >= 1), score >= 1, reason)

    def answer(self, record: dict, completion: str) -> str | None:
        """What stands in the tags."""
        return last_answer(completion)

    def demonstration(self, record: dict) -> str | None:
        """The generator's own answer; a few generators have a scorer alone."""
        return None if record["answer"] is None else f"<think>\n</think>\n<answer>{record['answer']}</answer>"
