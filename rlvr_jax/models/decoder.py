"""The decoder: one forward for sampling, scoring and training.

A prompt but for its last token is prefilled once into a `Prefix` that the G rows of its group share. The last prompt
token is a row's first own input, so own position t reads token t and predicts token t + 1 of the completion, and
prompt positions never reach the head.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from rlvr_jax.models.attention import attend, precision_of, rope_angles, rotate
from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.layout import Leaf, layer_layout, outer_layout
from rlvr_jax.sharding import constrain, named
from rlvr_jax.types import pytree

REMAT = ("none", "full")
"""What the backward pass recomputes: nothing, or each layer from the residual stream at its entry."""

Layer = dict[str, Any]


@pytree
class Cache:
    """Keys and values of each row's own tokens."""

    keys: Float[Array, "L B T K H"]
    values: Float[Array, "L B T K H"]


@pytree
class Prefix:
    """Keys and values of prompts, each shared by a group of consecutive rows; the first `length` positions are real."""

    keys: Float[Array, "L P S K H"]
    values: Float[Array, "L P S K H"]
    length: Int[Array, " P"]


class Decoder(nnx.Module):
    """A Llama-like decoder with stacked layers. Parameters are float32; `dtype` is what it computes in.

    Raises ValueError for an unknown `remat`.
    """

    embedding: nnx.Param
    unembedding: nnx.Param  # only where the embeddings are not tied
    final_norm: nnx.Param

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, dtype: Any = jnp.float32, remat: str = "none"):
        if remat not in REMAT:
            raise ValueError(f"remat is {remat!r}; it must be one of {', '.join(REMAT)}.")
        self.config, self.dtype, self.remat = config, jnp.dtype(dtype), remat
        for name, leaf in outer_layout(config).items():
            setattr(self, name, _parameter(name, leaf, leaf, rngs))
        self.layers = nnx.Dict(
            {
                name: _parameter(name, leaf, leaf.stacked(config.num_layers), rngs)
                for name, leaf in layer_layout(config).items()
            }
        )

    def prefill(self, tokens: Int[Array, "P S"], length: Int[Array, " P"]) -> Prefix:
        """Keys and values of prompts padded on the right. `length` may be 0: that prefix is masked entirely."""
        nothing = self._empty_prefix(tokens.shape[0])
        _, (keys, values) = self._run(tokens, nothing, emit=lambda k, v: (k, v))
        return Prefix(keys=keys, values=values, length=length)

    def hidden(self, tokens: Int[Array, "B T"], prefix: Prefix) -> Float[Array, "B T D"]:
        """What the head reads at each own position; B is a multiple of the P prefixes, groups consecutive.

        Row b continues prompt b // (B / P) at position `prefix.length`, causal over its own tokens.
        """
        return self._run(tokens, prefix, emit=lambda k, v: None)[0]

    def init_cache(self, batch: int, length: int) -> Cache:
        """Room for `length` own tokens of `batch` rows."""
        c = self.config
        zeros = jnp.zeros((c.num_layers, batch, length, c.num_kv_heads, c.head_dim), self.dtype)
        return Cache(keys=_pin_cache(zeros), values=_pin_cache(zeros))

    def step(
        self, tokens: Int[Array, " B"], prefix: Prefix, cache: Cache, index: Int[Array, ""] | int
    ) -> tuple[Float[Array, "B D"], Cache]:
        """`hidden` of one more token, `index` being the number of own tokens already in the cache.

        The cache rides in the carry of the scan over layers and is updated in place.
        """
        x, angles = self._embed(tokens[:, None], prefix, index)
        mask, prefix_mask = (jnp.arange(cache.keys.shape[2]) <= index)[None], _prefix_mask(prefix)

        def body(carry, layer):
            x, keys, values = carry
            w, prefix_k, prefix_v, i = layer
            w = self._cast(w)
            q, k, v = self._project(w, x, angles)
            keys = _pin_cache(jax.lax.dynamic_update_slice(keys, k[None], (i, 0, index, 0, 0)))
            values = _pin_cache(jax.lax.dynamic_update_slice(values, v[None], (i, 0, index, 0, 0)))
            out = attend(q, prefix_k, prefix_v, prefix_mask, keys[i], values[i], mask)
            return (self._finish(w, x, out), keys, values), None

        layers = (self._stacked(), prefix.keys, prefix.values, jnp.arange(self.config.num_layers))
        (x, keys, values), _ = jax.lax.scan(body, (x, cache.keys, cache.values), layers)
        return self._norm(x, self.final_norm[...])[:, 0], Cache(keys=keys, values=values)

    def head(self) -> Float[Array, "V D"]:
        """The output matrix: logits are `hidden @ head.T`. The embedding itself where the two are tied."""
        return self._table(self.embedding if self.config.tied_embeddings else self.unembedding)

    def _table(self, param: nnx.Param) -> Array:
        """In the compute dtype, split over the vocabulary only: rows of a batch use the other axis of its storage."""
        return constrain(param[...].astype(self.dtype), "vocab", None)

    def _run(
        self, tokens: Int[Array, "B T"], prefix: Prefix, emit: Callable[[Array, Array], Any]
    ) -> tuple[Array, Any]:
        """All layers over whole rows; `emit` picks what to keep of each layer's keys and values."""
        x, angles = self._embed(tokens, prefix, 0)
        mask, prefix_mask = jnp.tri(tokens.shape[1], dtype=bool), _prefix_mask(prefix)

        def body(x, layer):
            w, prefix_k, prefix_v = layer
            w = self._cast(w)
            q, k, v = self._project(w, x, angles)
            out = attend(q, prefix_k, prefix_v, prefix_mask, k, v, mask)
            return self._finish(w, x, out), emit(k, v)

        if self.remat == "full":
            body = jax.checkpoint(body, prevent_cse=False)  # a scan already keeps the two computations apart
        x, kept = jax.lax.scan(body, x, (self._stacked(), prefix.keys, prefix.values))
        return self._norm(x, self.final_norm[...]), kept

    def _embed(self, tokens: Array, prefix: Prefix, index: Array | int) -> tuple[Array, Array]:
        """The residual stream at its start, and the rotary angles of tokens index, index + 1, ... of each row."""
        rows, prompts = tokens.shape[0], prefix.length.shape[0]
        if rows % prompts:
            raise ValueError(
                f"{rows} rows do not share {prompts} prefixes; rows must be a multiple of prefixes."
            )
        x = constrain(self._table(self.embedding)[tokens], "batch", None, "act")
        start = jnp.repeat(prefix.length, rows // prompts) + index
        positions = start[:, None] + jnp.arange(tokens.shape[1])[None]
        return x, rope_angles(positions, self.config.head_dim, self.config.rope_theta)

    def _project(self, w: Layer, x: Array, angles: Array) -> tuple[Array, Array, Array]:
        """Queries, keys and values of one layer, rotated."""
        c, x = self.config, self._norm(x, w["attention_norm"])
        q, k, v = (self._matmul(x, w[name]) for name in ("q", "k", "v"))
        if c.attention_bias:
            q, k, v = q + w["q_bias"][None, None], k + w["k_bias"][None, None], v + w["v_bias"][None, None]
        if c.qk_norm:
            q, k = self._norm(q, w["q_norm"]), self._norm(k, w["k_norm"])
        q, k = rotate(q, angles), rotate(k, angles)
        return (
            constrain(q, "batch", None, "heads", None),
            constrain(k, "batch", None, "kv_heads", None),
            constrain(v, "batch", None, "kv_heads", None),
        )

    def _finish(self, w: Layer, x: Array, attended: Array) -> Array:
        """The rest of a layer: output projection and gated MLP, each added to the residual stream."""
        x = constrain(x + self._matmul(attended, w["o"], inputs=2), "batch", None, "act")
        y = self._norm(x, w["mlp_norm"])
        gate, up = self._matmul(y, w["gate"]), self._matmul(y, w["up"])
        inner = constrain(jax.nn.silu(gate) * up, "batch", None, "mlp")
        return constrain(x + self._matmul(inner, w["down"]), "batch", None, "act")

    def _norm(self, x: Float[Array, "... D"], scale: Float[Array, " D"]) -> Float[Array, "... D"]:
        """x / sqrt(mean(x^2) + eps) * scale, in float32. Source: arXiv:1910.07467, eq. 4."""
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + self.config.norm_eps)
        return (wide * scale.reshape((1,) * (x.ndim - 1) + scale.shape)).astype(self.dtype)

    def _matmul(self, x: Array, w: Array, inputs: int = 1) -> Array:
        """Contract the last `inputs` axes of x [B, T, ...] with the first of w.

        As one product of two matrices: the gradients of the same product written over [B, T, ...] take twice as long
        on a CPU, where they miss the library's kernels.
        """
        rows, outputs = x.shape[:2], w.shape[inputs:]
        flat = math.prod(w.shape[:inputs])
        product = jnp.matmul(x.reshape(-1, flat), w.reshape(flat, -1), precision=precision_of(self.dtype))
        return product.reshape(*rows, *outputs)

    def _stacked(self) -> Layer:
        return {name: self.layers[name][...] for name in layer_layout(self.config)}

    def _cast(self, w: Layer) -> Layer:
        """One layer in the compute dtype, gathered over the axis its storage is split on (norms stay float32)."""
        out = {}
        for name, leaf in layer_layout(self.config).items():
            axes = tuple(None if axis == "embed" else axis for axis in leaf.axes)
            out[name] = w[name] if name.endswith("norm") else constrain(w[name].astype(self.dtype), *axes)
        return out

    def _empty_prefix(self, prompts: int) -> Prefix:
        c = self.config
        nothing = jnp.zeros((c.num_layers, prompts, 0, c.num_kv_heads, c.head_dim), self.dtype)
        return Prefix(keys=nothing, values=nothing, length=jnp.zeros(prompts, jnp.int32))


def param_axes(params: Any) -> Any:
    """The logical axes (a tuple of names) in the place of every parameter of `nnx.split(model)[1]`."""
    return jax.tree.map(lambda p: p.axes, params, is_leaf=lambda p: isinstance(p, nnx.Variable))


def param_shardings(params: Any, mesh: Mesh) -> Any:
    """The NamedSharding in the place of every array: a tree for `jit`'s shardings or `device_put`."""
    return jax.tree.map(
        lambda p: p.replace(named(mesh, p.axes, p.shape)),
        params,
        is_leaf=lambda p: isinstance(p, nnx.Variable),
    )


def _parameter(name: str, leaf: Leaf, stored: Leaf, rngs: nnx.Rngs) -> nnx.Param:
    """Scales start at 1, biases at 0, matrices at N(0, 1 / fan_in), embeddings at N(0, 0.02^2)."""
    if name.endswith("norm"):
        value = jnp.ones(stored.shape)
    elif name.endswith("bias"):
        value = jnp.zeros(stored.shape)
    else:
        std = leaf.fan_in**-0.5 if leaf.inputs else 0.02
        value = std * jax.random.normal(rngs.params(), stored.shape)
    return nnx.Param(value, axes=stored.axes)


def _prefix_mask(prefix: Prefix) -> Array:
    return jnp.arange(prefix.keys.shape[2])[None] < prefix.length[:, None]


def _pin_cache(x: Array) -> Array:
    return constrain(x, "layers", "batch", None, "kv_heads", None)
