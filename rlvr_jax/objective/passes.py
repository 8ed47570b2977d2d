"""How one batch becomes sequential updates: masks [B, K, T] that sum to the mask over K."""

import dataclasses

from jaxtyping import Array, Float

from rlvr_jax.objective.base import Context, Passes
from rlvr_jax.registry import register


@register("passes", "single")
@dataclasses.dataclass(frozen=True)
class Single(Passes):
    """All tokens in one pass. Reference: GRPO, arXiv:2402.03300."""

    def split(self, ctx: Context) -> Float[Array, "B K T"]:
        return ctx.mask[:, None]
