r"""LaTeX of answers, written in one way: what does not change a value is taken out, what is malformed is mended.

Rules on strings alone; what a string says is for `rlvr_jax.tasks.values`.
"""

import decimal
import fractions
import re
import unicodedata

from rlvr_jax.tasks.answers import GROUPING, LONGEST_NUMBER, decimal_number, spelt


def _fraction(character: str) -> str:
    """A fraction that is one character, such as \u2153."""
    top, bottom = unicodedata.normalize("NFKC", character).split("\u2044")
    return rf"\frac{{{top}}}{{{bottom}}}"


_UNICODE = str.maketrans(
    {
        "\u2212": "-",
        "\u2013": "-",
        "\u2014": "-",
        "\u00d7": r"\times ",
        "\u00b7": r"\cdot ",
        "\u00f7": "/",
        "\u03c0": r"\pi ",
        "\u221e": r"\infty ",
        "\u2264": r"\le ",
        "\u2265": r"\ge ",
        "\u2260": r"\ne ",
        "\u2248": r"\approx ",
        "\u00b1": r"\pm ",
        "\u222a": r"\cup ",
        "\u2229": r"\cap ",
        "\u2208": r"\in ",
        "\u2205": r"\emptyset ",
        "\u00b0": r"^\circ",
        "\u2044": "/",
        "\u20ac": r"\$",
        "\u00a3": r"\$",
        "\u3001": ",",
        "\u3002": ".",
        "\u00a0": " ",
        "~": " ",
    }
    | {chr(full): chr(full - 0xFEE0) for full in range(0xFF01, 0xFF5F)}  # full width, as in Chinese texts
    | {half: _fraction(half) for half in map(chr, (*range(0xBC, 0xBF), *range(0x2150, 0x215F)))}
)
_RAISED = re.compile("([\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u207b\u207f]+)|([\u2080-\u2089]+)")


def _scripts(found: re.Match) -> str:
    """Raised and lowered characters as an exponent or an index."""
    return f"{'^' if found[1] else '_'}{{{unicodedata.normalize('NFKC', found[0])}}}".replace("\u2212", "-")


_WORDED = r"\\(?:text(?:bf|it|rm|normal)?|mbox|math(?:rm|bf|it|sf|tt)|operatorname|rm)\s*\{([^{}]*)\}"
_IN_DIGITS = re.compile(r"[\s$(\\+-]*[0-9.]")
"""How words begin that are a value: \\text{13}, not \\text{m/s^2}."""
_OVERLINE = re.compile(r"(-?)([0-9]*)\.([0-9]*)\\(?:overline|bar)\s*\{?([0-9]+)\}?")

_RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\\\(?=[A-Za-z])", r"\\"),  # a doubled backslash; not in a matrix, see `plain`
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\.?", ""),
        (r"\\(?:displaystyle|limits|boldsymbol)(?![A-Za-z])|\\!", ""),
        (r"\\f?box(?:ed)?(?![A-Za-z])", ""),
        (r"\\(?:text)?color\s*\{[^{}]*\}|\\tag\*?\s*\{[^{}]*\}|\\underline(?=\s*\{)", ""),
        (r"\{\s*\\(?:bf|it|rm|sf|tt)\s+([^{}]*)\}", r"\\text{\1}"),
        (r"\\(?:math(?:rm|bf|it|sf|tt)|bm|bf|it|rm|sf|tt)(?![A-Za-z])(?=\s*(?:[^\s{]|\{\s*\\))", ""),
        (r"(?<!\\)\\[()\[\]]|\\?\$|\\?&(?=\s*=)", " "),
        (r"\\(?:quad|qquad)(?=[a-z]_)|\\q?quad(?![A-Za-z])|(?<!\\)\\[,;:> ]", " "),
        (r"\\(?:hspace|vspace|phantom)\s*(?:\{[^{}]*\}|-)", " "),
        (r"\\(leq?|geq?)(?:slant)?([a-z])?(?![A-Za-z])", r"\\\1 \2"),  # also \lex, a forgotten space
        (r"\\leq(?![A-Za-z])|<=", r"\\le "),
        (r"\\geq(?![A-Za-z])|>=", r"\\ge "),
        (r"\\neq(?![A-Za-z])|!=", r"\\ne "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\frac\s*([0-9A-Za-z])\s*([0-9A-Za-z])(?![A-Za-z])", r"\\frac{\1}{\2}"),
        (r"\\frac\s*([0-9A-Za-z])\s*\{", r"\\frac{\1}{"),
        (r"(\\frac\s*\{[^{}]*\})\s*([0-9A-Za-z])", r"\1{\2}"),
        (r"\\frac\s*(\\[A-Za-z]+)\s*([0-9A-Za-z])(?![A-Za-z])", r"\\frac{\1}{\2}"),
        (r"^\s*(?:\\(?:approx|sim|simeq|cong)(?![A-Za-z])|=)", ""),
        (r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}", r"\\binom{\1}{\2}"),
        (r"\\[dt]?binom\s*([0-9A-Za-z])\s*([0-9A-Za-z])(?![A-Za-z])", r"\\binom{\1}{\2}"),
        (r"\^\s*(-[0-9]+)", r"^{\1}"),
        (r"(\^\s*[0-9]+)\s+(?=[0-9])", r"\1 \\cdot "),
        (r"\\sqrt\s*\{\s*\}", r"\\sqrt"),
        (r"\\sqrt\s*([0-9A-Za-z])(?![A-Za-z])", r"\\sqrt{\1}"),
        (r"(?:\\sqrt|(?<![A-Za-z\\])sqrt)\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![A-Za-z\\])sqrt\s*([0-9]+)", r"\\sqrt{\1}"),
        (r"(?<![0-9/^_.,}] )(?<![0-9/^_.,}])([0-9]+)\s?/\s?([0-9]+) (?=[A-Za-z\\])", r"\\frac{\1}{\2} "),
        ("\u221a\\s*([0-9A-Za-z]+)", r"\\sqrt{\1}"),
        ("\u221b\\s*([0-9A-Za-z]+)", r"\\sqrt[3]{\1}"),
        ("\u221a\\s*\\(([^()]*)\\)", r"\\sqrt{\1}"),
        (r"\^\s*\{?\s*\\circ\s*\}?|\\(?:degree|deg)s?(?![A-Za-z])", " "),
        (r"\\overline\s*\{([A-Z]{2,})\}", r"\1"),  # a segment; of a number with z it is the conjugate
        (r"(?<!\\)\{\s+", "{"),
        (r"\\langle(?![A-Za-z])", "("),
        (r"\\rangle(?![A-Za-z])", ")"),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset "),
        (r"\\mathbb\s*\{?\s*R\s*\}?", r"(-\\infty, \\infty)"),
        (r"\\dot\s*\{?([0-9])\}?", r"\\overline{\1}"),
        (
            r"\s*(?:\\(?:pmod|bmod|mod)\s*\{?\w+\}?|\(?\s*\\(?:text|mathrm)\s*\{\s*\(?\s*mod\s*\}\s*\w+\s*\)?)\s*$",
            "",
        ),
        (
            r"(?<![A-Za-z0-9.])([0-9]+(?:\.[0-9]+)?)[eE]([-+]?[0-9]{1,3})(?![A-Za-z0-9])",
            r"\1 \\times 10^{\2}",
        ),
        # {x | x > 3}
        (r"^\s*\\\{\s*[a-z](?:\s*\\in\s*\(-\\infty, \\infty\))?\s*(?:\\mid|\||:)(.*)\\\}\s*$", r"\1"),
        (r"(?<=_)\s*\{\s*\\([A-Za-z]+)\s*\}", r"{\1}"),  # an index, whatever its sign
        (r"\+\s*\\infty", r"\\infty "),
        (r"(?<![A-Za-z\\])inf(?:ini)?ty(?![A-Za-z])", r"\\infty "),
        (r"(?<![0-9])\.(?=[0-9])", "0."),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi "),
        (
            r"(?<![A-Za-z\\{])((?:arc)?(?:sin|cos|tan)|cot|sec|csc|log|ln|exp)(?=\s*[\^(_]|\s+[0-9a-z\\])(?![A-Za-z])",
            r"\\\1",
        ),
        # 2(3), which the parser would read as a mixed number
        (r"(?<![\^_A-Za-z0-9.])([0-9]+(?:\.[0-9]+)?)\s*\(", r"\1 \\cdot ("),
    )
]
_MIXED = re.compile(
    r"(?<![0-9/^_.,])(?<![0-9] )([0-9]{1,3}(?: [0-9]{3})+|[0-9]+)[^\S\n]+([0-9]+)[^\S\n]*/[^\S\n]*([0-9]+)(?![0-9])"
)
_PRODUCT = re.compile(r"(?<![0-9A-Za-z/^_.{])([0-9]+)\s*\\frac\s*\{([0-9]+)\}\s*\{([0-9]+)\}")
_ROWS = re.compile(r"^\s*\[\s*(\[[^\[\]]*\](?:\s*,\s*\[[^\[\]]*\])*)\s*\]\s*$")
_IN_MATRIX = re.compile(r"matrix|array|cases")
_SHORT_UNIT = (
    "[cmkdn]m|[km]?g|kg|m[lL]|dL|cc|ft|in|yds?|mi|hrs?|mins?|m?s|secs?|lbs?|oz|[mk]ph|rpm|rads?|k?Hz|k?Pa|kWh?|eV|sq|pts?"
    "|[aApP][mM]|USD|EUR"
)
_UNIT = re.compile(
    r"(?:(?<=[0-9})])|(?<=\\pi)|(?<=\\pi ))\s*(?:" + _WORDED + r"(?:\s*/\s*" + _WORDED + r")?"
    r"|(?<=[0-9\s])(?!(?:percent(?:age)?|pct|sqrt|pi|e|(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|exp|log|ln|mod|i)\b)"
    rf"(?:(?=[a-zA-Z]{{2}})(?:{_SHORT_UNIT})(?![a-zA-Z])|(?!(?:[a-f]+|[p-z]+)(?![a-z]))(?=[a-zA-Z]*[aeiou])"
    r"(?:[a-zA-Z]{5,}|[a-zA-Z]{3,}s(?![a-zA-Z])|(?<=\s)[a-zA-Z]{3,4}(?![a-zA-Z])))(?:\s+[a-z]+|/[a-z]+)*)\s*\.?\s*(?:\^\s*\{?\s*[23]\s*\}?)?\s*$"
)
"""Words after a value, with an exponent: 5 \\text{ cm}^2, 18 dollars per hour, 12cm. Single letters are variables, and so are
two or three that are no unit or word: 2ab is a product."""
_PERCENT = re.compile(r"\\?%|(?<![A-Za-z])(?:percent(?:age)?|pct)(?![A-Za-z])")
_ANGLE = re.compile(
    r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])(?!\s*\^\s*\{?\s*-)[^=,]*?(?:\^\s*\{?\s*\\circ)"
)
_DEGREES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)")
"""Degrees in what a trigonometric function is of are no decoration."""
_SAID = re.compile(r"(?i)^(?:the )?(?:final )?answer(?: is\b|:) ?")
_GROUP = re.compile(r"^\{((?:[^{},\\]|\\(?![{}])|\{(?:[^{}]|\{[^{}]*\})*\})*)\}$")
"""Braces around all of an answer that is no set."""


_AND = re.compile(
    r",?\s*(?:\\(?:text|mbox|textrm|mathrm)\s*\{\s*,?\s*(?:and|or)\s*,?\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]))\s*,?"
)


def _listed(text: str) -> str:
    """A list with commas for "and" and "or"; with semicolons where they stand between lists: x=1, y=2 or x=2, y=1."""
    parts = _AND.split(text)
    lists = len(parts) > 1 and all("=" in part and "," in part for part in parts)
    return ("; " if lists else ", ").join(parts)


def plain(latex: str) -> str:
    r"""One way to write an answer: no delimiters, sizes, spacing, degrees or units; \frac, \sqrt, \le with braces.

    \text{...} becomes its words, "and" a comma, 1\!,000 one thousand in digits, 0.\overline{3} a fraction.
    """
    text = re.sub(r" ?\n[ \n]*", "\n", re.sub(r"[^\S\n]+", " ", latex))
    text = GROUPING.sub("", _RAISED.sub(_scripts, text).translate(_UNICODE))
    if _ANGLE.search(text):
        text = _DEGREES.sub(r"(\1 \\cdot \\frac{\\pi}{180})", text)
    for pattern, replacement in _RULES[1:] if _IN_MATRIX.search(text) else _RULES:
        text = pattern.sub(replacement, text)
    text = _ROWS.sub(_matrix, text)
    text = _MIXED.sub(_mixed, _PRODUCT.sub(_product, _listed(text)))
    text = _OVERLINE.sub(_repeating, text).strip(" \n\t\"'*`,;.:").rstrip("\\")
    text = re.sub(_WORDED, lambda found: f" {found[1]} " if _IN_DIGITS.match(found[1]) else found[0], text)
    text = _UNIT.sub("", text)
    text = re.sub(_WORDED, lambda found: f" {found[1]} " if len(found[1]) > 1 else found[1], text)
    text = _SAID.sub("", re.sub(r"\s+", " ", _listed(text)).strip(" ,;.:"))
    return _GROUP.sub(r"\1", text)


def _matrix(found: re.Match) -> str:
    """[[1, 2], [3, 4]] as LaTeX."""
    rows = r" \\ ".join(row.replace(",", " & ") for row in re.findall(r"\[([^\[\]]*)\]", found[1]))
    return rf"\begin{{pmatrix}} {rows} \end{{pmatrix}}"


def _mixed(found: re.Match) -> str:
    """1 1/2 as LaTeX, where the fraction is less than 1; all else is no number."""
    whole, top, bottom = found.groups()
    proper = len(found[0]) < LONGEST_NUMBER and int(top) < int(bottom)
    return rf"{whole.replace(' ', '')}\frac{{{top}}}{{{bottom}}}" if proper else found[0]


def _product(found: re.Match) -> str:
    r"""2\frac{3}{2} with a dot: only a fraction of less than 1 makes a mixed number."""
    proper = len(found[0]) > LONGEST_NUMBER or int(found[2]) < int(found[3])
    return found[0] if proper else rf"{found[1]} \cdot \frac{{{found[2]}}}{{{found[3]}}}"


def _repeating(found: re.Match) -> str:
    """A repeating decimal as a fraction: 0.1\\overline{6} = (16 - 1) / 90."""
    sign, whole, fixed, again = found.groups()
    if len(found[0]) > 40:
        return found[0]
    top = int(whole + fixed + again) - int((whole + fixed) or 0)
    value = fractions.Fraction(top, (10 ** len(again) - 1) * 10 ** len(fixed))
    return rf"{sign}\frac{{{value.numerator}}}{{{value.denominator}}}"


def without_percent(text: str) -> tuple[str, bool]:
    """A text without its percent signs and the word, and whether there was one."""
    bare = _PERCENT.sub("", text)
    return bare.strip(), bare != text


_SYMBOL = re.compile(r"(?<=[0-9}])\s+[mgshdLNJWVKACF](?:\s*\^\s*\{?\s*[23]\s*\}?)?")


def without_symbol(text: str) -> str:
    """A text without a unit of one letter at its end, apart from the value; only next to a number it is sure to be one."""
    found = _SYMBOL.search(text)
    return text[: found.start()] if found and found.end() == len(text) else text


_NAME = re.compile(r"\\?[A-Za-z]+(?:_(?:\{\w+\}|\w))?\s*=\s*")


def without_name(text: str) -> str:
    """A text without "x =" at its start."""
    return _NAME.sub("", text, count=1) if _NAME.match(text) else text


_NUMBER = re.compile(
    r"([-+]?)\s*(?:([0-9]{1,3}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]*)?)|(?:([0-9]+)\s*)?"
    r"\\frac\s*\{\s*(-?[0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}|([0-9]+)\s*/\s*([0-9]+))"
)
_DECIMAL_COMMA = re.compile(r"(-?[0-9]+(?: [0-9]{3})*),([0-9]+)")


def number(text: str) -> fractions.Fraction | None:
    r"""The number that a plain text is: 1,234.5, a fraction, or a mixed number; `None` for anything else."""
    found = _NUMBER.fullmatch(text)
    if not found:
        return None
    sign, digits, whole, top, bottom, left, right = found.groups()
    if digits:
        value = decimal_number("", digits.replace(" ", "").rstrip("."))
        value = None if value is None else fractions.Fraction(value)
    elif max(map(len, (whole or "", top or left, bottom or right))) > LONGEST_NUMBER or not int(
        bottom or right
    ):
        return None
    else:
        value = int(whole or 0) + fractions.Fraction(int(top or left), int(bottom or right))
    return -value if value is not None and sign == "-" else value


def written(value: fractions.Fraction) -> str:
    """A number in one way: digits where it ends, else a fraction."""
    if 10**LONGEST_NUMBER % value.denominator:
        return str(value)
    with decimal.localcontext(prec=4 * LONGEST_NUMBER):
        return spelt(decimal.Decimal(value.numerator) / value.denominator)


def canonical(latex: str) -> str | None:
    """An answer in one way, for a vote: a number as `written`, all else as plain LaTeX without spaces."""
    text = plain(latex)
    value = number(text)
    return (key(text) or None) if value is None else written(value)


def decimal_comma(text: str) -> str | None:
    """The same with a point where a text is a number with a comma that cannot group thousands; `None` for others."""
    found = _DECIMAL_COMMA.fullmatch(text)
    if not found or (len(found[2]) == 3 and re.fullmatch(r"-?[1-9][0-9]{0,2}", found[1])):
        return None
    return f"{found[1]}.{found[2]}"


def key(text: str) -> str:
    """What two plain texts have in common that are written alike: no spaces, no braces around one letter or digit."""
    return re.sub(r"\{([0-9A-Za-z])\}", r"\1", re.sub(r"\s+", "", text))
