"""Shapes of public models, so that a run can be planned where no file of its model is.

Each entry is what the model's own `config.json` says, at https://huggingface.co/ and its name.
"""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

from rlvr_jax.config import Config
from rlvr_jax.models.families import from_huggingface
from rlvr_jax.models.tokenizer import word_tokenizer
from rlvr_jax.registry import nearest
from rlvr_jax.train.program import Described


def _sizes(layers: int, width: int, heads: int, kv_heads: int, inner: int, vocabulary: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
    }


def _qwen(family: str, positions: int, theta: float, tied: bool, stop: int) -> dict[str, Any]:
    return {
        "model_type": family,
        "max_position_embeddings": positions,
        "rope_theta": theta,
        "tie_word_embeddings": tied,
        "eos_token_id": stop,
    }


def _llama(head: int, tied: bool, factor: float) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "max_position_embeddings": 131072,
        "head_dim": head,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": tied,
        "eos_token_id": 128001,
    }


_BASE, _CHAT = 151643, 151645

MODELS: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen2.5-0.5B": _sizes(24, 896, 14, 2, 4864, 151936) | _qwen("qwen2", 32768, 1e6, True, _BASE),
    "Qwen/Qwen2.5-1.5B": _sizes(28, 1536, 12, 2, 8960, 151936) | _qwen("qwen2", 131072, 1e6, True, _BASE),
    "Qwen/Qwen2.5-3B": _sizes(36, 2048, 16, 2, 11008, 151936) | _qwen("qwen2", 32768, 1e6, True, _BASE),
    "Qwen/Qwen2.5-7B": _sizes(28, 3584, 28, 4, 18944, 152064) | _qwen("qwen2", 131072, 1e6, False, _BASE),
    "Qwen/Qwen2.5-14B": _sizes(48, 5120, 40, 8, 13824, 152064) | _qwen("qwen2", 131072, 1e6, False, _BASE),
    "Qwen/Qwen2.5-Math-1.5B": _sizes(28, 1536, 12, 2, 8960, 151936) | _qwen("qwen2", 4096, 1e4, True, _BASE),
    "Qwen/Qwen2.5-Math-7B": _sizes(28, 3584, 28, 4, 18944, 152064) | _qwen("qwen2", 4096, 1e4, False, _BASE),
    "Qwen/Qwen3-0.6B": _sizes(28, 1024, 16, 8, 3072, 151936) | _qwen("qwen3", 40960, 1e6, True, _CHAT),
    "Qwen/Qwen3-1.7B": _sizes(28, 2048, 16, 8, 6144, 151936) | _qwen("qwen3", 40960, 1e6, True, _CHAT),
    "Qwen/Qwen3-4B": _sizes(36, 2560, 32, 8, 9728, 151936) | _qwen("qwen3", 40960, 1e6, True, _CHAT),
    "Qwen/Qwen3-8B": _sizes(36, 4096, 32, 8, 12288, 151936) | _qwen("qwen3", 40960, 1e6, False, _CHAT),
    "meta-llama/Llama-3.2-1B": _sizes(16, 2048, 32, 8, 8192, 128256) | _llama(64, True, 32.0),
    "meta-llama/Llama-3.2-3B": _sizes(28, 3072, 24, 8, 8192, 128256) | _llama(128, True, 32.0),
    "meta-llama/Llama-3.1-8B": _sizes(32, 4096, 32, 8, 14336, 128256) | _llama(128, False, 8.0),
}


def described(config: Config, name: str | None = None) -> Described:
    """The model of a config, from its files where they are; else of one of `MODELS`, which is `name` or what `model.path`
    ends with (`-Base`, `-Instruct` and `-Instruct-1M` have one shape). A tokenizer is then not there, and nothing asks for one.

    Raises ValueError where neither is known.
    """
    path = config.model.path
    if name is None and (path is None or pathlib.Path(path).exists()):
        return Described.of(config)
    wanted = (name or path or "").rstrip("/").split("/")[-1]
    short = {full.split("/")[-1].lower(): full for full in MODELS}
    found = short.get(re.sub("(-base|-instruct|-instruct-1m)$", "", wanted.lower()))
    if found is None:
        near = nearest(wanted, list(MODELS))
        what = f"--model {name!r}" if name else f"model.path={path!r} is not here, and its name"
        raise ValueError(f"{what} is no known shape.{near} Known: {', '.join(MODELS)}.")
    fields = MODELS[found]
    return Described(from_huggingface(fields), word_tokenizer(()), (fields["eos_token_id"],))
