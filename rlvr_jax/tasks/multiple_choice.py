r"""Multiple-choice questions (MMLU-Pro and the like): a letter is the answer, in a box, in a sentence, or by itself."""

import dataclasses
import functools
import re
import string
from collections.abc import Sequence
from typing import Any, NamedTuple

from rlvr_jax.registry import register
from rlvr_jax.tasks.base import Reason, Split, Task, Verdict
from rlvr_jax.tasks.final_answer import boxed, spoken, stated
from rlvr_jax.tasks.latex import key, number, plain
from rlvr_jax.tasks.records import RecordError, converted
from rlvr_jax.tasks.splits import read_split

MOST_OPTIONS = 26
LETTERS = string.ascii_uppercase[:10]
"""Those of a question whose options are not known."""
LONGEST_OPTION = 1000

_SAID = r"(?:answer|option|choice|r\u00e9ponse|respuesta|risposta|antwort|\u7b54\u6848)"
_LINK = (
    r"(?i:\s+(?:is|are|would be|should be|must be|est|es|ist|\u00e8)\b|\s*[:=\u662f\uff1a]|\s+[-\u2013]\s)"
)
_DRESS = r"[\s*_\"'`$\\(\[{]*(?:(?:text|mathrm|textbf|boxed)\s*\{\s*)?\(?"


_LISTED = re.compile(r"(?<![A-Za-z0-9])[A-Z]\)?\s*(?:,|/|&|\band\b|\bor\b)\s*\(?$")
"""What stands before a letter that is not the only one."""


class _Patterns(NamedTuple):
    """Where a letter may stand: by itself (a small one, or only capitals), after "the answer is" and the like, with "answer" and "is"
    in front of it, at the start, anywhere but after "not".

    In the last two, A and I before a word in small letters are words; no letter has another one listed after it.
    """

    alone: re.Pattern
    line: re.Pattern
    said: re.Pattern
    answered: re.Pattern
    start: re.Pattern
    anywhere: re.Pattern
    boxed: re.Pattern
    """At the start, and not of all letters: A. B. C."""
    options: re.Pattern
    """A line that is an option, as the question has them."""


@functools.lru_cache(maxsize=32)
def _patterns(letters: str) -> _Patterns:
    right = r"is\s+(?:the\s+)?(?:correct|right|best|answer)\b"
    single = rf"(?![AI]\s+(?!{right})[a-z])[{letters}](?!['\u2019]?[A-Za-z0-9])"
    no_more = rf"(?!\)?\s*(?:,|/|&|\band\b|\bor\b)\s*\(?[{letters}](?![A-Za-z0-9]))"
    undress = r"[\s)\]}.:,*_$\"'`]*"
    alone = rf"{_DRESS}([{letters}{letters.lower()}]){undress}"
    line = rf"{_DRESS}([{letters}]){undress}"
    small = (
        rf"[{letters.lower()}](?=[.,;:)\]*\"'`$]|\s*(?:\n|\Z))(?!,?\s*(?:\bor\b\s*)?[{letters.lower()}]\b)"
    )
    told = rf"(?!I\s+[a-z])[{letters}](?!['\u2019]?[A-Za-z0-9])|{small}"
    said = rf"(?i:\b{_SAID}){_LINK}?{_DRESS}({told}){no_more}"
    answered = rf"(?i:\banswer){_LINK}{_DRESS}({told}){no_more}"
    start = rf"[\s*(]*({single}){no_more}"
    anywhere = rf"(?<!not )(?<!not \()(?<!\bnor )(?<![A-Za-z0-9])({single})"
    boxed = rf"{start}(?![\s.):]*\(?(?!\1|[AI]\s+[a-z])[{letters}](?!['\u2019]?[A-Za-z0-9]))"
    options = rf"(?m)^\s*\(?[{letters}][.):]\s"
    return _Patterns(*map(re.compile, (alone, line, said, answered, start, anywhere, boxed, options)))


def chosen(text: str, options: Sequence[str] = (), letters: str = LETTERS) -> str | None:
    """The letter that a text chooses; `None` for none, and where it chooses several at once.

    Of what is `spoken`, the first of these that is there: "answer is (C)" after all boxes; the last box
    (a letter, a letter with its option, or an option's text); a letter that is the last line; the last "answer is (C)"; a letter
    that it begins with, unless it begins with all of the options; an option's text, as the whole of it or in "the answer is ...";
    the last capital letter by itself that is not after "not"; the only option that a short text names.
    """
    told = spoken(text)
    if told is None:
        return None
    find = _patterns(letters)
    box = boxed(told)
    if box:
        content = plain(box[1]) if len(box[1]) <= LONGEST_OPTION else ""
        found = (
            _last(find.answered, told, box[0]) or find.alone.fullmatch(content) or find.boxed.match(content)
        )
        return found[1].upper() if found else _by_text(content, options)
    told = told.strip()
    found = (
        find.alone.fullmatch(told)
        or find.line.fullmatch(told, told.rfind("\n") + 1)
        or _last(find.said, told)
    )
    if not found and len(find.options.findall(told)) < 2:
        found = find.start.match(told)
    if found:
        return found[1].upper()
    named = _by_text(told, options) or _by_text(stated(told) or "", options)
    if named:
        return named
    last = _last(find.anywhere, told)
    if last and not _LISTED.search(told[max(0, last.start() - 12) : last.start()]):
        return last[1]
    return None if last else _named(stated(told) or told, options)


def _last(pattern: re.Pattern, text: str, start: int = 0) -> re.Match | None:
    return (list(pattern.finditer(text, start)) or [None])[-1]


_TOKEN = re.compile(r"[-\u2212]?[0-9][0-9,]*(?:\.[0-9]+)?|[^\W\d_]+|[^\w\s.!?]")
LONGEST_NAMING = 150


def _named(text: str, options: Sequence[str]) -> str | None:
    """The letter of the only option whose words are in a short text; of an option without words, all figures of the text."""
    told = _TOKEN.findall(text.casefold())
    if len(text) > LONGEST_NAMING or "not" in told:
        return None
    figures = [token for token in told if not token.isalpha()]
    found = []
    for letter, option in zip(string.ascii_uppercase, options, strict=False):
        words = _TOKEN.findall(option.casefold())
        in_words = any(word.isalpha() for word in words)
        if words and (
            any(told[i : i + len(words)] == words for i in range(len(told))) if in_words else words == figures
        ):
            found.append(letter)
    return found[0] if len(found) == 1 else None


def _by_text(text: str, options: Sequence[str]) -> str | None:
    """The letter of the only option that says the same as a text: in letters and digits, or as a number."""
    if len(text) > LONGEST_OPTION:
        return None
    told = _bare(text)
    found = [
        letter
        for letter, option in zip(string.ascii_uppercase, options, strict=False)
        if _bare(option) == told
    ]
    return found[0] if len(found) == 1 and told else None


@functools.lru_cache(maxsize=4096)
def _bare(text: str) -> str:
    value = number(plain(text))
    return str(value) if value is not None else re.sub(r"[\s.,;:$\"'`*]+", "", key(plain(text))).casefold()


def read_record(split: Split, index: int, where: str, line: dict[str, Any]) -> dict:
    """A line as a record `id`, `question`, `options`, `answer` (a letter), and `category` where there is one.

    The answer in the line is a letter, the place of the right option from 0, or its text.

    Raises: RecordError naming the place, for fewer than 2 options or more than 26, and an answer that is none of them.
    """
    question, options, answer = line["question"], line["options"], line["answer"]
    if not isinstance(question, str) or not question.strip():
        raise RecordError(
            f"{where}: field 'question' is {question!r}; it has to be the text of the question."
        )
    if not isinstance(options, list) or not 2 <= len(options) <= MOST_OPTIONS:
        raise RecordError(
            f"{where}: field 'options' is {options!r}; it has to be a list of 2 to {MOST_OPTIONS}."
        )
    options = [str(option) for option in options]
    letters = string.ascii_uppercase[: len(options)]
    if answer in tuple(letters):
        place = letters.index(answer)
    elif isinstance(answer, int):
        place = answer
    else:
        place = options.index(answer) if options.count(answer) == 1 else -1
    if not 0 <= place < len(options):
        raise RecordError(
            f"{where}: field 'answer' is {line['answer']!r}; it has to be a letter of {letters}, the place of an option, "
            "or its text."
        )
    record_id = str(line.get("id", f"multiple_choice-{split}-{index}"))
    record = {"id": record_id, "question": question, "options": options, "answer": letters[place]}
    return record | ({"category": str(line["category"])} if line.get("category") else {})


@register("task", "multiple_choice")
@dataclasses.dataclass(frozen=True)
class MultipleChoice(Task):
    r"""Questions with 2 to 26 options, one of them right: MMLU-Pro (Wang et al., arXiv:2406.01574) and the like.

    Chat messages: the question, the options after their letters, the instruction. What counts as the choice, says
    `chosen`; two letters at once are unparsable.
    """

    path: str | None = None
    """Where the records are, with `question`, `options`, `answer` (see `splits.read_split`). `None`: a sample of MMLU-Pro."""
    test_path: str | None = None
    """Where the test records are, if elsewhere."""
    instruction: str = "Think step by step and put the letter of the right option in \\boxed{}."

    def records(self, split: Split) -> Sequence[dict]:
        fields = ("question", "options", "answer")
        lines = read_split(self.path, self.test_path, self.name, split, fields)
        return converted(lines, functools.partial(read_record, split))

    def prompt(self, record: dict) -> list[dict[str, str]]:
        lettered = zip(string.ascii_uppercase, record["options"], strict=False)
        options = "\n".join(f"{letter}. {option}" for letter, option in lettered)
        content = f"{record['question']}\n\n{options}\n\n{self.instruction}".strip()
        return [{"role": "user", "content": content}]

    def verify(self, record: dict, completion: str) -> Verdict:
        letter = self.answer(record, completion)
        if letter is None:
            return Verdict.of(Reason.UNPARSABLE)
        return Verdict.of(Reason.CORRECT if letter == record["answer"] else Reason.WRONG)

    def kind(self, record: dict) -> str | None:
        return record.get("category")

    def answer(self, record: dict, completion: str) -> str | None:
        options = record["options"]
        return chosen(completion, options, string.ascii_uppercase[: len(options)])

    def demonstration(self, record: dict) -> str:
        return f"\\boxed{{{record['answer']}}}"
