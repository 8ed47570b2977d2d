"""What a decoder looks like, read from and written to the `config.json` of a Hugging Face directory."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

FAMILIES = ("llama", "qwen2", "qwen3")
"""Values of `model_type` that the decoder computes exactly."""

_REQUIRED = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "mlp_dim": "intermediate_size",
}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of one decoder: Llama, with biases on q, k, v (Qwen2) or norms on q and k (Qwen3).

    Raises ValueError for sizes that no decoder can have.
    """

    vocab_size: int
    num_layers: int
    dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    tied_embeddings: bool = True
    attention_bias: bool = False
    qk_norm: bool = False
    max_positions: int = 4096

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type in (int, float) and not value > 0:
                raise ValueError(f"model field {field.name} is {value}; it must be positive.")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} heads do not share {self.num_kv_heads} key heads evenly; "
                "num_heads must be a multiple of num_kv_heads."
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim is {self.head_dim}; rotary embeddings turn pairs, so it must be even."
            )
        if self.attention_bias and self.qk_norm:
            raise ValueError(
                "attention_bias (Qwen2) and qk_norm (Qwen3) are both on; no known family has both."
            )

    def to_huggingface(self) -> dict[str, Any]:
        """The `config.json` that `transformers` builds the same network from."""
        family = "qwen3" if self.qk_norm else "qwen2" if self.attention_bias else "llama"
        return {
            "architectures": [f"{family.capitalize()}ForCausalLM"],
            "model_type": family,
            "vocab_size": self.vocab_size,
            "num_hidden_layers": self.num_layers,
            "hidden_size": self.dim,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.mlp_dim,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.norm_eps,
            "tie_word_embeddings": self.tied_embeddings,
            "max_position_embeddings": self.max_positions,
            "hidden_act": "silu",
            "attention_bias": False,
            "dtype": "float32",
        }


def from_huggingface(mapping: Mapping[str, Any]) -> ModelConfig:
    """Read a `config.json`.

    Raises ValueError for an unknown `model_type`, and one listing every missing field or every field whose value asks
    for something the decoder does not compute.
    """
    family = mapping.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"model_type {family!r} is not supported; it must be one of {', '.join(FAMILIES)}.")
    missing = [theirs for theirs in _REQUIRED.values() if mapping.get(theirs) is None]
    if missing:
        raise ValueError(
            f"the config of this {family} model has no {', '.join(missing)}; they have no default."
        )
    unsupported = _unsupported(mapping)
    if unsupported:
        raise ValueError(
            f"this {family} model needs what the decoder does not compute: {'; '.join(unsupported)}. "
            "Choose a model without."
        )
    sizes = {ours: mapping[theirs] for ours, theirs in _REQUIRED.items()}
    heads = sizes["num_heads"]
    return ModelConfig(
        **sizes,
        num_kv_heads=mapping.get("num_key_value_heads") or heads,
        head_dim=mapping.get("head_dim") or (128 if family == "qwen3" else sizes["dim"] // heads),
        rope_theta=float(_rope(mapping).get("rope_theta", 10000.0)),
        norm_eps=mapping.get("rms_norm_eps", 1e-6),
        tied_embeddings=mapping.get("tie_word_embeddings", False),
        attention_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        max_positions=mapping.get("max_position_embeddings", 2048 if family == "llama" else 32768),
    )


def _rope(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings of both generations of files: `rope_parameters`, or `rope_theta` beside `rope_scaling`."""
    settings = {k: mapping[k] for k in ("rope_theta",) if mapping.get(k) is not None}
    return {**settings, **(mapping.get("rope_scaling") or {}), **(mapping.get("rope_parameters") or {})}


_SUPPORTED: dict[str, Callable[[Any], bool]] = {
    "hidden_act": lambda value: value in (None, "silu"),
    "mlp_bias": lambda value: not value,
    "use_sliding_window": lambda value: not value,
    "layer_types": lambda value: not value or set(value) == {"full_attention"},
    "quantization_config": lambda value: not value,
}


def _unsupported(mapping: Mapping[str, Any]) -> list[str]:
    found = [key for key, fine in _SUPPORTED.items() if not fine(mapping.get(key))]
    if mapping["model_type"] != "qwen2" and mapping.get(
        "attention_bias"
    ):  # there it puts one on the output too
        found.append("attention_bias")
    if mapping.get("partial_rotary_factor") not in (None, 1, 1.0):
        found.append("partial_rotary_factor")
    shown = [f"{key}={json.dumps(mapping[key])}" for key in found]
    rope = _rope(mapping)
    kind = rope.get("rope_type", rope.get("type", "default"))
    return shown + ([f"rope scaling of type {kind!r}"] if kind != "default" else [])
