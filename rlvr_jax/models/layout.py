"""The one table of parameters: initialisation, sharding and loading all read it."""

import dataclasses
import math

from rlvr_jax.models.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Shape and logical axes of a parameter; the first `inputs` axes are contracted (0: not a matrix product)."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    inputs: int = 0

    @property
    def fan_in(self) -> int:
        return math.prod(self.shape[: self.inputs])

    def stacked(self, layers: int) -> "Leaf":
        return Leaf((layers, *self.shape), ("layers", *self.axes), self.inputs)


def layer_layout(c: ModelConfig) -> dict[str, Leaf]:
    """Parameters of one layer. A name ending in `norm` is a scale (starts at 1), one in `bias` starts at 0."""
    heads, kv_heads = (c.num_heads, c.head_dim), (c.num_kv_heads, c.head_dim)
    leaves = {
        "attention_norm": Leaf((c.dim,), (None,)),
        "q": Leaf((c.dim, *heads), ("embed", "heads", "head_dim"), 1),
        "k": Leaf((c.dim, *kv_heads), ("embed", "kv_heads", "head_dim"), 1),
        "v": Leaf((c.dim, *kv_heads), ("embed", "kv_heads", "head_dim"), 1),
        "o": Leaf((*heads, c.dim), ("heads", "head_dim", "embed"), 2),
        "mlp_norm": Leaf((c.dim,), (None,)),
        "gate": Leaf((c.dim, c.mlp_dim), ("embed", "mlp"), 1),
        "up": Leaf((c.dim, c.mlp_dim), ("embed", "mlp"), 1),
        "down": Leaf((c.mlp_dim, c.dim), ("mlp", "embed"), 1),
    }
    if c.attention_bias:
        leaves["q_bias"] = Leaf(heads, ("heads", "head_dim"))
        leaves["k_bias"] = leaves["v_bias"] = Leaf(kv_heads, ("kv_heads", "head_dim"))
    if c.post_norms:
        leaves["attention_post_norm"] = leaves["mlp_post_norm"] = leaves["mlp_norm"]
    if c.qk_norm:
        leaves["q_norm"] = leaves["k_norm"] = Leaf((c.head_dim,), ("head_dim",))
    return leaves


def outer_layout(c: ModelConfig) -> dict[str, Leaf]:
    """Parameters outside the layers; `unembedding` only where it is not the embedding."""
    table = Leaf((c.vocab_size, c.dim), ("vocab", "embed"))
    leaves = {"embedding": table, "final_norm": Leaf((c.dim,), (None,))}
    return leaves if c.tied_embeddings else {**leaves, "unembedding": table}
