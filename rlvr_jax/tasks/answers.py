"""Numbers as people write them."""

import decimal
import re

DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
"""1,234.5 or 1234.5 or .5"""
MINUS = "\u2212\u2013\u2014-"
"""The sign, the dashes that are written for it, and the hyphen."""
SIGN = f"[+{MINUS}]"
_LAST = re.compile(rf"(?<![0-9A-Za-z_])({SIGN}?)(?:\\?\$)?({DIGITS})")
"""Not inside a word: "A2" holds no number, and in "5-3" the minus is not a sign."""
GROUPING = re.compile(r"(?<=[0-9]) ?(?:\{ ?, ?\}|,\\! ?|\\[,!])(?=[0-9]{3}(?![0-9]))")
"""What stands between thousands in LaTeX."""
COMMAND = re.compile(r"\\[A-Za-z]+")

LONGEST_NUMBER = 100
"""Characters. A longer run of digits is babble, not an answer."""


def last_number(text: str) -> decimal.Decimal | None:
    """The last number in a text, with its sign, thousands separators read; `None` where there is none."""
    found = list(_LAST.finditer(COMMAND.sub(" ", GROUPING.sub(",", text))))
    return decimal_number(found[-1][1], found[-1][2]) if found else None


def spelt(number: decimal.Decimal) -> str:
    """Equal numbers as equal texts: 7 for 7.0, all digits kept, no exponent, no minus before a zero."""
    text = f"{abs(number) if number == 0 else number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def decimal_number(sign: str, digits: str) -> decimal.Decimal | None:
    """The number with a sign ("", +, - or a minus sign) and digits; `None` for one of more than 100 characters."""
    if len(digits) > LONGEST_NUMBER:
        return None
    return decimal.Decimal(("-" if sign and sign in MINUS else "") + digits.replace(",", ""))
