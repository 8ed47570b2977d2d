"""Which tokens are trained: [B, T] -> [B, T]. A masked row leaves numerator and denominators alike."""

import dataclasses

from jaxtyping import Array, Bool, Float

from rlvr_jax.objective.base import Context, GroupFilter, Stateless
from rlvr_jax.registry import register
from rlvr_jax.types import BatchSpec, Rows


@register("mask", "drop_truncated")
@dataclasses.dataclass(frozen=True)
class DropTruncated(Stateless):
    """Leaves responses that hit the length limit out of the loss (they still count in the group's statistics).

        m_it <- m_it * 1[o_i ended with a stop token]

    Reference: DAPO, arXiv:2503.14476, section 3.4 (overlong filtering).
    """

    def transform(self, x: Float[Array, "B T"], ctx: Context) -> Float[Array, "B T"]:
        return x * (1 - ctx.rollout.truncated.astype(x.dtype))[:, None]


@register("mask", "drop_uniform_groups")
@dataclasses.dataclass(frozen=True)
class DropUniformGroups(GroupFilter):
    """Leaves groups whose responses are all right or all wrong out of the loss and of its denominators.

        m_it <- m_it * 1[0 < X < G],    X = number of correct responses of the group

    On raw correctness, not on the shaped reward: an all-wrong group whose lengths differ is still all wrong. With
    `batch.max_rounds` above 1 a run samples other groups in the place of those (DAPO's dynamic sampling).
    Reference: DAPO, arXiv:2503.14476, eq. 11 (the constraint of dynamic sampling).
    """

    def check(self, spec: BatchSpec) -> None:
        if spec.group_size < 2:
            raise ValueError(
                f"mask 'drop_uniform_groups' keeps groups with right and wrong responses, and group_size={spec.group_size} "
                "has none: nothing would be trained. Set batch.group_size to 2 or more."
            )

    def keeps(self, right: Float[Rows, " P"], answers: Float[Rows, " P"]) -> Bool[Rows, " P"]:
        return (right > 0) & (right < answers)
