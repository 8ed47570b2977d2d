"""Rotary positions and the one attention of the house: keys shared by a group beside each row's own."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def precision_of(dtype: jnp.dtype) -> jax.lax.Precision:
    """Float32 means float32 on every device (the default would multiply in less on a GPU or TPU)."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else jax.lax.Precision.DEFAULT


def rope_angles(positions: Int[Array, "B T"], head_dim: int, theta: float) -> Float[Array, "B T half"]:
    """position * theta^(-2i / head_dim), in radians. Source: arXiv:2104.09864, section 3.2.2."""
    frequency = theta ** -(jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    return positions.astype(jnp.float32)[..., None] * frequency[None, None]


def rotate(x: Float[Array, "B T N H"], angles: Float[Array, "B T half"]) -> Float[Array, "B T N H"]:
    """Turn the pairs (x_i, x_{i + H/2}) by their angle, in float32."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def attend(
    q: Float[Array, "B T N H"],
    prefix_k: Float[Array, "P S K H"],
    prefix_v: Float[Array, "P S K H"],
    prefix_mask: Bool[Array, "P S"],
    k: Float[Array, "B U K H"],
    v: Float[Array, "B U K H"],
    mask: Bool[Array, "T U"],
) -> Float[Array, "B T N H"]:
    """softmax([q prefix_k^T, q k^T] / sqrt(H)) [prefix_v; v], one softmax in float32 over both sets of keys.

    B / P consecutive rows share a prefix, which is never repeated; N / K consecutive heads share a key head. Every
    query needs one unmasked own key, while its prefix may be masked entirely.
    """
    (rows, length, heads, width), (prompts, shared_length, kv_heads, _) = q.shape, prefix_k.shape
    precision = precision_of(q.dtype)
    own_q = q.reshape(rows, length, kv_heads, heads // kv_heads, width)
    shared_q = own_q.reshape(prompts, rows // prompts, *own_q.shape[1:])

    shared = jnp.einsum(
        "pgtkrh,pskh->pgktrs", shared_q, prefix_k, precision=precision, preferred_element_type=jnp.float32
    )
    shared = jnp.where(prefix_mask[:, None, None, None, None], shared, -jnp.inf)
    own = jnp.einsum("btkrh,bukh->bktru", own_q, k, precision=precision, preferred_element_type=jnp.float32)
    own = jnp.where(mask[None, None, :, None], own, -jnp.inf)

    scores = jnp.concatenate([shared.reshape(*own.shape[:-1], shared_length), own], axis=-1)
    weight = jax.nn.softmax(scores * width**-0.5, axis=-1).astype(v.dtype)
    on_shared, on_own = jnp.split(weight, [shared_length], axis=-1)

    from_shared = jnp.einsum(
        "pgktrs,pskh->pgtkrh",
        on_shared.reshape(shared.shape),
        prefix_v,
        precision=precision,
        preferred_element_type=jnp.float32,
    )
    from_own = jnp.einsum(
        "bktru,bukh->btkrh", on_own, v, precision=precision, preferred_element_type=jnp.float32
    )
    return (from_shared.reshape(from_own.shape) + from_own).reshape(q.shape).astype(q.dtype)
