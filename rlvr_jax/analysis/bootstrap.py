"""How sure one can be of a mean over prompts, and of the difference of two."""

import numpy as np
from jaxtyping import Float

_CHUNK = 2**20
"""Resampled values held at once."""


def bootstrap_interval(
    values: Float[np.ndarray, " P"], *, level: float = 0.95, draws: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over prompts: (low, high), the same for the same seed.

    Prompts are resampled, not answers: the interval says how the mean would move with other prompts. For a
    before/after comparison on the same prompts, pass the differences.

    Raises: ValueError for no values, values that are not finite, a level outside (0, 1), or no draws.
    Source: Efron, The Annals of Statistics 7(1), 1979.
    """
    if not 0 < level < 1:
        raise ValueError(
            f"level={level}: the share of means inside the interval lies between 0 and 1, as 0.95."
        )
    _check(values, draws, "a bootstrap interval")
    rng = np.random.default_rng(seed)
    means = [values[rng.integers(values.size, size=(m, values.size))].mean(1) for m in _parts(values, draws)]
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def swap_p_value(differences: Float[np.ndarray, " P"], *, draws: int = 10_000, seed: int = 0) -> float:
    """How often a mean difference as large as this one, in either direction, comes about by chance: in (0, 1].

    If two policies do equally well, it is chance which of the two results of a prompt is whose. So the sign of each
    difference is drawn anew, and the share of means at least as far from 0 is counted, the one that was found included.
    Unlike a bootstrap's, this p-value holds for few prompts too: for two with the same difference it is about 1/2.

    Raises: ValueError as `bootstrap_interval` does.
    Source: Fisher, The Design of Experiments, 1935, section 21; the count of Davison and Hinkley, 1997, eq. 4.11.
    """
    _check(differences, draws, "a p-value")
    rng = np.random.default_rng(seed)
    found, slack = abs(differences.mean()), 1e-12  # sums in another order are no smaller differences
    as_large = 0
    for rows in _parts(differences, draws):
        signs = rng.integers(0, 2, size=(rows, differences.size), dtype=np.int8) * 2.0 - 1.0
        as_large += int((abs(signs @ differences) / differences.size >= found - slack).sum())
    return (1 + as_large) / (1 + draws)


def _check(values: np.ndarray, draws: int, what: str) -> None:
    if not values.size or not np.isfinite(values).all():
        raise ValueError(f"{what} needs finite values, at least one; got {values.tolist()}.")
    if draws < 1:
        raise ValueError(f"draws={draws}: at least one resample; 10000 is usual.")


def _parts(values: np.ndarray, draws: int) -> list[int]:
    rows = max(1, _CHUNK // values.size)
    return [min(rows, draws - done) for done in range(0, draws, rows)]
