"""Statistics of a token under the policy, without ever holding [B, T, V].

Every statistic is a function of a few moments of a row of logits z (already soft-capped and divided by the
temperature) with maximum m: the selected z_y, sum e^{z-m}, sum (z-m) e^{z-m}, sum z and sum e^{2(z-m)}. `token_stats`
scans over chunks of the vocabulary and carries only the moments that the wanted statistics need.
"""

import dataclasses
import math
from collections.abc import Mapping, Set

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rlvr_jax.products import product_by_rows
from rlvr_jax.sharding import in_use, rows_of, tokens_of
from rlvr_jax.types import Stat, pytree

_MOMENTS: Mapping[Stat, frozenset[str]] = {
    Stat.LOGIT: frozenset({"picked"}),
    Stat.LOGPROB: frozenset({"picked", "exp"}),
    Stat.ENTROPY: frozenset({"exp", "z_exp"}),
    Stat.SELF_CERTAINTY: frozenset({"exp", "z"}),
    Stat.COLLISION: frozenset({"exp", "exp2"}),
}

Moments = dict[str, jax.Array]

_MAX_SHARDS = 128
"""A power of two; over how many devices a head may be split (where its size allows) without being gathered here."""


def logits_of(
    hidden: Float[Array, "*N D"], head: Float[Array, "V D"], *, softcap: float | None = None
) -> Float[Array, "*N V"]:
    """hidden @ head.T in float32, soft-capped: z <- cap * tanh(z / cap). Not divided by any temperature."""
    if hidden.ndim == 3:
        z = rows_of(product_by_rows(tokens_of(hidden), head), hidden.shape[0])
    else:
        z = product_by_rows(hidden.reshape(-1, hidden.shape[-1]), head).reshape(*hidden.shape[:-1], -1)
    return soft_capped(z, softcap)


def soft_capped(z: Float[Array, "*N V"], cap: float | None) -> Float[Array, "*N V"]:
    """cap * tanh(z / cap); z itself where there is no cap."""
    return z if cap is None else cap * jnp.tanh(z / cap)


@pytree
class Partition:
    """What softmax divides by: the maximum of a row and sum e^(z - max) over each part of the vocabulary."""

    top: Float[Array, " B"]
    sums: Float[Array, "N B"]

    @classmethod
    def of(cls, z: Float[Array, "V B"], parts: int = 1) -> "Partition":
        """Of tempered logits, for so many parts of equal size."""
        top = jax.lax.stop_gradient(jnp.maximum(jnp.finfo(jnp.float32).min, z.max(0)))
        return cls(top=top, sums=jnp.exp(z - top[None]).reshape(parts, -1, z.shape[1]).sum(1))


def token_stats(
    hidden: Float[Array, "B T D"],
    head: Float[Array, "V D"],
    targets: Int[Array, "B T"],
    want: Set[Stat],
    *,
    chunk: int = 8192,
    temperature: float = 1.0,
    softcap: float | None = None,
) -> dict[Stat, Float[Array, "B T"]]:
    """Statistics of `targets` under softmax(z), z = cap(hidden @ head.T) / temperature. All in nats, float32.

        LOGPROB         log p_y                       <= 0
        LOGIT           z_y * temperature             the raw selected logit, temperature taken out again
        ENTROPY         -sum_v p_v log p_v            in [0, log V]
        SELF_CERTAINTY  KL(uniform || p)              = log sum e^z - mean_v z_v - log V, >= 0
        COLLISION       sum_v p_v^2                   in [1/V, 1]

    `chunk` bounds how many vocabulary entries are held at a time: the largest array is [B, T, chunk], in the gradient
    too (each chunk is recomputed there). Every chunk takes its share of every shard of the head (see `_Chunks`), and no more of
    it than a chunk is gathered over what splits its width.
    Differentiable in `hidden` and `head`. Raises ValueError for a temperature or a chunk that is not positive.
    """
    if not temperature > 0:
        raise ValueError(
            f"temperature={temperature} has no softmax; score greedy samples at 1.0 (the sampler's convention)."
        )
    if chunk < 1:
        raise ValueError(f"chunk is how many vocabulary entries are held at a time, 1 or more; got {chunk}.")
    chunks = _Chunks.of(head.shape[0], chunk)
    moments = frozenset[str]().union(*(_MOMENTS[s] for s in want))
    wide = hidden.astype(jnp.float32)  # so that the gradient of `hidden` adds up over the chunks in float32

    @jax.checkpoint
    def body(acc: Moments, xs) -> tuple[Moments, None]:
        i, rows = xs
        rows = in_use(rows, ("vocab", "embed"), ("vocab", None))
        z = logits_of(wide.astype(hidden.dtype), rows, softcap=softcap) / temperature
        return _accumulate(acc, z, chunks.real(i), chunks.find(targets, i), moments), None

    acc, _ = jax.lax.scan(body, _empty(targets.shape, moments), (jnp.arange(chunks.count), chunks.cut(head)))
    return _finish(acc, want, head.shape[0], temperature)


@dataclasses.dataclass(frozen=True)
class _Chunks:
    """How V ids become `count` chunks of `blocks * each` ids.

    The ids are cut into `blocks` contiguous blocks of `block` ids, and chunk i takes the ids i, i + count, ... of every
    block. A head that is sharded over its rows, by anything that divides `blocks`, stays where it is inside every chunk;
    contiguous chunks, or padding at the end of V, would gather it onto each device. The last places of a block may
    hold ids that do not exist.
    """

    blocks: int
    block: int
    each: int
    count: int

    @classmethod
    def of(cls, vocab: int, chunk: int) -> "_Chunks":
        blocks = math.gcd(vocab, _MAX_SHARDS)
        while blocks > chunk:
            blocks //= 2
        block = vocab // blocks
        count = -(-block // (chunk // blocks))
        return cls(blocks=blocks, block=block, each=-(-block // count), count=count)

    def cut(self, head: Float[Array, "V D"]) -> Float[Array, "N C D"]:
        """The rows of each chunk; zeros for ids that do not exist."""
        short = self.each * self.count - self.block
        rows = head.reshape(self.blocks, self.block, -1)
        padded = jnp.pad(rows, ((0, 0), (0, short), (0, 0))) if short else rows
        strided = jnp.moveaxis(padded.reshape(self.blocks, self.each, self.count, -1), 2, 0)
        return strided.reshape(self.count, self.blocks * self.each, -1)

    def real(self, i: jax.Array) -> jax.Array | None:
        """[1, 1, C]: which places of chunk i hold an id that exists; None where all do."""
        if self.each * self.count == self.block:
            return None
        place = jnp.arange(self.blocks * self.each) % self.each
        return (place * self.count + i < self.block)[None, None]

    def find(self, targets: Int[Array, "B T"], i: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Place of each target in its chunk, and whether that is chunk i."""
        within = targets % self.block
        return targets // self.block * self.each + within // self.count, within % self.count == i


def dense_stats(
    logits: Float[Array, "V B"],
    targets: Int[Array, " B"],
    want: Set[Stat],
    *,
    temperature: float | Float[Array, " B"] = 1.0,
    partition: Partition | None = None,
) -> dict[Stat, Float[Array, " B"]]:
    """The same statistics of logits that are at hand anyway, as they are for one position in the sampler.

    `logits` are raw (soft-capped, not divided by the temperature), and the vocabulary is their first axis: sums over it run
    through neighbouring rows side by side. `partition` is that of the tempered ones, where it is known.
    """
    z = logits / jnp.broadcast_to(temperature, targets.shape)[None]
    known = Partition.of(z) if partition is None else partition
    below = z - known.top[None]
    sums = {
        "z_exp": lambda: (jnp.exp(below) * below).sum(0),
        "exp2": lambda: jnp.exp(2 * below).sum(0),
        "z": lambda: z.sum(0),
        "picked": lambda: jnp.take_along_axis(z, targets[None], 0)[0],
    }
    moments = frozenset[str]().union(*(_MOMENTS[s] for s in want))
    found = {name: total() for name, total in sums.items() if name in moments}
    found |= {"max": known.top, "exp": known.sums.sum(0)}
    return _finish(found, want, len(z), jnp.broadcast_to(temperature, targets.shape))


def _empty(shape: tuple[int, ...], moments: Set[str]) -> Moments:
    lowest = jnp.finfo(jnp.float32).min  # finite, so that it can be multiplied by a sum that is still 0
    return {m: jnp.zeros(shape, jnp.float32) for m in moments} | {"max": jnp.full(shape, lowest)}


def _accumulate(acc: Moments, z: jax.Array, real, target, moments: Set[str]) -> Moments:
    """Add a chunk of logits to the running moments, which are relative to the running maximum.

    So the entropy is a sum of terms >= 0 and no difference of large numbers, and offsets of z do not matter.
    """
    place, here = target
    shown = z if real is None else jnp.where(real, z, -jnp.inf)
    top = jax.lax.stop_gradient(jnp.maximum(acc["max"], shown.max(-1)))
    shift = acc["max"] - top
    scale = jnp.exp(shift)
    p = jnp.exp(shown - top[..., None])
    new = {"max": top}
    if "exp" in moments:
        new["exp"] = acc["exp"] * scale + p.sum(-1)
    if "z_exp" in moments:
        below = (z if real is None else jnp.where(real, z, 0.0)) - top[..., None]
        new["z_exp"] = (acc["z_exp"] + acc["exp"] * shift) * scale + (p * below).sum(-1)
    if "exp2" in moments:
        new["exp2"] = acc["exp2"] * scale**2 + (p * p).sum(-1)
    if "z" in moments:
        new["z"] = acc["z"] + (z if real is None else jnp.where(real, z, 0.0)).sum(-1)
    if "picked" in moments:
        got = jnp.take_along_axis(z, place[..., None], -1)[..., 0]
        new["picked"] = acc["picked"] + (got if here is None else jnp.where(here, got, 0.0))
    return new


def _finish(
    acc: Moments, want: Set[Stat], vocab: int, temperature: float | jax.Array
) -> dict[Stat, jax.Array]:
    log_z = jnp.log(acc["exp"]) if "exp" in acc else jnp.zeros_like(acc["max"])  # relative to the maximum
    value = {
        Stat.LOGIT: lambda: acc["picked"] * temperature,
        Stat.LOGPROB: lambda: acc["picked"] - acc["max"] - log_z,
        Stat.ENTROPY: lambda: log_z - acc["z_exp"] / acc["exp"],
        Stat.SELF_CERTAINTY: lambda: log_z + (acc["max"] - acc["z"] / vocab) - jnp.log(float(vocab)),
        Stat.COLLISION: lambda: acc["exp2"] / acc["exp"] ** 2,
    }
    return {s: value[s]() for s in want}
