"""Random rows for attention, and attention as loops over rows, heads, queries and keys."""

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.models.positions import Places

SCALE = 0.4


def arrays(*, prompts, group, prefix, length, heads=2, kv_heads=1, width=8, seed=0):
    """q, prefix_k, prefix_v, k, v."""
    random, rows = np.random.default_rng(seed), prompts * group
    shapes = [(rows, length, heads)] + [(prompts, prefix, kv_heads)] * 2 + [(rows, length, kv_heads)] * 2
    return [jnp.asarray(random.standard_normal((*shape, width), np.float32)) for shape in shapes]


def cotangent(q):
    return jnp.asarray(np.random.default_rng(9).standard_normal(q.shape), q.dtype)


def value_and_gradients(how, rows):
    """Of how(*rows), the gradients with respect to each of them under a fixed random cotangent."""

    @jax.jit
    def both(*rows):
        out, back = jax.vjp(how, *rows)
        return out, *back(cotangent(rows[0]))

    return both(*rows)


def places(lengths, rows, segments=None):
    """What the decoder would make of prefixes of these lengths."""
    own, prefix = np.arange(rows[0].shape[1]), np.arange(rows[1].shape[1])
    lengths, behind = np.asarray(lengths, np.int32), (own[:, None] - own)[None]
    step = own[None]
    if segments is not None:
        segments = np.asarray(segments, np.int32)
        starts = np.diff(segments, axis=1, prepend=-1) != 0
        step = own - np.maximum.accumulate(np.where(starts, own, 0), axis=1)
    before = lengths[:, None, None] + step[:, :, None] - prefix
    before = np.where(prefix < lengths[:, None, None], before, -1)
    if segments is not None:
        behind = np.where(segments[:, :, None] == segments[:, None], behind, -1)
        segments = jnp.asarray(segments)
    return Places(
        angles=(),
        prefix=jnp.asarray(before),
        own=jnp.asarray(behind),
        length=jnp.asarray(lengths),
        segments=segments,
    )


def looped(q, prefix_k, prefix_v, k, v, lengths, segments=None, *, window=0):
    """In float64, from the definition: a query sees what is before it in its text, at most `window` tokens with itself."""
    q, prefix_k, prefix_v, k, v = (np.asarray(x, np.float64) for x in (q, prefix_k, prefix_v, k, v))
    out = np.zeros_like(q)
    rows, length, heads, _ = q.shape
    for row in range(rows):
        prompt = row // (rows // len(lengths))
        for t in range(length):
            for head in range(heads):
                key_head = head // (heads // k.shape[2])
                text_k = [prefix_k[prompt, s, key_head] for s in range(lengths[prompt])]
                text_v = [prefix_v[prompt, s, key_head] for s in range(lengths[prompt])]
                for u in range(t + 1):
                    if segments is None or segments[row][u] == segments[row][t]:
                        text_k.append(k[row, u, key_head])
                        text_v.append(v[row, u, key_head])
                text_k, text_v = np.array(text_k[-window:]), np.array(text_v[-window:])
                weight = np.exp(SCALE * text_k @ q[row, t, head])
                out[row, t, head] = weight @ text_v / weight.sum()
    return out
