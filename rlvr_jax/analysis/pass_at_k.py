"""pass@k without bias."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Array

Counts: TypeAlias = int | float | np.generic | np.ndarray | Array | Sequence
"""Whole numbers, one or many, held in any type."""


def pass_at_k(n: Counts, c: Counts, k: Counts) -> np.ndarray | float:
    """The chance that k answers drawn without replacement from n, of which c are right, hold a right one.

        1 - C(n - c, k) / C(n, k)  =  1 - prod_{i = n-c+1}^{n} (1 - k / i),   and 1 where n - c < k

    The product neither overflows nor cancels, whatever n. Unbiased for the pass rate with k samples.
    Scalars give a float, arrays (broadcast against each other) an array; its mean over prompts is the
    figure of a benchmark.

    Raises: ValueError where c is not in 0..n or k is not in 1..n.
    Source: Chen et al., arXiv:2107.03374, eq. 1; F-GRPO (arXiv:2602.06717), eq. 27.
    """
    samples, right, draws = np.broadcast_arrays(_whole("n", n), _whole("c", c), _whole("k", k))
    for bad, rule in (
        ((right < 0) | (right > samples), "0 <= c <= n: not more right answers than answers"),
        ((draws < 1) | (draws > samples), "1 <= k <= n: sample at least k answers for each prompt"),
    ):
        if bad.any():
            first = tuple(int(x[bad][0]) for x in (samples, right, draws))
            raise ValueError(f"pass@k with n={first[0]}, c={first[1]}, k={first[2]}; the rule is {rule}.")
    flat = zip(samples.flat, right.flat, draws.flat, strict=True)
    values = np.array([_pass_at_k(*(int(x) for x in row)) for row in flat], float).reshape(samples.shape)
    return values if values.ndim else float(values)


def _pass_at_k(n: int, c: int, k: int) -> float:
    if n - c < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


def _whole(name: str, x: Counts) -> np.ndarray:
    array = np.asarray(x)
    whole = array.astype(np.int64)
    if not np.array_equal(whole, array):
        raise ValueError(
            f"pass@k counts answers: {name} is a whole number, got {array[whole != array].flat[0]}."
        )
    return whole
