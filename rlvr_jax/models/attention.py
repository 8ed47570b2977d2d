"""Rotary positions and the one attention of the house: keys shared by a group beside each row's own."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rlvr_jax.models.config import RopeScaling
from rlvr_jax.products import precision_of
from rlvr_jax.types import pytree


def rope_frequencies(
    head_dim: int, theta: float, scaling: RopeScaling | None = None
) -> Float[np.ndarray, " half"]:
    """theta^(-2i / head_dim), in radians a position; lowered as `scaling` says.

    Source: arXiv:2104.09864, section 3.2.2; scaling: see `RopeScaling`.
    """
    frequency = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if scaling is not None and scaling.kind == "linear":
        frequency = frequency / scaling.factor
    elif scaling is not None:
        turns = scaling.original_positions * frequency / (2 * np.pi)  # in the text of the pre-training
        kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        kept = np.clip(kept, 0, 1)
        frequency = kept * frequency + (1 - kept) * frequency / scaling.factor
    return frequency.astype(np.float32)


def rope_angles(
    positions: Int[Array, "B T"], frequency: Float[np.ndarray, " half"]
) -> Float[Array, "B T half"]:
    """position * frequency, in radians."""
    return positions.astype(jnp.float32)[..., None] * jnp.asarray(frequency)[None, None]


@pytree
class Places:
    """Where the tokens of a call stand: what a layer's attention needs beside its weights.

    `prefix` and `own` are distances in tokens from a query back to a key; keys at negative ones are never seen (the
    future, padding, another text of the row). `angles` are the rotary ones, for each base that the model has.
    """

    angles: tuple[Float[Array, "B T half"], ...]
    prefix: Int[Array, "P #T S"]
    own: Int[Array, "#B T U"]

    def seen(self, window: Int[Array, ""] | None) -> tuple[Bool[Array, "P #T S"], Bool[Array, "#B T U"]]:
        """Which keys of the prefix and of its own a query sees; with a `window` of 0 or None all that are behind it."""
        if window is None:
            return self.prefix >= 0, self.own >= 0
        reach = jnp.where(window > 0, window, jnp.iinfo(jnp.int32).max)
        return (self.prefix >= 0) & (self.prefix < reach), (self.own >= 0) & (self.own < reach)

    def turned(self, window: Int[Array, ""] | None) -> Float[Array, "B T half"]:
        """The rotary angles of a layer: those of the second base, where there is one, if it has a window."""
        if window is None or len(self.angles) == 1:
            return self.angles[0]
        return jnp.where(window > 0, self.angles[1], self.angles[0])


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
    prefix_mask: Bool[Array, "P #T S"],
    k: Float[Array, "B U K H"],
    v: Float[Array, "B U K H"],
    mask: Bool[Array, "#B T U"],
    scale: float,
) -> Float[Array, "B T N H"]:
    """softmax([q prefix_k^T, q k^T] * scale) [prefix_v; v], one softmax in float32 over both sets of keys.

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
    shared = jnp.where(prefix_mask[:, None, None, :, None], shared, -jnp.inf)
    own = jnp.einsum("btkrh,bukh->bktru", own_q, k, precision=precision, preferred_element_type=jnp.float32)
    own = jnp.where(mask[:, None, :, None], own, -jnp.inf)

    scores = jnp.concatenate([shared.reshape(*own.shape[:-1], shared_length), own], axis=-1)
    weight = jax.nn.softmax(scores * scale, axis=-1).astype(v.dtype)
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
