"""The programs of a training step, as the run itself would compile them, on arrays that are shapes alone."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from rlvr_jax.objective import Credit
from rlvr_jax.products import platform_in_use
from rlvr_jax.rollout.decode_loop import Edits
from rlvr_jax.rollout.engine import Engine
from rlvr_jax.rollout.prompts import bucket
from rlvr_jax.rollout.sampling import RowSampling
from rlvr_jax.rollout.slots import Layout, plan
from rlvr_jax.sharding import batch_shards, replicated, row_sharding
from rlvr_jax.train.packing import Plan as RowPlan
from rlvr_jax.train.program import Program, updates_per_step
from rlvr_jax.types import Pass, Rollout, Stat, Stats


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """One jitted function with its arguments, shapes alone."""

    name: str
    function: Any
    arguments: tuple[Any, ...]
    runs: float
    """How often in a training step."""
    turns: int
    """Of its loops that end by a condition."""
    beside: int
    """Bytes that other arrays of the run take on a device meanwhile."""


class Calls:
    """The calls of a program, one after another, each with arguments that are laid out as the ones before it leave them.

    `sample` comes in two: `prefill`, and `decode`, which is one segment with the cache at its full length.
    """

    def __init__(self, program: Program):
        self.program, self.config, self.mesh = program, program.config, program.mesh
        state = program.abstract
        copies = 1 + self.config.batch.ahead
        reference = device_bytes(state.params) if program.score_ref is not None else 0
        self._sizes = {
            "params": device_bytes(state.policy),
            "copies": (copies - 1) * device_bytes(state.params),
            "optimizer": device_bytes((state.opt, state.objective)),
            "reference": reference,
        }

    def training(self, weights: int = 0) -> Iterator[Call]:
        """score, score_ref and update; `weights` are the bytes that the sampler keeps of its own."""
        program, size, state = self.program, self._sizes, self.program.abstract
        rollout, always = self.rollout(), self._sizes["copies"] + weights
        whole, turns = self.planned(program.score_plan(self.longest()))
        if program.score is not None:
            beside = always + size["optimizer"] + size["reference"]
            yield Call("score", jitted(program.score), (state.policy, rollout, whole), 1.0, turns, beside)
        if program.score_ref is not None:
            beside = always + size["optimizer"] + size["params"]
            yield Call(
                "score_ref", jitted(program.score_ref), (state.policy, rollout, whole), 1, turns, beside
            )
        stats = self.stats(rollout, whole)
        live = np.ones(program.spec.rows, bool)
        plan, turns = self.planned(program.update_plan(self.longest(), live, 0))
        arguments = state, rollout, stats, self.credit(rollout, stats), plan, 0, 0
        runs = updates_per_step(self.config)
        yield Call(
            "update", jitted(program.update), arguments, float(runs), turns, always + size["reference"]
        )

    def prefill(self, weights: int = 0) -> Call:
        """The prompts of a batch; 'weights' as above."""
        config, rows = self.config, self.config.batch.prompts
        width = bucket(config.prompts.max_tokens, config.prompts.max_tokens)
        ids = self.rows((rows,), jnp.int32)
        scalar = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated(self.mesh))
        how = RowSampling.of(config.sampling, rows * config.batch.group_size)
        how = jax.tree.map(lambda x: self.rows(x.shape, x.dtype), how)
        arguments = (
            self.program.abstract.policy,
            self.rows((rows, width), jnp.int32),
            ids,
            ids,
            ids,
            scalar,
            scalar,
            how,
        )
        beside = sum(self._sizes.values()) - self._sizes["params"] + weights
        return Call(
            "prefill", jax.jit(self.loop.prefill), arguments, float(config.batch.max_rounds), 1, beside
        )

    def weights(self) -> Call:
        """What the sampler makes of the parameters."""
        return Call("weights", jax.jit(self.loop.weights), (self.program.abstract.policy,), 1.0, 1, 0)

    def start(self, rows: Any) -> Call:
        function = jax.jit(self.loop.start, static_argnums=(1, 2))
        room = self.config.sampling.max_new_tokens
        return Call("start", function, (rows, self.layout(), room), 1.0, 1, 0)

    def decode(self, weights: Any, rows: Any, slots: Any) -> Call:
        """One segment. The cache that it was moved from, half as long, is gone by then."""
        layout, loop = self.layout(), self.loop
        nothing = Edits.none(layout.slots, loop.room)
        everywhere = replicated(self.mesh)
        edits = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), nothing)
        function = jax.jit(loop.advance, static_argnums=4, donate_argnums=2)
        waves = -(-layout.prompts * layout.group_size // layout.slots)
        steps = waves * self.config.sampling.max_new_tokens * self.config.batch.max_rounds
        beside = sum(self._sizes.values())
        arguments = weights, rows, slots, edits, layout
        return Call("decode", function, arguments, steps / loop.segment, loop.segment, beside)

    @property
    def loop(self) -> Any:
        """Raises ValueError where another engine samples."""
        if not isinstance(self.program.sampler, Engine):
            raise ValueError("vLLM samples in this config, and what it needs is not planned.")
        return self.program.sampler.loop

    def layout(self) -> Layout:
        """The schedule of a batch."""
        batch, slots = self.config.batch, self.config.decoding.slots
        return plan(batch.prompts, batch.group_size, slots, batch_shards(self.mesh), platform_in_use())

    def rows(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=row_sharding(self.mesh))

    def rollout(self) -> Rollout:
        """Of a whole batch, every row as long as it may be."""
        spec, width = (
            self.program.spec,
            bucket(self.config.prompts.max_tokens, self.config.prompts.max_tokens),
        )
        b, t = (spec.rows,), (spec.rows, spec.length)
        return Rollout(
            prompt=self.rows((spec.rows, width), jnp.int32),
            prompt_length=self.rows(b, jnp.int32),
            tokens=self.rows(t, jnp.int32),
            length=self.rows(b, jnp.int32),
            mask=self.rows(t, jnp.float32),
            reward=self.rows(b, jnp.float32),
            correct=self.rows(b, jnp.float32),
            prompt_id=self.rows(b, jnp.int32),
            truncated=self.rows(b, jnp.bool_),
        )

    def longest(self) -> Any:
        """What the host knows of a batch whose answers are all as long as they may be."""
        rollout = self.rollout()
        return dataclasses.replace(
            rollout, length=np.full(rollout.length.shape, self.program.spec.length, np.int32)
        )

    def planned(self, plan: RowPlan) -> tuple[RowPlan, int]:
        """The shapes of a plan of rows, and how many micro-batches it has."""
        everywhere = replicated(self.mesh)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), plan)
        return shapes, int(plan.count)

    def stats(self, rollout: Rollout, whole: RowPlan) -> Stats:
        """Of the passes before the update."""
        program = self.program
        values: Any = {(Pass.SAMPLER, Stat.LOGPROB): self.rows(rollout.tokens.shape, jnp.float32)}
        for score in filter(None, (program.score, program.score_ref)):
            found = jax.eval_shape(jitted(score), program.abstract.policy, rollout, whole)
            values |= {k: self.rows(v.shape, v.dtype) for k, v in found.items()}
        found = jax.eval_shape(lambda values: Stats(values=values), values)
        return jax.tree.map(lambda x: self.rows(x.shape, x.dtype), found)

    def credit(self, rollout: Rollout, stats: Stats) -> Credit:
        found = jax.eval_shape(jitted(self.program.credit), rollout, stats, self.program.abstract.objective)[
            0
        ]
        return jax.tree.map(lambda x: self.rows(x.shape, x.dtype), found)


def jitted(function: Any) -> Any:
    """The jitted function behind `sharding.in_order`."""
    return getattr(function, "__wrapped__", function)


def laid_out(compiled: Any, shapes: Any) -> Any:
    """`shapes` on the devices as a compiled function leaves them."""
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        shapes,
        compiled.output_shardings,
    )


def device_bytes(tree: Any) -> int:
    """Of one device, for arrays whose shapes say how they are split."""
    return sum(_part(x) for x in jax.tree.leaves(tree))


def _part(x: Any) -> int:
    sharding = getattr(x, "sharding", None)
    shape = sharding.shard_shape(x.shape) if isinstance(sharding, Sharding) else x.shape
    return math.prod(shape) * np.dtype(x.dtype).itemsize
