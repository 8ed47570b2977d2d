r"""Where a text gives its final answer: after the reasoning, in a tag, in a box, in a sentence, or at its end."""

import re
from collections.abc import Iterator

from rlvr_jax.tasks.answers import DIGITS, SIGN
from rlvr_jax.tasks.tags import last_answer


def after_reasoning(text: str) -> str | None:
    """What follows the last </think>, and all of a text without thinking; `None` where a <think> is not closed."""
    before, closed, after = text.rpartition("</think>")
    if "<think>" in after:
        return None
    return after if closed else before + after


def after_hashes(text: str) -> str | None:
    """The rest of the line after the last ####, as GSM8K's solutions end; `None` where there is none."""
    _, hashes, rest = text.rpartition("####")
    return rest.strip().partition("\n")[0].strip() if hashes else None


# ----------------------------------------------------------------------------------------------------------------- boxes

_BRACE = re.compile(r"(\\{1,2}f?box(?:ed)?\s*\{)|\\[\\{}]|[{}]")
_BARE_BOX = re.compile(r"\\boxed\s*(-?[0-9][0-9.,]*[0-9]|-?[0-9])")
_JOINT = re.compile(
    r"(?:[ \t$,;&.]|\\[()\[\],;:! ]|\\q?quad|\\(?:text|mbox)\s*\{\s*,?\s*(?:and|or)\s*\}|\band\b|\bor\b"
    r"|\b[A-Za-z](?:_\{?\w{1,3}\}?)?\s*=)*"
)
"""What may stand between the boxes of one list: \\boxed{1} and \\boxed{2}."""
LONGEST_JOINT = 60


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Start, end and content of each closed \boxed{...}, braces inside it balanced, in the order of their starts."""
    found, open_braces = [], []
    for brace in _BRACE.finditer(text):
        if brace[1]:
            open_braces.append((brace.start(), brace.end()))
        elif brace[0] == "{":
            open_braces.append(None)
        elif brace[0] == "}" and open_braces:
            box = open_braces.pop()
            if box:
                found.append((box[0], brace.end(), (box[1], brace.start())))
    # Of boxes in boxes only the last is read, so contents are cut out of the text once each.
    return [(start, end, text[slice(*inside)]) for start, end, inside in sorted(found)[-MOST_BOXES:]]


MOST_BOXES = 32
"""How many boxes are looked at, from the last one back."""


def boxed(text: str) -> tuple[int, str] | None:
    r"""The last box, with those that are listed right before it: \boxed{1} and \boxed{2} say "1, 2".

    With it, where it ends. A box without braces holds a number. `None` without a box.
    """
    found = boxes(text)
    if not found:
        bare = list(_BARE_BOX.finditer(text))
        return (bare[-1].end(), bare[-1][1]) if bare else None
    contents = [found[-1][2]]
    for (_, end, content), (start, *_) in zip(found[-2::-1], found[:0:-1], strict=False):
        if not (
            0 <= start - end <= LONGEST_JOINT and _JOINT.fullmatch(text, end, start) and contents[-1].strip()
        ):
            break
        if content != contents[-1]:
            contents.append(content)
    return found[-1][1], ", ".join(reversed(contents))


# ------------------------------------------------------------------------------------------------------------- sentences

_SAID = re.compile(r"(?i)(final\s+)?\banswer\b[^\n.:=]{0,60}?(?:\bis\b|\bare\b|:|=)[\s:]*")
_QUOTES = re.compile(r"(?:[\s*_\"'`]|\\\")*")
_SENTENCE = re.compile(r"(?:[^\n.\u3002]|\.(?!\s|$))*")
_ASIDE = re.compile(r",?\s(?:not|because|since|which|rather|where)\b.*", re.DOTALL)
_MATHS = re.compile(
    r"(?=((?<!\\)\$((?:[^$\\]|\\.){1,300})\$|\\\(((?:[^\\]|\\(?!\))){1,300})\\\)|\\\[((?:[^\\]|\\(?!\])){1,300})\\\]))",
    re.DOTALL,
)
"""In a look-ahead, so that each dollar sign may open: the first of "$5 for $x$" does not."""
_LISTED = re.compile(r"[\s,;]*(?:\band\b|\bor\b|[\s,;]|\\q?quad)[\s,;]*")
_BRACES = r"\s*\{(?:[^{}]|\{[^{}]{0,80}\}){0,120}\}"
_VALUE = re.compile(
    rf"(?<![0-9A-Za-z_.])-?(?:[0-9]+ ?)?\\(?:[dtc]?frac{_BRACES}{_BRACES}|sqrt(?:\[[0-9]\])?{_BRACES}|pi\b)(?: ?\\pi\b)?"
    rf"|(?<![0-9A-Za-z_]){SIGN}?(?:\\?[$\u20ac\u00a3])?{DIGITS}"
    rf"(?:[eE][-+]?[0-9]{{1,3}}(?![0-9A-Za-z])|,[0-9]{{1,2}}(?![0-9]))?(?:\s?/\s?{DIGITS})?(?:\s?\\?%)?"
)
_WORD = re.compile(
    r"[^\W\d_]{3,}|[^\x00-\u024f\u0370-\u03ff\W\d_]|\b(?:is|of|to|we|in|so|it|at|by|he|an|as|on|if|no|be|do|am)\b"
)
"""Three letters, one of a script that maths does not use, or a short English word."""
_NO_WORDS = re.compile(
    r"\\(?:text\w*|mbox|math\w+|operatorname|begin|end|boxed)\s*\{[^{}]*\}|_\s*\{[^{}]*\}|\\[A-Za-z]+"
)
_WORDS_OF_MATHS = frozenset(
    "and or inf infinity pi sqrt sin cos tan cot sec csc log ln exp max min mod gcd lcm arcsin arccos arctan "
    "percent percentage pct frac".split()
)


def words(text: str) -> list[str]:
    r"""Words of prose: LaTeX commands, what stands in \text{...}, and words of maths left out."""
    bare = _NO_WORDS.sub(" ", text)
    return [word for word in _WORD.findall(bare) if word.lower() not in _WORDS_OF_MATHS]


def stated(text: str, final_from: int = 0) -> str | None:
    """What the last "the answer is ..." says, or from a place `final_from` on, the last "the final answer is ...".

    `None` where no sentence says so.
    """
    found = list(_SAID.finditer(text, final_from))
    if final_from:
        found = [phrase for phrase in found if phrase[1]]
    if not found:
        return None
    start = _QUOTES.match(text, found[-1].end()).end()  # type: ignore[union-attr]  # it matches the empty text too
    sentence = _ASIDE.sub("", _SENTENCE.match(text, start)[0])  # type: ignore[index]
    return _listed_maths(text, start) or sentence.strip(" *_\"'`") or None


def _maths(text: str, start: int = 0) -> Iterator[tuple[int, int, str]]:
    """Start, end and content of what stands between maths delimiters and reads like maths."""
    for found in _MATHS.finditer(text, start):
        content = found[2] or found[3] or found[4]
        if re.search(r"[0-9A-Za-z]", content) and not words(content):
            yield found.start(), found.start() + len(found[1]), content


def _listed_maths(text: str, start: int) -> str:
    """The maths that begins here, and what is listed after it: $1$, $2$ and $3$."""
    contents, last = [], start
    for place, end, content in _maths(text, start):
        if contents and place < last:
            continue  # the closing dollar, seen as an opening one
        listed = place - last <= LONGEST_JOINT and _LISTED.fullmatch(text, last, place)
        if not (listed if contents else place == start):
            break
        contents.append(content)
        last = end
    return ", ".join(contents)


def last_value(text: str) -> str | None:
    """The last maths, with what is listed with it, or number of a text, whichever ends later; `None` without either."""
    numbers = list(_VALUE.finditer(text))
    maths = list(_maths(text))
    if not maths or (numbers and numbers[-1].end() > maths[-1][1]):
        return numbers[-1][0] if numbers else None
    first, _, content = maths[-1]
    contents = [content]
    for start, end, content in reversed(maths[:-1]):
        if 0 <= first - end <= LONGEST_JOINT and _LISTED.fullmatch(text, end, first):
            contents.append(content)
            first = start
    return ", ".join(reversed(contents))


LONGEST_ANSWER = 1000
LONGEST_ALONE = 300
"""Characters. What is longer is no answer by itself."""


def value_of(said: str) -> str | None:
    """All of what is said, where it is an expression, perhaps with a word after it, or one word; else its last value."""
    said = said.strip()
    prose = words(said)
    if len(said) <= LONGEST_ALONE and (
        not prose or (len(prose) == 1 and re.search(prose[0] + r"[^\w)]*$", said))
    ):
        return said
    return last_value(said)


_END = re.compile(r"<\|[a-z_]{2,20}\|>|</s>")


def spoken(text: str) -> str | None:
    """What follows the reasoning, or of that what stands in the last <answer> tag; `None` for reasoning without an end.

    Without the marks that end a turn.
    """
    said = after_reasoning(_END.sub("", text))
    told = None if said is None else last_answer(said)
    return said if told is None else told


def final_answer(text: str) -> str | None:
    r"""What a text gives as its answer to a maths problem, as LaTeX or words; `None` where it gives none.

    Of what is `spoken`, the first of these that is there: a sentence "the final answer is ..." after all boxes; the last
    box and those listed with it; the rest of the line after ####; the last sentence "the answer is ..."; all of it, where it
    is an expression and no prose; its last maths or number. More than 1000 characters are no answer.
    """
    said = spoken(text)
    if said is None:
        return None
    box = boxed(said)
    if box:
        after = stated(said, box[0])
        answer = (value_of(after) if after else None) or box[1]
    else:
        answer = value_of(after_hashes(said) or stated(said) or said)
        if answer is None and "</answer>" in text:
            answer = said.strip() or None
    return answer if answer is not None and len(answer) <= LONGEST_ANSWER else None
