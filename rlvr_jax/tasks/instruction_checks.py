"""The 25 verifiable constraints of IFEval (arXiv:2311.07911): one function of a text and a few arguments for each.

    follows("length_constraints:number_words", {"relation": "at least", "num_words": 300}, text)

What counts as fulfilled is that of the authors' checkers, with these exceptions: keywords are taken literally, not as
regular expressions; languages are told apart by py3langid, which reads capitals as well as small letters, and a text
without letters is in no language; a **highlight** counts once, and a bracket inside a bracket alone.
"""

import collections
import dataclasses
import functools
import inspect
import json
import operator
import re
import typing
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from rlvr_jax.registry import fit, nearest

Relation: TypeAlias = Literal["at least", "less than"]
RELATIONS = {"at least": operator.ge, "less than": operator.lt}
SEPARATOR = "******"
POSTSCRIPTS = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
"""Two marks of a postscript may have a space in them."""


@dataclasses.dataclass(frozen=True)
class Constraint:
    """A check, and the types of its arguments by name."""

    holds: Callable[..., bool]
    arguments: dict[str, Any]


CONSTRAINTS: dict[str, Constraint] = {}
"""By the name that IFEval gives them: "family:constraint"."""


def constraint(name: str) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    """Decorator: register a function of a text and keyword arguments, all annotated."""

    def add(function: Callable[..., bool]) -> Callable[..., bool]:
        hints = typing.get_type_hints(function)
        parameters = list(inspect.signature(function).parameters)[1:]
        CONSTRAINTS[name] = Constraint(function, {each: hints[each] for each in parameters})
        return function

    return add


def arguments(where: str, name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a constraint, checked; those that are `None` count as not given.

    Raises: ValueError for an unknown constraint, for an argument that is missing, unknown or of a wrong type.
    """
    if name not in CONSTRAINTS:
        raise ValueError(
            f"{where}: no constraint called {name!r}.{nearest(name, CONSTRAINTS)} "
            f"Known: {', '.join(sorted(CONSTRAINTS))}."
        )
    wanted = CONSTRAINTS[name].arguments
    given = {key: value for key, value in given.items() if value is not None}
    if set(given) != set(wanted):
        raise ValueError(
            f"{where}: {name} takes {', '.join(sorted(wanted)) or 'no arguments'}, "
            f"got {', '.join(sorted(given)) or 'none'}."
        )
    return {key: fit(f"{where}: {name} argument {key!r}", wanted[key], given[key]) for key in wanted}


def follows(name: str, given: dict[str, Any], text: str) -> bool:
    """Whether a text fulfils a constraint. An empty one fulfils none, not even those that forbid something."""
    if not text.strip():
        return False
    # a record that was written to a file has lists where it had tuples
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return CONSTRAINTS[name].holds(text, **values)


def variants(text: str) -> tuple[str, ...]:
    """The texts of which one has to fulfil a constraint to follow it loosely (arXiv:2311.07911, section 2.2): without
    the first line, the last, both, or none, and each of these without asterisks. Those that are the same come once."""
    lines = text.split("\n")
    cut = ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    whole = [text, *cut]
    return tuple(dict.fromkeys([*whole, *(each.replace("*", "") for each in whole)]))


@functools.cache
def load_models() -> None:
    """Load the models of languages and of sentences, which otherwise the first text waits for."""
    import punkt

    language_of("a")
    punkt.sent_tokenize("a")


def _occurrences(phrase: str, text: str) -> int:
    return len(re.findall(re.escape(phrase), text, re.IGNORECASE))


# ---- words and letters -------------------------------------------------------------------------------------------


@constraint("keywords:existence")
def has_keywords(text: str, keywords: tuple[str, ...]) -> bool:
    """Each keyword is somewhere, inside a longer word too; capitals do not matter."""
    return all(_occurrences(keyword, text) for keyword in keywords)


@constraint("keywords:forbidden_words")
def has_no_forbidden_word(text: str, forbidden_words: tuple[str, ...]) -> bool:
    """None of the words stands alone; inside a longer word it may be."""
    return not any(
        re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in forbidden_words
    )


@constraint("keywords:frequency")
def has_keyword_so_often(text: str, keyword: str, frequency: int, relation: Relation) -> bool:
    """How often a keyword occurs, inside longer words too; capitals do not matter."""
    return RELATIONS[relation](_occurrences(keyword, text), frequency)


@constraint("keywords:letter_frequency")
def has_letter_so_often(text: str, letter: str, let_frequency: int, let_relation: Relation) -> bool:
    """How often a letter, or another character, occurs; capitals do not matter."""
    return RELATIONS[let_relation](text.lower().count(letter.lower()), let_frequency)


@constraint("change_case:capital_word_frequency")
def has_capital_words(text: str, capital_frequency: int, capital_relation: Relation) -> bool:
    """How many words are all capitals; "I" and "A" are."""
    import punkt

    words = sum(word.isupper() for word in punkt.word_tokenize(text))
    return RELATIONS[capital_relation](words, capital_frequency)


@constraint("change_case:english_capital")
def is_english_in_capitals(text: str) -> bool:
    """English, and no small letter."""
    return text.isupper() and language_of(text) == "en"


@constraint("change_case:english_lowercase")
def is_english_in_small_letters(text: str) -> bool:
    """English, and no capital."""
    return text.islower() and language_of(text) == "en"


@constraint("language:response_language")
def is_in_language(text: str, language: str) -> bool:
    """The whole is in one language, an ISO 639-1 code; a text without letters is in none."""
    return language_of(text) == language


def language_of(text: str) -> str | None:
    """The most likely language, an ISO 639-1 code where there is one; `None` for a text without letters."""
    import py3langid

    return py3langid.classify(text)[0] if any(letter.isalpha() for letter in text) else None


# ---- length ------------------------------------------------------------------------------------------------------


@constraint("length_constraints:number_words")
def has_words(text: str, num_words: int, relation: Relation) -> bool:
    """How many runs of letters, digits and underscores there are: "don't" is two."""
    return RELATIONS[relation](len(re.findall(r"\w+", text)), num_words)


@constraint("length_constraints:number_sentences")
def has_sentences(text: str, num_sentences: int, relation: Relation) -> bool:
    """How many sentences the Punkt model for English finds: lines without a full stop are one."""
    import punkt

    return RELATIONS[relation](len(punkt.sent_tokenize(text)), num_sentences)


@constraint("length_constraints:number_paragraphs")
def has_paragraphs(text: str, num_paragraphs: int) -> bool:
    """So many paragraphs with *** between them. Only the first and the last may be empty, and do not count then."""
    paragraphs = [part.strip() for part in text.split("***")]
    return all(paragraphs[1:-1]) and sum(map(bool, paragraphs)) == num_paragraphs


@constraint("length_constraints:nth_paragraph_first_word")
def has_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """So many paragraphs with an empty line between them, and the n-th (from 1) starts with a word."""
    paragraphs = [part.strip() for part in text.split("\n\n")]
    if sum(map(bool, paragraphs)) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    words = paragraphs[nth_paragraph - 1].split()
    start = re.split(r"[.,?!'\"]", words[0].lstrip("'\""), maxsplit=1)[0] if words else ""
    return bool(start) and start.lower() == first_word.lower()


# ---- form --------------------------------------------------------------------------------------------------------


@constraint("punctuation:no_comma")
def has_no_comma(text: str) -> bool:
    """No comma anywhere."""
    return "," not in text


@constraint("startend:quotation")
def is_quoted(text: str) -> bool:
    """The whole is between double quotation marks."""
    stripped = text.strip()
    return len(stripped) > 1 and stripped[0] == stripped[-1] == '"'


@constraint("startend:end_checker")
def ends_with(text: str, end_phrase: str) -> bool:
    """The last words are these, quotation marks around the whole apart; capitals do not matter."""
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@constraint("detectable_content:number_placeholders")
def has_placeholders(text: str, num_placeholders: int) -> bool:
    """At least so many [placeholders]."""
    return len(re.findall(r"\[[^\[\]\n]*\]", text)) >= num_placeholders


@constraint("detectable_content:postscript")
def has_postscript(text: str, postscript_marker: str) -> bool:
    """The mark of a postscript is somewhere; capitals do not matter."""
    pattern = POSTSCRIPTS.get(postscript_marker, re.escape(postscript_marker))
    return re.search(pattern, text, re.IGNORECASE) is not None


@constraint("detectable_format:constrained_response")
def is_one_of_three(text: str) -> bool:
    """Has one of the three sentences that the prompt offers."""
    return any(f"My answer is {word}." in text for word in ("yes", "no", "maybe"))


@constraint("detectable_format:json_format")
def is_json(text: str) -> bool:
    """The whole is JSON, which may stand in a Markdown code block."""
    block = re.fullmatch(r"(?:```(?:json)?)?(.*?)(?:```)?", text.strip(), re.DOTALL | re.IGNORECASE)
    try:
        json.loads(block[1] if block else text, parse_int=str)  # Python refuses integers of 5000 digits
    except (ValueError, RecursionError):
        return False
    return True


@constraint("detectable_format:multiple_sections")
def has_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    """At least so many "SECTION 1", "SECTION 2", ...; capitals matter."""
    return len(re.findall(re.escape(section_spliter) + r"\s?\d+", text)) >= num_sections


@constraint("detectable_format:number_bullet_lists")
def has_bullets(text: str, num_bullets: int) -> bool:
    """Exactly so many lines that start with one * or with -."""
    lines = [line.lstrip() for line in text.split("\n")]
    return sum(re.match(r"\*[^*]|-", line) is not None for line in lines) == num_bullets


@constraint("detectable_format:number_highlighted_sections")
def has_highlights(text: str, num_highlights: int) -> bool:
    """At least so many *highlights* or **highlights**, each within a line and not empty."""
    found = re.findall(r"\*\*([^\n*]+)\*\*|\*([^\n*]+)\*", text)
    return sum(bool((double + single).strip()) for double, single in found) >= num_highlights


@constraint("detectable_format:title")
def has_title(text: str) -> bool:
    """A <<title>> within a line, and not empty."""
    inside = (line[line.find("<<") :].rpartition(">>")[0] for line in text.split("\n") if "<<" in line)
    return any(title.strip("<> \t\r") for title in inside)


@constraint("combination:repeat_prompt")
def repeats_prompt(text: str, prompt_to_repeat: str) -> bool:
    """Starts with the request word for word; capitals do not matter."""
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


@constraint("combination:two_responses")
def has_two_responses(text: str) -> bool:
    """Two different answers with ****** between them. Only the first and the last part may be empty."""
    parts = [part.strip() for part in text.split(SEPARATOR)]
    answers = collections.Counter(part for part in parts if part)
    return all(parts[1:-1]) and len(answers) == answers.total() == 2
