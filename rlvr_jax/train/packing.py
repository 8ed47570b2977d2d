"""Which rows a pass computes and how they lie: answers packed without padding, a prompt once for those of its group that
are in a micro-batch, and of an optimiser step no row that moves no parameter.

The host makes a `Plan` from lengths alone; the device takes micro-batches from it, as many as there is work for. Their
shapes do not depend on the lengths, but for how many prompts go with how many rows (`Packer`).
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Shaped

from rlvr_jax.models.positions import Owners
from rlvr_jax.sharding import constrain
from rlvr_jax.types import Rows, pytree, static

PIECE = 8192
"""Tokens of a micro-batch on each shard at the most, where memory would allow more. Fewer would cost more in adding up gradients:
that reads and writes 12 bytes a parameter for each micro-batch, 5 % of the time of 6 x 4,000 multiplications and additions at
500 TFLOP/s and 3 TB/s. More would leave more of the last one empty. Ours."""


@pytree
class Plan:
    """N micro-batches on each of W shards, the first `count` of which are used.

    A micro-batch has Q places for responses, C for prompts, and R rows into which the responses are packed. `rows` are the
    responses by their number in the shard (-1: none), `start` where the tokens of each begin in the R * T slots of the packed
    rows; `prompts` are responses whose prompt is read, `owner` the number of the prompt (0 to C - 1) that each packed row
    continues.
    """

    count: Int[Rows, ""]
    rows: Int[Rows, "N W Q"]
    start: Int[Rows, "N W Q"]
    prompts: Int[Rows, "N W C"]
    owner: Int[Rows, "N W R"]
    alone: bool = static(default=False)
    """Whether a packed row holds one response at the most."""

    def part(self, i: Array | int) -> "Part":
        """Micro-batch number i."""
        rows, start, prompts, owner = (
            jnp.asarray(x)[i] for x in (self.rows, self.start, self.prompts, self.owner)
        )
        return Part(rows=rows, start=start, prompts=prompts, owner=owner, alone=self.alone)


@pytree
class Part:
    """One micro-batch of a plan."""

    rows: Int[Array, "W Q"]
    start: Int[Array, "W Q"]
    prompts: Int[Array, "W C"]
    owner: Int[Array, "W R"]
    alone: bool = static(default=False)

    @property
    def present(self) -> Bool[Array, " Q2"]:
        """[W * Q]: which places hold a response."""
        return (self.rows >= 0).reshape(-1)

    def responses(self, tree: Any) -> Any:
        """[B, ...] -> [W * Q, ...]; some row of the shard where there is none."""
        return jax.tree.map(_picked(self.rows).of, tree)

    def asked(self, x: Shaped[Array, "B *N"]) -> Shaped[Array, "C2 *N"]:
        """[B, ...] -> [W * C, ...]: of the prompts."""
        return _picked(self.prompts).of(x)

    @property
    def owners(self) -> Owners:
        """Which prompt each packed row continues."""
        return Owners(index=self.owner.reshape(-1), shards=len(self.owner))

    def packed(self, x: Shaped[Array, "Q2 T"], length: Int[Array, " Q2"]) -> Shaped[Array, "R2 T"]:
        """The first `length` entries of each response where they belong in the packed rows; 0 in between."""
        (shards, rows), size = self.owner.shape, x.shape[1]
        places = self._places(length, size)

        def put(x: Array, places: Array) -> Array:
            slots = jnp.zeros(rows * size, x.dtype)
            return slots.at[places].set(x, mode="drop", unique_indices=True)

        out = jax.vmap(put)(x.reshape(shards, -1), places)
        return constrain(out.reshape(shards * rows, size), "batch", None)

    def unpacked(self, x: Shaped[Array, "R2 T"], length: Int[Array, " Q2"]) -> Shaped[Array, "Q2 T"]:
        """The inverse of `packed`; 0 behind the end of a response."""
        shards, size = len(self.owner), x.shape[1]

        def get(x: Array, places: Array) -> Array:
            return x.at[places].get(mode="fill", fill_value=0, unique_indices=True)

        out = jax.vmap(get)(x.reshape(shards, -1), self._places(length, size))
        return constrain(out.reshape(-1, size), "batch", None)

    def segments(self, length: Int[Array, " Q2"], size: int) -> Int[Array, "R2 T"] | None:
        """Which response a slot of the packed rows holds, from 1, and 0: none; None where each row has but one."""
        if self.alone:
            return None
        shards, places = self.rows.shape
        each = jnp.broadcast_to(1 + jnp.arange(places)[None, :, None], (shards, places, size))
        return self.packed(each.reshape(-1, size), length)

    def put_back(self, all_rows: Shaped[Array, "B T"], x: Shaped[Array, "Q2 T"]) -> Shaped[Array, "B T"]:
        """`all_rows` with what was computed for these responses."""
        shards, size = len(self.rows), x.shape[1]
        parts = all_rows.reshape(shards, -1, size)
        rows = jnp.where(self.rows < 0, parts.shape[1], self.rows)
        out = jax.vmap(lambda part, rows, x: part.at[rows].set(x, mode="drop", unique_indices=True))(
            parts, rows, x.reshape(shards, -1, size)
        )
        return out.reshape(all_rows.shape)

    def _places(self, length: Int[Array, " Q2"], size: int) -> Int[Array, "W N"]:
        """[W, Q * T]: the slot of each token of each response; places beyond the end, each another, where there is none."""
        shards, rows = self.rows.shape
        token = jnp.arange(size)[None, None]
        real = (token < length.reshape(shards, rows, 1)) & (self.rows >= 0)[..., None]
        beyond = self.owner.shape[1] * size + jnp.arange(rows)[None, :, None] * size + token
        return jnp.where(real, self.start[..., None] + token, beyond).reshape(shards, -1)


def _picked(index: Int[Array, "W N"]) -> Owners:
    return Owners(index=jnp.maximum(index, 0).reshape(-1), shards=len(index))


@dataclasses.dataclass(frozen=True)
class Packer:
    """Makes plans for `groups` groups of `group_size` responses of at most `length` tokens, split over `shards`.

    `micro_batches` says how much memory there is: a micro-batch has no more tokens than one of so many equal parts, without
    any packing, would have, but a row on each shard at the least. `texts` is how many responses a packed row may hold.
    """

    groups: int
    group_size: int
    length: int
    micro_batches: int = 1
    shards: int = 1
    texts: int = 1 << 30

    @property
    def ways(self) -> int:
        """Parts of the rows that are planned on their own: each has whole groups."""
        return math.gcd(self.groups, self.shards)

    @property
    def _local_rows(self) -> int:
        return self.groups // self.ways * self.group_size

    def shapes(self, prompt: int) -> Iterator[tuple[int, int]]:
        """(C, R): how many prompts may go with how many rows, the tokens of both together being as many each time.

        The more responses fit into a row, the more prompts are needed for so many rows. `prompt` is the width of a prompt.
        """
        rows = min(-(-self._local_rows // self.micro_batches), max(1, PIECE // self.length))
        fewest = prompts = -(-rows // self.group_size)
        while prompts <= max(fewest, min(rows, self.groups // self.ways)):
            left = rows - -(-(prompts - fewest) * prompt // self.length)
            if prompts > fewest and left < -(-rows // 2):
                return
            yield prompts, left
            prompts *= 2

    def plan(self, length: Int[np.ndarray, " B"], live: Bool[np.ndarray, " B"], prompt: int) -> Plan:
        """For responses of so many tokens, those of them that are `live`: of all shapes the one with the fewest tokens."""
        found = [self._plan(np.where(live, length, 0), *shape) for shape in self.shapes(prompt)]

        def tokens(plan: Plan) -> int:
            return int(plan.count) * (plan.prompts.shape[-1] * prompt + plan.owner.shape[-1] * self.length)

        return min(found, key=tokens)

    def all_rows(self, length: Int[np.ndarray, " B"], prompt: int) -> Plan:
        """For every response."""
        return self.plan(length, np.ones(len(length), bool), prompt)

    def _plan(self, length: Int[np.ndarray, " B"], prompts: int, rows: int) -> Plan:
        """Each shard's groups, largest first, each into the first micro-batch that has room for all of it."""
        most = self.groups // self.ways * -(-self.group_size // min(rows, self.group_size))
        shape = most, self.ways
        none = lambda size, value: np.full((*shape, size), value, np.int32)  # noqa: E731
        plan = Plan(
            count=np.zeros((), np.int32),
            rows=none(prompts * self.group_size, -1),
            start=none(prompts * self.group_size, 0),
            prompts=none(prompts, -1),
            owner=none(rows, 0),
            alone=self.texts == 1,
        )
        counts = []
        for way, mine in enumerate(length.reshape(self.ways, -1)):
            groups = [
                _bins(first + np.arange(self.group_size), mine, self.length, self.texts)
                for first in range(0, len(mine), self.group_size)
            ]
            micro = _micro_batches(groups, prompts, rows)
            counts.append(len(micro))
            for i, parts in enumerate(micro):
                _write(plan, (i, way), parts, mine, self.length)
        return dataclasses.replace(plan, count=np.asarray(max(counts), np.int32))


Bins = list[list[int]]
"""Rows, each of them the responses that it holds."""


def _bins(responses: Int[np.ndarray, " G"], length: Int[np.ndarray, " B"], size: int, texts: int) -> Bins:
    """First fit, longest first; responses of length 0 are left out."""
    bins: Bins = []
    room: list[int] = []
    for i in sorted(map(int, responses), key=lambda i: (-length[i], i)):
        if not length[i]:
            break
        at = next((b for b, left in enumerate(room) if left >= length[i] and len(bins[b]) < texts), None)
        if at is None:
            at = len(bins)
            bins.append([])
            room.append(size)
        bins[at].append(i)
        room[at] -= int(length[i])
    return bins


def _micro_batches(groups: list[Bins], prompts: int, rows: int) -> list[list[Bins]]:
    """Groups, or parts of those that have too many rows, by micro-batch."""
    micro: list[list[Bins]] = []
    room: list[int] = []
    pieces = [group[i : i + rows] for group in groups for i in range(0, len(group), rows)]
    for piece in sorted(pieces, key=len, reverse=True):
        fits = (m for m, left in enumerate(room) if left >= len(piece) and len(micro[m]) < prompts)
        at = next(fits, None)
        if at is None:
            at = len(micro)
            micro.append([])
            room.append(rows)
        micro[at].append(piece)
        room[at] -= len(piece)
    return micro


def _write(
    plan: Plan, at: tuple[int, int], parts: list[Bins], length: Int[np.ndarray, " B"], size: int
) -> None:
    place = row = 0
    for prompt, bins in enumerate(parts):
        plan.prompts[at][prompt] = bins[0][0]
        for texts in bins:
            plan.owner[at][row] = prompt
            slot = row * size
            for response in texts:
                plan.rows[at][place], plan.start[at][place] = response, slot
                slot, place = slot + int(length[response]), place + 1
            row += 1
