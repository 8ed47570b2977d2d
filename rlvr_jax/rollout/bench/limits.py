"""The least time that a decode step could take on this machine, from how fast it multiplies and reads."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from rlvr_jax.models.decoder import Decoder
from rlvr_jax.models.decoding import cache_dtype
from rlvr_jax.products import precision_of
from rlvr_jax.rollout.slots import Layout

_READ = 2**28
"""Bytes of the array that is copied and read: more than a cache holds."""
_SECONDS = 0.5
"""How long one product or copy is repeated; its best time counts."""


@dataclasses.dataclass(frozen=True)
class Step:
    """What a decode step has to do: operations of the layers and of the head, and bytes to read."""

    layer_flops: float
    head_flops: float
    bytes: float


@dataclasses.dataclass(frozen=True)
class Machine:
    """What this machine reaches, per second: operations in products of the layers' and of the head's shape, and bytes."""

    layer_flops: float
    head_flops: float
    bytes: float

    def seconds(self, step: Step) -> float:
        """No step is faster than its products, nor than the reading of its weights and keys."""
        products = step.layer_flops / self.layer_flops + step.head_flops / self.head_flops
        return max(products, step.bytes / self.bytes)


def work_of_step(model: Decoder, layout: Layout, prompt: int, own: float) -> Step:
    """With all slots at work on prompts of `prompt` tokens, `own` tokens behind them in the mean. A product of [m, k] and
    [k, n] has 2 m k n operations. What is drawn, and the statistics of a token, count for nothing."""
    c = model.config
    matrices = sum(math.prod(leaf.shape) for leaf in model.layout().values() if leaf.inputs)
    attention = 2 * c.num_heads * c.head_dim * (prompt + own)
    cache_bytes = cache_dtype(model, "auto").itemsize
    return Step(
        layer_flops=2.0 * layout.slots * c.num_layers * (matrices + attention),
        head_flops=2.0 * layout.slots * c.dim * c.vocab_size,
        bytes=float(bytes_of_step(model, layout.slots, layout.blocks, prompt, round(own), cache_bytes)),
    )


def bytes_of_step(model: Decoder, rows: int, blocks: int, prompt: int, own: int, cache_bytes: int) -> int:
    """What a step has to read at the least: all weights once, each block's prompt once, each row's own tokens."""
    c = model.config
    layer = sum(math.prod(leaf.shape) for leaf in model.layout().values())
    weights = (c.num_layers * layer + c.vocab_size * c.dim) * model.dtype.itemsize
    token = 2 * c.num_layers * c.num_kv_heads * c.head_dim * cache_bytes
    return weights + token * (blocks * prompt + rows * own)


def reach(model: Decoder, rows: int) -> Machine:
    """Measured: [rows, dim] times a matrix of the MLP and times the head, in the model's dtype with a float32 result, and the
    better of copying and reading an array."""
    c = model.config
    copied = jax.jit(lambda x: x + 1)
    summed = jax.jit(jnp.sum)
    x = jnp.ones(_READ // 4, jnp.float32)
    return Machine(
        layer_flops=_product(rows, c.dim, c.mlp_dim, model.dtype),
        head_flops=_product(rows, c.dim, c.vocab_size, model.dtype),
        bytes=max(2 * x.nbytes / _best(copied, x), x.nbytes / _best(summed, x)),
    )


def _product(m: int, k: int, n: int, dtype: Any) -> float:
    """Operations per second; of the two orders in which the matrix can lie, the faster one."""
    x = jax.random.normal(jax.random.key(0), (m, k), dtype)
    w = jax.random.normal(jax.random.key(1), (k, n), dtype)
    how: dict[str, Any] = dict(precision=precision_of(dtype), preferred_element_type=jnp.float32)
    straight = jax.jit(lambda x, w: jnp.matmul(x, w, **how))
    turned = jax.jit(lambda x, t: jax.lax.dot_general(t, x, (((1,), (1,)), ((), ())), **how))
    return 2.0 * m * k * n / min(_best(straight, x, w), _best(turned, x, w.T.copy()))


def _best(f: Callable, *operands: Array) -> float:
    """Seconds."""
    jax.block_until_ready(f(*operands))
    best, end = math.inf, time.perf_counter() + _SECONDS
    while best == math.inf or time.perf_counter() < end:
        start = time.perf_counter()
        jax.block_until_ready(f(*operands))
        best = min(best, time.perf_counter() - start)
    return best
