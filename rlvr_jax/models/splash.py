"""The attention of whole rows on a TPU."""

import dataclasses
import functools
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jaxtyping import Array, Float, Int

from rlvr_jax.models.kernels import pad, permuted


def splash(
    q: Float[Array, "B T N H"],
    prefix_k: Float[Array, "P S K H"],
    prefix_v: Float[Array, "P S K H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K H"],
    length: Int[Array, " P"],
    segments: Int[Array, "B T"] | None = None,
    *,
    window: int,
    scale: float,
    interpret: bool = False,
) -> Float[Array, "B T N H"]:
    """Pallas's splash attention, one call a prompt: its G rows are one text of G T queries, their keys one of S + G T.

    The mask, known when traced, says that a row sees the prefix and of the rest itself. So the prefix is never copied,
    blocks of other rows are never visited, and the kernel sums the gradient of the prefix over the group. Which texts
    stand in a packed row is known later: their numbers go with queries and keys (`_apart`). S and T are
    padded to multiples of 128, the width of the kernel's tiles; those of 512 run in its larger blocks. With a window
    the prefixes are moved to the end of their S places, where the distance to a row's own tokens is the true one.

    Reference: arXiv:2205.14135; Deviations: queries are multiplied by `scale` before the kernel, which has none, and
    rounded to their type.
    """
    (rows, real, heads, width), (prompts, shared, kv_heads, _) = q.shape, prefix_k.shape
    group = rows // prompts
    prefix_size, size = _round_up(shared), _round_up(real)
    block = next(b for b in (512, 256, 128) if prefix_size % b == size % b == 0)

    place, hole = jnp.arange(prefix_size)[None], (prefix_size - length)[:, None]
    order = (place - hole) % prefix_size if window else place  # 0, 1, ... in front of the own tokens
    seen = (place >= hole) if window else place < length[:, None]

    def keys(prefix: Array, own: Array) -> Array:
        prefix = pad(prefix, prefix_size)
        prefix = permuted(prefix, order) if window and shared else prefix
        own = pad(own, size).reshape(prompts, group * size, kv_heads, -1)
        return jnp.concatenate([prefix, own], axis=1).swapaxes(1, 2)

    q = (q * scale).astype(q.dtype)
    if segments is not None:
        if window and shared:
            raise ValueError(
                "packed rows behind a prefix have no windows here: their distances are not the kernel's."
            )
        q, k = _apart(q, k, segments)
        prefix_k = jnp.pad(prefix_k, ((0, 0), (0, 0), (0, 0), (0, q.shape[-1] - width)))
    queries = pad(q, size).reshape(prompts, group * size, heads, -1)
    if shared:
        own = jnp.ones((prompts, group * size), jnp.int32)
        ids = kernel.SegmentIds(q=own, kv=jnp.concatenate([seen.astype(jnp.int32), own], axis=1))
    else:
        ids = None
    mask = RowsBehindPrefix(group, prefix_size, size, window)
    call = kernel.make_splash_mha(
        masks.MultiHeadMask([mask] * heads),
        block_sizes=kernel.BlockSizes(
            block_q=block,
            block_kv=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_q_dq=block,
            block_kv_dq=block,
        ),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    arrays = queries.swapaxes(1, 2), keys(prefix_k, k), keys(prefix_v, v), ids
    out = cast(Array, jax.vmap(call)(*arrays))
    return out.swapaxes(1, 2).reshape(rows, size, heads, width)[:, :real]


@dataclasses.dataclass(frozen=True)
class RowsBehindPrefix(masks.Mask):
    """What queries [G T] see of keys [S + G T], by block; no block lies in two rows, or in a row and the prefix."""

    group: int
    prefix: int
    size: int
    window: int

    @property
    def shape(self) -> tuple[int, int]:
        own = self.group * self.size
        return own, self.prefix + own

    def __getitem__(self, block: tuple[slice, slice]) -> np.ndarray:
        queries, keys = block
        row, start = divmod(queries.start, self.size)
        ahead = self.prefix + start - keys.start
        if keys.start >= self.prefix:
            same = (keys.start - self.prefix) // self.size == row
            ahead = ahead + row * self.size if same else -self.size  # nothing of another row is behind
        return _causal_block(ahead, self.window, queries.stop - queries.start, keys.stop - keys.start)


@functools.cache
def _causal_block(ahead: int, window: int, queries: int, keys: int) -> np.ndarray:
    """Of queries that start `ahead` tokens after the keys. The library asks for each of some 10,000 blocks six times."""
    behind = ahead + np.arange(queries)[:, None] - np.arange(keys)[None]
    return (behind >= 0) & (behind < (window or behind.max() + 1))


_FAR = 30_000.0
"""Behind what the largest score is by so much, e^-score is 0 in float32. A power of 2 or not, bfloat16 rounds it alike."""


def _apart(
    q: Float[Array, "B T N H"], k: Float[Array, "B T K H"], segments: Int[Array, "B T"]
) -> tuple[Float[Array, "B T N M"], Float[Array, "B T K M"]]:
    """Queries and keys with 64 more entries each, whose product is 0 within a text and -30,000 or less between two.

    For each bit of a text's number a query has two entries (0 and -30,000, or the other way round), a key 1 and 0: exact in
    bfloat16, and a key without them is seen by all.
    """
    first = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)))
    bits = (jnp.cumsum(first, axis=1)[..., None] >> jnp.arange(32)[None, None]) & 1
    flags = jnp.stack([bits, 1 - bits], axis=-1).reshape(*segments.shape, 64)[:, :, None]

    def beside(x: Array, flags: Array) -> Array:
        flags = jnp.broadcast_to(flags.astype(x.dtype), (*x.shape[:3], 64))
        return jnp.concatenate([x, flags], axis=-1)

    return beside(q, -_FAR * (1 - flags)), beside(k, flags)


def _round_up(size: int) -> int:
    """To a multiple of the 128 lanes of a TPU's tile."""
    return -(-size // 128) * 128
