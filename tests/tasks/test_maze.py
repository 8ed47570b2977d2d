"""Mazes against what a perfect maze is, and the verifiers against walks written out by hand."""

import collections
import dataclasses
import itertools
import pickle
import random
import time

import numpy as np
import pytest

from rlvr_jax import registry
from rlvr_jax.tasks import Reason, Task, maze
from rlvr_jax.tasks.maze import Maze, MazeExact

CORRIDOR = {
    "id": "by-hand",
    "grid": [
        "#######",
        "#.#...#",
        "#.#.#.#",
        "#...#.#",
        "#.###.#",
        "#...#.#",
        "#######",
    ],
}
"""The way: down 2, right 2, up 2, right 2, down 4, with a dead end below the start."""
WAY = "DOWN DOWN RIGHT RIGHT UP UP RIGHT RIGHT DOWN DOWN DOWN DOWN"


def open_cells(grid):
    return {(r, c) for r, row in enumerate(grid) for c, cell in enumerate(row) if cell == "."}


def neighbours(place):
    return {(place[0] + d, place[1] + r) for d, r in ((1, 0), (-1, 0), (0, 1), (0, -1))}


@pytest.mark.parametrize("size", [5, 7, 9, 17])
def test_every_maze_is_a_tree_of_rooms_inside_walls(size):
    records = Maze(size=size, test_size=1).records("train")
    for index in range(20):
        grid = records[index]["grid"]
        cells = open_cells(grid)
        rooms = set(itertools.product(range(1, size, 2), repeat=2))
        assert rooms <= cells
        assert all(0 < r < size - 1 and 0 < c < size - 1 for r, c in cells)
        joints = sum(len(neighbours(cell) & cells) for cell in cells) // 2
        assert joints == len(cells) - 1  # with connectedness: a tree, so one way between any two cells
        reached, edge = {(1, 1)}, [(1, 1)]
        while edge:
            fresh = (neighbours(edge.pop()) & cells) - reached
            reached |= fresh
            edge.extend(fresh)
        assert reached == cells


def test_prim_opens_doors_with_the_right_odds():
    # Four rooms, doors a (right of the start), b (below it), c (below a's room), d (right of b's room).
    # Drawing by hand from {a, b}, then from {b, c} or {a, d}, ...: abc and abd 3/8 each, acd and bcd 1/8.
    rng = np.random.default_rng(0)
    places = {"a": (1, 2), "b": (2, 1), "c": (2, 3), "d": (3, 2)}
    grids = [maze.prim(5, rng) for _ in range(4000)]
    count = collections.Counter("".join(n for n, (r, c) in places.items() if g[r][c] == ".") for g in grids)
    for doors, odds in {"abc": 3 / 8, "abd": 3 / 8, "acd": 1 / 8, "bcd": 1 / 8}.items():
        deviation = (4000 * odds * (1 - odds)) ** 0.5
        assert abs(count[doors] - 4000 * odds) < 4 * deviation


def every_maze(size):
    """All perfect mazes, by trying every set of doors."""
    rooms = list(itertools.product(range(1, size, 2), repeat=2))
    between = {(r + d, c + e) for r, c in rooms for d, e in ((1, 0), (0, 1))}
    doors = [(r, c) for r, c in between if r < size - 1 and c < size - 1]
    for opened in itertools.combinations(doors, len(rooms) - 1):
        cells = set(rooms) | set(opened)
        reached, edge = {(1, 1)}, [(1, 1)]
        while edge:
            fresh = (neighbours(edge.pop()) & cells) - reached
            reached |= fresh
            edge.extend(fresh)
        if reached == cells:
            yield ["".join("." if (r, c) in cells else "#" for c in range(size)) for r in range(size)]


@pytest.mark.parametrize("size", [5, 7])
def test_both_splits_of_a_small_size_have_grids_and_the_stated_maximum_holds(size):
    held_out = [maze.is_held_out(grid) for grid in every_maze(size)]
    assert maze.FEW_GRIDS[size] <= sum(held_out) < len(held_out)


@pytest.mark.parametrize("size", [5, 7, 9])
def test_no_grid_is_in_both_splits_whatever_the_seeds(size):
    few = maze.FEW_GRIDS[size] // 32 + 1
    test = {tuple(r["grid"]) for r in Maze(size=size, seed=3, test_size=few).records("test")}
    train = {tuple(r["grid"]) for r in Maze(size=size, seed=4, test_size=few).records("train")[:2000]}
    assert not test & train
    assert all(maze.is_held_out(grid) for grid in test)
    assert not any(maze.is_held_out(grid) for grid in train)


def test_test_mazes_are_all_different():
    for task in (Maze(), Maze(size=7, test_size=40), Maze(size=11, seed=9)):
        assert len({tuple(r["grid"]) for r in task.records("test")}) == task.test_size


def test_a_record_is_a_function_of_seed_and_index():
    task = Maze(train_size=100)
    records = task.records("train")
    assert records[57] == task.records("train")[57] == pickle.loads(pickle.dumps(records))[57] == records[-43]
    assert records[57] == dataclasses.replace(task, train_size=1000).records("train")[57]
    assert records[57] != dataclasses.replace(task, seed=1).records("train")[57]
    assert records[np.int64(57)] == records[57]
    assert [r["id"] for r in records[98:]] == ["maze-train-98", "maze-train-99"]
    with pytest.raises(IndexError, match="^record 100 of 100 training mazes.$"):
        records[100]
    assert pickle.loads(pickle.dumps(task.records("test"))) == task.records("test")


def test_the_prompt_is_the_grid_in_words_without_specials():
    words = Maze(size=7, test_size=1).prompt(CORRIDOR).split()
    assert words[0] == "GRID_START" and words[-2:] == ["GRID_END", "PATH_START"]
    rows = " ".join(words[1:-2]).split(" NEWLINE")
    assert rows.pop() == ""
    cells = [row.split() for row in rows]
    assert [len(row) for row in cells] == [7] * 7
    assert cells[1][1] == "START" and cells[5][5] == "GOAL"
    letters = {"WALL": "#", "PATH": ".", "START": ".", "GOAL": "."}
    assert ["".join(letters[cell] for cell in row) for row in cells] == CORRIDOR["grid"]


def test_the_vocabulary_holds_every_word_of_prompts_and_demonstrations():
    task = Maze()
    used = set()
    for record in task.records("train")[:50]:
        used |= set(task.prompt(record).split()) | set(task.demonstration(record).split())
    assert used == set(task.vocabulary())
    assert len(task.vocabulary()) == len(set(task.vocabulary())) == 13


@pytest.mark.parametrize("task", [Maze(), MazeExact()])
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_demonstration_solves_its_maze(task, split):
    for record in task.records(split)[:100]:
        verdict = task.verify(record, task.demonstration(record))
        assert (verdict.reward, verdict.correct, verdict.reason) == (1.0, True, Reason.CORRECT)


def test_the_demonstration_by_hand():
    assert Maze().demonstration(CORRIDOR) == WAY + " DONE"


BACK_AND_FORTH = "DOWN UP " + WAY + " DONE"
PAST_THE_GOAL = WAY + " UP DONE"
INTO_A_WALL_AFTER_THE_GOAL = WAY + " RIGHT DONE"


@pytest.mark.parametrize(
    "completion, reason",
    [
        (WAY + " DONE", Reason.CORRECT),
        (WAY + " DONE DONE UP nonsense <eos>", Reason.CORRECT),
        ("  " + WAY.replace(" ", "\n") + "\tDONE", Reason.CORRECT),
        (WAY, Reason.UNPARSABLE),
        ("", Reason.UNPARSABLE),
        ("DONE", Reason.WRONG),
        ("DONE " + WAY, Reason.WRONG),
        (WAY.rsplit(" ", 1)[0] + " DONE", Reason.WRONG),
        ("RIGHT DONE", Reason.WRONG),
        ("UP UP DONE", Reason.WRONG),
        ("UP UP UP UP DONE", Reason.WRONG),
        ("LEFT LEFT LEFT DONE", Reason.WRONG),
        (WAY + " PATH_START DONE", Reason.UNPARSABLE),
        ("down " + WAY + " DONE", Reason.UNPARSABLE),
        (WAY + " DONE.", Reason.UNPARSABLE),
        ("<pad> <bos> \x00 ☃", Reason.UNPARSABLE),
    ],
)
@pytest.mark.parametrize("task", [Maze(), MazeExact()])
def test_verdicts_on_which_both_rules_agree(task, completion, reason):
    assert task.verify(CORRIDOR, completion).reason is reason


@pytest.mark.parametrize("completion", [BACK_AND_FORTH, PAST_THE_GOAL, INTO_A_WALL_AFTER_THE_GOAL])
def test_only_the_reachability_rule_accepts_detours_and_moves_after_the_goal(completion):
    assert Maze().verify(CORRIDOR, completion).reason is Reason.CORRECT
    assert MazeExact().verify(CORRIDOR, completion).reason is Reason.WRONG


def slow_walk(grid, completion):
    """The rule of methods A1.5 once more, by sets."""
    before, done, _ = f" {' '.join(completion.split())} ".partition(" DONE ")
    place, cells, steps = (1, 1), open_cells(grid), before.split()
    if not done or set(steps) - {"UP", "DOWN", "LEFT", "RIGHT"}:
        return Reason.UNPARSABLE
    for step in steps:
        place = {
            "UP": (place[0] - 1, place[1]),
            "DOWN": (place[0] + 1, place[1]),
            "LEFT": (place[0], place[1] - 1),
            "RIGHT": (place[0], place[1] + 1),
        }[step]
        if place not in cells:
            return Reason.WRONG
        if place == (len(grid) - 2, len(grid) - 2):
            return Reason.CORRECT
    return Reason.WRONG


def test_any_sequence_of_words_gets_the_verdict_of_the_slow_walk():
    draw = random.Random(0)
    task = Maze(size=5, test_size=1)
    seen = set()
    for record in task.records("train")[:30]:
        right = task.demonstration(record).split()
        for _ in range(100):
            words = draw.choices(["UP", "DOWN", "LEFT", "RIGHT"], k=draw.randrange(4)) + right
            for _ in range(draw.randrange(3)):
                words[draw.randrange(len(words))] = draw.choice([*task.vocabulary(), "<eos>"])
            text = " ".join(words)
            verdict = task.verify(record, text)
            assert verdict.reason is slow_walk(record["grid"], text)
            seen.add(verdict.reason)
    assert seen == {Reason.CORRECT, Reason.WRONG, Reason.UNPARSABLE}


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"size": 8}, "maze size=8: a grid of rooms and walls has an odd size of at least 5; use 9."),
        ({"size": 3}, "maze size=3: a grid of rooms and walls has an odd size of at least 5; use 5."),
        ({"train_size": 0}, "maze train_size=0: a split has at least one maze."),
        ({"seed": -1}, "maze seed=-1: seeds are not negative; use 0 or more."),
        (
            {"size": 7},
            "maze test_size=256: of 7x7 mazes, at most 40 can be held out; "
            "set test_size to 40 or less, or size to 9 or more.",
        ),
    ],
)
def test_impossible_fields_are_refused(fields, message):
    with pytest.raises(ValueError) as error:
        Maze(**fields)
    assert str(error.value) == message


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="^no split called 'val'; a task has 'train' and 'test'.$"):
        maze.check_split("val")


def test_a_grid_without_a_way_is_refused():
    with pytest.raises(ValueError, match=r"^no way from \(1, 1\) to \(3, 3\) in the grid"):
        maze.shortest_path(["#####", "#.#.#", "#####", "#.#.#", "#####"])


def test_both_rules_are_registered_tasks():
    assert registry.build("task", "maze", size=11) == Maze(size=11)
    assert isinstance(registry.build("task", "maze_exact"), MazeExact)
    assert isinstance(Maze(), Task)


def test_two_thousand_mazes_of_nine_take_less_than_a_second():
    records = Maze(size=9).records("train")
    start = time.process_time()
    for index in range(500):
        records[index]
    # CPU time of one core; about 27 000 mazes a second without run-time type checks, so this is slack
    assert time.process_time() - start < 0.25


def test_the_vote_is_for_a_walk():
    task = maze.Maze()
    assert task.answer({}, "DOWN  RIGHT DONE UP") == task.answer({}, "DOWN RIGHT DONE") == "DOWN RIGHT"
    assert (
        task.answer({}, "DONE") == ""
        and task.answer({}, "DOWN RIGHT") is None
        and task.answer({}, "DOWN WALL DONE") is None
    )
