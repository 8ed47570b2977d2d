"""Knights and Knaves: who of several people always tells the truth, and who always lies?"""

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rlvr_jax.registry import nearest, register
from rlvr_jax.tasks.base import Prompt, Reason, Split, Task, Verdict, check_split
from rlvr_jax.tasks.knights_knaves_puzzles import (
    FORMS,
    FUNCTION_WORDS,
    NAMES,
    PUNCTUATION,
    new_puzzle,
    solutions,
    text,
    words,
)
from rlvr_jax.tasks.records import LazySequence, RecordError, converted
from rlvr_jax.tasks.sources import read_records
from rlvr_jax.tasks.tags import ANSWER_FORMAT, POINTS, last_answer

MOST_PEOPLE = 8
STORY = (
    "On an island everybody is either a knight, who always tells the truth, or a knave, who always lies. You meet {count} "
    "of them: {names}. {said} Who is a knight, and who is a knave?"
)
FORMAT = f"{ANSWER_FORMAT} In it, have a line for each person, like: (1) {NAMES[0]} is a knight"
DRAWS_PER_TEST_PUZZLE = 200
"""So many puzzles in a row that are known already, and the search for others ends."""

_CONCLUSION = re.compile(
    r"(?<![\w'-])([\w'-]{1,40})[^\w\n]{1,6}(?:is[^\w\n]{1,6})?(?:an?[^\w\n]{1,6})?(knight|knave)\b",
    re.IGNORECASE,
)
"""Zoe is a knight, **Zoe**: knave, and the like."""


def conclusion(completion: str) -> dict[str, set[str]]:
    """What is said of whom, in small letters: in the last <answer>, else after the last CONCLUSION, else after </think>,
    else anywhere."""
    told = last_answer(completion)
    if told is None:
        marks = list(re.finditer(r"conclusion\b|</think>", completion, re.IGNORECASE))
        told = completion[marks[-1].end() :] if marks else completion
    found: dict[str, set[str]] = {}
    for name, kind in _CONCLUSION.findall(told):
        found.setdefault(name.lower(), set()).add(kind.lower())
    return found


class PuzzleRecords(LazySequence):
    """The training puzzles, each made when it is asked for, from (seed, index) alone."""

    def __init__(self, people: tuple[int, ...], forms: tuple[str, ...], length: int, seed: int):
        self._people, self._forms, self._length, self._seed = people, forms, length, seed

    def __len__(self) -> int:
        return self._length

    def item(self, index: int) -> dict:
        rng = np.random.default_rng([self._seed, 0, index])
        people = self._people[index % len(self._people)]
        return _record(f"knights-train-{index}", new_puzzle(people, self._forms, False, rng))


@functools.lru_cache(maxsize=8)
def _test_records(
    people: tuple[int, ...], forms: tuple[str, ...], length: int, seed: int
) -> tuple[dict, ...]:
    """Held-out puzzles of which no two have the same statements."""
    rng = np.random.default_rng([seed, 1])
    known: set[str] = set()
    records = []
    for index in range(length):
        for _ in range(DRAWS_PER_TEST_PUZZLE):
            puzzle = new_puzzle(people[index % len(people)], forms, True, rng)
            key = str(puzzle["statements"])
            if key not in known:
                break
        else:
            raise ValueError(
                f"knights_knaves test_size={length}: of {people[index % len(people)]} people there are no more than {index} "
                "puzzles to hold out; ask for fewer, or for more people in `people`."
            )
        known.add(key)
        records.append(_record(f"knights-test-{index}", puzzle))
    return tuple(records)


def _record(record_id: str, puzzle: dict[str, Any]) -> dict:
    names, statements = puzzle["names"], puzzle["statements"]
    said = " ".join(
        f"{name} says: {text(words(one, names))}." for name, one in zip(names, statements, strict=True)
    )
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return {"id": record_id, "prompt": STORY.format(count=len(names), names=listed, said=said), **puzzle}


def read_record(style: str, split: Split, index: int, where: str, line: dict[str, Any]) -> dict:
    """A record of a file: its `statements`, where it has some, must have its `solution` and no other.

    Raises: RecordError for names and solutions that do not fit each other, and for statements with other solutions.
    """
    names, solution, statements = line["names"], line["solution"], line.get("statements")
    if not names or len(names) != len(solution) or len({name.lower() for name in names}) < len(names):
        raise RecordError(f"{where}: {len(solution)} solutions for the names {names}; each person has one.")
    if any(not re.fullmatch(r"[\w'-]+", name) for name in names):
        raise RecordError(f"{where}: a name is one word, which answers are searched for; got {names}.")
    if statements is None and style == "words":
        raise RecordError(f"{where}: style 'words' asks with the 'statements', and this record has none.")
    if statements is not None:
        try:
            found = solutions(statements)
        except ValueError as error:
            raise RecordError(f"{where}: {error}") from error
        if found != [list(map(bool, solution))]:
            raise RecordError(
                f"{where}: its statements have the solutions {found}, and not {solution} alone."
            )
    record = {"id": str(line.get("id", f"knights-{split}-{index}")), "prompt": line["prompt"], "names": names}
    return record | ({} if statements is None else {"statements": statements}) | {"solution": solution}


@register("task", "knights_knaves")
@dataclasses.dataclass(frozen=True)
class KnightsKnaves(Task):
    """Knights and Knaves puzzles with exactly one solution (arXiv:2410.23123), new ones or those in `path`.

    New puzzles have the numbers of people of `people` in turn and the statements of `forms` with even odds. Which split
    a puzzle belongs to is a function of its statements, so no seed and no size can put a training puzzle into the test;
    the puzzles of the test differ from each other. An answer is correct where it says of every person what he is. One
    that says two things of a person, or nothing, is unparsable.

    Raises: ValueError for other numbers of people than 2 to 8, unknown forms, sizes below 1, and negative seeds.
    """

    path: str | None = None
    """Files with `prompt`, `names`, `solution` (true: knight) and, optionally, `statements`. `None`: new puzzles."""
    people: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    forms: tuple[str, ...] = FORMS
    train_size: int = 100_000
    test_size: int = 256
    seed: int = 0
    style: Literal["chat", "words"] = "chat"
    """`words`: the statements alone, as raw text of the few words in `vocabulary`, for a model from scratch. It has no
    other names than those of new puzzles."""
    points: Literal["binary", "logic_rl"] = "binary"
    """1 or 0; or the rewards of Logic-RL (arXiv:2502.14768): 2 correct, -1.5 wrong, -2 unparsable, and for the format 1
    or -1. It goes with `format_reward` 1. Deviation: there an answer in a wrong format is unparsable whatever it says."""
    format_reward: float = 0.0
    """Weight of the reward for <think>...</think><answer>...</answer> and nothing else."""

    def __post_init__(self):
        if not self.people or not all(2 <= count <= MOST_PEOPLE for count in self.people):
            raise ValueError(
                f"knights_knaves people={self.people}: name one or more numbers in 2..{MOST_PEOPLE}."
            )
        for form in self.forms:
            if form not in FORMS:
                raise ValueError(
                    f"no form of statement called {form!r}.{nearest(form, FORMS)} Known: {', '.join(FORMS)}."
                )
        if not set(self.forms) - {"all"}:
            raise ValueError(
                f"knights_knaves forms={self.forms}: name at least one besides 'all', which two people cannot say."
            )
        for name, least in (("train_size", 1), ("test_size", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"knights_knaves {name} is {least} or more, got {getattr(self, name)}; raise it."
                )

    def records(self, split: Split) -> Sequence[dict]:
        check_split(split)
        if self.path is not None:
            lines = read_records(self.path, split, ("prompt", "names", "solution"))
            return converted(lines, functools.partial(read_record, self.style, split))
        for count in self.people:  # forms that give no puzzle are found before a run starts
            new_puzzle(count, self.forms, False, np.random.default_rng(self.seed))
        if split == "train":
            return PuzzleRecords(self.people, self.forms, self.train_size, self.seed)
        return _test_records(self.people, self.forms, self.test_size, self.seed)

    def prompt(self, record: dict) -> Prompt:
        if self.style == "chat":
            return [{"role": "user", "content": f"{record['prompt']}\n\n{FORMAT}"}]
        names = record["names"]
        return " ".join(
            " ".join([name, "says", ":", *words(one, names), "."])
            for name, one in zip(names, record["statements"], strict=True)
        )

    def verify(self, record: dict, completion: str) -> Verdict:
        told = conclusion(completion)
        kinds = [told.get(name.lower(), set()) for name in record["names"]]
        if any(len(kind) != 1 for kind in kinds):
            reason = Reason.UNPARSABLE
        else:
            right = all(
                kind == {_name(knight)} for kind, knight in zip(kinds, record["solution"], strict=True)
            )
            reason = Reason.CORRECT if right else Reason.WRONG
        return POINTS[self.points].verdict(reason, completion, self.format_reward)

    def answer(self, record: dict, completion: str) -> str | None:
        """Who is what, by name."""
        told = conclusion(completion)
        return ", ".join(f"{name}: {'/'.join(sorted(told[name]))}" for name in sorted(told)) or None

    def vocabulary(self) -> tuple[str, ...] | None:
        if self.style == "chat":
            return None
        numbers = tuple(f"({i})" for i in range(1, MOST_PEOPLE + 1))
        return (
            "<think>",
            "</think>",
            "<answer>",
            "</answer>",
            *FUNCTION_WORDS,
            *PUNCTUATION,
            *numbers,
            *NAMES,
        )

    def demonstration(self, record: dict) -> str:
        """The solution; in style `chat`, after the check that it is one."""
        names, solution = record["names"], record["solution"]
        lines = [
            f"({i}) {n} is a {_name(k)}" for i, (n, k) in enumerate(zip(names, solution, strict=True), 1)
        ]
        if self.style == "words":
            return " ".join(["<think>", "</think>", "<answer>", *lines, "</answer>"])
        checks = [
            f"{name}, if a {_name(knight)}, says what is {'true' if knight else 'false'}: {text(words(said, names))}."
            for name, knight, said in zip(names, solution, record.get("statements", ()), strict=False)
        ]
        return "\n".join(["<think>", *checks, "</think>", "<answer>", *lines, "</answer>"])


def _name(knight: bool) -> str:
    return "knight" if knight else "knave"
