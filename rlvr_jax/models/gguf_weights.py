"""A GGUF file seen as a Hugging Face directory: the same configuration keys, tensor names and row order."""

from typing import Any

import numpy as np
from jaxtyping import Float

from rlvr_jax.models.gguf_file import GgufFile
from rlvr_jax.models.names import HEAD, from_gguf_name

_KEYS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
}

_FAMILIES = {"gemma3": "gemma3_text"}
"""`general.architecture` -> `model_type`, where they differ."""


class GgufWeights:
    """Shapes by safetensors name, and `read`."""

    def __init__(self, file: GgufFile):
        self.path = file.path
        self._file = file
        self._family = file.get("general.architecture")
        self._names = {from_gguf_name(name, self._family == "gemma3"): name for name in file.shapes}
        self.shapes = {theirs: file.shapes[name] for theirs, name in self._names.items()}

    def mapping(self) -> dict[str, Any]:
        """What a `config.json` would say."""
        values = {key: self._file.get(f"{self._family}.{theirs}") for key, theirs in _KEYS.items()}
        scaling = self._file.get(f"{self._family}.rope.scaling.type", "none")
        return {
            **{key: value for key, value in values.items() if value is not None},
            "model_type": _FAMILIES.get(self._family, self._family),
            "vocab_size": self.shapes.get("model.embed_tokens.weight", (None,))[0],
            "tie_word_embeddings": HEAD not in self.shapes,
            "rope_scaling": None if scaling == "none" else {"rope_type": scaling},
        }

    def read(self, name: str) -> Float[np.ndarray, "..."]:
        """One tensor in float32. Llama files interleave the two halves of each q and k head, and Gemma files hold norms
        with their offset of 1 in them; both are undone."""
        values = self._file.read(self._names[name])
        if self._family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            part = "head_count" if "q_proj" in name else "head_count_kv"
            heads = self._file.get(f"llama.attention.{part}", self._file.get("llama.attention.head_count"))
            values = values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        return values - 1 if self._family == "gemma3" and name.endswith("norm.weight") else values
