"""Low-rank adapters: W x becomes W x + (alpha / rank) B (A x), and only A and B are trained. arXiv:2106.09685, eq. 3."""

import dataclasses
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float

from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.layout import Leaf, layer_layout
from rlvr_jax.registry import nearest

TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
"""The matrices of a layer, which can have an adapter."""

A, B = "_lora_a", "_lora_b"
"""What the two matrices of an adapter are called after the name of theirs."""


@dataclasses.dataclass(frozen=True)
class Lora:
    """Which matrices have an adapter, of what rank, and how strongly it counts."""

    rank: int = 16
    alpha: float = 32.0
    """What B A x is multiplied by, times `rank`."""
    targets: tuple[str, ...] = TARGETS
    """Matrices with an adapter. All, as in arXiv:2305.14314, section 4; the first paper's choice is q and v (section 7.1)."""

    def __post_init__(self):
        if self.rank < 1:
            raise ValueError(
                f"model.lora.rank is 1 or more, got {self.rank}; leave model.lora out to train all weights."
            )
        if not self.alpha > 0:
            raise ValueError(f"model.lora.alpha is positive, got {self.alpha}.")
        for name in self.targets:
            if name not in TARGETS:
                raise ValueError(
                    f"model.lora.targets has {name!r}, which is no matrix of a layer.{nearest(name, TARGETS)} "
                    f"Known: {', '.join(TARGETS)}."
                )
        if not self.targets or len(set(self.targets)) < len(self.targets):
            raise ValueError(
                f"model.lora.targets={list(self.targets)}: name at least one matrix, and each only once."
            )

    @property
    def scale(self) -> float:
        """What B A x is multiplied by."""
        return self.alpha / self.rank


def adapter_layout(config: ModelConfig, lora: Lora | None) -> dict[str, Leaf]:
    """Parameters that the adapters add to a layer. A reads what its matrix reads, B writes what it writes."""
    if lora is None:
        return {}
    matrices, leaves = layer_layout(config), {}
    for name in lora.targets:
        w = matrices[name]
        into, out = w.shape[: w.inputs], w.shape[w.inputs :]
        leaves[name + A] = Leaf((*into, lora.rank), (*w.axes[: w.inputs], None), w.inputs)
        leaves[name + B] = Leaf((lora.rank, *out), (None, *w.axes[w.inputs :]), 1)
    return leaves


def split_trained(params: Any, lora: Lora | None) -> tuple[Any, Any]:
    """Parameters of a decoder as (those that are trained, those that are not): adapters and the rest, or all and none."""
    if lora is None:
        return params, ()
    trained, frozen = nnx.split_state(params, nnx.LoRAParam, ...)
    return trained, frozen


def joined(trained: Any, frozen: Any) -> Any:
    """The inverse of `split_trained`: the parameters of the policy. No array is copied."""
    return nnx.merge_state(trained, frozen) if jax.tree.leaves(frozen) else trained


def product(
    a: Float[np.ndarray, "..."], b: Float[np.ndarray, "..."], lora: Lora, leaf: Leaf
) -> Float[np.ndarray, "..."]:
    """What the adapter of one layer's matrix adds to it: (alpha / rank) B A, in the shape of `leaf`."""
    return (lora.scale * (a.reshape(-1, lora.rank) @ b.reshape(lora.rank, -1))).reshape(leaf.shape)
