"""majority@k without bias: how often the most frequent of k answers is the right one."""

import collections
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Complex, Float


def majority_at_k(answers: Sequence[str | None], correct: Sequence[bool], k: int) -> float:
    """The chance that the most frequent of k answers is right, for k drawn without replacement from those given.

    A tie is split evenly among those that are tied. `None` is no answer: it is drawn, but is no candidate, and where
    nothing else was drawn the vote is lost. An answer that was judged both ways counts by the share of its right ones.
    Exact, not simulated: the mean over all subsets, so unbiased for a vote among k samples.

    Raises: ValueError for k outside 1..n, and for lists of different lengths.
    Source: the vote is that of Wang et al., arXiv:2203.11171; the mean over subsets, as for pass@k, is ours.
    """
    n = len(answers)
    if len(correct) != n:
        raise ValueError(
            f"majority@k got {n} answers and {len(correct)} verdicts: give one verdict for each."
        )
    if not 1 <= k <= n:
        raise ValueError(f"majority@k with n={n}, k={k}; the rule is 1 <= k <= n: sample at least k answers.")
    given = collections.Counter(a for a in answers if a is not None)
    right = collections.Counter(a for a, good in zip(answers, correct, strict=True) if good and a is not None)
    sizes = collections.Counter(given.values())
    chance = functools.cache(lambda size: _wins(size, sizes - collections.Counter([size]), n, k))
    return float(sum(right[a] / given[a] * chance(given[a]) for a in right))


def _wins(size: int, others: "collections.Counter[int]", n: int, k: int) -> float:
    """The chance that an answer given `size` times wins against the others (how many answers, by their sizes).

    Counts in k draws without replacement are those of independent binomials (of any p; k/n here) given that they sum to
    k, so with b the binomial probabilities and [z^m] the coefficient of z^m

        P(win) = sum_x b(x; size) int_0^1 [z^(k-x)] prod_i (sum_{t<x} b(t; n_i) z^t + s b(x; n_i) z^x) ds / b(k; n)

    where s counts ties: int s^j ds = 1/(j+1) is the share of a tie among j others. Gauss-Legendre nodes integrate the
    polynomial in s exactly, and the (n+1)-point Fourier transform gives the coefficient exactly. No term is negative, so
    nothing cancels but the transform's roundings, some 1e-14 for a thousand answers.
    """
    p = k / n
    z = np.exp(2j * np.pi * np.arange(n + 1) / (n + 1))
    silent = n - size - sum(each * many for each, many in others.items())
    total = 0.0
    for x in range(max(1, k - (n - size)), min(k, size) + 1):
        nodes, weights = _nodes(k // x // 2 + 1)
        product = np.broadcast_to((1 - p + p * z) ** silent, (len(nodes), n + 1))
        for each, many in others.items():
            product = product * _votes(each, x, p, z, nodes) ** many
        coefficient = (product * z ** -(k - x)).mean(1).real
        total += _binomial(size, p)[x] * float(weights @ coefficient)
    return total / float(_binomial(n, p)[k])


def _votes(
    size: int, most: int, p: float, z: Complex[np.ndarray, " Z"], nodes: Float[np.ndarray, " S"]
) -> Complex[np.ndarray, "S Z"]:
    """The generating function of one answer's votes, `most` of them at the most."""
    mass = _binomial(size, p)
    fewer = np.polynomial.polynomial.polyval(z, mass[:most])
    tied = mass[most] * z**most if size >= most else 0 * z
    return fewer + nodes[:, None] * tied


@functools.lru_cache(maxsize=4096)
def _binomial(n: int, p: float) -> np.ndarray:
    """P(0..n) of a binomial, [n + 1]."""
    from scipy.stats import binom

    return binom.pmf(np.arange(n + 1), n, p)


@functools.cache
def _nodes(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on 0..1; exact for polynomials of degree 2 count - 1."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (nodes + 1) / 2, weights / 2
