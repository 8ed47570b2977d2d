"""Finding the final answer in a text: the last number, the last box."""

import decimal
import re

_NUMBER = re.compile(
    r"""
    (?<![0-9A-Za-z_])           # not inside a word: "A2" holds no number; in "5-3" the minus is not a sign
    ([-+\u2212]?)               # a sign, the typographic minus too
    (
        [0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?      # with thousands separators: 1,234.5
      | [0-9]+(?:\.[0-9]+)?
      | \.[0-9]+
    )
    """,
    re.VERBOSE,
)

LONGEST_NUMBER = 100
"""Characters. A longer run of digits is babble, not an answer."""


def last_number(text: str) -> decimal.Decimal | None:
    """The last number in a text, with its sign and without thousands separators; `None` where there is none."""
    found = next(reversed(list(_NUMBER.finditer(text))), None)
    if found is None or len(found[0]) > LONGEST_NUMBER:
        return None
    return decimal.Decimal(("-" if found[1] in ("-", "\u2212") else "") + found[2].replace(",", ""))


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
