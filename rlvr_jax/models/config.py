"""What a decoder looks like: sizes, and what sets one family apart from another."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How the rotary frequencies of a model are lowered for texts longer than those of its pre-training.

    `linear` (arXiv:2306.15595) divides all of them by `factor`. `llama3` (Llama 3.1, arXiv:2407.21783) divides those
    whose wavelength is above `original_positions / low_freq_factor`, keeps those below
    `original_positions / high_freq_factor`, and blends in between.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of one decoder. The defaults are Llama's; families differ in fields, not in code.

    Raises ValueError for sizes that no decoder can have.
    """

    vocab_size: int
    num_layers: int
    dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    family: str = "llama"
    """`model_type` of the files of this model."""
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-6
    tied_embeddings: bool = True
    attention_bias: bool = False
    """On q, k and v (Qwen2)."""
    qk_norm: bool = False
    """A norm on each head of q and k (Qwen3, Gemma 3)."""
    max_positions: int = 4096
    windows: tuple[int, ...] = ()
    """Tokens that each layer's queries see, themselves included; 0 for all. Empty: every layer sees all."""
    local_rope_theta: float | None = None
    """Base of the layers that have a window, unscaled; None: `rope_theta` everywhere (Gemma 3 has two)."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    norm_offset: float = 0.0
    """Added to the weight of every norm (Gemma: 1)."""
    post_norms: bool = False
    """A norm behind attention and MLP too, before each is added to the residual stream (Gemma 3)."""
    embedding_scale: float = 1.0
    """What an embedding is multiplied by as an input (Gemma: sqrt(dim)). The head is not."""
    attention_scale: float | None = None
    """What scores are multiplied by; None: head_dim^-1/2."""
    softcap: float | None = None
    """logits <- softcap tanh(logits / softcap)."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type in (int, float) and field.name != "norm_offset" and not value > 0:
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
        if self.windows and len(self.windows) != self.num_layers:
            raise ValueError(
                f"windows has {len(self.windows)} entries for {self.num_layers} layers; give one a layer, or none."
            )

    @property
    def score_scale(self) -> float:
        """What attention scores are multiplied by."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale
