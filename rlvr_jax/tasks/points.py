"""Expressions by their values at a few points, to which SymPy's `simplify`, which may take hours, adds nothing."""

from typing import Any

from rlvr_jax.tasks.expressions import is_closed, sympy_module

SAME = 1e-12
POINTS = 3


def at_points(value: Any) -> list | None:
    """The value at a few points, letters taken for numbers, i for the imaginary unit; `None` where it has none there."""
    import sympy
    from sympy.core.function import AppliedUndef

    if not is_closed(value):
        return None
    value = rebuilt(value.xreplace({f: sympy.Symbol(str(f)) for f in value.atoms(AppliedUndef)}))
    letters = value.free_symbols
    found = []
    for point in range(POINTS if letters else 1):
        place = _place(value, point)
        at = value.evalf(20, subs=place) if letters else value.evalf(20)
        if at.has(sympy.nan, sympy.zoo) or not (at.is_infinite or _is_evaluated(at)):
            return None
        found.append(at)
    return found if letters else found * POINTS


def _place(value: Any, point: int) -> dict:
    sympy = sympy_module()
    return {
        letter: sympy.I if letter.name == "i" else sympy.Float(_coordinate(letter.name, point), 30)
        for letter in sorted(value.free_symbols, key=str)
    }


def is_real(value: Any, point: int) -> bool:
    """Whether there is no root and no logarithm of a negative number in the value at a point."""
    sympy = sympy_module()
    inner = [
        node.args[0]
        for node in sympy.preorder_traversal(value)
        if isinstance(node, sympy.log) or (isinstance(node, sympy.Pow) and not node.exp.is_integer)
    ]
    at = (one.evalf(10, subs=_place(one, point)) for one in inner)
    return all(one.is_real and one >= 0 for one in at)


def _is_evaluated(at: Any) -> bool:
    return all(part.is_Float or part.is_Rational for part in at.as_real_imag())


def _coordinate(letter: str, point: int) -> str:
    """Between -3 and 3, never near a whole number of halves, the same for a letter everywhere.

    Over 0 at the first point; under 0 at one of the others, of a and b at different ones.
    """
    seed = sum((i + 1) * ord(c) for i, c in enumerate(letter))
    sign = -1 if point and (seed + point) % 2 == 0 else 1
    return f"{sign * (0.0731 + ((seed + 97 * point) * 0.6180339887498949) % 2.9):.15f}"


def close(one: Any, other: Any) -> bool:
    """Whether two evaluated values agree to twelve digits."""
    if one.is_infinite or other.is_infinite:
        return bool(one == other)
    size = max(abs(one), abs(other))
    return bool(abs(one - other) <= SAME * size) or bool(size < 1e-50)


def rebuilt(value: Any) -> Any:
    """The same in SymPy's order of terms: sums and products were read as they were written."""
    return value.func(*map(rebuilt, value.args)) if value.args else value
