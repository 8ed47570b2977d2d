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
    "rope_local_base_freq": "rope.freq_base_swa",
    "final_logit_softcapping": "final_logit_softcapping",
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
        values = {key: self._get(theirs) for key, theirs in _KEYS.items()}
        scaling = self._get("rope.scaling.type", "none")
        found = {
            **{key: value for key, value in values.items() if value is not None},
            "model_type": _FAMILIES.get(self._family, self._family),
            "vocab_size": self.shapes.get("model.embed_tokens.weight", (None,))[0],
            "tie_word_embeddings": HEAD not in self.shapes,
            "rope_scaling": None
            if scaling == "none"
            else {"rope_type": scaling, "factor": self._get("rope.scaling.factor")},
        }
        return found | (self._query_scale(found) if self._family == "gemma3" else {})

    def read(self, name: str, index: tuple[slice, ...]) -> Float[np.ndarray, "..."]:
        """A part of one tensor in float32; of q and k whole heads. Llama files interleave the two halves of each of
        these, and Gemma files hold norms with their offset of 1 in them; both are undone."""
        rows, rest = (index[0], index[1:]) if len(index) > 1 else (slice(None), index)
        values = self._file.read(self._names[name], rows)
        if self._family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = self._get("attention.head_count")
            if "k_proj" in name:
                heads = self._get("attention.head_count_kv", heads)
            half = self.shapes[name][0] // heads // 2
            values = values.reshape(-1, half, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        values = values[..., *rest]
        return values - 1 if self._family == "gemma3" and name.endswith("norm.weight") else values

    def _get(self, key: str, default: Any = None) -> Any:
        return self._file.get(f"{self._family}.{key}", default)

    def _query_scale(self, found: dict[str, Any]) -> dict[str, Any]:
        """What queries are scaled by, which files leave out: the head's size, in the largest model (62 layers) the
        width per head. Source: arXiv:2503.19786, and the released configurations."""
        largest = found.get("num_hidden_layers") == 62
        scale = (
            found["hidden_size"] // found["num_attention_heads"] if largest else found.get("head_dim", 256)
        )
        return {"query_pre_attn_scalar": scale}
