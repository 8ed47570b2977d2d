"""The `config.json` of a Hugging Face directory as a `ModelConfig`, and back: what each family's fields are called."""

import json
from collections.abc import Mapping
from typing import Any

from rlvr_jax.models.config import ModelConfig, RopeScaling

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
"""Values of `model_type` that the decoder computes exactly. SmolLM2 and Llama 3 files say "llama"."""

_ARCHITECTURES = {"gemma3_text": "Gemma3ForCausalLM"}

_REQUIRED = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "mlp_dim": "intermediate_size",
}

_POSITIONS = {"llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768, "gemma3_text": 131072}
"""What a file means that does not say."""

_HEAD_DIM = {"qwen3": 128, "gemma3_text": 256}
"""The same; for other families it is hidden_size / num_attention_heads."""

_READ = {
    *("model_type", "num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings"),
    *("max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq"),
    *("sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "sliding_window_pattern"),
    *("query_pre_attn_scalar", "final_logit_softcapping"),
}

_HARMLESS = {
    *(
        "architectures",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "transformers.js_config",
        "is_llama_config",
    ),
    *("unsloth_fixed", "unsloth_version", "tokenizer_class", "bos_token_id", "eos_token_id", "pad_token_id"),
    *("sep_token_id", "initializer_range", "attention_dropout", "pretraining_tp", "use_cache", "return_dict"),
    *("cache_implementation", "output_attentions", "output_hidden_states", "chunk_size_feed_forward"),
    *("problem_type", "id2label", "label2id", "is_encoder_decoder", "is_decoder", "add_cross_attention"),
}
"""What does not change the logits of a sequence: bookkeeping, special tokens, training, memory, other heads."""

_READ_OF_ROPE = {
    *("rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor"),
    *("original_max_position_embeddings", "local_theta", "full_attention", "sliding_attention"),
}


def from_huggingface(mapping: Mapping[str, Any]) -> ModelConfig:
    """Read a `config.json`.

    Raises ValueError for an unknown `model_type`, and one listing every missing field, every field whose value asks
    for something the decoder does not compute, or every field that is not known at all: a new one may change the
    computation, and nothing else would tell. Unset fields (null) and private ones (`_name_or_path`) are passed over.
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
    unknown = _unknown(mapping)
    if unknown:
        raise ValueError(
            f"the config of this {family} model has fields that are not known here: {'; '.join(unknown)}. "
            "If they do not change what the model computes, take them out of config.json."
        )
    sizes = {ours: mapping[theirs] for ours, theirs in _REQUIRED.items()}
    heads, gemma, rope = sizes["num_heads"], family == "gemma3_text", _rope(mapping)
    return ModelConfig(
        **sizes,
        family=family,
        num_kv_heads=mapping.get("num_key_value_heads") or heads,
        head_dim=mapping.get("head_dim") or _HEAD_DIM.get(family) or sizes["dim"] // heads,
        rope_theta=float(rope.get("rope_theta", 1e6 if gemma else 1e4)),
        rope_scaling=_scaling(rope),
        norm_eps=mapping.get("rms_norm_eps", 1e-6),
        tied_embeddings=mapping.get("tie_word_embeddings", gemma),
        attention_bias=family == "qwen2",
        qk_norm=family in ("qwen3", "gemma3_text"),
        max_positions=mapping.get("max_position_embeddings", _POSITIONS[family]),
        windows=_windows(mapping, sizes["num_layers"]),
        **(_gemma(mapping, sizes["dim"]) if gemma else {}),
    )


def to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """The `config.json` that `transformers` builds the same network from."""
    family = config.family
    out: dict[str, Any] = {
        "architectures": [_ARCHITECTURES.get(family, f"{family.capitalize()}ForCausalLM")],
        "model_type": family,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_embeddings,
        "max_position_embeddings": config.max_positions,
        "attention_bias": False,
        "dtype": "float32",
        **{theirs: getattr(config, ours) for ours, theirs in _REQUIRED.items()},
        **_rope_fields(config),
        **_window_fields(config),
    }
    if family != "gemma3_text":
        return {**out, "hidden_act": "silu"}
    return {
        **out,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(config.score_scale**-2),
        "final_logit_softcapping": config.softcap,
    }


# ---- rotary embeddings ---------------------------------------------------------------------------------------------


def _rope(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings of both generations of files: `rope_parameters`, or `rope_theta` beside `rope_scaling`.

    Where layers differ (Gemma 3) those of layers that see everything, and `local_theta`.
    """
    settings = {k: mapping[k] for k in ("rope_theta",) if mapping.get(k) is not None}
    settings |= mapping.get("rope_scaling") or {}
    if mapping.get("rope_local_base_freq") is not None:
        settings["local_theta"] = mapping["rope_local_base_freq"]
    newer = mapping.get("rope_parameters") or {}
    if "full_attention" in newer:
        local = newer.get("sliding_attention") or {}
        return {**settings, **newer["full_attention"], "local_theta": local.get("rope_theta", 1e4)}
    return {**settings, **newer}


def _kind(rope: Mapping[str, Any]) -> str:
    return rope.get("rope_type", rope.get("type", "default"))


def _scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = _kind(rope)
    if kind == "linear":
        return RopeScaling("linear", float(rope["factor"]))
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_positions=int(rope["original_max_position_embeddings"]),
        )
    return None


def _rope_fields(config: ModelConfig) -> dict[str, Any]:
    scaling, out = config.rope_scaling, {"rope_type": "default", "rope_theta": config.rope_theta}
    if scaling is not None:
        out |= {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling is not None and scaling.kind == "llama3":
        out |= {
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_positions,
        }
    if config.local_rope_theta is None:
        return {"rope_parameters": out}
    local = {"rope_type": "default", "rope_theta": config.local_rope_theta}
    return {"rope_parameters": {"full_attention": out, "sliding_attention": local}}


# ---- sliding windows -----------------------------------------------------------------------------------------------


def _windows(mapping: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    family, window = mapping["model_type"], mapping.get("sliding_window")
    if family == "mistral":
        return (window,) * layers if window else ()
    if family == "llama" or not window or (family != "gemma3_text" and not mapping.get("use_sliding_window")):
        return ()
    kinds = mapping.get("layer_types")
    if kinds:
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    if family == "gemma3_text":
        every = mapping.get("sliding_window_pattern", 6)
        return tuple(0 if (layer + 1) % every == 0 else window for layer in range(layers))
    first = mapping.get("max_window_layers", 28)
    return tuple(window if layer >= first else 0 for layer in range(layers))


def _window_fields(config: ModelConfig) -> dict[str, Any]:
    if config.family == "mistral":
        return {"sliding_window": config.windows[0] if config.windows else None}
    if not config.windows:
        return {}
    kinds = ["sliding_attention" if window else "full_attention" for window in config.windows]
    qwen = {"use_sliding_window": True, "max_window_layers": 0} if config.family != "gemma3_text" else {}
    return {"sliding_window": max(config.windows), "layer_types": kinds, **qwen}


# ---- the rest ------------------------------------------------------------------------------------------------------


def _gemma(mapping: Mapping[str, Any], dim: int) -> dict[str, Any]:
    return {
        "local_rope_theta": float(_rope(mapping).get("local_theta", 1e4)),
        "activation": "gelu_tanh",
        "norm_offset": 1.0,
        "post_norms": True,
        "embedding_scale": dim**0.5,
        "attention_scale": mapping.get("query_pre_attn_scalar", 256) ** -0.5,
        "softcap": mapping.get("final_logit_softcapping"),
    }


_FINE = {
    "hidden_act": (None, "silu"),
    "hidden_activation": (None, "silu"),
    "mlp_bias": (None, False),
    "attention_bias": (None, False),
    "partial_rotary_factor": (None, 1),
    "rope_interleaved": (None, False),
    "use_mrope": (None, False),
    "attn_logit_softcapping": (None,),
    "use_bidirectional_attention": (None, False),
    "quantization_config": (None, {}),
}
"""Fields that ask for something else, and the values with which they do not."""

_FINE_IN = {
    # on q, k and v whatever this says; elsewhere it puts one on the output too
    "qwen2": {"attention_bias": (None, False, True)},
    "gemma3_text": {key: (None, "gelu_pytorch_tanh") for key in ("hidden_act", "hidden_activation")},
}


def _unsupported(mapping: Mapping[str, Any]) -> list[str]:
    """Every field that asks for something else, with its value."""
    family, rope = mapping["model_type"], _rope(mapping)
    fine = {**_FINE, **_FINE_IN.get(family, {})}
    shown = [f"{k}={json.dumps(mapping[k])}" for k, values in fine.items() if mapping.get(k) not in values]
    kinds = mapping.get("layer_types") or ()
    if set(kinds) - {"full_attention", "sliding_attention"} or (
        family in ("llama", "mistral") and "sliding_attention" in kinds
    ):
        shown.append(f"layer_types={json.dumps(kinds)}")
    if rope.get("partial_rotary_factor", 1) != 1:
        shown.append(f"partial_rotary_factor={rope['partial_rotary_factor']}")
    kind, local = _kind(rope), _kind((mapping.get("rope_parameters") or {}).get("sliding_attention") or {})
    shown += [f"rope scaling of type {kind!r}"] if kind not in ("default", "linear", "llama3") else []
    return shown + ([f"rope scaling of type {local!r} under windows"] if local != "default" else [])


def _unknown(mapping: Mapping[str, Any]) -> list[str]:
    """Every field that no table here names, with its value."""
    known = {*_REQUIRED.values(), *_READ, *_HARMLESS, *_FINE}
    shown = [
        f"{key}={json.dumps(value)}"
        for key, value in mapping.items()
        if key not in known and not key.startswith("_") and value is not None
    ]
    known = {*_READ_OF_ROPE, "partial_rotary_factor"}
    return shown + [
        f"{key}={json.dumps(value)} of the rotary settings"
        for key, value in _rope(mapping).items()
        if key not in known and value is not None
    ]
