"""Advantage collapse: groups whose rewards do not differ, so that normalised advantages teach nothing."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rlvr_jax.numerics import group_std


def advantage_collapse_rate(
    rewards: Float[Array, " B"] | Float[np.ndarray, " B"], group_size: int, *, tau: float = 1e-6
) -> Float[Array, ""]:
    """ACR = (1/P) sum_j 1[sigma(R_j) < tau], with the population standard deviation of each group's rewards.

    Groups are consecutive rows; the unit is the group (prompt), not the batch. In 0..1, and safe under `jit`.

    Raises: ValueError where the groups do not divide the rows.
    Source: AVSPO (arXiv:2605.21125), definition of ACR.
    """
    spread = group_std(jnp.asarray(rewards, jnp.float32), group_size, ddof=0)
    return (spread < tau).mean(dtype=jnp.float32)
