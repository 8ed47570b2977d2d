"""Perfect mazes as sequences of words, made by Prim's algorithm, and walks through them.

    GRID_START WALL WALL ... NEWLINE ... GRID_END PATH_START   ->   DOWN DOWN RIGHT ... DONE

Set-up of the maze studies in F-GRPO (arXiv:2602.06717) and MaxRL (arXiv:2602.02710). The grid is small by
default; the papers use `size=17`.
"""

import abc
import dataclasses
import functools
import hashlib
import operator
from collections.abc import Sequence
from typing import SupportsIndex, overload

import numpy as np

from rlvr_jax.registry import register
from rlvr_jax.tasks.base import Reason, Split, Task, Verdict, check_split

MOVES = {"UP": (-1, 0), "DOWN": (1, 0), "LEFT": (0, -1), "RIGHT": (0, 1)}
WORDS = ("GRID_START", "GRID_END", "PATH_START", "WALL", "PATH", "START", "GOAL", "NEWLINE", *MOVES, "DONE")

HELD_OUT_SHARE = 4
"""One grid in this many belongs to the test split."""

FEW_GRIDS = {5: 1, 7: 40, 9: 8192}
"""How many different test grids a small size can give: there are 4, 192 and 100 352 mazes in all."""

Grid = list[str]
"""Rows of '#' (wall) and '.' (open)."""


def is_held_out(grid: Sequence[str]) -> bool:
    """Whether a grid belongs to the test split: a function of the grid alone, not of seed or index."""
    digest = hashlib.blake2b("\n".join(grid).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_SHARE == 0


def prim(size: int, rng: np.random.Generator) -> Grid:
    """A random perfect maze: rooms at odd places, and exactly one way between any two of them.

    From the room of the start on, a door is drawn from all those that lead out of the maze so far, and is
    opened when the room behind it is still closed.
    """
    doors = _doors(size)
    draws = iter(rng.random(size * size).tolist())  # every door is drawn once at the most
    cells = bytearray(b"#" * (size * size))
    closed = set(doors)
    start = size + 1
    cells[start] = ord(".")
    closed.remove(start)
    frontier = list(doors[start])
    while frontier:
        pick = int(next(draws) * len(frontier))
        frontier[pick], frontier[-1] = frontier[-1], frontier[pick]
        door, room = frontier.pop()
        if room in closed:
            closed.remove(room)
            cells[door] = cells[room] = ord(".")
            frontier.extend(way for way in doors[room] if way[1] in closed)
    text = cells.decode()
    return [text[row : row + size] for row in range(0, size * size, size)]


@functools.cache
def _doors(size: int) -> dict[int, tuple[tuple[int, int], ...]]:
    """For each room (flat place in the grid): the wall to each neighbouring room, and that room."""
    inside = range(1, size, 2)
    return {
        row * size + column: tuple(
            ((row + down) * size + column + right, (row + 2 * down) * size + column + 2 * right)
            for down, right in MOVES.values()
            if row + 2 * down in inside and column + 2 * right in inside
        )
        for row in inside
        for column in inside
    }


def shortest_path(grid: Sequence[str]) -> list[str]:
    """The moves from start to goal; in a perfect maze the only walk that never turns back."""
    size = len(grid)
    goal = (size - 2, size - 2)
    came_by: dict[tuple[int, int], tuple[str, tuple[int, int]] | None] = {(1, 1): None}
    queue = [(1, 1)]
    for place in queue:  # grows while it is read: breadth first
        for move, (down, right) in MOVES.items():
            there = (place[0] + down, place[1] + right)
            if there not in came_by and grid[there[0]][there[1]] != "#":
                came_by[there] = (move, place)
                queue.append(there)
    path = []
    step = came_by.get(goal)
    if step is None:
        raise ValueError(f"no way from (1, 1) to {goal} in the grid {list(grid)}: not a maze of this task.")
    while step is not None:
        path.append(step[0])
        step = came_by[step[1]]
    return path[::-1]


def reaches_goal(grid: Sequence[str], moves: Sequence[str]) -> bool:
    """Walk from the start: true on reaching the goal; false on a wall, outside, or at an end elsewhere.

    Source: the official checker of MaxRL, which stops walking at the goal, so moves after it are not walked.
    """
    size = len(grid)
    goal = (size - 2, size - 2)
    row = column = 1
    for move in moves:
        down, right = MOVES[move]
        row, column = row + down, column + right
        if not (0 <= row < size and 0 <= column < size) or grid[row][column] == "#":
            return False
        if (row, column) == goal:
            return True
    return False


def walk(text: str) -> list[str] | None:
    """The moves before the first DONE; `None` without one, and where another word stands among them."""
    words = text.split()
    if "DONE" not in words:
        return None
    moves = words[: words.index("DONE")]
    return moves if all(word in MOVES for word in moves) else None


class MazeRecords(Sequence[dict]):
    """The training mazes, each made when it is asked for, from (seed, index) alone."""

    def __init__(self, size: int, length: int, seed: int):
        self._size, self._length, self._seed = size, length, seed

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: SupportsIndex) -> dict: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> dict | list[dict]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        index = operator.index(index)
        if not -self._length <= index < self._length:
            raise IndexError(f"record {index} of {self._length} training mazes.")
        index %= self._length
        rng = np.random.default_rng([self._seed, 0, index])
        grid = prim(self._size, rng)
        while is_held_out(grid):
            grid = prim(self._size, rng)
        return {"id": f"maze-train-{index}", "grid": grid}


@functools.lru_cache(maxsize=8)
def _test_records(size: int, length: int, seed: int) -> tuple[dict, ...]:
    """Different held-out grids: a grid that came twice would make an interval over test mazes too narrow."""
    rng = np.random.default_rng([seed, 1])
    found: dict[tuple[str, ...], None] = {}
    while len(found) < length:
        grid = prim(size, rng)
        if is_held_out(grid):
            found.setdefault(tuple(grid))
    return tuple({"id": f"maze-test-{index}", "grid": list(grid)} for index, grid in enumerate(found))


@dataclasses.dataclass(frozen=True)
class MazeTask(Task):
    """What the maze tasks share: `size` x `size` cells, walls included, start (1, 1), goal (size-2, size-2).

    Which split a grid belongs to is a function of the grid (`is_held_out`), so no seed and no size of a split
    can put a training maze into the test. Test mazes differ from each other; training mazes may repeat.

    Raises: ValueError for an even size or one below 5, and for more test mazes than the size has.
    """

    size: int = 9
    train_size: int = 1_000_000
    test_size: int = 256
    seed: int = 0

    def __post_init__(self):
        if self.size < 5 or self.size % 2 == 0:
            raise ValueError(
                f"maze size={self.size}: a grid of rooms and walls has an odd size of at least 5; "
                f"use {max(5, self.size | 1)}."
            )
        for name in ("train_size", "test_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"maze {name}={getattr(self, name)}: a split has at least one maze.")
        if self.seed < 0:
            raise ValueError(f"maze seed={self.seed}: seeds are not negative; use 0 or more.")
        most = FEW_GRIDS.get(self.size, self.test_size)
        if self.test_size > most:
            raise ValueError(
                f"maze test_size={self.test_size}: of {self.size}x{self.size} mazes, at most {most} can be "
                f"held out; set test_size to {most} or less, or size to {self.size + 2} or more."
            )

    @abc.abstractmethod
    def accepts(self, grid: Sequence[str], moves: Sequence[str]) -> bool:
        """Whether these moves, all of them valid words, solve the maze."""

    def records(self, split: Split) -> Sequence[dict]:
        check_split(split)
        if split == "train":
            return MazeRecords(self.size, self.train_size, self.seed)
        return _test_records(self.size, self.test_size, self.seed)

    def prompt(self, record: dict) -> str:
        names = {"#": "WALL", ".": "PATH"}
        rows = [[names[cell] for cell in row] for row in record["grid"]]
        rows[1][1], rows[-2][-2] = "START", "GOAL"
        cells = (word for row in rows for word in (*row, "NEWLINE"))
        return " ".join(["GRID_START", *cells, "GRID_END", "PATH_START"])

    def verify(self, record: dict, completion: str) -> Verdict:
        """Words up to the first DONE count; what follows it does not. No DONE or another word: unparsable."""
        moves = walk(completion)
        if moves is None:
            return Verdict.of(Reason.UNPARSABLE)
        return Verdict.of(Reason.CORRECT if self.accepts(record["grid"], moves) else Reason.WRONG)

    def answer(self, record: dict, completion: str) -> str | None:
        """The walk. Two ways to the goal are two answers."""
        moves = walk(completion)
        return None if moves is None else " ".join(moves)

    def vocabulary(self) -> tuple[str, ...]:
        return WORDS

    def demonstration(self, record: dict) -> str:
        """The only shortest path, then DONE."""
        return " ".join([*shortest_path(record["grid"]), "DONE"])


@register("task", "maze")
@dataclasses.dataclass(frozen=True)
class Maze(MazeTask):
    """A walk is right when it reaches the goal without touching a wall, detours included.

    Source: the official checker of MaxRL (arXiv:2602.02710), whose set-up F-GRPO (arXiv:2602.06717) follows.
    """

    def accepts(self, grid: Sequence[str], moves: Sequence[str]) -> bool:
        return reaches_goal(grid, moves)


@register("task", "maze_exact")
@dataclasses.dataclass(frozen=True)
class MazeExact(MazeTask):
    """A walk is right when it is the one shortest path, and nothing else.

    Source: F-GRPO (arXiv:2602.06717), whose text speaks of one target action sequence for each prompt.
    """

    def accepts(self, grid: Sequence[str], moves: Sequence[str]) -> bool:
        return list(moves) == shortest_path(grid)
