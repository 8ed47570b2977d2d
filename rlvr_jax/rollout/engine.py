"""The sampler of this package: requests in, responses out, in as many segments of the decode loop as it takes."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from rlvr_jax.distributed import put, replicated
from rlvr_jax.models.decoder import Decoder
from rlvr_jax.models.decoding import CACHE_TYPES, WEIGHTS_LAYOUTS, CacheType, WeightsLayout, cache_length
from rlvr_jax.products import platform_in_use
from rlvr_jax.rollout.decode_loop import Edits, Left, Log, Loop, Rows, Slots
from rlvr_jax.rollout.protocol import OnRow, Request, Samples, ignore
from rlvr_jax.rollout.sampling import RowSampling, Sampling
from rlvr_jax.rollout.slots import Layout, plan
from rlvr_jax.rollout.table import Table
from rlvr_jax.rollout.tools import Turns
from rlvr_jax.rollout.turns import Conversation
from rlvr_jax.rollout.workers import Workers
from rlvr_jax.sharding import batch_shards, in_order, row_sharding

_TOOL_PROCESSES = 2
_SMALLEST_ROOM = 64
"""Tokens of a cache; rooms are this times a power of 2, or all that a row may have. Ours."""


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How the decode loop runs. No token depends on it, but for a cache that is rounded more than the model is."""

    slots: int = 0
    """Rows that are decoded at once, at the most; finished ones make room. 0: what suits the platform (`rollout.slots`)."""
    segment: int = 32
    """Steps between looks of the host at what was written: for strings that end a response, tools, and verification."""
    cache: CacheType = "auto"
    """Type of cached keys and values. auto: what the model computes in (on a CPU float32, which holds the same numbers). int8
    halves the memory of bfloat16, with a scale for each token and head; log-probabilities are then those of the rounded
    cache, a little off the scorer's."""
    weights: WeightsLayout = "stored"
    """Where the mesh splits weights over `fsdp`. stored: they stay so, and a layer is gathered at every step, which takes no memory.
    gathered: each device has all of them while it decodes, gathered once for each update; how much faster that is, and whether it
    fits, `rlvr-jax plan` says. (On a CPU they always are.)"""

    def __post_init__(self):
        if self.slots < 0:
            raise ValueError(f"decoding.slots is 0 (what suits the platform) or more, got {self.slots}.")
        if self.segment < 1:
            raise ValueError(f"decoding.segment is 1 step or more, got {self.segment}.")
        if self.cache not in CACHE_TYPES:
            raise ValueError(f"decoding.cache is one of {', '.join(CACHE_TYPES)}, got {self.cache!r}.")
        if self.weights not in WEIGHTS_LAYOUTS:
            raise ValueError(
                f"decoding.weights is one of {', '.join(WEIGHTS_LAYOUTS)}, got {self.weights!r}."
            )


class Engine:
    """The `Sampler` of this package. `model` is the structure alone; the weights come with `push`.

    Functions are compiled once for each bucket of prompt widths and each number of rows; `traces` counts them. On a mesh,
    enter `jax.set_mesh(mesh)` around `push` and `sample`.

    With `turns` a row may call tools: what they answer is in its tokens, without `mask`, and counts towards
    `max_new_tokens`.

    Raises ValueError for a model without a stop token, and for stop strings or tools without a tokenizer.
    """

    def __init__(
        self,
        model: Decoder,
        sampling: Sampling,
        stop: tuple[int, ...],
        *,
        tokenizer: Any = None,
        turns: Turns | None = None,
        decoding: Decoding = Decoding(),  # noqa: B008  (frozen)
        mesh: Mesh | None = None,
        traces: Counter | None = None,
        options: dict[str, Any] | None = None,
    ):
        if not stop:
            raise ValueError(
                "the model names no stop token: set eos_token_id in its generation_config.json or tokenizer."
            )
        if (sampling.stop or turns) and tokenizer is None:
            raise ValueError("strings that end a response, and tools, are read as text: give a tokenizer.")
        self.sampling, self.decoding, self._mesh = sampling, decoding, mesh
        self.turns, self._tokenizer = turns, tokenizer
        self._workers = Workers(_TOOL_PROCESSES, turns.deadline) if turns else None
        self.loop = Loop(
            model=model,
            sampling=sampling,
            stop=stop,
            segment=decoding.segment,
            room=turns.max_result_tokens if turns else 0,
            cache=decoding.cache,
            weights_layout=decoding.weights,
        )
        self.traces = Counter() if traces is None else traces
        self.version = -1
        self._params: Any = None
        self._weights: Any = None

        def jitted(name: str, **how: Any) -> Callable:
            function = getattr(self.loop, name)

            def traced(*args: Any) -> Any:
                self.traces[name] += 1
                return function(*args)

            return in_order(jax.jit(traced, compiler_options=options, **how))

        self._to_weights, self._prefill = jitted("weights"), jitted("prefill")
        self._start = jitted("start", static_argnums=(1, 2))
        self._resize = jitted("resize", static_argnums=1)
        self._gather = jitted("gather", static_argnums=(2, 3))
        self._advance = jitted("advance", static_argnums=4, donate_argnums=2)

    def push(self, params: Any, version: int) -> None:
        """Sample with these parameters from now on. Nothing of the weights before them is kept, no cache either."""
        self._params, self._weights, self.version = params, self._to_weights(params), version

    def sample(self, request: Request, on_row: OnRow = ignore) -> Samples:
        """All responses of a request. Raises ValueError before a push, and for prompts that the mesh's shards cannot share."""
        if self._weights is None:
            raise ValueError("the engine has no weights: push some first.")
        layout = self.layout(request)
        how = RowSampling.of(self.sampling, request.rows, request.overrides)
        batch = request.batch
        arrays = self._placed((batch.tokens, batch.length, batch.prompt_id, request.first_sample))
        seed, step = jnp.asarray(request.seed), jnp.asarray(request.step)
        rows = self._prefill(self._params, *arrays, seed, step, self._placed(how))
        table = Table(request.rows, self.sampling, on_row)
        slots = self._start(rows, layout, self._room(self.loop.segment))
        if self.sampling.stop or self.turns:
            self._converse(rows, slots, layout, table)
        else:
            self._run(rows, slots, layout, table)
        return table.samples(self.version)

    def _run(self, rows: Rows, slots: Slots, layout: Layout, table: Table) -> None:
        """A segment is read while the next one runs. The last rows move together on fewer slots."""
        left: Left | bool = True
        logs = []
        while left or logs:
            if left:
                slots = self._with_room(slots, table.longest + len(logs) * self.loop.segment)
                nothing = Edits.none(layout.slots, 0)
                slots, log, left = self._segment(rows, slots, nothing, layout)
                logs.append(log)
            if len(logs) > 1 or not left:
                log = jax.device_get(logs.pop(0))
                table.write(log)
                table.end_where_it_did(log)
            if isinstance(left, Left) and left and not left.untaken:
                fewer = layout.fitting(int(left.at_work))
                if fewer is not layout:
                    slots, layout = self._gather(rows, slots, layout, fewer), fewer

    def _converse(self, rows: Rows, slots: Slots, layout: Layout, table: Table) -> None:
        """What a segment says decides how the next one begins."""
        talk = Conversation(
            self._tokenizer, self.sampling.stop, self.turns, self._workers, table, layout.slots
        )
        edits, left = Edits.none(layout.slots, self.loop.room), True
        while left or edits.on.any():
            slots = self._with_room(slots, table.longest)
            slots, log, left = self._segment(rows, slots, edits, layout)
            edits = talk.read(jax.device_get(log))

    def _segment(self, rows: Rows, slots: Slots, edits: Edits, layout: Layout) -> tuple[Slots, Log, Left]:
        """A segment; every process can read its log, and what is left after it."""
        slots, log, left = self._advance(self._weights, rows, slots, edits, layout)
        log, left = replicated((log, left), self._mesh)
        return slots, log, left

    def _room(self, tokens: int) -> int:
        """How many tokens the cache has room for where that many are needed: few sizes, as each is compiled."""
        return min(self.sampling.max_new_tokens, max(_SMALLEST_ROOM, 1 << (tokens - 1).bit_length()))

    def _with_room(self, slots: Slots, longest: int) -> Slots:
        """For one more segment, where the longest row that is not over has that many tokens."""
        room = self._room(longest + self.loop.segment)
        return slots if room == cache_length(slots.cache) else self._resize(slots, room)

    def layout(self, request: Request) -> Layout:
        """The schedule of a request."""
        shards = 1 if self._mesh is None else batch_shards(self._mesh)
        prompts = len(request.batch.length)
        if prompts % shards:
            raise ValueError(
                f"{prompts} prompts do not spread over {shards} shards of the mesh: make them a multiple."
            )
        return plan(prompts, request.group_size, self.decoding.slots, shards, platform_in_use())

    def _placed(self, tree: Any) -> Any:
        return tree if self._mesh is None else put(tree, row_sharding(self._mesh))


def structure(graphdef: Any, params: Any) -> Decoder:
    """The model of a graph and (abstract) parameters, without any weight."""
    return nnx.merge(graphdef, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params))
