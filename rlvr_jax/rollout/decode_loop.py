"""The decode loop under jit: slots draw a token each, rows end, free slots take the next rows, until a segment is over.

What a segment did is a log, one line a step, that the host reads while the next segment runs; no table of results rides
along. What the host wants changed in between (a row that ended on a string, a tool's answer to read) are `Edits`.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Int, Key

from rlvr_jax.models.decoder import Decoder
from rlvr_jax.models.decoding import (
    Cache,
    CacheType,
    DecodeWeights,
    SharedPrompts,
    WeightsLayout,
    decode,
    decode_logits,
    decode_weights,
    init_cache,
    of_blocks,
    of_rows,
    resized,
    shared_prompts,
)
from rlvr_jax.rollout.sampling import RowSampling, Sampling, draw, row_keys
from rlvr_jax.rollout.slots import Board, Layout, gathered, rows_of, take
from rlvr_jax.sharding import constrain
from rlvr_jax.stats import dense_stats
from rlvr_jax.types import Stat, pytree


@pytree
class Rows:
    """What is fixed for the rows of a request: the prompts [P], and by row [B] noise and sampling."""

    prompts: SharedPrompts
    last: Int[Array, " P"]
    keys: Key[Array, " B"]
    how: RowSampling


@pytree
class Slots:
    """Where each of W slots stands: tokens its row has, the token that it reads next, and what it has to read of a tool's
    answer before it may draw again: `given` [W F], of which `read` are read and `pending` there."""

    board: Board
    position: Int[Array, " W"]
    token: Int[Array, " W"]
    paused: Bool[Array, " W"]
    given: Int[Array, "W F"]
    read: Int[Array, " W"]
    pending: Int[Array, " W"]
    cache: Cache
    shared: SharedPrompts | None
    """The prompts of the blocks; None where block i works on prompt i for good."""


@pytree
class Edits:
    """What the host changes before a segment, by slot. All of it is off where `on` is 0."""

    on: Bool[Any, " W"]
    end: Bool[Any, " W"]
    paused: Bool[Any, " W"]
    position: Int[Any, " W"]
    token: Int[Any, " W"]
    given: Int[Any, "W F"]
    pending: Int[Any, " W"]

    @classmethod
    def none(cls, slots: int, room: int) -> "Edits":
        off, zero = np.zeros(slots, bool), np.zeros(slots, np.int32)
        return cls(
            on=off.copy(),
            end=off.copy(),
            paused=off.copy(),
            position=zero.copy(),
            token=zero.copy(),
            given=np.zeros((slots, room), np.int32),
            pending=zero.copy(),
        )


@pytree
class Log:
    """[steps, W]: the row that each slot worked on (-1: none), its position, what it wrote, whether it drew that
    itself, whether it ended there by a stop token (`stopped`) or for want of room (`cut`)."""

    row: Any
    position: Any
    token: Any
    drawn: Any
    stopped: Any
    cut: Any
    logprob: Any
    stats: dict[Stat, Any]


@pytree
class Left:
    """Rows that are left after a segment: those at work on the fullest shard, and those that no slot has taken."""

    at_work: Any
    untaken: Any

    def __bool__(self) -> bool:
        return bool(self.at_work) or bool(self.untaken)


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """The pure functions of a sampler; jit them.

    `model` is the structure alone (`nnx.eval_shape`), `stop` every id that ends a response, `segment` how many steps are
    done at once. `room` is how many tokens a tool may give; where there is any, a row that ended keeps its slot until the
    host says what becomes of it.
    """

    model: Decoder
    sampling: Sampling
    stop: tuple[int, ...]
    segment: int
    room: int = 0
    cache: CacheType = "auto"
    weights_layout: WeightsLayout = "stored"

    def prefill(
        self,
        params: Any,
        prompt: Array,
        length: Array,
        ids: Array,
        first: Array,
        seed: Any,
        step: Any,
        how: Any,
    ) -> Rows:
        """Each prompt once, whatever the size of its group."""
        model = self.with_params(params)
        prefix = model.prefill(prompt[:, :-1], length - 1)
        rows, group = how.top_k.shape[0], how.top_k.shape[0] // prompt.shape[0]
        repeat = lambda x: jnp.repeat(x, group, total_repeat_length=rows)  # noqa: E731
        keys = row_keys(seed, step, repeat(ids), repeat(first) + jnp.arange(rows) % group)
        last = jnp.take_along_axis(prompt, length[:, None] - 1, axis=1)[:, 0]
        return Rows(prompts=shared_prompts(model, prefix, self.cache), last=last, keys=keys, how=how)

    def start(self, rows: Rows, layout: Layout, length: int) -> Slots:
        """All slots free, with room for `length` tokens each."""
        zero = constrain(jnp.zeros(layout.slots, jnp.int32), "batch")
        nothing = None
        if layout.refills:
            nothing = of_blocks(rows.prompts, jnp.zeros(layout.blocks, jnp.int32))
        return Slots(
            board=Board.empty(layout),
            position=zero,
            token=zero,
            paused=zero > 0,
            given=jnp.zeros((layout.slots, self.room), jnp.int32),
            read=zero,
            pending=zero,
            cache=init_cache(self.model, layout.slots, length, self.cache),
            shared=nothing,
        )

    def resize(self, slots: Slots, length: int) -> Slots:
        """More room for tokens, or less where no row needs it: a step reads all that there is."""
        return dataclasses.replace(slots, cache=resized(slots.cache, length))

    def gather(self, rows: Rows, slots: Slots, old: Layout, new: Layout) -> Slots:
        """The rows that are left on fewer slots: a step costs as much for a slot that is idle."""
        board, slot = gathered(slots.board, old, new)
        return Slots(
            board=board,
            position=slots.position[slot],
            token=slots.token[slot],
            paused=slots.paused[slot],
            given=slots.given[slot],
            read=slots.read[slot],
            pending=slots.pending[slot],
            cache=of_rows(slots.cache, slot),
            shared=of_blocks(rows.prompts, jnp.maximum(board.prompt, 0)),
        )

    def advance(
        self, weights: DecodeWeights, rows: Rows, slots: Slots, edits: Edits, layout: Layout
    ) -> tuple[Slots, Log, Left]:
        """At the most `segment` steps; fewer where no slot has anything to do."""
        ends = jnp.zeros(self.model.config.vocab_size, bool).at[jnp.asarray(self.stop)].set(True, mode="drop")
        slots = _edited(slots, edits)
        log = jax.tree.map(
            lambda x: jnp.zeros((self.segment, *x.shape), x.dtype),
            jax.eval_shape(lambda: self._step(weights, rows, slots, layout, ends)[1]),
        )
        log = dataclasses.replace(log, row=log.row - 1)

        def body(carry: tuple[Array, Slots, Log]) -> tuple[Array, Slots, Log]:
            i, slots, log = carry
            slots = self._refilled(rows, slots, layout)
            slots, line = self._step(weights, rows, slots, layout, ends)
            return i + 1, slots, jax.tree.map(lambda x, new: x.at[i].set(new), log, line)

        def more(carry: tuple[Array, Slots, Log]) -> Bool[Array, ""]:
            i, s, _ = carry
            at_work = (rows_of(s.board, layout) >= 0) & ~s.paused
            return (i < self.segment) & (at_work.any() | _startable(s.board, layout))

        _, slots, log = jax.lax.while_loop(more, body, (jnp.asarray(0), slots, log))
        at_work = (slots.board.sample >= 0).reshape(layout.shards, -1).sum(1)
        untaken = (layout.group_size - slots.board.taken).sum()
        return slots, log, Left(at_work=at_work.max(), untaken=untaken)

    def weights(self, params: Any) -> DecodeWeights:
        """As the steps read them."""
        return decode_weights(self.with_params(params), self.weights_layout)

    def with_params(self, params: Any) -> Decoder:
        return nnx.merge(nnx.graphdef(self.model), params)

    def _refilled(self, rows: Rows, slots: Slots, layout: Layout) -> Slots:
        """Free slots take rows, where there are any; a new row starts at its prompt's last token."""

        def refill(slots: Slots) -> Slots:
            old, board = slots.board, take(slots.board, layout)
            new = ((board.sample >= 0) & (old.sample < 0)).reshape(-1)
            last = jnp.repeat(rows.last[board.prompt], layout.share, total_repeat_length=layout.slots)
            shared = slots.shared
            if shared is not None:
                moved = (board.prompt != old.prompt).any()
                index = jnp.maximum(board.prompt, 0)
                shared = jax.lax.cond(moved, lambda: of_blocks(rows.prompts, index), lambda: slots.shared)
            return dataclasses.replace(
                slots,
                board=board,
                shared=shared,
                position=jnp.where(new, 0, slots.position),
                token=jnp.where(new, last, slots.token),
                pending=jnp.where(new, 0, slots.pending),
            )

        return jax.lax.cond(_startable(slots.board, layout), refill, lambda s: s, slots)

    def _step(
        self,
        weights: DecodeWeights,
        rows: Rows,
        slots: Slots,
        layout: Layout,
        ends: Bool[Array, " V"],
    ) -> tuple[Slots, Log]:
        """One token for each slot at work."""
        row = rows_of(slots.board, layout)
        at_work = (row >= 0) & ~slots.paused
        shared = rows.prompts if slots.shared is None else slots.shared
        hidden, cache = decode(self.model, weights, slots.token, shared, slots.cache, slots.position)
        logits = decode_logits(self.model, weights, hidden)
        how, keys = jax.tree.map(lambda x: x[jnp.maximum(row, 0)], (rows.how, rows.keys))
        token, partition = draw(logits, keys, slots.position, how, ends)
        drawn = at_work
        if self.room:
            reads = slots.pending > 0
            drawn = at_work & ~reads
            place = jnp.minimum(slots.read, self.room - 1)[:, None]
            token = jnp.where(reads, jnp.take_along_axis(slots.given, place, axis=1)[:, 0], token)
        found = dense_stats(
            logits, token, self.sampling.wanted, temperature=how.score_temperature, partition=partition
        )
        position = slots.position + at_work
        stopped = drawn & ends[token]
        cut = at_work & ~stopped & (position >= how.max_new_tokens)
        over = stopped | cut
        log = Log(
            row=jnp.where(at_work, row, -1),
            position=slots.position,
            token=token,
            drawn=drawn,
            stopped=stopped,
            cut=cut,
            logprob=found.pop(Stat.LOGPROB),
            stats=found,
        )
        board, paused = slots.board, slots.paused
        if self.room:
            paused = paused | over
        else:
            sample = jnp.where(over.reshape(board.sample.shape), -1, board.sample)
            board = dataclasses.replace(board, sample=sample)
        reading = at_work & ~drawn
        return dataclasses.replace(
            slots,
            board=board,
            paused=paused,
            position=position,
            token=jnp.where(at_work, token, slots.token),
            read=slots.read + reading,
            pending=slots.pending - reading,
            cache=cache,
        ), log


def _startable(board: Board, layout: Layout) -> Bool[Array, ""]:
    """Whether a slot is free and some sample has not been taken."""
    return (board.sample < 0).any() & (board.taken < layout.group_size).any()


def _edited(slots: Slots, e: Edits) -> Slots:
    board = slots.board
    ended = (e.on & e.end).reshape(board.sample.shape)
    on = e.on & ~e.end
    return dataclasses.replace(
        slots,
        board=dataclasses.replace(board, sample=jnp.where(ended, -1, board.sample)),
        paused=jnp.where(e.on, e.paused & ~e.end, slots.paused),
        position=jnp.where(on, e.position, slots.position),
        token=jnp.where(on, e.token, slots.token),
        given=jnp.where(on[:, None], e.given, slots.given),
        read=jnp.where(on, 0, slots.read),
        pending=jnp.where(on, e.pending, slots.pending),
    )
