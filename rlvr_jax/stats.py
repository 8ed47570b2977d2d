"""Statistics of a token under the policy, without ever holding [B, T, V].

Every statistic is a function of a few moments of a row of logits z (already soft-capped and divided by the
temperature): the selected z_y, sum e^z, sum z e^z, sum z and sum e^{2z}. `token_stats` scans over chunks of the
vocabulary and carries only the moments that the wanted statistics need.
"""

from collections.abc import Mapping, Set

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rlvr_jax.types import Stat

_MOMENTS: Mapping[Stat, frozenset[str]] = {
    Stat.LOGIT: frozenset({"picked"}),
    Stat.LOGPROB: frozenset({"picked", "exp"}),
    Stat.ENTROPY: frozenset({"exp", "z_exp"}),
    Stat.SELF_CERTAINTY: frozenset({"exp", "z"}),
    Stat.COLLISION: frozenset({"exp", "exp2"}),
}

Moments = dict[str, jax.Array]


def logits_of(
    hidden: Float[Array, "*N D"], head: Float[Array, "V D"], *, softcap: float | None = None
) -> Float[Array, "*N V"]:
    """hidden @ head.T in float32, soft-capped: z <- cap * tanh(z / cap). Not divided by any temperature."""
    z = jnp.einsum("...d,vd->...v", hidden, head, precision="highest", preferred_element_type=jnp.float32)
    return z if softcap is None else softcap * jnp.tanh(z / softcap)


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
    too (each chunk is recomputed there). Chunk i holds the ids i, i + n, i + 2n, ...: a head that is sharded over its
    rows stays sharded inside every chunk, where contiguous chunks would gather it onto each device.
    Differentiable in `hidden` and `head`. Raises ValueError for a temperature that is not positive.
    """
    if not temperature > 0:
        raise ValueError(
            f"temperature={temperature} has no softmax; score greedy samples at 1.0 (the sampler's convention)."
        )
    vocab = head.shape[0]
    count = -(-vocab // chunk)  # number of chunks
    size = -(-vocab // count)
    short = size * count - vocab  # ids that do not exist, in the last places of the last chunks
    moments = frozenset[str]().union(*(_MOMENTS[s] for s in want))

    @jax.checkpoint
    def body(acc: Moments, xs) -> tuple[Moments, None]:
        i, rows = xs
        z = logits_of(hidden, rows, softcap=softcap) / temperature
        real = None if not short else (jnp.arange(size) * count + i < vocab)[None, None]
        return _accumulate(acc, z, real, (targets // count, targets % count == i), moments), None

    padded = jnp.pad(head, ((0, short), (0, 0))) if short else head
    strided = padded.reshape(size, count, -1).swapaxes(0, 1)
    acc, _ = jax.lax.scan(body, _empty(targets.shape, moments), (jnp.arange(count), strided))
    return _finish(acc, want, vocab, temperature)


def dense_stats(
    logits: Float[Array, "B V"], targets: Int[Array, " B"], want: Set[Stat], *, temperature: float = 1.0
) -> dict[Stat, Float[Array, " B"]]:
    """The same statistics of logits that are at hand anyway, as they are for one position in the sampler.

    `logits` are raw (soft-capped, not divided by the temperature).
    """
    moments = frozenset[str]().union(*(_MOMENTS[s] for s in want))
    acc = _accumulate(_empty(targets.shape, moments), logits / temperature, None, (targets, None), moments)
    return _finish(acc, want, logits.shape[-1], temperature)


def _empty(shape: tuple[int, ...], moments: Set[str]) -> Moments:
    return {m: jnp.zeros(shape, jnp.float32) for m in moments} | {"max": jnp.full(shape, -jnp.inf)}


def _accumulate(acc: Moments, z: jax.Array, real, target, moments: Set[str]) -> Moments:
    """Add a chunk of logits to the running moments; exponentials are relative to the running maximum."""
    place, here = target
    shown = z if real is None else jnp.where(real, z, -jnp.inf)
    top = jax.lax.stop_gradient(jnp.maximum(acc["max"], shown.max(-1)))
    scale = jnp.exp(acc["max"] - top)
    p = jnp.exp(shown - top[..., None])
    new = {"max": top}
    if "exp" in moments:
        new["exp"] = acc["exp"] * scale + p.sum(-1)
    if "z_exp" in moments:
        new["z_exp"] = acc["z_exp"] * scale + (p * z).sum(-1)
    if "exp2" in moments:
        new["exp2"] = acc["exp2"] * scale**2 + (p * p).sum(-1)
    if "z" in moments:
        new["z"] = acc["z"] + (z if real is None else jnp.where(real, z, 0.0)).sum(-1)
    if "picked" in moments:
        got = jnp.take_along_axis(z, place[..., None], -1)[..., 0]
        new["picked"] = acc["picked"] + (got if here is None else jnp.where(here, got, 0.0))
    return new


def _finish(acc: Moments, want: Set[Stat], vocab: int, temperature: float) -> dict[Stat, jax.Array]:
    log_z = acc["max"] + jnp.log(acc["exp"]) if "exp" in acc else acc["max"]
    value = {
        Stat.LOGIT: lambda: acc["picked"] * temperature,
        Stat.LOGPROB: lambda: acc["picked"] - log_z,
        Stat.ENTROPY: lambda: log_z - acc["z_exp"] / acc["exp"],
        Stat.SELF_CERTAINTY: lambda: log_z - acc["z"] / vocab - jnp.log(float(vocab)),
        Stat.COLLISION: lambda: acc["exp2"] / acc["exp"] ** 2,
    }
    return {s: value[s]() for s in want}
