"""The one attention of the house: keys shared by a group beside each row's own, on the best kernel of each backend."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rlvr_jax.models.kernels import cudnn, over_windows
from rlvr_jax.models.positions import Places
from rlvr_jax.models.remat import OPERAND, keep
from rlvr_jax.products import contract, platform_in_use, precision_of
from rlvr_jax.sharding import constrain, rows_of, tokens_of


def attend(
    q: Float[Array, "B T N H"],
    prefix_k: Float[Array, "P S K H"],
    prefix_v: Float[Array, "P S K H"],
    k: Float[Array, "B U K H"],
    v: Float[Array, "B U K H"],
    places: Places,
    window: Int[Array, ""] | None,
    *,
    windows: tuple[int, ...],
    scale: float,
) -> Float[Array, "B T N H"]:
    """softmax([q prefix_k^T, q k^T] * scale) [prefix_v; v], over the keys that `places` lets a query see.

    B / P consecutive rows share a prefix, or each has the one that `places.owners` names; N / K consecutive heads share a
    key head. `window` is the layer's, one of `windows`.

    | computed for | whole rows in bfloat16         | whole rows otherwise | decoding (T = 1) |
    |--------------|--------------------------------|----------------------|------------------|
    | TPU          | Pallas's splash attention      | `dense`              | `plain`          |
    | NVIDIA GPU   | cuDNN, where H = 8, 16, .. 128 | `dense`              | `plain`          |
    | CPU          | `dense`                        | `dense`              | `plain`          |

    The kernels multiply in bfloat16, so float32, which means float32 here, is not for them; nor is one query a row, which
    has no scores to save. The choice falls when the function is traced, by the platform of the mesh in use
    (`jax.set_mesh`), or by JAX's default backend where there is none: a mesh of a TPU topology compiles for that TPU on
    any machine. (`jax.lax.platform_dependent` would trace every kernel on every backend, and keep what each of them
    saves for its gradient.)

    What is checked: splash in Pallas's interpreter and cuDNN's arguments on XLA, both in float32 against `plain`, values
    and gradients; that splash compiles for TPUs. Neither kernel has run on its hardware.
    """
    if places.owners is not None:
        prefix_k, prefix_v = places.owners.of(prefix_k), places.owners.of(prefix_v)
    if q.shape[1] > 1 and q.dtype == jnp.bfloat16:
        kernel, platform = None, platform_in_use()
        if platform == "tpu":
            from rlvr_jax.models.splash import splash

            kernel = functools.partial(splash, scale=scale)
        elif platform == "gpu" and q.shape[-1] <= 128 and q.shape[-1] % 8 == 0:
            kernel = functools.partial(cudnn, scale=scale)
        if kernel is not None:
            rows = q, prefix_k, prefix_v, k, v, places.length, places.segments
            return over_windows(kernel, *rows, window=window, windows=windows)
    prefix_mask, mask = places.seen(window)
    products = dense if q.shape[1] > 1 else plain
    return products(q, prefix_k, prefix_v, prefix_mask, k, v, mask, scale)


def dense(
    q: Float[Array, "B T N H"],
    prefix_k: Float[Array, "P S K H"],
    prefix_v: Float[Array, "P S K H"],
    prefix_mask: Bool[Array, "P #T S"],
    k: Float[Array, "B U K H"],
    v: Float[Array, "B U K H"],
    mask: Bool[Array, "#B T U"],
    scale: float,
) -> Float[Array, "B T N H"]:
    """`plain` for whole rows: the keys of a row are joined, which copies them and not its many more scores.

    The products of the gradient have operands of q's type, as in `products`, and what is kept for it of the scores are
    the weights of the softmax in that type alone.
    """
    (rows, length, heads, width), (prompts, shared, kv_heads, _) = q.shape, prefix_k.shape
    group = rows // prompts
    on_prefix = jnp.broadcast_to(prefix_mask, (prompts, length, shared)).repeat(group, axis=0)
    seen = jnp.concatenate([on_prefix, jnp.broadcast_to(mask, (rows, length, k.shape[1]))], axis=2)
    joined_k, joined_v = (
        # whole on every device, as their gradient is, of which prompt and own tokens are parts of unequal length
        constrain(
            jnp.concatenate([prefix.repeat(group, axis=0), own], axis=1), "batch", None, "kv_heads", None
        )
        for prefix, own in ((prefix_k, k), (prefix_v, v))
    )
    joined_k, joined_v = joined_k.transpose(0, 2, 1, 3), joined_v.transpose(0, 2, 1, 3)
    by_head = q.reshape(rows, length, kv_heads, heads // kv_heads, width).transpose(0, 2, 3, 1, 4)
    out = _softmax_mean(by_head, joined_k, joined_v, seen[:, None, None], scale)
    return out.transpose(0, 3, 1, 2, 4).reshape(q.shape)


def _softmax_mean_forward(q: Array, k: Array, v: Array, seen: Array, scale: float) -> tuple[Array, Any]:
    """Of q [B K R T H] and k, v [B K U H]."""
    scores = jnp.where(seen, _by_head(q, k, -1) * scale, -jnp.inf)
    weight = keep(jax.nn.softmax(scores, axis=-1).astype(q.dtype), OPERAND)
    out = _by_head(weight, v, -2).astype(q.dtype)
    return out, (q, k, v, weight, out)


def _softmax_mean_backward(scale: float, kept: Any, g: Array) -> tuple[Array, Array, Array, None]:
    """With s the scores and w their softmax: dv = w^T g and ds = w (g v^T - sum(g out))."""
    q, k, v, weight, out = kept
    inner = (g.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1, keepdims=True)
    d_scores = (weight.astype(jnp.float32) * (_by_head(g, v, -1) - inner) * scale).astype(q.dtype)
    d_k, d_v = contract(_flat(d_scores), -2, _flat(q), -2), contract(_flat(weight), -2, _flat(g), -2)
    return _by_head(d_scores, k, -2).astype(q.dtype), d_k.astype(k.dtype), d_v.astype(v.dtype), None


_softmax_mean = jax.custom_vjp(lambda *args: _softmax_mean_forward(*args)[0], nondiff_argnums=(4,))
_softmax_mean.defvjp(_softmax_mean_forward, _softmax_mean_backward)


def _flat(x: Array) -> Array:
    """[B K R T M] -> [B K (R T) M]."""
    return jax.vmap(jax.vmap(tokens_of))(x)


def _by_head(x: Array, y: Array, axis: int) -> Array:
    """x [B K R T M] with an axis of y [B K . .] in float32, as one product a key head."""
    out = contract(_flat(x), -1, y, axis)
    return jax.vmap(jax.vmap(lambda each: rows_of(each, x.shape[2])))(out)


def texts_in_a_row(windows: tuple[int, ...]) -> int:
    """How many texts a packed row behind a prefix may hold: on a TPU one, where the model has windows, as its kernel knows
    distances by the places in a row."""
    return 1 if any(windows) and platform_in_use() == "tpu" else 1 << 30


def plain(
    q: Float[Array, "B T N H"],
    prefix_k: Float[Array, "P S K H"],
    prefix_v: Float[Array, "P S K H"],
    prefix_mask: Bool[Array, "P #T S"],
    k: Float[Array, "B U K H"],
    v: Float[Array, "B U K H"],
    mask: Bool[Array, "#B T U"],
    scale: float,
) -> Float[Array, "B T N H"]:
    """The reference of all others, and of them the one that copies no prefix, which is what counts for one query a row.

        softmax([q prefix_k^T, q k^T] * scale) [prefix_v; v], one softmax in float32 over both sets of keys

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
