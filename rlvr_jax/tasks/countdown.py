"""Countdown, the numbers game: reach a target from a few numbers by + - * /."""

import ast
import collections
import dataclasses
import functools
import hashlib
import operator
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import numpy as np

from rlvr_jax.registry import register
from rlvr_jax.tasks.base import Prompt, Reason, Split, Task, Verdict, check_split
from rlvr_jax.tasks.records import LazySequence
from rlvr_jax.tasks.tags import ANSWER_FORMAT, POINTS, last_answer

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
SIGNS = ("+", "-", "*", "/")
SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})

LONGEST_EXPRESSION = 200
"""Characters. Six numbers of six digits with all their brackets are half as long."""
MOST_NUMBERS = 6
MOST_DRAWS = 20_000
"""With the default ranges, one draw in ten is a problem."""
LARGEST_NUMBER = 100_000

HELD_OUT_SHARE = 4
"""One problem in this many belongs to the test split."""

QUESTION = "Using the numbers {numbers}, write an expression that equals {target}. You may use + - * / and brackets, and {use}."
USE = {"all": "have to use each number exactly once", "some": "may use each number at most once"}
EXAMPLE = "In it, have the expression alone, like: (1 + 2) / 3"


class NotArithmetic(ValueError):
    """A text that is no expression of whole numbers, + - * / and brackets, or that divides by zero."""


def value(expression: str) -> tuple[Fraction, list[int]]:
    """What an expression equals, exactly, and the numbers it uses from left to right.

    Raises: NotArithmetic, for any text and before much is computed: there are no powers.
    """
    expression = expression.translate(SPELLINGS).strip()
    if len(expression) > LONGEST_EXPRESSION or not re.fullmatch(r"[0-9+\-*/()\s]+", expression):
        raise NotArithmetic("an expression is short, and has numbers, + - * / and brackets.")
    numbers: list[int] = []
    try:
        tree = ast.parse(" ".join(expression.split()), mode="eval")
        return _value(tree.body, numbers), numbers
    except (SyntaxError, RecursionError, MemoryError, ZeroDivisionError) as error:
        raise NotArithmetic(str(error)) from error


def _value(node: ast.expr, numbers: list[int]) -> Fraction:
    match node:
        case ast.Constant(value=int(number)):
            numbers.append(number)
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, numbers)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATIONS:
            first = _value(left, numbers)
            return OPERATIONS[type(sign)](first, _value(right, numbers))
    raise NotArithmetic(f"{ast.unparse(node)} is more than + - * / of numbers.")


def is_held_out(numbers: Sequence[int], target: int) -> bool:
    """Whether a problem belongs to the test split: a function of the target and the numbers, not of their order."""
    digest = hashlib.blake2b(f"{sorted(numbers)} {target}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_SHARE == 0


def new_problem(
    count: int, largest: int, largest_target: int, held_out: bool, rng: np.random.Generator
) -> dict:
    """`numbers`, `target` and a `solution` that uses every number: two parts at a time are joined by any sign that leaves
    a whole number above 0.

    Raises: ValueError where targets so small seem to be out of reach.
    """
    for _ in range(MOST_DRAWS):
        numbers = [int(n) for n in rng.integers(1, largest + 1, count)]
        parts = [(Fraction(n), str(n)) for n in numbers]
        while len(parts) > 1:
            parts = [parts[i] for i in rng.permutation(len(parts))]
            (a, left), (b, right), *rest = parts
            joints = [(a + b, "+"), (a * b, "*")]
            joints += [(a - b, "-")] if a > b else []
            joints += [(a / b, "/")] if (a / b).denominator == 1 else []
            found, sign = joints[int(rng.integers(len(joints)))]
            parts = [(found, f"( {left} {sign} {right} )"), *rest]
        target, solution = parts[0]
        if target <= largest_target and is_held_out(numbers, int(target)) == held_out:
            return {
                "numbers": numbers,
                "target": int(target),
                "solution": solution.removeprefix("( ").removesuffix(" )"),
            }
    raise ValueError(
        f"of {MOST_DRAWS} draws of {count} numbers up to {largest}, none gave a target up to {largest_target} that this "
        "split may have; raise largest_target, or lower largest_number."
    )


class CountdownRecords(LazySequence):
    """The training problems, each made when it is asked for, from (seed, index) alone."""

    def __init__(self, numbers: tuple[int, ...], largest: int, largest_target: int, length: int, seed: int):
        self._numbers, self._largest, self._largest_target = numbers, largest, largest_target
        self._length, self._seed = length, seed

    def __len__(self) -> int:
        return self._length

    def item(self, index: int) -> dict:
        rng = np.random.default_rng([self._seed, 0, index])
        count = self._numbers[index % len(self._numbers)]
        problem = new_problem(count, self._largest, self._largest_target, False, rng)
        return {"id": f"countdown-train-{index}", **problem}


@functools.lru_cache(maxsize=8)
def _test_records(
    numbers: tuple[int, ...], largest: int, largest_target: int, length: int, seed: int
) -> tuple[dict, ...]:
    """Held-out problems, no two of the same numbers and target."""
    rng = np.random.default_rng([seed, 1])
    found: dict[tuple[int, ...], dict] = {}
    for _ in range(100 * length):
        count = numbers[len(found) % len(numbers)]
        problem = new_problem(count, largest, largest_target, True, rng)
        key = (problem["target"], *sorted(problem["numbers"]))
        found.setdefault(key, {"id": f"countdown-test-{len(found)}", **problem})
        if len(found) == length:
            return tuple(found.values())
    raise ValueError(
        f"countdown test_size={length}: {100 * length} draws gave {len(found)} different problems to hold out; ask for fewer, "
        "or for larger numbers."
    )


@register("task", "countdown")
@dataclasses.dataclass(frozen=True)
class Countdown(Task):
    """Reach a target from a few numbers by + - * / (the game of TinyZero, github.com/Jiayi-Pan/TinyZero).

    Every problem has a solution that uses all its numbers, whole numbers all the way. An answer is an expression between
    <answer> tags, "= target" behind it or not; it is computed in exact fractions. It is wrong where it equals something
    else or does not use the numbers as told, and unparsable where it is no expression, or divides by zero.

    Raises: ValueError for counts outside 2..6, ranges too small for a split, sizes below 1, and negative seeds.
    """

    numbers: tuple[int, ...] = (3, 4)
    """How many numbers the problems have, in turn."""
    largest_number: int = 99
    largest_target: int = 99
    use: Literal["all", "some"] = "all"
    """Whether an answer has each number exactly once, or at most once."""
    train_size: int = 1_000_000
    test_size: int = 256
    seed: int = 0
    style: Literal["chat", "words"] = "chat"
    """`words`: numbers and target alone, as raw text of the words in `vocabulary`, for a model from scratch."""
    format_reward: float = 0.0
    """Weight of the reward for <think>...</think><answer>...</answer> and nothing else."""

    def __post_init__(self):
        if not self.numbers or not all(2 <= count <= MOST_NUMBERS for count in self.numbers):
            raise ValueError(
                f"countdown numbers={self.numbers}: name one or more counts in 2..{MOST_NUMBERS}."
            )
        for name, most in (("largest_number", LARGEST_NUMBER), ("largest_target", LARGEST_NUMBER)):
            if not 9 <= getattr(self, name) <= most:
                raise ValueError(f"countdown {name} is in 9..{most}, got {getattr(self, name)}.")
        for name, least in (("train_size", 1), ("test_size", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"countdown {name} is {least} or more, got {getattr(self, name)}; raise it.")

    def records(self, split: Split) -> Sequence[dict]:
        check_split(split)
        sizes = (self.numbers, self.largest_number, self.largest_target)
        for count in self.numbers:  # ranges that give no problem are found before a run starts
            new_problem(count, *sizes[1:], False, np.random.default_rng(self.seed))
        if split == "train":
            return CountdownRecords(*sizes, self.train_size, self.seed)
        return _test_records(*sizes, self.test_size, self.seed)

    def prompt(self, record: dict) -> Prompt:
        numbers = [str(n) for n in record["numbers"]]
        if self.style == "words":
            return " ".join([*numbers, self.use, "=", str(record["target"])])
        question = QUESTION.format(numbers=", ".join(numbers), target=record["target"], use=USE[self.use])
        return [{"role": "user", "content": f"{question}\n\n{ANSWER_FORMAT} {EXAMPLE}"}]

    def verify(self, record: dict, completion: str) -> Verdict:
        reason = self._reason(record, completion)
        return POINTS["binary"].verdict(reason, completion, self.format_reward)

    def _reason(self, record: dict, completion: str) -> Reason:
        given = last_answer(completion)
        if given is None:
            return Reason.UNPARSABLE
        try:
            sides = [value(side) for side in given.split("=", 1)]
        except NotArithmetic:
            return Reason.UNPARSABLE
        used, there = collections.Counter(sides[0][1]), collections.Counter(record["numbers"])
        as_told = used == there if self.use == "all" else used <= there
        right = as_told and all(found == record["target"] for found, _ in sides)
        return Reason.CORRECT if right else Reason.WRONG

    def answer(self, record: dict, completion: str) -> str | None:
        """What the expression equals."""
        try:
            return str(value((last_answer(completion) or "").partition("=")[0])[0])
        except NotArithmetic:
            return None

    def vocabulary(self) -> tuple[str, ...] | None:
        if self.style == "chat":
            return None
        largest = max(self.largest_number, self.largest_target)
        tags = ("<think>", "</think>", "<answer>", "</answer>")
        return (*tags, self.use, "=", "(", ")", *SIGNS, *(str(n) for n in range(1, largest + 1)))

    def demonstration(self, record: dict) -> str:
        """The solution that the problem was made from."""
        return f"<think> </think> <answer> {record['solution']} </answer>"
