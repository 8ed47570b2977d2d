"""Finding the final answer in a text: the last number, the last box, the amount in a box."""

import decimal
import re

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
"""1,234.5 or 1234.5 or .5"""
_SIGN = r"[-+\u2212]"
_LAST = re.compile(rf"(?<![0-9A-Za-z_])({_SIGN}?)(?:\\?\$)?({_DIGITS})")
"""Not inside a word: "A2" holds no number, and in "5-3" the minus is not a sign."""
_AMOUNT = re.compile(rf"\s*({_SIGN}?)\s*({_DIGITS})(?:[A-Za-z]{{2,}}|\s[A-Za-z\s./-]*)?[\s.]*")
"""A number and perhaps a unit, of two letters at least where it touches the number: 18x is a product."""

_GROUPING = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!|\\[,!])(?=[0-9]{3})")
_IN_WORDS = re.compile(r"\\(?:text|textbf|textit|textnormal|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_ORNAMENT = re.compile(r"\\[,;:! ]|~|\\?\$|€|£|\\?%|\^\s*\{?\s*\\circ\s*\}?")
_COMMAND = re.compile(r"\\[A-Za-z]+")

LONGEST_NUMBER = 100
"""Characters. A longer run of digits is babble, not an answer."""


def last_number(text: str) -> decimal.Decimal | None:
    """The last number in a text, with its sign, thousands separators read; `None` where there is none."""
    found = list(_LAST.finditer(_COMMAND.sub(" ", _GROUPING.sub(",", text))))
    return _number(found[-1][1], found[-1][2]) if found else None


def amount(content: str) -> decimal.Decimal | None:
    r"""The number in a content that is one number and at the most a unit.

    As in 18, \$18,000.50, 18 \text{ miles} or 18\%. Percent signs and units are passed over. `None` for any
    other content: a sum, two numbers, a word.
    """
    if len(content) > 2 * LONGEST_NUMBER:
        return None
    plain = _ORNAMENT.sub(" ", _IN_WORDS.sub(r" \1 ", _GROUPING.sub(",", content)))
    found = _AMOUNT.fullmatch(plain)
    return _number(found[1], found[2]) if found else None


def last_boxed(text: str) -> str | None:
    r"""What stands in the last closed \boxed{...}, braces inside it balanced; `None` where there is none."""
    content = None
    for opening in re.finditer(r"\\boxed\s*\{", text):
        depth, place = 1, opening.end()
        while place < len(text) and depth:
            escaped = text[place - 1] == "\\" and text[place - 2] != "\\"
            depth += 0 if escaped else {"{": 1, "}": -1}.get(text[place], 0)
            place += 1
        if not depth:
            content = text[opening.end() : place - 1]
    return content


def spelt(number: decimal.Decimal) -> str:
    """Equal numbers as equal texts: 7 for 7.0, all digits kept, no exponent, no minus before a zero."""
    text = f"{abs(number) if number == 0 else number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _number(sign: str, digits: str) -> decimal.Decimal | None:
    if len(digits) > LONGEST_NUMBER:
        return None
    return decimal.Decimal(("-" if sign in ("-", "\u2212") else "") + digits.replace(",", ""))
