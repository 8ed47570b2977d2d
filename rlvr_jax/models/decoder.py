"""The decoder: one forward for sampling, scoring and training.

A prompt but for its last token is prefilled once into a `Prefix` that the G rows of its group share. The last prompt
token is a row's first own input, so own position t reads token t and predicts token t + 1 of the completion, and
prompt positions never reach the head.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from rlvr_jax.models.attention import attend
from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.layout import Leaf, layer_layout, outer_layout
from rlvr_jax.models.lora import A, B, Lora, adapter_layout
from rlvr_jax.models.positions import Owners, Places, rope_angles, rope_frequencies, rotate, step_in_text
from rlvr_jax.models.remat import ENTRY, OPERAND, PRODUCT, REMAT, keep, kept_by, stream
from rlvr_jax.products import Turned, product, turned_product
from rlvr_jax.sharding import constrain, in_use, named, rows_of, tokens_of
from rlvr_jax.types import pytree

Layer = dict[str, Any]


@pytree
class Prefix:
    """Keys and values of prompts, each shared by a group of consecutive rows; the first `length` positions are real."""

    keys: Float[Array, "L P S K H"]
    values: Float[Array, "L P S K H"]
    length: Int[Array, " P"]


_ACTIVATIONS = {"silu": jax.nn.silu, "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True)}


class Decoder(nnx.Module):
    """A decoder with stacked layers. Parameters are float32; `dtype` is what it computes in. Adapters, where there are any
    (`lora`), are `nnx.LoRAParam`, and the weights beneath them, which no update changes, are rounded to `dtype` for good,
    as the forward would round them each time (norms stay float32).

    Raises ValueError for an unknown `remat`.
    """

    embedding: nnx.Param
    unembedding: nnx.Param  # only where the embeddings are not tied
    final_norm: nnx.Param

    def __init__(
        self,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs,
        dtype: Any = jnp.float32,
        remat: str = "none",
        lora: Lora | None = None,
    ):
        if remat not in REMAT:
            raise ValueError(f"remat is {remat!r}; it must be one of {', '.join(REMAT)}.")
        self.config, self.dtype, self.remat, self.lora = config, jnp.dtype(dtype), remat, lora
        for name, leaf in outer_layout(config).items():
            setattr(self, name, self._parameter(name, leaf, leaf, rngs))
        self.layers = nnx.Dict(
            {
                name: self._parameter(name, leaf, leaf.stacked(config.num_layers), rngs)
                for name, leaf in self.layout().items()
            }
        )

    def _parameter(self, name: str, leaf: Leaf, stored: Leaf, rngs: nnx.Rngs) -> nnx.Param:
        """Scales start where the norm multiplies by 1, biases at 0, matrices at N(0, 1 / fan_in), embeddings at
        N(0, 0.02^2).

        Of an adapter A starts like a matrix and B at 0, so that it adds nothing (arXiv:2106.09685, section 4.1).
        """
        if name.endswith("norm"):
            return nnx.Param(
                jnp.full(stored.shape, 1 - self.config.norm_offset, jnp.float32), axes=stored.axes
            )
        if name.endswith(("bias", B)):
            value = jnp.zeros(stored.shape)
        else:
            std = leaf.fan_in**-0.5 if leaf.inputs else 0.02
            value = std * jax.random.normal(rngs.params(), stored.shape)
        if name.endswith((A, B)):
            return nnx.LoRAParam(value, axes=stored.axes)
        frozen = self.lora is not None
        return nnx.Param(value.astype(self.dtype) if frozen else value, axes=stored.axes)

    def prefill(self, tokens: Int[Array, "P S"], length: Int[Array, " P"]) -> Prefix:
        """Keys and values of prompts padded on the right. `length` may be 0: that prefix is masked entirely."""
        nothing = self._empty_prefix(tokens.shape[0])
        _, (keys, values) = self._run(tokens, nothing, None, None, emit=lambda k, v: (k, v))
        return Prefix(keys=keys, values=values, length=length)

    def hidden(
        self,
        tokens: Int[Array, "B T"],
        prefix: Prefix,
        *,
        segments: Int[Array, "B T"] | None = None,
        owners: Owners | None = None,
    ) -> Float[Array, "B T D"]:
        """What the head reads at each own position. Row b continues prompt b // (B / P), groups consecutive, or that of
        `owners`, at position `prefix.length`, causal over its own tokens.

        With `segments` a row is packed: each run of equal numbers is a text of its own, which starts behind the prefix and
        sees only that and itself.
        """
        if segments is not None and owners is None:
            owners = Owners(index=jnp.arange(len(tokens)) // _share(tokens, prefix))
        return self._run(tokens, prefix, segments, owners, emit=lambda k, v: None)[0]

    def head(self) -> Float[Array, "V D"]:
        """The output matrix, as it is stored: logits are `hidden @ head.T`. The embedding itself where the two are tied."""
        return self.table(self.embedding if self.config.tied_embeddings else self.unembedding)

    def table(self, param: nnx.Param) -> Float[Array, "V D"]:
        """In the compute dtype."""
        return param[...].astype(self.dtype)

    def _run(
        self,
        tokens: Int[Array, "B T"],
        prefix: Prefix,
        segments: Int[Array, "B T"] | None,
        owners: Owners | None,
        emit: Callable[[Array, Array], Any],
    ) -> tuple[Array, Any]:
        """All layers over whole rows; `emit` picks what to keep of each layer's keys and values."""
        c = self.config
        places = self._places(tokens, prefix, segments, owners)

        def body(x, layer):
            w, prefix_k, prefix_v, window = layer
            x, w = keep(x, ENTRY), self.cast(w)
            q, k, v = self.project(w, x, places.turned(window))
            out = attend(q, prefix_k, prefix_v, k, v, places, window, windows=c.windows, scale=c.score_scale)
            return self.finish(w, x, out), emit(k, v)

        layers = self.stacked(), prefix.keys, prefix.values, self.windows()
        x = stream(self.embed(self._looked_up(tokens)))
        x, kept = jax.lax.scan(kept_by(self.remat, body, self.dtype), x, layers)
        return self.norm(x, self.final_norm[...]), kept

    def _looked_up(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Rows of the embedding. Each device looks up its part of the width for the rows of all that share the table with it:
        so rows are exchanged, which are few beside the table."""
        x = self.table(self.embedding)[constrain(tokens, "replicas", "length")]
        return constrain(x, "replicas", "length", "embed")

    def embed(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """The residual stream at its start, from rows of the embedding."""
        if self.config.embedding_scale != 1:
            x = x * jnp.asarray(self.config.embedding_scale, self.dtype)
        return constrain(x, "batch", "length", "act")

    def _places(
        self,
        tokens: Int[Array, "B T"],
        prefix: Prefix,
        segments: Int[Array, "B T"] | None,
        owners: Owners | None,
    ) -> Places:
        offset = jnp.arange(tokens.shape[1])
        own, step = (offset[:, None] - offset[None])[None], offset[None]
        if segments is not None:
            step = step_in_text(segments)
            own = jnp.where(segments[:, :, None] == segments[:, None], own, -1)
        length = prefix.length if owners is None else owners.of(prefix.length)
        share = _share(tokens, prefix) if owners is None else 1
        place = jnp.arange(prefix.keys.shape[2])
        behind = length[:, None, None] + step[:, :, None] - place[None, None]
        behind = behind if self.config.windows else jnp.zeros_like(behind[:, :1])  # else no distance matters
        real = place[None, None] < length[:, None, None]
        return Places(
            angles=self.angles(jnp.repeat(length, share)[:, None] + step),
            prefix=jnp.where(real, behind, -1),
            own=own,
            length=length,
            segments=segments,
            owners=owners,
        )

    def angles(self, positions: Int[Array, "B T"]) -> tuple[Float[Array, "B T half"], ...]:
        """The rotary angles, for each base that the model has."""
        c = self.config
        bases = [(c.rope_theta, c.rope_scaling)]
        bases += [(c.local_rope_theta, None)] if c.local_rope_theta is not None else []
        return tuple(rope_angles(positions, rope_frequencies(c.head_dim, *base)) for base in bases)

    def stacked(self) -> Layer:
        """The weights of all layers, as a scan is fed with them."""
        return {name: self.layers[name][...] for name in self.layout()}

    def windows(self) -> Int[Array, " L"] | None:
        """Of each layer, 0 where it sees everything; None where all do."""
        return jnp.asarray(self.config.windows, jnp.int32) if self.config.windows else None

    def project(self, w: Layer, x: Array, angles: Array) -> tuple[Array, Array, Array]:
        """Queries, keys and values of one layer, rotated."""
        c, x = self.config, keep(self.norm(x, w["attention_norm"]), OPERAND)
        q, k, v = (self._linear(w, name, x) for name in ("q", "k", "v"))
        if c.attention_bias:
            q, k, v = q + w["q_bias"][None, None], k + w["k_bias"][None, None], v + w["v_bias"][None, None]
        if c.qk_norm:
            q, k = self.norm(q, w["q_norm"]), self.norm(k, w["k_norm"])
        q, k = rotate(q, angles), rotate(k, angles)
        return (
            constrain(q, "batch", "length", "heads", None),
            in_use(k, ("batch", "length", "kv_heads", None), ("batch", None, "kv_heads", None)),
            in_use(v, ("batch", "length", "kv_heads", None), ("batch", None, "kv_heads", None)),
        )

    def finish(self, w: Layer, x: Array, attended: Array) -> Array:
        """The rest of a layer: output projection and gated MLP, each added to the residual stream."""
        c = self.config
        attended = self._linear(w, "o", keep(attended, OPERAND), inputs=2)
        if c.post_norms:
            attended = self.norm(attended, w["attention_post_norm"])
        x = constrain(x + attended, "batch", "length", "act")
        y = keep(self.norm(x, w["mlp_norm"]), OPERAND)
        gate, up = self._linear(w, "gate", y), self._linear(w, "up", y)
        inner = keep(constrain(_ACTIVATIONS[c.activation](gate) * up, "batch", "length", "mlp"), OPERAND)
        out = self._linear(w, "down", inner)
        if c.post_norms:
            out = self.norm(out, w["mlp_post_norm"])
        return constrain(x + out, "batch", "length", "act")

    def norm(self, x: Float[Array, "... D"], scale: Float[Array, " D"]) -> Float[Array, "... D"]:
        """x / sqrt(mean(x^2) + eps) * (scale + offset), in float32. Source: arXiv:1910.07467, eq. 4."""
        wide, scale = x.astype(jnp.float32), scale + self.config.norm_offset
        wide = wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + self.config.norm_eps)
        return (wide * scale.reshape((1,) * (x.ndim - 1) + scale.shape)).astype(self.dtype)

    def _linear(self, w: Layer, name: str, x: Array, inputs: int = 1) -> Array:
        """W x, and what its adapter adds.

        The adapter is a product of its own, r (in + out) multiplications a token. W + B A would be rounded to the compute
        dtype, which swallows an update that is small beside W, and its gradient would first be one of W, the matrix whose
        gradient adapters are there to avoid.
        """
        out = self._matmul(x, w[name], inputs)
        if self.lora is None or name not in self.lora.targets:
            return out
        low = self._matmul(x, w[name + A], inputs)
        return out + self._matmul(low * jnp.asarray(self.lora.scale, self.dtype), w[name + B])

    def _matmul(self, x: Array, w: Array | Turned, inputs: int = 1) -> Array:
        """Contract the last `inputs` axes of x [B, T, ...] with the first of w.

        As one product of two matrices: the gradients of the same product written over [B, T, ...] take twice as long
        on a CPU, where they miss the library's kernels.
        """
        rows = x.shape[:2]
        if isinstance(w, Turned):
            out = turned_product(x.reshape(x.shape[0] * x.shape[1], -1), w).astype(self.dtype)
            return out.reshape(*rows, *w.outputs)
        flat, outputs = math.prod(w.shape[:inputs]), w.shape[inputs:]
        out = product(tokens_of(x.reshape(*rows, flat)), w.reshape(flat, -1)).astype(self.dtype)
        return rows_of(keep(out, PRODUCT), rows[0]).reshape(*rows, *outputs)

    def cast(self, w: Layer) -> Layer:
        """One layer in the compute dtype, gathered over the axis its storage is split on (norms stay float32)."""
        out = {}
        for name, leaf in self.layout().items():
            axes = tuple(None if axis == "embed" else axis for axis in leaf.axes)
            out[name] = (
                w[name] if name.endswith("norm") else in_use(w[name].astype(self.dtype), leaf.axes, axes)
            )
        return out

    def layout(self) -> dict[str, Leaf]:
        """Parameters of one layer, adapters among them."""
        return {**layer_layout(self.config), **adapter_layout(self.config, self.lora)}

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


def _share(tokens: Int[Array, "B T"], prefix: Prefix) -> int:
    """Consecutive rows of a prefix. Raises ValueError where the rows do not share the prefixes evenly."""
    rows, prompts = tokens.shape[0], prefix.length.shape[0]
    if rows % prompts:
        raise ValueError(f"{rows} rows do not share {prompts} prefixes; rows must be a multiple of prefixes.")
    return rows // prompts
