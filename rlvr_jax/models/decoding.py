"""One more token for each row: what a sampler does thousands of times with the same weights and a growing cache.

The layers' computations are the decoder's own. What differs is how things lie in memory: weights are rounded to the
compute dtype once; the keys of a head lie with positions innermost, its values with positions outermost, so that both
products of a row's attention read straight on; and on a CPU the layers are written out one after another, as a scan would
copy each layer's weights out of their stack at every step.
"""

from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rlvr_jax.models.decoder import Decoder, Layer, Prefix
from rlvr_jax.models.positions import in_reach, of_window
from rlvr_jax.products import Turned, platform_in_use, precision_of, turned_product
from rlvr_jax.sharding import constrain
from rlvr_jax.stats import logits_of, soft_capped
from rlvr_jax.types import pytree

CacheType: TypeAlias = Literal["auto", "float32", "bfloat16", "int8"]
CACHE_TYPES = get_args(CacheType)

WeightsLayout: TypeAlias = Literal["stored", "gathered"]
WEIGHTS_LAYOUTS = get_args(WeightsLayout)


@pytree
class KeysValues:
    """Of one layer, or of all stacked (L in front): keys [B K H T], values [B K T H].

    Where they are int8 there is a scale [B K T] for each, a token and key head: x is about scale * int8.
    """

    keys: Any
    values: Any
    key_scale: Any
    value_scale: Any


Cache: TypeAlias = tuple[KeysValues, ...] | KeysValues
"""A layer each where the layers are written out, else all stacked."""


@pytree
class DecodeWeights:
    """The weights as `decode` reads them; see the module."""

    layers: tuple[Layer, ...] | Layer
    table: Float[Array, "V D"]
    head: Float[Array, "V D"] | Turned
    final_norm: Float[Array, " D"]


@pytree
class SharedPrompts:
    """Keys and values of the prompts of P blocks, each shared by consecutive rows; `length` of S positions are real."""

    layers: Cache
    length: Int[Array, " P"]


def decode_weights(model: Decoder, layout: WeightsLayout = "stored") -> DecodeWeights:
    """Once for all steps with the same parameters. `stored`: split as the parameters are, and a layer is gathered over `fsdp`
    whenever it is read; `gathered`: once, here, as always on a CPU."""
    stacked, leaves = model.stacked(), model.layout()
    table, head = (constrain(x, "vocab", None) for x in (model.table(model.embedding), model.head()))
    final_norm = model.final_norm[...]
    if platform_in_use() != "cpu":
        rounded = {n: w if n.endswith("norm") else w.astype(model.dtype) for n, w in stacked.items()}
        if layout == "gathered":
            whole = {
                n: [None if axis == "embed" else axis for axis in leaf.axes] for n, leaf in leaves.items()
            }
            rounded = {n: constrain(w, "layers", *whole[n]) for n, w in rounded.items()}
        return DecodeWeights(layers=rounded, table=table, head=head, final_norm=final_norm)

    def lying(name: str, w: Array) -> Array | Turned:
        return Turned.of(w, leaves[name].inputs) if leaves[name].inputs else w

    layers = tuple(
        {n: lying(n, w) for n, w in model.cast({n: w[i] for n, w in stacked.items()}).items()}
        for i in range(model.config.num_layers)
    )
    turned = Turned(value=head, outputs=head.shape[:1])  # its outputs are first as it is
    return DecodeWeights(layers=layers, table=table, head=turned, final_norm=final_norm)


def cache_dtype(model: Decoder, kind: CacheType) -> jnp.dtype:
    """`auto` is what the model computes in; on a CPU float32, which holds the same numbers: there bfloat16 arrays cannot be
    written in place, and their products are converted first."""
    if kind == "auto":
        return jnp.dtype(jnp.float32) if platform_in_use() == "cpu" else model.dtype
    return jnp.dtype(kind)


def init_cache(model: Decoder, rows: int, length: int, kind: CacheType = "auto") -> Cache:
    """Room for `length` own tokens of each row."""
    c = model.config
    k = jnp.zeros((c.num_layers, rows, length, c.num_kv_heads, c.head_dim), model.dtype)
    return _laid_out(model, k, k, kind)


def shared_prompts(model: Decoder, prefix: Prefix, kind: CacheType = "auto") -> SharedPrompts:
    """A prefilled prefix as decoding reads it."""
    return SharedPrompts(layers=_laid_out(model, prefix.keys, prefix.values, kind), length=prefix.length)


def of_blocks(prompts: SharedPrompts, index: Int[Array, " N"]) -> SharedPrompts:
    """The prompts of N blocks, by their number."""
    return SharedPrompts(layers=of_rows(prompts.layers, index), length=prompts.length[index])


def _laid_out(model: Decoder, keys: Array, values: Array, kind: CacheType) -> Cache:
    """From [L B T K H]."""
    dtype = cache_dtype(model, kind)
    k, key_scale = _stored(keys, dtype)
    v, value_scale = _stored(values, dtype)
    pin = lambda x: constrain(x, "layers", "batch", "kv_heads", *[None] * (x.ndim - 3))  # noqa: E731
    scales = [None if s is None else pin(s.transpose(0, 1, 3, 2)) for s in (key_scale, value_scale)]
    found = KeysValues(
        keys=pin(k.transpose(0, 1, 3, 4, 2)),
        values=pin(v.transpose(0, 1, 3, 2, 4)),
        key_scale=scales[0],
        value_scale=scales[1],
    )
    if platform_in_use() != "cpu":
        return found
    layer = lambda i: jax.tree.map(lambda x: x[i], found)  # noqa: E731
    return tuple(map(layer, range(model.config.num_layers)))


def _stored(x: Float[Array, "... H"], dtype: Any) -> tuple[Array, Array | None]:
    """x as the cache holds it, and the scale of the last axis where it is int8: its largest magnitude over 127."""
    if dtype != jnp.int8:
        return x.astype(dtype), None
    wide = x.astype(jnp.float32)
    scale = jnp.abs(wide).max(-1) / 127
    steps = wide / jnp.where(scale > 0, scale, 1.0)[..., None]
    return jnp.round(steps).astype(jnp.int8), scale


def resized(cache: Cache, length: int) -> Cache:
    """With room for `length` own tokens of each row; what is behind it is left out."""

    def along(x: Array, axis: int) -> Array:
        more = length - x.shape[axis]
        if more <= 0:
            return jax.lax.slice_in_dim(x, 0, length, axis=x.ndim + axis)
        return jnp.pad(x, [(0, more if i == x.ndim + axis else 0) for i in range(x.ndim)])

    def of_layer(kv: KeysValues) -> KeysValues:
        scales = [None if s is None else along(s, -1) for s in (kv.key_scale, kv.value_scale)]
        keys, values = along(kv.keys, -1), along(kv.values, -2)
        return KeysValues(keys=keys, values=values, key_scale=scales[0], value_scale=scales[1])

    return tuple(map(of_layer, cache)) if isinstance(cache, tuple) else of_layer(cache)


def of_rows(cache: Cache, rows: Int[Array, " B"]) -> Cache:
    """Some of its rows, in another order."""
    axis = 0 if isinstance(cache, tuple) else 1
    return jax.tree.map(lambda x: jnp.take(x, rows, axis=axis), cache)


def cache_length(cache: Cache) -> int:
    """Own tokens that there is room for."""
    return (cache[0] if isinstance(cache, tuple) else cache).keys.shape[-1]


def decode(
    model: Decoder,
    weights: DecodeWeights,
    tokens: Int[Array, " B"],
    prompts: SharedPrompts,
    cache: Cache,
    position: Int[Array, " B"],
) -> tuple[Float[Array, "B D"], Cache]:
    """`Decoder.hidden` of one more token of each row, its own number `position`; and the cache with it.

    The rows of a block share its prompt, B / P consecutive ones each. What the cache holds at `position` and behind it is
    not read, so a row starts anew by starting at 0.
    """
    c = model.config
    share = tokens.shape[0] // prompts.length.shape[0]
    start = jnp.repeat(prompts.length, share, total_repeat_length=tokens.shape[0])
    angles = model.angles((start + position)[:, None])
    places = _Distances(prompts, position, share, length=cache_length(cache))

    def layer(
        x: Array, w: Layer, shared: KeysValues, own: KeysValues, at: tuple, window: Any
    ) -> tuple[Array, KeysValues]:
        q, k, v = model.project(w, x, of_window(angles, window))
        own = _put(own, k[:, 0], v[:, 0], at, position)
        mine = jax.tree.map(lambda a: a[at], own) if at else own
        out = attend_one(q[:, 0], shared, mine, *places.seen(window), c.score_scale)
        return model.finish(w, x, out[:, None]), own

    x = model.embed(weights.table[tokens[:, None]])
    if isinstance(weights.layers, tuple) and isinstance(cache, tuple) and isinstance(prompts.layers, tuple):
        new = []
        for i, (w, shared, own) in enumerate(zip(weights.layers, prompts.layers, cache, strict=True)):
            x, own = layer(x, w, shared, own, (), c.windows[i] if c.windows else None)
            new.append(own)
        cache = tuple(new)
    else:

        def body(carry: tuple[Array, Any], scanned: Any) -> tuple[Any, None]:
            w, shared, window, i = scanned
            return layer(carry[0], model.cast(w), shared, carry[1], (i,), window), None

        layers = weights.layers, prompts.layers, model.windows(), jnp.arange(c.num_layers)
        (x, cache), _ = jax.lax.scan(body, (x, cache), layers)
    return model.norm(x, weights.final_norm)[:, 0], cache


def decode_logits(model: Decoder, weights: DecodeWeights, hidden: Float[Array, "B D"]) -> Float[Array, "V B"]:
    """Of every token of the vocabulary, soft-capped, in float32. Not divided by any temperature."""
    cap, head = model.config.softcap, weights.head
    if isinstance(head, Turned):
        z = soft_capped(turned_product(hidden, head), cap)
    else:
        z = logits_of(hidden, head, softcap=cap)
    return constrain(z.T, "vocab", "batch")


class _Distances:
    """How far back the keys of prompt and row are: [P 1 S], or [P c S] under windows, and [B T]."""

    def __init__(self, prompts: SharedPrompts, position: Int[Array, " B"], share: int, length: int):
        self.own = position[:, None] - jnp.arange(length)[None]
        place = jnp.arange(cache_length(prompts.layers))
        real = place[None, None] < prompts.length[:, None, None]
        behind = prompts.length[:, None, None] + position.reshape(-1, share)[:, :, None] - place[None, None]
        self.real, self.prompt = real, jnp.where(real, behind, -1)

    def seen(self, window: Any) -> tuple[Bool[Array, "P #c S"], Bool[Array, "B T"]]:
        prompt = self.real if window is None else in_reach(self.prompt, window)
        return prompt, in_reach(self.own, window)


def _put(
    own: KeysValues,
    k: Float[Array, "B K H"],
    v: Float[Array, "B K H"],
    at: tuple,
    position: Int[Array, " B"],
) -> KeysValues:
    """The cache with one more token of each row, in place."""
    k, key_scale = _stored(k, own.keys.dtype)
    v, value_scale = _stored(v, own.values.dtype)

    def put(old: Array | None, new: Array | None, axis: int) -> Array | None:
        return None if old is None or new is None else _put_at(old, new, at, position, old.ndim + axis)

    return KeysValues(
        keys=put(own.keys, k, -1),
        values=put(own.values, v, -2),
        key_scale=put(own.key_scale, key_scale, -1),
        value_scale=put(own.value_scale, value_scale, -1),
    )


def _put_at(old: Array, new: Array, at: tuple, position: Int[Array, " B"], axis: int) -> Array:
    """`old[at]` with `new` of row b at place `position[b]` of `axis`.

    The rows are a batch of the scatter and none of its indices: so the compiler knows that each writes into itself, where
    it would gather what is new of all rows onto every device, at every layer and step.
    """
    layer = tuple(range(len(at)))
    index = jnp.stack([*(jnp.full_like(position, i) for i in at), position], axis=-1)
    dimensions = jax.lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(1, new.ndim)),
        inserted_window_dims=(*layer, axis),
        scatter_dims_to_operand_dims=(*layer, axis),
        operand_batching_dims=(len(at),),
        scatter_indices_batching_dims=(0,),
    )
    drop = jax.lax.GatherScatterMode.FILL_OR_DROP
    return jax.lax.scatter(old, index, new, dimensions, unique_indices=True, mode=drop)


def attend_one(
    q: Float[Array, "B N H"],
    shared: KeysValues,
    own: KeysValues,
    shared_seen: Bool[Array, "P #c S"],
    own_seen: Bool[Array, "B T"],
    scale: float,
) -> Float[Array, "B N H"]:
    """softmax([q prefix^T, q k^T] * scale) [prefix_v; v] for one query a row, in two parts that are merged.

    The rows of a block are one matrix for their prompt, whose keys are read once for all of them and copied for none. A part
    gives its maximum m, sum s = sum e^(z - m) and weighted sum of values o; the whole is sum o e^(m - M) over
    sum s e^(m - M), with M the larger of the two.
    """
    (rows, heads, width), kv_heads = q.shape, own.values.shape[1]
    blocks = shared_seen.shape[0]
    share, ratio = rows // blocks, heads // kv_heads
    q = q.reshape(rows, kv_heads, ratio, width)
    together = q.reshape(blocks, share, *q.shape[1:]).swapaxes(1, 2).reshape(blocks, kv_heads, -1, width)
    of_each = shared_seen if shared_seen.shape[1] == 1 else jnp.repeat(shared_seen, ratio, axis=1)
    apart = [
        x.reshape(blocks, kv_heads, share, ratio, -1).swapaxes(1, 2).reshape(rows, kv_heads, ratio, -1)
        for x in _part(together, shared, of_each[:, None], scale)
    ]
    (m, s, o), (own_m, own_s, own_o) = apart, _part(q, own, own_seen[:, None, None], scale)
    top = jnp.maximum(m, own_m)
    a, b = jnp.exp(m - top), jnp.exp(own_m - top)
    out = (o * a + own_o * b) / (s * a + own_s * b)
    return out.reshape(rows, heads, width).astype(q.dtype)


def _part(
    q: Float[Array, "B K M H"], kv: KeysValues, seen: Bool[Array, "B 1 #M T"], scale: float
) -> tuple[Float[Array, "B K M 1"], Float[Array, "B K M 1"], Float[Array, "B K M H"]]:
    """Maximum, sum and weighted values over one set of keys; 0 and nothing where none is seen."""
    dtype = jnp.float32 if kv.keys.dtype == jnp.float32 else q.dtype
    how: dict[str, Any] = dict(precision=precision_of(dtype), preferred_element_type=jnp.float32)
    z = jnp.einsum("bkmh,bkht->bkmt", q.astype(dtype), kv.keys.astype(dtype), **how) * scale
    z = z if kv.key_scale is None else z * kv.key_scale[:, :, None]
    z = jnp.where(seen, z, -jnp.inf)
    top = jnp.maximum(z.max(-1, keepdims=True, initial=-jnp.inf), -1e30)
    e = jnp.exp(z - top)
    weight = e if kv.value_scale is None else e * kv.value_scale[:, :, None]
    out = jnp.einsum("bkmt,bkth->bkmh", weight.astype(dtype), kv.values.astype(dtype), **how)
    return top, e.sum(-1, keepdims=True), out
