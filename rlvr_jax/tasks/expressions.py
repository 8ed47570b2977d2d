r"""Answers as SymPy objects, read by math-verify, and no larger than can be computed in no time.

math-verify reads LaTeX without evaluating it: a tower of powers costs nothing until it is compared. So texts are looked at
before they are read (`is_short`), and values before they are compared (`is_bounded`); no time limit is needed, which in a
thread or an event loop there is none of.
"""

import dataclasses
import functools
import itertools
import logging
import math
import re
from typing import Any

from rlvr_jax.tasks.answers import LONGEST_NUMBER

LONGEST_EXPRESSION = 300
DEEPEST_EXPRESSION = 8
"""Nested brackets; each doubles the parser's time at the worst."""
MOST_NODES = 200
MOST_NODES_TO_SOLVE = 40
LARGEST_POWER_OF_TEN = 2000


@functools.cache
def _math_verify() -> Any:
    """The module, told not to warn that its own time limits are off (`is_bounded` stands in their place)."""
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return math_verify


@functools.cache
def sympy_module() -> Any:
    """SymPy, which takes half a second to import."""
    import sympy

    return sympy


@functools.cache
def _reading() -> list:
    """How math-verify reads: all of a box, or nothing; units are taken out before."""
    config = _math_verify().LatexExtractionConfig(boxed_match_priority=0)
    rules = dataclasses.replace(config.normalization_config, units=False, boxed="last")
    return [dataclasses.replace(config, normalization_config=rules)]


def is_short(text: str) -> bool:
    r"""Whether a plain text may be given to the parser: short, shallow, nothing that it computes while it reads.

    That is binomials, divisors and gamma functions of large numbers; 5!! it reads as (5!)!, and 3 5 as a product.
    """
    depth = deepest = 0
    for letter in text:
        depth += (letter in "([{|") - (letter in ")]}")
        deepest = max(deepest, depth)
    return (
        len(text) <= LONGEST_EXPRESSION
        and deepest <= DEEPEST_EXPRESSION + text.count("|")
        and not re.search(
            rf"[0-9]{{{LONGEST_NUMBER},}}|!!|(?<![_0-9])[0-9]+\s+[0-9]|(?:binom|gcd|lcm|amma|zeta).*[0-9]{{4}}",
            text,
        )
    )


@functools.lru_cache(maxsize=4096)
def read(text: str) -> Any:
    """What math-verify reads in a plain text, a SymPy object or matrix; `None` for what it cannot, or is too large."""
    if not text or not is_short(text):
        return None
    # Its time limits are SIGALRM, which Python allows in the main thread only: in a worker thread every
    # answer would fail. Without them an answer gets the same verdict everywhere.
    found = _math_verify().parse(
        rf"\boxed{{{text}}}",
        _reading(),
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
        raise_on_error=True,
    )
    if not found and r"\pm" in text:  # what of them the parser cannot read, it can one by one
        upper, lower = (text.replace(r"\pm", one).replace(r"\mp", other) for one, other in ("+-", "-+"))
        return read(f"{upper}, {lower}")
    value: Any = found[0] if found else None
    if isinstance(value, sympy_module().MatAdd | sympy_module().MatMul):
        value = value.doit()
    return value if is_bounded(value) else None


def load() -> None:
    """Import what reads, which takes seconds, and let it read once."""
    read("(x+1)^2")


def is_bounded(value: Any) -> bool:
    """Whether a value is sure to be computed in no time: few terms, and numbers of up to 2000 digits."""
    sympy = sympy_module()
    if isinstance(value, sympy.MatrixBase):
        return len(value) <= MOST_NODES and all(map(is_bounded, value.flat()))
    if not isinstance(value, sympy.Basic):
        return False
    nodes = list(itertools.islice(sympy.preorder_traversal(value), MOST_NODES + 1))
    try:
        for node in nodes:
            if isinstance(node, sympy.Expr):
                _magnitude(node)
    except (OverflowError, TypeError, ValueError):  # too large, or a power of what is no number
        return False
    return len(nodes) <= MOST_NODES


def is_closed(value: Any) -> bool:
    """Whether a value is without sums, products over an index, integrals, limits and derivatives: those stay as written."""
    sympy = sympy_module()
    unfinished = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative)
    return not value.has(*unfinished)


def _magnitude(value: Any) -> float:
    """An upper bound of log10 |value|, letters taken for 0.05 to 3. Raises: OverflowError for one over the limit."""
    sympy = sympy_module()
    parts = [_magnitude(part) for part in value.args if isinstance(part, sympy.Expr)]
    if isinstance(value, sympy.MatrixExpr) or (isinstance(value, sympy.Pow) and len(parts) < 2):
        raise TypeError("a matrix")
    if isinstance(value, sympy.Rational):
        size = math.log10(abs(value.p) or 1) - math.log10(value.q)
        if value.q.bit_length() > 3.3 * LARGEST_POWER_OF_TEN:
            raise OverflowError("denominator")
    elif isinstance(value, sympy.Float):
        size = math.log10(abs(value)) if value else 0.0
    elif isinstance(value, sympy.Mul):
        size = sum(parts)
    elif isinstance(value, sympy.Pow):
        size = 10 ** min(parts[1], 9.0) * max(abs(parts[0]), _digits(value.base))
    elif isinstance(value, sympy.exp):
        size = 10 ** min(parts[0], 9.0)
    elif isinstance(value, sympy.factorial | sympy.gamma):
        size = 10 ** min(parts[0], 9.0) * max(parts[0], 0.5)
    elif isinstance(value, sympy.Add):
        size = max(parts) + math.log10(len(parts))
    else:
        size = 0.5 + max(parts, default=0.0)
    if size > LARGEST_POWER_OF_TEN:
        raise OverflowError("value")
    if parts and not value.free_symbols and is_closed(value):  # bounds of bounds are too loose
        at = abs(value.evalf(5))
        if at.is_Float and at:
            size = 0.30103 * (at._mpf_[2] + at._mpf_[3])
    return size


def _digits(base: Any) -> float:
    """log10 of what a power of a base grows by at the least, in its value or in numerator or denominator."""
    if base.is_Rational:
        return max(math.log10(abs(base.p) or 1), math.log10(base.q), 0.1)
    return 0.5 if base.is_number else 1.3


def verify(gold: Any, value: Any) -> bool:
    """What math-verify says of values of different kinds, small ones: it may solve and simplify them."""
    sympy = sympy_module()
    for both in (gold, value):
        if not is_closed(both) or len(list(sympy.preorder_traversal(both))) > MOST_NODES_TO_SOLVE:
            return False
    return _math_verify().verify(
        gold, value, timeout_seconds=None, raise_on_error=True, allow_set_relation_comp=True
    )
