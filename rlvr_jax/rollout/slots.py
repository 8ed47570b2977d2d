"""Decode slots: which rows of a request are at work, and how a slot that is free takes the next one.

Slots come in blocks of c. A block works on one prompt, so that its slots read the prompt's keys together, and its slots
take the prompt's samples one after another. Once all of them are idle the block goes on to the prompt with the most
samples left, which another block may be working on. With as many slots as rows nothing is ever taken twice, and a group
is a block: what is called lockstep elsewhere is the schedule that needs no refill.

A row's tokens do not depend on any of this: their noise is a function of the row's identity.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from rlvr_jax.types import pytree

_SHARE = 2
"""Slots of a block at the most where they are refilled: more read a prompt together, and wait longer for each other at its
end. Ours, from `bench/sampler.py`."""

_ROWS = {"cpu": 64, "gpu": 256, "tpu": 256}
"""Slots by default. On a CPU a product with more rows than this takes as much longer as it has more rows; on an accelerator
the weights are read in the same time for all rows. Ours."""


_FEWER = 4
"""By how much slots become fewer at a time when rows run out: each number of slots is compiled. Ours."""
_FEWEST = 16
"""Slots of a shard that are never made fewer."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """P prompts of G samples on N blocks of c slots, in `shards` parts that share nothing."""

    prompts: int
    group_size: int
    blocks: int
    share: int
    shards: int = 1

    @property
    def slots(self) -> int:
        return self.blocks * self.share

    @property
    def refills(self) -> bool:
        return self.slots < self.prompts * self.group_size

    def fitting(self, at_work: int) -> "Layout":
        """The layout for the last rows of a request, `at_work` on the fullest shard: this one, or one of fewer slots, each a
        block of its own."""
        slots = self.slots // self.shards
        while at_work * _FEWER <= slots and slots // _FEWER >= _FEWEST:
            slots //= _FEWER
        if slots * self.shards == self.slots:
            return self
        return dataclasses.replace(self, blocks=slots * self.shards, share=1)


def plan(prompts: int, group_size: int, slots: int, shards: int, platform: str) -> Layout:
    """The schedule of a request; `slots` is how many are wanted at the most, 0: what suits the platform.

    Groups in lockstep where all rows fit, as nothing is faster then. The number of slots is rounded so that every
    shard has whole blocks.
    """
    rows = prompts * group_size
    wanted = slots or _ROWS.get(platform, 256) * shards
    if wanted >= rows:
        return Layout(prompts, group_size, prompts, group_size, shards)
    share = math.gcd(group_size, _SHARE) if wanted >= _SHARE * shards else 1
    blocks = max(1, wanted // (share * shards)) * shards
    return Layout(prompts, group_size, blocks, share, shards)


@pytree
class Board:
    """Who works on what: the prompt of each block (an index; -1: none yet), the sample of each slot (-1: free), and how many
    samples of each prompt have been taken."""

    prompt: Int[Array, " N"]
    sample: Int[Array, "N c"]
    taken: Int[Array, " P"]

    @classmethod
    def empty(cls, layout: Layout) -> "Board":
        return cls(
            prompt=jnp.full(layout.blocks, -1, jnp.int32),
            sample=jnp.full((layout.blocks, layout.share), -1, jnp.int32),
            taken=jnp.zeros(layout.prompts, jnp.int32),
        )


def take(board: Board, layout: Layout) -> Board:
    """Every free slot takes a sample where its block may have one. Shards keep to their own prompts."""
    parts = jax.tree.map(lambda x: x.reshape(layout.shards, -1, *x.shape[1:]), board)
    first = jnp.arange(layout.shards, dtype=jnp.int32) * (layout.prompts // layout.shards)
    found = jax.vmap(lambda b, start: _take(b, start, layout.group_size))(parts, first)
    return jax.tree.map(lambda x, old: x.reshape(old.shape), found, board)


def _take(board: Board, start: Int[Array, ""], group_size: int) -> Board:
    """Of a shard whose prompts are numbered from `start`."""

    def visit(i: Array, b: Board) -> Board:
        free = b.sample[i] < 0
        most = jnp.argmin(b.taken).astype(jnp.int32)  # the first prompt with the most samples left
        own = b.prompt[i] - start
        prompt = jnp.where(free.all() & (b.taken[most] < group_size), most, own)
        sample = b.taken[prompt] + jnp.cumsum(free) - 1
        got = free & (sample < group_size) & (prompt >= 0)
        return Board(
            prompt=b.prompt.at[i].set(jnp.where(prompt < 0, -1, prompt + start)),
            sample=b.sample.at[i].set(jnp.where(got, sample, b.sample[i]).astype(jnp.int32)),
            taken=b.taken.at[prompt].add(got.sum(dtype=jnp.int32)),
        )

    return jax.lax.fori_loop(0, board.prompt.shape[0], visit, board)


def gathered(board: Board, old: Layout, new: Layout) -> tuple[Board, Int[Array, " W"]]:
    """The board with the slots of `new`, into which those at work move, and the old slot of each new one.

    For when no sample is left to be taken. Slots stay on their shards.
    """
    each, kept = old.slots // old.shards, new.slots // new.shards
    free = (board.sample < 0).reshape(old.shards, each)
    order = jnp.argsort(free, axis=1, stable=True)[:, :kept]
    slot = (order + jnp.arange(old.shards)[:, None] * each).reshape(-1)
    sample, prompt = board.sample.reshape(-1)[slot], board.prompt[slot // old.share]
    return dataclasses.replace(board, sample=sample[:, None], prompt=prompt), slot


def rows_of(board: Board, layout: Layout) -> Int[Array, " W"]:
    """The row of the request that each slot works on; -1 where it is free."""
    row = board.prompt[:, None] * layout.group_size + board.sample
    return jnp.where(board.sample < 0, -1, row).reshape(-1)


def occupancy(lengths: Any, layout: Layout) -> float:
    """Share of slot steps that give a token, were the rows [P * G] of these lengths: the schedule, played through."""
    left = jnp.asarray(lengths)

    def body(carry: tuple[Board, Array, Array, Array]) -> tuple[Board, Array, Array, Array]:
        board, age, steps, used = carry
        board = take(board, layout)
        row = rows_of(board, layout)
        at_work = row >= 0
        age = age + at_work
        done = at_work & (age >= left[row])
        sample = jnp.where(done.reshape(board.sample.shape), -1, board.sample)
        return (
            dataclasses.replace(board, sample=sample),
            jnp.where(done, 0, age),
            steps + 1,
            used + at_work.sum(),
        )

    start = Board.empty(layout), jnp.zeros(layout.slots, jnp.int32), jnp.asarray(0), jnp.asarray(0)
    more = lambda c: (c[0].taken < layout.group_size).any() | (c[0].sample >= 0).any()  # noqa: E731
    _, _, steps, used = jax.lax.while_loop(more, body, start)
    return float(used) / (float(steps) * layout.slots)
