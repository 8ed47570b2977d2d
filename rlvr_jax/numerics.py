"""Masked and grouped reductions that stay exact on padding and finite on empty input."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped


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


def grouped(x: Shaped[Array, " B"], group_size: int) -> Shaped[Array, "P G"]:
    """Rows of one group side by side. Raises where the groups do not divide the rows."""
    if x.shape[0] % group_size:
        raise ValueError(f"{x.shape[0]} rows are no whole number of groups of {group_size}.")
    return x.reshape(-1, group_size)


def group_count(valid: Bool[Array, " B"], group_size: int) -> Float[Array, "P 1"]:
    """How many rows of each group are valid."""
    return grouped(valid, group_size).sum(1, keepdims=True).astype(jnp.float32)


def group_mean(
    x: Float[Array, " B"], group_size: int, valid: Bool[Array, " B"] | None = None
) -> Float[Array, "P 1"]:
    """Mean of each group, over its `valid` rows (all by default); 0 where there is none."""
    rows = grouped(x, group_size)
    if valid is None:
        return rows.mean(1, keepdims=True)
    total = jnp.where(grouped(valid, group_size), rows, 0.0).sum(1, keepdims=True)
    return safe_divide(total, group_count(valid, group_size))


def group_centre(
    x: Float[Array, " B"], group_size: int, valid: Bool[Array, " B"] | None = None
) -> Float[Array, "P G"]:
    """Deviations from the mean of the group's `valid` rows (all by default); 0 for the others, whatever they hold.

    A group of equal values gives exact zeros: the deviation from its *first* valid value is centred, which is 0
    exactly, where the rounded mean of G equal floats need not equal them.
    """
    rows = grouped(x, group_size)
    if valid is None:
        shifted = rows - rows[:, :1]
        return shifted - shifted.mean(1, keepdims=True)
    use = grouped(valid, group_size)
    first = jnp.take_along_axis(rows, jnp.argmax(use, axis=1)[:, None], axis=1)
    shifted = jnp.where(use, rows - first, 0.0)
    return jnp.where(use, shifted - group_mean(shifted.reshape(x.shape), group_size, valid), 0.0)


def group_std(
    x: Float[Array, " B"], group_size: int, *, ddof: int, valid: Bool[Array, " B"] | None = None
) -> Float[Array, "P 1"]:
    """Standard deviation over the `valid` rows of each group (all by default), by the centred two-pass form.

    A group of equal values, or with no more than `ddof` valid rows, gives exactly 0. The gradient there is 0, not
    that of sqrt at 0.
    """
    if group_size <= ddof:
        raise ValueError(
            f"a standard deviation with ddof={ddof} needs groups of more than {ddof}, got {group_size}."
        )
    squares = (group_centre(x, group_size, valid) ** 2).sum(1, keepdims=True)
    count = jnp.full_like(squares, group_size) if valid is None else group_count(valid, group_size)
    variance = safe_divide(squares, jnp.maximum(count - ddof, 0.0))
    return jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
