"""Where tokens stand: rotary positions, and which keys a query sees."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from rlvr_jax.models.config import RopeScaling
from rlvr_jax.types import pytree, static


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
class Owners:
    """Which prefix each row continues, where rows come in any order: by its number among the prefixes of the row's shard.

    Rows and prefixes are split into `shards` equal parts, so that no prefix leaves the devices on which it was computed.
    """

    index: Int[Array, " B"]
    shards: int = static(default=1)

    def of(self, x: Shaped[Array, "P *N"]) -> Shaped[Array, "B *N"]:
        """What each row has of its prefix."""
        parts = x.reshape(self.shards, len(x) // self.shards, *x.shape[1:])
        found = jax.vmap(lambda part, index: part[index])(parts, self.index.reshape(self.shards, -1))
        return found.reshape(len(self.index), *x.shape[1:])


@pytree
class Places:
    """Where the tokens of a call stand: what a layer's attention needs beside its weights.

    `prefix` and `own` are distances in tokens from a query back to a key; keys at negative ones are never seen (the
    future, padding, another text of the row). `angles` are the rotary ones, for each base that the model has. Kernels make
    their masks from what the distances come from: the `length` of each prefix and, in packed rows, the `segments`. With
    `owners` there is a `prefix` and a `length` for each row.
    """

    angles: tuple[Float[Array, "B T half"], ...]
    prefix: Int[Array, "R #T S"]
    own: Int[Array, "#B T U"]
    length: Int[Array, " R"]
    segments: Int[Array, "B T"] | None
    owners: Owners | None = None

    def seen(self, window: Int[Array, ""] | None) -> tuple[Bool[Array, "R #T S"], Bool[Array, "#B T U"]]:
        """Which keys of the prefix and of its own a query sees; with a `window` of 0 or None all that are behind it."""
        return in_reach(self.prefix, window), in_reach(self.own, window)

    def turned(self, window: Int[Array, ""] | None) -> Float[Array, "B T half"]:
        """The rotary angles of a layer: those of the second base, where there is one, if it has a window."""
        return of_window(self.angles, window)


def step_in_text(segments: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Tokens since the start of its text, for each token of packed rows, whose texts are runs of equal numbers."""
    place = jnp.arange(segments.shape[1])[None]
    first = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return place - jax.lax.cummax(jnp.where(first, place, 0), axis=1)


def in_reach(distance: Int[Array, "..."], window: Int[Array, ""] | int | None) -> Bool[Array, "..."]:
    """Whether a query sees the key at that distance behind it; with a `window` of 0 or None every one that is behind it."""
    if window is None:
        return distance >= 0
    reach = jnp.where(window > 0, window, jnp.iinfo(jnp.int32).max)
    return (distance >= 0) & (distance < reach)


def of_window(
    angles: tuple[Float[Array, "B T half"], ...], window: Int[Array, ""] | int | None
) -> Float[Array, "B T half"]:
    """Angles of the second base, where there is one, for a layer with a window; else of the first."""
    if window is None or len(angles) == 1:
        return angles[0]
    return jnp.where(window > 0, angles[1], angles[0])


def rotate(x: Float[Array, "B T N H"], angles: Float[Array, "B T half"]) -> Float[Array, "B T N H"]:
    """Turn the pairs (x_i, x_{i + H/2}) by their angle, in float32."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
