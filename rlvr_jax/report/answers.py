"""Sampled answers whose tokens have the colour of their credit."""

import dataclasses
from collections.abc import Sequence

from rlvr_jax.train.metrics import Row

LONGEST = 4000
"""Tokens of an answer that are shown."""


@dataclasses.dataclass(frozen=True)
class Token:
    """`tone` is the CSS class, `strength` in 0..1 how far from no credit, `told` what hovering says."""

    text: str
    tone: str
    strength: float
    told: str


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer, why it is shown, and what is said above it."""

    why: str
    step: int
    prompt_id: int
    prompt: str
    reward: float
    verdict: str
    tokens: tuple[Token, ...]
    left_out: int


def telling(rows: Sequence[Row]) -> list[Answer]:
    """The first ones, best and worst of the run, and the newest: each row once. Colours are relative to the largest credit
    of those that are shown."""
    if not rows:
        return []
    first, last = rows[0]["step"], rows[-1]["step"]
    chosen: dict[int, list[str]] = {}

    def choose(why: str, found: Sequence[int]) -> None:
        for i in found:
            chosen.setdefault(i, []).append(why)

    choose("newest", [i for i, row in enumerate(rows) if row["step"] == last][:2])
    choose(
        "highest reward, most credit",
        [max(range(len(rows)), key=lambda i: (rows[i]["reward"], _size(rows[i])))],
    )
    choose(
        "lowest reward, most credit",
        [min(range(len(rows)), key=lambda i: (rows[i]["reward"], -_size(rows[i])))],
    )
    choose("first", [i for i, row in enumerate(rows) if row["step"] == first][:2])
    largest = max(_size(rows[i]) for i in chosen) or 1.0
    return [_answer(rows[i], ", ".join(why), largest) for i, why in chosen.items()]


def _size(row: Row) -> float:
    return max((abs(c) for c in row["credit"] if c is not None), default=0.0)


def _answer(row: Row, why: str, largest: float) -> Answer:
    pairs = zip(row["tokens"][:LONGEST], row["credit"][:LONGEST], strict=True)
    verdict = "right" if row["correct"] else "wrong"
    return Answer(
        why=why,
        step=row["step"],
        prompt_id=row["prompt_id"],
        prompt=row["prompt"],
        reward=row["reward"],
        verdict=f"{verdict}, cut at the limit" if row["truncated"] else verdict,
        tokens=tuple(_token(text, credit, largest) for text, credit in pairs),
        left_out=max(0, len(row["tokens"]) - LONGEST),
    )


def _token(text: str, credit: float | None, largest: float) -> Token:
    if credit is None:
        return Token(text, "untrained", 0.0, "not trained")
    tone = "up" if credit > 0 else "down" if credit < 0 else "none"
    return Token(text, tone, round(abs(credit) / largest, 3), f"credit {credit:+.4g}")
