r"""Whether two answers of maths problems have the same value.

Numbers and lists of them are compared here; expressions by their values in a few points, to which SymPy's `simplify`, which
may take hours, adds nothing: two that agree in three points to twelve digits are the same. What is left, sets against
inequalities and the like, math-verify compares.
"""

import decimal
import fractions
import re
from collections.abc import Sequence
from typing import Any

from rlvr_jax.tasks.base import Reason
from rlvr_jax.tasks.expressions import read, sympy_module, verify
from rlvr_jax.tasks.latex import (
    decimal_comma,
    key,
    number,
    plain,
    without_name,
    without_percent,
    without_symbol,
)
from rlvr_jax.tasks.points import POINTS, SAME, at_points, close, is_real, rebuilt

SIGNIFICANT = 4
"""Digits from which a decimal counts for the exact value that is rounded to it."""
CUT_OFF = 6
"""The same, of one that is cut off."""
MOST_MEMBERS = 40
"""Of sets and lists."""


# -------------------------------------------------------------------------------------------------------------- equality


class UnreadableReference(ValueError):
    """A reference with which no answer can be compared."""


def judged(gold: str, answer: str | None, tolerance: Sequence[float] = ()) -> Reason:
    """The reason for a verdict on a final answer: unparsable where there is none, or none that can be read."""
    found = None if answer is None else equal(gold, answer, tolerance)
    return Reason.UNPARSABLE if found is None else Reason.CORRECT if found else Reason.WRONG


def equal(gold: str, answer: str, tolerance: Sequence[float] = ()) -> bool | None:
    """Whether an answer (LaTeX, words, a number) is the reference; `None` where it cannot be read.

    A percent sign says nothing about which of 50 and 0.5 is meant, so 50% is both. `tolerance`: how far off a number
    may be, absolutely; one for all values, or one for each in a list.

    Raises: UnreadableReference, where the answer can be read and the reference cannot.
    """
    (gold, gold_percent), (answer, percent) = (without_percent(plain(text)) for text in (gold, answer))
    if not answer:
        return None
    if "=" not in gold:
        answer = without_name(answer)
    elif "=" not in answer:
        gold = without_name(gold)
    if key(gold) == key(answer) or _worded(gold) == _worded(answer) != "":
        return True
    if min(len(gold), len(answer)) <= len("(A)") and _lettered(gold) == _lettered(answer) != "":
        return True
    if number(gold) is not None:
        answer = without_symbol(answer)
    found = _equal(gold, answer, tolerance)
    if not found and gold_percent != percent:
        less, lesser = _hundredth(gold) if gold_percent else gold, _hundredth(answer) if percent else answer
        return found if less is None or lesser is None else _equal(less, lesser, tolerance)
    commas = decimal_comma(gold), decimal_comma(answer)
    if not found and commas.count(None) == 1:  # 1,5 against 1.5
        return _equal(commas[0] or gold, commas[1] or answer, tolerance)
    return found


def _hundredth(text: str) -> str | None:
    value = number(text)
    return None if value is None else str(value / 100)


def _worded(text: str) -> str:
    """A text of letters alone, or one letter in brackets, in one way; "" for any other."""
    bare = re.sub(r"[\s()\-]", "", text)
    word = bare.casefold() if re.fullmatch(r"[^\W\d_]{2,}|\(?[A-Z]\)?", bare) else ""
    return {"true": "yes", "false": "no"}.get(word, word)


def _lettered(text: str) -> str:
    """The letter that an option of a choice begins with: (A), or C. x = 42; "" for none, and for several."""
    found = re.fullmatch(r"\(?([A-Z])(?:\)|[.:)]\s(.+))?", text)
    several = found and found[2] and re.search(r"(?<![A-Za-z0-9])[A-Z](?:[.:),]|$)", found[2])
    return found[1] if found and not several else ""


def _equal(gold: str, answer: str, tolerance: Sequence[float]) -> bool | None:
    exact, given = number(gold), number(answer)
    if exact is not None and given is not None and "," not in gold + answer:
        return (
            exact == given
            or _near(exact, given, tolerance)
            or _rounded(exact, answer)
            or _rounded(given, gold)
        )
    if exact is not None and exact == given:
        return True
    base, other = _in_base(gold), _in_base(answer)
    if base and other:
        return base == other
    value = read(answer)
    if value is None:
        left, _, right = answer.rpartition("=")  # of \bmod and the like, what they are said to be
        return _equal(gold, right.strip(), tolerance) if left and right and "=" not in gold else None
    reference = read(gold)
    if reference is None:
        raise UnreadableReference(
            f"the reference {gold!r} cannot be read; only the same text is the same answer."
        )
    return same(reference, value, tuple(tolerance))


def _in_base(text: str) -> tuple[str, str] | None:
    """Digits and base of a number such as 204_5."""
    found = re.fullmatch(r"([0-9A-Fa-f]+)\s*_\s*\{?\s*([0-9]+)\s*\}?", text)
    return (found[1].lstrip("0"), found[2]) if found else None


def _near(exact: Any, given: Any, tolerance: Sequence[float]) -> bool:
    return bool(tolerance) and bool(abs(exact - given) <= tolerance[0] * (1 + 1e-9))


def _rounds(exact: fractions.Fraction, digits: str) -> bool:
    """Whether a number is rounded to this decimal, of at least four significant digits, or cut off at six or more."""
    if not re.fullmatch(r"[-+]?[0-9]*\.[0-9]+", digits):
        return False
    significant = len(digits.replace(".", "").lstrip("-+0"))
    off = abs(exact - fractions.Fraction(digits)) * 10 ** len(digits.partition(".")[2])
    cut = significant >= CUT_OFF and abs(fractions.Fraction(digits)) <= abs(exact) and off < 1
    return (
        significant >= SIGNIFICANT and off <= fractions.Fraction(1, 2) + fractions.Fraction(1, 10**9) or cut
    )


def _rounded(exact: fractions.Fraction, digits: str) -> bool:
    return not _ends(exact) and _rounds(exact, digits)


def _ends(exact: fractions.Fraction) -> bool:
    """Whether a number has a finite decimal: then no other decimal is as good."""
    return 10**400 % exact.denominator == 0


def same(gold: Any, value: Any, tolerance: tuple[float, ...] = ()) -> bool:
    """Whether two values that were read are the same; of an equation for a letter, its right side is the value."""
    sympy = sympy_module()
    gold, value = _unwrapped(gold, value)
    if gold.has(sympy.nan, sympy.zoo) or value.has(sympy.nan, sympy.zoo):
        return False
    kind = _kind(gold)
    if "matrix" in (kind, _kind(value)) and kind != _kind(value):
        vector, other = (gold, value) if kind == "matrix" else (value, gold)
        if 1 not in vector.shape or _kind(other) not in (
            "tuple",
            "interval",
        ):  # (1, 2) is read as an interval
            return False
        ours, theirs = _members(gold), _members(value)
        return len(ours) == len(theirs) <= MOST_MEMBERS and _in_order(ours, theirs, tolerance)
    if kind != _kind(value) or not kind:
        return verify(gold, value)
    if kind == "number":
        return _same_number(gold, value, tolerance)
    if kind == "relation":
        return _same_relation(gold, value)
    if kind == "interval" and gold.args[2:] != value.args[2:]:  # which ends are open
        return False
    if kind == "matrix" and gold.shape != value.shape:
        return False
    ours, theirs = _members(gold), _members(value)
    pair = _matched if kind == "set" else _in_order
    if len(ours) == len(theirs) <= MOST_MEMBERS and pair(ours, theirs, tolerance):
        return True
    return isinstance(gold, sympy.Union) and verify(gold, value)  # the same union of other sets


def _kind(value: Any) -> str:
    sympy = sympy_module()
    for kind, types in (
        ("relation", sympy.core.relational.Relational | sympy.And),
        ("interval", sympy.Interval),
        ("set", sympy.FiniteSet | sympy.Union),
        ("tuple", sympy.Tuple),
        ("matrix", sympy.MatrixBase),
        ("number", sympy.Expr),
    ):
        if isinstance(value, types):
            return kind
    return ""


def _members(value: Any) -> list:
    if hasattr(value, "flat"):
        return list(value.flat())
    return list(value.args[:2] if _kind(value) == "interval" else value.args)


def _in_order(gold: list, value: list, tolerance: tuple[float, ...]) -> bool:
    spread = tolerance if len(tolerance) == len(gold) else tolerance[:1] * len(gold)
    return all(same(g, v, spread[i : i + 1]) for i, (g, v) in enumerate(zip(gold, value, strict=True)))


def _matched(gold: list, value: list, tolerance: tuple[float, ...]) -> bool:
    """Whether each of one list has one of its own in the other."""
    left = list(value)
    for one in gold:
        for i, other in enumerate(left):
            if same(one, other, tolerance[:1]):
                del left[i]
                break
        else:
            return False
    return True


def _unwrapped(gold: Any, value: Any) -> tuple[Any, Any]:
    """Both, with x = 5 made 5 where the other is no equation; a chain a = b = c is a = c."""
    sympy = sympy_module()

    def chain(both: Any) -> Any:
        terms = list(getattr(both, "_unsorted_args", both.args)) if isinstance(both, sympy.And) else []
        if terms and all(isinstance(term, sympy.Eq) for term in terms):
            return sympy.Eq(terms[0].lhs, terms[-1].rhs, evaluate=False)
        return both

    gold, value = chain(gold), chain(value)
    for_sets = [isinstance(both, sympy.Eq) and isinstance(both.rhs, sympy.Set) for both in (gold, value)]
    if for_sets != [True, True]:  # x in [0, 1]
        gold, value = (
            both.rhs if there else both for both, there in zip((gold, value), for_sets, strict=True)
        )
    if isinstance(gold, sympy.Eq) and isinstance(value, sympy.Eq):
        function = sympy.core.function.AppliedUndef
        sides = ((gold.lhs, value.lhs), (value.lhs, gold.lhs))
        if any(str(one) == "y" and isinstance(other, function) for one, other in sides):
            return gold.rhs, value.rhs  # y = 2x and f(x) = 2x
    elif isinstance(value, sympy.Eq) and _kind(gold) != "relation":
        value = value.rhs
    elif isinstance(gold, sympy.Eq) and _kind(value) != "relation" and not gold.lhs.atoms(sympy.Number):
        gold = gold.rhs
    return gold, value


# --------------------------------------------------------------------------------------------------------------- numbers


def _same_number(gold: Any, value: Any, tolerance: tuple[float, ...]) -> bool:
    sympy = sympy_module()
    if gold == value:
        return True
    symbols = [x for x in (gold, value) if isinstance(x, sympy.Symbol)]
    ours, theirs = (None, None) if len(symbols) == 2 else (at_points(gold), at_points(value))
    if ours is None or theirs is None:
        return bool(symbols) and verify(gold, value) or (rebuilt(gold) == rebuilt(value))
    if symbols and verify(gold, value):
        return True  # a word against the product of its letters
    if gold.free_symbols or value.free_symbols:
        apart = [point for point, pair in enumerate(zip(ours, theirs, strict=True)) if not close(*pair)]
        return len(apart) < POINTS and not any(is_real(gold, point) for point in apart)
    exact, given = ours[0], theirs[0]
    if close(exact, given) or (exact.is_real and given.is_real and _near(exact, given, tolerance)):
        return True
    for one, at, digits in ((gold, exact, _decimal(value)), (value, given, _decimal(gold))):
        if digits is not None and at.is_real and at.is_finite and not _decimal(one):
            rational = rebuilt(one)
            if not (rational.is_Rational and _ends(fractions.Fraction(rational.p, rational.q))):
                return _rounds(fractions.Fraction(str(at)), digits)
    return False


def _decimal(value: Any) -> str | None:
    """The digits of a decimal, as they were written but for zeros at the end; `None` for anything else."""
    sympy = sympy_module()
    negative = isinstance(value, sympy.Mul) and value.args[0] == -1 and len(value.args) == 2
    number = value.args[1] if negative else value
    if not isinstance(number, sympy.Float):
        return None
    return f"{'-' if negative else ''}{decimal.Decimal(repr(float(number))):f}"


# ------------------------------------------------------------------------------------------------------------- relations

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


def _same_relation(gold: Any, value: Any) -> bool:
    """Left minus right of one is a constant times that of the other: positive, or negative and the sign turned round."""
    ours, theirs = ([one] if hasattr(one, "rel_op") else list(one.args) for one in (gold, value))
    matches = [[_same_one(our, their) for their in theirs] for our in ours]
    return len(ours) == len(theirs) and all(map(any, matches)) and all(map(any, zip(*matches, strict=True)))


def _same_one(gold: Any, value: Any) -> bool:
    if not (hasattr(gold, "rel_op") and hasattr(value, "rel_op")):
        return False
    if any(_kind(side) != "number" for one in (gold, value) for side in one.args):
        return gold.rel_op == value.rel_op and same(gold.lhs, value.lhs) and same(gold.rhs, value.rhs)
    left, right = gold.lhs - gold.rhs, value.lhs - value.rhs
    ours, theirs = at_points(left), at_points(right)
    if not ours or not theirs or not all(ours) or not all(theirs):
        turned = rebuilt(-right) if gold.rel_op in ("==", "!=") else None
        return gold.rel_op == value.rel_op and rebuilt(left) in (rebuilt(right), turned)
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    if not all(close(ratio, ratios[0]) for ratio in ratios):
        return False
    if gold.rel_op in ("==", "!="):
        return gold.rel_op == value.rel_op
    factor, off = ratios[0].as_real_imag()  # a factor that is not real is none: i is not over 0
    if abs(off) > SAME * abs(factor):
        return False
    return (gold.rel_op if factor > 0 else _FLIPPED[gold.rel_op]) == value.rel_op
