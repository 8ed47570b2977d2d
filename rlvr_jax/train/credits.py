"""credit.jsonl: what a few answers of each step were taught, token by token, for a person to read."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rlvr_jax.objective.objective import Credit
from rlvr_jax.rollout.collect import decode
from rlvr_jax.train.metrics import JsonLines
from rlvr_jax.types import Rollout

CREDIT = "credit.jsonl"


@dataclasses.dataclass(frozen=True)
class CreditRow:
    """An answer in pieces, one a token. Joined they are its text, special tokens included.

    `credit` is each token's signed advantage times its weights in the passes of the objective; None for a token that is
    not trained.
    """

    prompt_id: int
    prompt: str
    reward: float
    correct: bool
    truncated: bool
    version: int
    tokens: tuple[str, ...]
    credit: tuple[float | None, ...]


def credited(
    tokenizer: Any, rollout: Rollout, version: np.ndarray, credit: Credit, group_size: int, count: int
) -> tuple[CreditRow, ...]:
    """The answers that tell most, at most `count`: best and worst of the groups whose rewards differ most.

    Of several processes each sees the rows that lie on its own devices, and asks nothing of the others.
    """
    if not count:
        return ()
    rows, advantage, passes, mask = _here(credit)
    chosen = telling(rollout.reward[rows], group_size, count)
    return tuple(
        CreditRow(
            prompt_id=int(rollout.prompt_id[i]),
            prompt=decode(tokenizer, rollout.prompt[i : i + 1], rollout.prompt_length[i : i + 1])[0],
            reward=float(rollout.reward[i]),
            correct=bool(rollout.correct[i]),
            truncated=bool(rollout.truncated[i]),
            version=int(version[i]),
            tokens=tuple(pieces(tokenizer, rollout.tokens[i, : rollout.length[i]].tolist())),
            credit=_signed(advantage[at], passes[at], mask[at], int(rollout.length[i])),
        )
        for at, i in zip(chosen, rows[chosen], strict=True)
    )


def telling(reward: np.ndarray, group_size: int, count: int) -> list[int]:
    """Places of at most `count` answers of whole groups: the highest and the lowest reward of a group, the group with the
    widest rewards first."""
    groups = reward.reshape(-1, group_size)
    widest = np.argsort(-np.ptp(groups, axis=1), kind="stable")
    found = [int(g) * group_size + i for g in widest for i in _ends(groups[g])]
    return found[:count]


def _ends(rewards: np.ndarray) -> tuple[int, ...]:
    best, worst = int(rewards.argmax()), int(rewards.argmin())
    return (best, worst) if rewards[best] > rewards[worst] else (best,)


def _here(credit: Credit) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Places in the batch of the rows that lie on this process's devices, and their credit. A shard holds whole groups."""

    def local(x: jax.Array) -> dict[int, np.ndarray]:
        return {s.index[0].start or 0: np.asarray(s.data) for s in x.addressable_shards}

    advantage, passes, mask = (local(x) for x in (credit.advantage, credit.passes, credit.mask))
    starts = sorted(advantage)
    rows = np.concatenate([start + np.arange(len(advantage[start])) for start in starts])
    return rows, *(np.concatenate([part[s] for s in starts]) for part in (advantage, passes, mask))  # type: ignore[return-value]


def _signed(advantage: np.ndarray, passes: np.ndarray, mask: np.ndarray, length: int) -> tuple:
    values = (advantage * passes.sum(0))[:length]  # passes is [K, T]
    trained = mask[:length] > 0
    return tuple(float(f"{v:.4g}") if t else None for v, t in zip(values, trained, strict=True))


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text that each token adds to those before it. A character of several tokens comes with the last of them."""
    found: list[str] = []
    first = shown = 0  # ids[first:shown] have been written, and are what the next one is decoded behind
    for i in range(len(ids)):
        before, now = (tokenizer.decode(ids[first:end]) for end in (shown, i + 1))
        whole = not now.endswith("\ufffd") or i + 1 == len(ids)
        found.append(now[len(before) :] if whole else "")
        if whole:
            first, shown = shown, i + 1
    return found


class CreditWriter:
    """credit.jsonl: one line an answer, with the step that trained on it."""

    def __init__(self, run_dir: pathlib.Path, start_step: int = 0) -> None:
        self._lines = JsonLines(run_dir / CREDIT, start_step)

    def write(self, step: int, rows: Sequence[CreditRow]) -> None:
        self._lines.append({"step": step, **dataclasses.asdict(row)} for row in rows)

    def __enter__(self) -> "CreditWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self._lines.close()
