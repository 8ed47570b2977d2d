"""The attention of whole rows on a GPU, and how a kernel that knows one window and one device serves many."""

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rlvr_jax.models.positions import in_reach, step_in_text
from rlvr_jax.sharding import spec

Kernel = Callable[..., Float[Array, "B T N H"]]


def cudnn(
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
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "B T N H"]:
    """cuDNN's flash attention: each row is a text of S + T tokens at their true places, the padding behind them.

    So that causality, window and lengths say all that a mask would, and none of [T, S + T] is made. The price is that a
    row's prefix is copied for it, and asks too: S^2 / 2 scores beside T S + T^2 / 2. Packed rows have a mask [T, S + T], as
    JAX passes no segments to cuDNN.
    """
    (rows, real, *_), (prompts, shared, *_) = q.shape, prefix_k.shape
    attention = jax.nn.dot_product_attention
    how: dict[str, Any] = dict(scale=scale, is_causal=True, implementation=implementation)
    if window:
        how["local_window_size"] = (window - 1, 0)
    if segments is not None:
        # cuDNN has the gradient under a mask for even lengths alone; what is added, nothing real sees.
        even, front = real + real % 2, shared + shared % 2
        seen = _seen_in_packed(jnp.pad(segments, ((0, 0), (0, even - real))), length, front, window)
        keys, values = (
            jnp.concatenate([pad(prefix, front).repeat(rows // prompts, axis=0), pad(own, even)], axis=1)
            for prefix, own in ((prefix_k, k), (prefix_v, v))
        )
        out = attention(pad(q, even), keys, values, mask=seen, scale=scale, implementation=implementation)
        return out[:, :real]
    if not shared:
        return attention(q, k, v, **how)

    length = length.repeat(rows // prompts)[:, None]
    place = jnp.arange(shared + real)[None]
    order = jnp.where(place < length + real, place + shared - length, place - real)
    order = jnp.where(place < length, place, order)  # from [prefix, padding, own] to [prefix, own, padding]

    def joined(prefix: Array, own: Array) -> Array:
        prefix = prefix.repeat(rows // prefix.shape[0], axis=0)
        return permuted(jnp.concatenate([prefix, own], axis=1), order)

    nothing = jnp.zeros((rows, shared, *q.shape[2:]), q.dtype)
    ends = (length + real)[:, 0].astype(jnp.int32)
    out = attention(
        joined(nothing, q),
        joined(prefix_k, k),
        joined(prefix_v, v),
        query_seq_lengths=ends,
        key_value_seq_lengths=ends,
        **how,
    )
    return permuted(out, length + jnp.arange(real)[None])


def _seen_in_packed(
    segments: Int[Array, "B T"], length: Int[Array, " P"], front: int, window: int
) -> Bool[Array, "B 1 T U"]:
    """Which of U = front + T keys a query sees: the real ones of the prefix and what is before it in its text, in reach."""
    place, key = jnp.arange(segments.shape[1]), jnp.arange(front)
    length = length.repeat(len(segments) // len(length))[:, None, None]
    behind = length + step_in_text(segments)[:, :, None] - key[None, None]
    on_prefix = in_reach(jnp.where(key[None, None] < length, behind, -1), window)
    own = jnp.where(segments[:, :, None] == segments[:, None], (place[:, None] - place[None])[None], -1)
    return jnp.concatenate([on_prefix, in_reach(own, window)], axis=2)[:, None]


def over_windows(
    kernel: Kernel, *rows: Any, window: Int[Array, ""] | None, windows: tuple[int, ...]
) -> Array:
    """The kernel of the layer's window, one of `windows`: a branch for each size that there is."""
    sizes = sorted(set(windows)) or [0]
    branches = [lambda size=size: over_shards(kernel, *rows, window=size) for size in sizes]
    if window is None or len(sizes) == 1:
        return branches[0]()
    return jax.lax.switch(jnp.searchsorted(jnp.asarray(sizes), window), branches)


def over_shards(
    kernel: Kernel,
    q: Float[Array, "B T N H"],
    prefix_k: Float[Array, "P S K H"],
    prefix_v: Float[Array, "P S K H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K H"],
    length: Int[Array, " P"],
    segments: Int[Array, "B T"] | None,
    *,
    window: int,
) -> Float[Array, "B T N H"]:
    """Each device of the mesh runs the kernel on its rows and heads: compilers do not split kernels by themselves.

    Prompts and key heads that are fewer than the devices among which their rows and heads are split are repeated until
    each device has its own. Devices along `sequence` have the same rows, and compute all of each: a kernel's queries end where
    its keys do.
    """
    rows, prompts = q.shape[0], prefix_k.shape[0]
    if prefix_k.shape[1] == 0 and prompts < rows:  # nothing is shared
        prefix_k, prefix_v, length = (x.repeat(rows // prompts, axis=0) for x in (prefix_k, prefix_v, length))
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return kernel(q, prefix_k, prefix_v, k, v, length, segments, window=window)
    layout = spec(("batch", None, "heads", None), q.shape, mesh)
    local = jax.sharding.NamedSharding(mesh, layout).shard_shape(q.shape)
    ways, head_ways = rows // local[0], q.shape[2] // local[2]
    prefix_k, prefix_v, length = (_divisible(x, 0, ways) for x in (prefix_k, prefix_v, length))
    prefix_k, prefix_v, k, v = (_divisible(x, 2, head_ways) for x in (prefix_k, prefix_v, k, v))
    by_row = jax.sharding.PartitionSpec(layout[0])
    return jax.shard_map(
        lambda *arrays: kernel(*arrays, window=window),
        in_specs=(layout, layout, layout, layout, layout, by_row, None if segments is None else by_row),
        out_specs=layout,
        check_vma=False,  # Pallas does not say how its results vary over the mesh
    )(q, prefix_k, prefix_v, k, v, length, segments)


def pad(x: Float[Array, "R L N H"], size: int) -> Float[Array, "R M N H"]:
    """Zeros behind each row, up to `size` places."""
    return jnp.pad(x, ((0, 0), (0, size - x.shape[1]), (0, 0), (0, 0)))


def permuted(x: Float[Array, "R L N H"], order: Int[Array, "R M"]) -> Float[Array, "R M N H"]:
    """x[r, order[r, m]], no place twice: its gradient need not add."""
    return x.at[jnp.arange(x.shape[0])[:, None], order].get(unique_indices=True, mode="promise_in_bounds")


def _divisible(x: Array, axis: int, ways: int) -> Array:
    """Each entry repeated, neighbours of itself, until `ways` divides their number."""
    return x.repeat(math.lcm(x.shape[axis], ways) // x.shape[axis], axis=axis)
