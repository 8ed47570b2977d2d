"""Masked and grouped reductions that stay exact on padding and finite on empty input."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def safe_divide(total: Float[Array, "..."], count: Float[Array, "..."]) -> Float[Array, "..."]:
    """total / count, and 0 where count is 0. Gradients are finite there too (the denominator is replaced first)."""
    empty = count == 0
    return jnp.where(empty, 0.0, total / jnp.where(empty, 1.0, count))


def masked_sum(x: Float[Array, "B T"], mask: Float[Array, "B T"]) -> Float[Array, " B"]:
    """Sum over T of the entries with a non-zero mask; what lies under the padding may be inf or nan."""
    return jnp.where(mask > 0, x * mask, 0.0).sum(1)


def masked_mean(x: Float[Array, "B T"], mask: Float[Array, "B T"]) -> Float[Array, " B"]:
    """Mean over T inside the mask; 0 for a row without any."""
    return safe_divide(masked_sum(x, mask), mask.sum(1))


def grouped(x: Float[Array, " B"], group_size: int) -> Float[Array, "P G"]:
    """Rows of one group side by side. Raises where the groups do not divide the rows."""
    if x.shape[0] % group_size:
        raise ValueError(f"{x.shape[0]} rows are no whole number of groups of {group_size}.")
    return x.reshape(-1, group_size)


def group_mean(x: Float[Array, " B"], group_size: int) -> Float[Array, "P 1"]:
    """Mean of each group."""
    return grouped(x, group_size).mean(1, keepdims=True)


def group_std(x: Float[Array, " B"], group_size: int, *, ddof: int) -> Float[Array, "P 1"]:
    """Standard deviation in each group, by the centred two-pass form.

    A group of equal values gives exactly 0: the deviation from the *first* value is centred, which is 0 exactly,
    where the rounded mean of G equal floats need not equal them. The gradient there is 0, not that of sqrt at 0.
    """
    if group_size <= ddof:
        raise ValueError(
            f"a standard deviation with ddof={ddof} needs groups of more than {ddof}, got {group_size}."
        )
    rows = grouped(x, group_size)
    shifted = rows - rows[:, :1]
    centred = shifted - shifted.mean(1, keepdims=True)
    variance = (centred**2).sum(1, keepdims=True) / (group_size - ddof)
    return jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
