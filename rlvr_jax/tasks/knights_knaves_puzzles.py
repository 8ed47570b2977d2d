"""Puzzles of knights, who tell the truth, and knaves, who lie: statements, all their solutions, and new ones.

A statement is a nested list, as in the data of the benchmark (arXiv:2410.23123), people by their number:

    ["telling-truth", 0]   ["lying", 0]   ["not", s]   ["and", s, ...]   ["or", s, ...]   ["->", s, t]   ["<=>", s, t]
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Statement: TypeAlias = Sequence[Any]

NAMES = tuple(
    "Ada Amir Ben Clara Diego Elena Felix Grace Hana Ivan Jonas Kira Leo Mina Noah Olga Pablo Quinn Rosa Samir Tara Umar "
    "Vera Wes Ximena Yusuf Zoe Anna Bruno Carmen Dario Emil Fatima Goran Helen Ines Jakob Karim Lucia Marek".split()
)
FORMS = ("assertion", "negation", "and", "or", "implication", "equivalence", "all")
"""What the people of new puzzles say: that somebody is a knight or a knave, that somebody is not, two such assertions
joined, and that three or more people are all knights or all knaves."""

FUNCTION_WORDS = tuple(
    "if then and or only not it is so that a are all knight knave knights knaves says".split()
)
PUNCTUATION = (",", ".", ":", "(", ")")

HELD_OUT_SHARE = 4
"""One puzzle in this many belongs to the test split."""

MOST_DRAWS = 5000
"""Of all forms, one puzzle in a few dozen has one solution. Of assertions alone, none has."""


# ---- solutions ---------------------------------------------------------------------------------------------------


def solutions(statements: Sequence[Statement]) -> list[list[bool]]:
    """Every assignment (true: knight) under which exactly the knights' statements are true; all 2^n are tried.

    A statement is the set of the assignments that make it true, an integer with a bit for each of the 2^n.

    Raises: ValueError for what is no statement.
    """
    people = len(statements)
    every = (1 << (1 << people)) - 1
    knight = [sum(1 << world for world in range(1 << people) if world >> i & 1) for i in range(people)]
    possible = every
    for speaker, statement in enumerate(statements):
        possible &= every & ~(knight[speaker] ^ _true_where(statement, knight, every))
    worlds = [world for world in range(1 << people) if possible >> world & 1]
    return [[bool(world >> i & 1) for i in range(people)] for world in worlds]


def _true_where(statement: Statement, knight: Sequence[int], every: int) -> int:
    match statement:
        case ["telling-truth", int(person)] if 0 <= person < len(knight):
            return knight[person]
        case ["lying", int(person)] if 0 <= person < len(knight):
            return every & ~knight[person]
        case ["not", one]:
            return every & ~_true_where(one, knight, every)
        case ["->", one, other]:
            return (every & ~_true_where(one, knight, every)) | _true_where(other, knight, every)
        case ["<=>", one, other]:
            return every & ~(_true_where(one, knight, every) ^ _true_where(other, knight, every))
        case ["and" | "or" as joined, first, *rest]:
            found = _true_where(first, knight, every)
            for each in rest:
                other = _true_where(each, knight, every)
                found = found & other if joined == "and" else found | other
            return found
    raise ValueError(f"{statement!r} is no statement about {len(knight)} people.")


# ---- words -------------------------------------------------------------------------------------------------------


def words(statement: Statement, names: Sequence[str]) -> list[str]:
    """A statement in English, words and punctuation apart."""
    operator, *operands = statement
    if operator in ("telling-truth", "lying"):
        return [names[int(operands[0])], "is", "a", _kind(operator)]
    if operator == "not":
        inside = words(operands[0], names)
        if _is_assertion(operands[0]):
            return [*inside[:2], "not", *inside[2:]]
        return ["it", "is", "not", "so", "that", "(", *inside, ")"]
    kinds = {each[0] for each in operands}
    if operator == "and" and len(operands) > 2 and len(kinds) == 1 and all(map(_is_assertion, operands)):
        people = [names[int(each[1])] for each in operands]
        listed = [word for name in people[:-2] for word in (name, ",")]
        return [*listed, people[-2], "and", people[-1], "are", "all", f"{_kind(kinds.pop())}s"]
    parts = [
        words(each, names) if _is_assertion(each) else ["(", *words(each, names), ")"] for each in operands
    ]
    if operator == "->":
        return ["if", *parts[0], "then", *parts[1]]
    between = ["if", "and", "only", "if"] if operator == "<=>" else [operator]
    return [word for i, part in enumerate(parts) for word in ([*between, *part] if i else part)]


def text(parts: Sequence[str]) -> str:
    """Words and punctuation as a text."""
    joined = " ".join(parts)
    for mark in (",", ".", ":", ")"):
        joined = joined.replace(f" {mark}", mark)
    return joined.replace("( ", "(")


def _kind(operator: str) -> str:
    return "knight" if operator == "telling-truth" else "knave"


def _is_assertion(statement: Statement) -> bool:
    return statement[0] in ("telling-truth", "lying")


# ---- new puzzles -------------------------------------------------------------------------------------------------


def is_held_out(statements: Sequence[Statement]) -> bool:
    """Whether a puzzle belongs to the test split: a function of what is said, of oneself or of others.

    It does not change with the order of the people, of joined assertions, or with the names, so that a test puzzle is
    not a training puzzle in disguise.
    """
    shapes = sorted(json.dumps(_shape(statement, speaker)) for speaker, statement in enumerate(statements))
    digest = hashlib.blake2b("\n".join(shapes).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_SHARE == 0


def _shape(statement: Statement, speaker: int) -> list[Any]:
    operator, *operands = statement
    if _is_assertion(statement):
        return [operator, "self" if operands[0] == speaker else "other"]
    shapes = [_shape(each, speaker) for each in operands]
    return [operator, *(shapes if operator == "->" else sorted(shapes, key=json.dumps))]


def new_puzzle(people: int, forms: Sequence[str], held_out: bool, rng: np.random.Generator) -> dict[str, Any]:
    """`names`, `statements` and `solution` of a puzzle of a split that has exactly one solution.

    Raises: ValueError where these forms seem to give none.
    """
    usable = [form for form in forms if form != "all" or people > 2]
    for _ in range(MOST_DRAWS):
        statements = [_statement(speaker, people, usable, rng) for speaker in range(people)]
        if is_held_out(statements) == held_out:
            found = solutions(statements)
            if len(found) == 1:
                names = [NAMES[i] for i in rng.choice(len(NAMES), people, replace=False)]
                return {"names": names, "statements": statements, "solution": found[0]}
    raise ValueError(
        f"of {MOST_DRAWS} puzzles of {people} people with the forms {', '.join(forms)}, none has exactly one solution; allow "
        "more forms."
    )


def _statement(speaker: int, people: int, forms: Sequence[str], rng: np.random.Generator) -> list[Any]:
    """One of the forms, drawn evenly. Nobody says what he is himself and nothing else."""
    form = forms[int(rng.integers(len(forms)))]
    if form in ("assertion", "negation"):
        other = int((speaker + rng.integers(1, people)) % people)
        assertion = [_either(rng), other]
        return assertion if form == "assertion" else ["not", assertion]
    if form == "all":
        kind = _either(rng)
        count = int(rng.integers(3, people + 1))
        return ["and", *([kind, int(person)] for person in rng.permutation(people)[:count])]
    operator = {"implication": "->", "equivalence": "<=>"}.get(form, form)
    return [operator, *([_either(rng), int(person)] for person in rng.permutation(people)[:2])]


def _either(rng: np.random.Generator) -> str:
    return "telling-truth" if rng.integers(2) else "lying"
