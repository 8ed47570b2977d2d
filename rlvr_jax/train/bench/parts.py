"""Where the time of an update goes: parts of it, each compiled and timed alone at the shapes that it has in there."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rlvr_jax.rollout.bench.process import Say
from rlvr_jax.stats import token_stats
from rlvr_jax.train.bench.ours import TimedUpdate, model_of
from rlvr_jax.train.step import make_score
from rlvr_jax.types import Pass, Stat

_WANT = frozenset({Stat.LOGPROB})


def parts(update: TimedUpdate, whole: float, repeats: int, say: Say) -> dict[str, float]:
    """Seconds, over all micro-batches: of the forward (`forward`), of the head and of the layers forward and backward
    (`head`, `layers`: what is left of the whole), of AdamW (`optimizer`), and of adding up gradients and setting them to 0
    (`sums`)."""
    program, state, plan = update.program, update.state, update.plan()
    count = int(plan.count)

    def timed(name: str, f: Callable, *arrays: Any, times: int = 1) -> float:
        jax.block_until_ready(f(*arrays))
        found = []
        for _ in range(repeats):
            start = time.perf_counter()
            jax.block_until_ready(f(*arrays))
            found.append(time.perf_counter() - start)
        seconds = times * statistics.median(found)
        say(f"{name}: {seconds:.2f} s")
        return seconds

    score = jax.jit(make_score(program.forward, Pass.NEW, _WANT))
    found = {
        "forward": timed("forward", score, state.policy, update.rollout, plan),
        "head": timed("head", *_head(update), times=count),
    }
    gradient = jax.tree.map(jnp.ones_like, state.params)

    @jax.jit
    def step(params: Any, opt: Any, gradient: Any) -> tuple[Any, Any]:
        updates, opt = program.tx.update(gradient, opt, params)
        return optax.apply_updates(params, updates), opt

    found["optimizer"] = timed("optimizer", step, state.params, state.opt, gradient)
    add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b))
    found["sums"] = timed("sums", add, gradient, gradient, times=count)
    found["layers"] = whole - sum(found[name] for name in ("head", "optimizer", "sums"))
    return found


def _head(update: TimedUpdate) -> tuple[Callable, Any, Any]:
    """Forward and backward of the statistics of one micro-batch, and what they are of."""
    program, plan = update.program, update.plan()
    model, (_, _, rows) = model_of(program), plan.owner.shape
    size = update.told.tokens.shape[1]
    hidden = jax.random.normal(jax.random.key(0), (rows, size, model.config.dim), model.dtype)
    table = jax.random.normal(jax.random.key(1), (model.config.vocab_size, model.config.dim)) / 24
    targets = jnp.zeros((rows, size), jnp.int32)

    def loss(hidden: jax.Array, table: jax.Array) -> jax.Array:
        found = token_stats(
            hidden,
            table.astype(model.dtype),
            targets,
            _WANT,
            chunk=program.forward.chunk,
            softcap=model.config.softcap,
        )
        return found[Stat.LOGPROB].sum()

    return jax.jit(jax.grad(loss, argnums=(0, 1))), hidden, table
