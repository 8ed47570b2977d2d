"""What each parameter is called in a safetensors and in a GGUF file, and how it lies there. Export and import share this."""

import math

import numpy as np
from jaxtyping import Array, Float

from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.layout import Leaf, layer_layout, outer_layout

_OUTER = {
    "embedding": ("model.embed_tokens.weight", "token_embd.weight"),
    "final_norm": ("model.norm.weight", "output_norm.weight"),
    "unembedding": ("lm_head.weight", "output.weight"),
}

_LAYER = {
    "attention_norm": ("input_layernorm.weight", "attn_norm.weight"),
    "q": ("self_attn.q_proj.weight", "attn_q.weight"),
    "k": ("self_attn.k_proj.weight", "attn_k.weight"),
    "v": ("self_attn.v_proj.weight", "attn_v.weight"),
    "o": ("self_attn.o_proj.weight", "attn_output.weight"),
    "q_bias": ("self_attn.q_proj.bias", "attn_q.bias"),
    "k_bias": ("self_attn.k_proj.bias", "attn_k.bias"),
    "v_bias": ("self_attn.v_proj.bias", "attn_v.bias"),
    "q_norm": ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    "k_norm": ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    "mlp_norm": ("post_attention_layernorm.weight", "ffn_norm.weight"),
    "gate": ("mlp.gate_proj.weight", "ffn_gate.weight"),
    "up": ("mlp.up_proj.weight", "ffn_up.weight"),
    "down": ("mlp.down_proj.weight", "ffn_down.weight"),
}

_WITH_POST_NORMS = {
    "attention_post_norm": ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    "mlp_norm": ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    "mlp_post_norm": ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
}
"""What a model with norms behind attention and MLP calls otherwise, or has beside the others."""

HEAD = _OUTER["unembedding"][0]
"""The output matrix, which a tied model leaves out or repeats."""


def outer_name(name: str) -> str:
    """The safetensors name of a parameter outside the layers."""
    return _OUTER[name][0]


def layer_name(config: ModelConfig, name: str, layer: int) -> str:
    """The safetensors name of one layer's parameter."""
    return f"model.layers.{layer}.{_names(config.post_norms)[name][0]}"


def from_gguf_name(name: str, post_norms: bool) -> str:
    """The safetensors name of a tensor of a GGUF file; a name without a counterpart comes back as it is."""
    for theirs, gguf in _OUTER.values():
        if name == gguf:
            return theirs
    if name.startswith("blk."):
        _, layer, rest = name.split(".", 2)
        for theirs, gguf in _names(post_norms).values():
            if rest == gguf:
                return f"model.layers.{layer}.{theirs}"
    return name


def _names(post_norms: bool) -> dict[str, tuple[str, str]]:
    return {**_LAYER, **_WITH_POST_NORMS} if post_norms else _LAYER


def stored_shape(leaf: Leaf) -> tuple[int, ...]:
    """Files hold matrices as [outputs, inputs], with heads flattened."""
    outputs = math.prod(leaf.shape[leaf.inputs :])
    if leaf.inputs:
        return (outputs, leaf.fan_in)
    return leaf.shape if "vocab" in leaf.axes else (outputs,)


def to_stored(values: Float[np.ndarray, "..."], leaf: Leaf) -> Float[np.ndarray, "..."]:
    """From inputs first, heads apart, to what a file holds."""
    flat = values.reshape(stored_shape(leaf)[::-1] if leaf.inputs else stored_shape(leaf))
    return flat.T if leaf.inputs else flat


def from_stored(values: Float[Array, "..."], leaf: Leaf) -> Float[Array, "..."]:
    """The inverse of `to_stored`, on a device."""
    return (values.T if leaf.inputs else values).reshape(leaf.shape)


def stored_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a file of this model holds."""
    shapes = {outer_name(name): stored_shape(leaf) for name, leaf in outer_layout(config).items()}
    for layer in range(config.num_layers):
        for name, leaf in layer_layout(config).items():
            shapes[layer_name(config, name, layer)] = stored_shape(leaf)
    return shapes
