"""Tools that a model calls while it answers: it writes a tagged span, and the tool's text comes back as context.

    ... <search>capital of France</search>
    <result>[1] Paris ...</result>

Decoding stops at the closing tag (`stop_strings`), `find_call` reads the call, `run_call` makes it in a worker, and what
that gives is appended as tokens that carry no loss. A tool that fails says so in its result: the model reads it, and may
try again.
"""

import abc
import ast
import dataclasses
import functools
import math
import operator
import re
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

import simpleeval

from rlvr_jax.registry import register
from rlvr_jax.rollout.workers import Failed, Outcome, TimedOut, Workers, then
from rlvr_jax.tasks.code import fenced
from rlvr_jax.tasks.records import RecordError, read_jsonl
from rlvr_jax.tasks.sandbox import Confined, End, require_sandbox, run

RESULT = "result"
"""The tag of what comes back; no tool has this name."""
CUT = " [cut]"
CHARS_PER_TOKEN = 4
"""About what a token of English text has, for a limit that is known before the text is tokenized."""


class Tool(abc.ABC):
    """A function of text to text: a frozen, picklable dataclass, registered in the slot "tool".

    What calls need loaded, a tool loads in `prepare` and keeps: the time for it is not a call's.
    """

    name: ClassVar[str] = "?"
    """The tag. Given by `register`."""

    @abc.abstractmethod
    def __call__(self, argument: str) -> str:
        """The answer to any text. Raises what it likes: the message becomes the result."""

    def prepare(self) -> None:  # noqa: B027  (most have nothing to load)
        """Load what calls need; called before each, so the second time it costs nothing."""


# ---------------------------------------------------------------------------------------------------------------- search

K1, B = 1.5, 0.75
"""Of BM25; what the library proposes."""


def words(text: str) -> list[str]:
    """Runs of letters and digits, in lower case. No stop words: BM25's idf knows them, in any language."""
    return re.findall(r"\w+", text.lower())


def read_corpus(path: str) -> list[tuple[str, str]]:
    """(title, text) of each line of a JSON Lines file, plain or gzipped; "" where a line has no title.

    Raises: RecordError (a ValueError) with file and line.
    """
    documents = []
    for where, line in read_jsonl(path, ("text",)):
        title, text = line.get("title", ""), line["text"]
        if not isinstance(title, str) or not isinstance(text, str):
            raise RecordError(f"{where}: 'title' and 'text' have to be text, got {title!r} and {text!r}.")
        if not re.search(r"\w", title + text):
            raise RecordError(f"{where}: there is no word in the document; leave the line out.")
        documents.append((title, text))
    return documents


def _bm25s() -> Any:
    """The library, which would import JAX and start its backend only to sort; we sort ourselves."""
    if "jax" in sys.modules:
        import bm25s
    else:
        sys.modules["jax"] = None  # type: ignore[assignment]  # what Python takes for "cannot be imported"
        try:
            import bm25s
        finally:
            del sys.modules["jax"]
    return bm25s


@functools.lru_cache(maxsize=4)
def _index(path: str) -> tuple[Any, list[tuple[str, str]]]:
    """The BM25 index of a corpus, and its documents: once in each process."""
    documents = read_corpus(path)
    index = _bm25s().BM25(k1=K1, b=B, method="lucene")
    # Interned, each word is in memory once, and not as often as it is written.
    bags = [[sys.intern(word) for word in words(f"{title} {text}")] for title, text in documents]
    index.index(bags, show_progress=False)
    return index, documents


@register("tool", "search")
@dataclasses.dataclass(frozen=True)
class Search(Tool):
    """Lexical search (BM25) in a corpus of one JSON object a line: `{"title": ..., "text": ...}`, the title optional.

        score(d) = sum over words w of the query:  idf(w) f / (f + k1 (1 - b + b |d| / mean |d|))
        idf(w) = ln(1 + (N - n_w + 0.5) / (n_w + 0.5)),   k1 = 1.5,  b = 0.75

    with f how often w is in d, and n_w in how many of the N documents. The best `top` documents that share a word with the
    query, best first; of equal ones the earlier. Reference: Kamphuis et al. (ECIR 2020), variant "Lucene (accurate)".

    Raises: ValueError for a corpus that is not there, empty or ill-formed, and for `top` below 1.
    """

    corpus: str = "data/corpus.jsonl"
    top: int = 3

    def __post_init__(self):
        if self.top < 1:
            raise ValueError(f"search top={self.top}: a search gives at least 1 document.")
        try:
            read_corpus(self.corpus)
        except RecordError as error:
            raise ValueError(f"search corpus={self.corpus!r} cannot be used: {error}") from error

    def prepare(self) -> None:
        _index(self.corpus)

    def hits(self, query: str) -> list[tuple[int, float]]:
        """(place in the corpus, score > 0), best first."""
        index, _ = _index(self.corpus)
        if not (wanted := words(query)):
            return []
        scores = index.get_scores(wanted)
        (places,) = scores.nonzero()
        best = places[(-scores[places]).argsort(kind="stable")[: self.top]]
        return [(int(place), float(scores[place])) for place in best]

    def __call__(self, argument: str) -> str:
        _, documents = _index(self.corpus)
        found = [documents[place] for place, _ in self.hits(argument)]
        blocks = [
            f"[{i}] {title}\n{text}" if title else f"[{i}] {text}" for i, (title, text) in enumerate(found, 1)
        ]
        return "\n".join(blocks) or "nothing found"


# ------------------------------------------------------------------------------------------------------------ arithmetic

LONGEST_EXPRESSION = 200
HIGHEST_POWER = 1000
LONGEST_INTEGER = 100
"""Characters, exponent and digits. What is longer is babble, and would cost the deadline."""

_ALPHABET = re.compile(r"(?:[0-9.+\-*/%() ]|sqrt|abs|pi|(?<![a-z])e(?![a-z]))*")
_GROUPING = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "\u2212": "-", "^": "**"})


def _power(base: Any, exponent: Any) -> Any:
    if abs(exponent) > HIGHEST_POWER or abs(base) > 10**LONGEST_INTEGER:
        raise ValueError(
            f"a power has a base up to 1e{LONGEST_INTEGER} and an exponent up to {HIGHEST_POWER}"
        )
    return base**exponent


OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
FUNCTIONS = {"sqrt": math.sqrt, "abs": abs}
"""Of one argument each, so that a comma only ever groups digits."""
NAMES = {"pi": math.pi, "e": math.e}


def number_text(value: object) -> str:
    """A whole number in full, any other with 15 digits, so that 0.1 + 0.2 is 0.3.

    Raises: ValueError for what is not a real number, not finite, or too long.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("the value is not a finite real number")
    if isinstance(value, float):
        return format(value + 0.0, ".15g")  # of -0.0, 0
    if abs(value) >= 10**LONGEST_INTEGER:
        raise ValueError(f"the value has more than {LONGEST_INTEGER} digits")
    return str(value)


@register("tool", "calculator")
@dataclasses.dataclass(frozen=True)
class Calculator(Tool):
    """Arithmetic: + - * / // % ** or ^, brackets, `sqrt`, `abs`, pi and e; 1,000 is a thousand, × ÷ − are read."""

    def __call__(self, argument: str) -> str:
        expression = _GROUPING.sub("", argument.strip()).translate(_SIGNS)
        if len(expression) > LONGEST_EXPRESSION:
            raise ValueError(f"an expression has at most {LONGEST_EXPRESSION} characters")
        if not _ALPHABET.fullmatch(expression):
            raise ValueError("an expression has numbers, + - * / // % ** ( ) sqrt abs pi e")
        evaluator = simpleeval.SimpleEval(operators=OPERATORS, functions=FUNCTIONS, names=NAMES)
        return number_text(evaluator.eval(expression))


# ---------------------------------------------------------------------------------------------------------------- python


@register("tool", "python")
@dataclasses.dataclass(frozen=True)
class Python(Confined, Tool):
    """A Python program, run in the sandbox that judges code (`tasks.sandbox`): the standard library, no network, no state
    from call to call.

    The result is what it prints, and after that the end of what it says on stderr: the last line of an exception. A program
    between ``` and ``` is read too. `seconds` is below the deadline of a call. Needs Linux and bubblewrap.

    Raises: ValueError for limits out of range.
    """

    def prepare(self) -> None:
        require_sandbox()

    def __call__(self, argument: str) -> str:
        result = run("\n".join(fenced(argument)) or argument, limits=self.limits)
        errors = result.stderr.strip().splitlines()[-1:]
        if result.timed_out:
            errors = [f"error: more than {self.seconds:g} s"]
        elif result.end is End.OUTPUT:
            errors = ["error: too much output"]
        elif result.status and not errors:
            errors = [f"error: exit status {result.status}"]
        return "\n".join([result.stdout.strip(), *errors]).strip() or "nothing printed"


# ----------------------------------------------------------------------------------------------------------------- calls


@dataclasses.dataclass(frozen=True)
class Call:
    """What a model asked for."""

    name: str
    argument: str


@dataclasses.dataclass(frozen=True)
class Turns:
    """The tools of a rollout, and how often a row may call one.

    A row makes up to `max_calls` calls of up to `deadline` seconds each; a result is up to `max_result_tokens` tokens.

    Raises: ValueError for no tools, for two of one name, for a name that is no tag, and for numbers out of range.
    """

    tools: tuple[Tool, ...]
    max_calls: int = 4
    max_result_tokens: int = 256
    deadline: float = 5.0

    def __post_init__(self):
        names = [tool.name for tool in self.tools]
        if not names:
            raise ValueError(f"tools={self.tools}: there is nothing to call; name at least one tool.")
        for name in names:
            if not re.fullmatch("[a-z][a-z0-9_]*", name) or name == RESULT:
                raise ValueError(f"a tool is called {name!r}: use a-z, 0-9 and _, and not {RESULT!r}.")
            if names.count(name) > 1:
                raise ValueError(
                    f"two tools are called {name!r}: a tag stands for one of them; take one out."
                )
        if self.max_calls < 1:
            raise ValueError(f"max_calls={self.max_calls}: a row with tools may make at least 1 call.")
        if self.max_result_tokens < 16:
            raise ValueError(
                f"max_result_tokens={self.max_result_tokens}: tags and an error take 16 tokens; use 16 or more."
            )
        if not (self.deadline > 0 and math.isfinite(self.deadline)):
            raise ValueError(f"deadline={self.deadline}: a call has a positive, finite number of seconds.")

    @property
    def max_result_chars(self) -> int:
        """About `max_result_tokens`, in characters."""
        return CHARS_PER_TOKEN * self.max_result_tokens


def stop_strings(tools: Sequence[Tool]) -> tuple[str, ...]:
    """The closing tags, at which decoding has to stop."""
    return tuple(f"</{tool.name}>" for tool in tools)


def find_call(text: str, tools: Sequence[Tool]) -> Call | None:
    """The call with which a text ends, white space after it left out; `None` where it ends otherwise.

    The last two tags of these tools have to be an opening and a closing one of the same tool, so a span with another tag in
    it is no call. `text` is what the model wrote since the last result, for a result may have tags in it.
    """
    text = text.rstrip()
    names = "|".join(tool.name for tool in tools) or "(?!)"
    tags = list(re.finditer(f"<(/?)({names})>", text))[-2:]
    if len(tags) < 2 or tags[1].end() != len(text) or tags[0][2] != tags[1][2]:
        return None
    if (tags[0][1], tags[1][1]) != ("", "/"):
        return None
    return Call(tags[1][2], text[tags[0].end() : tags[1].start()].strip())


def result_text(outcome: Outcome, limit_chars: int) -> str:
    """What the model reads of an outcome: between the tags at most `limit_chars` characters, with a mark where cut."""
    if isinstance(outcome, TimedOut):
        text = f"error: no answer within {outcome.seconds:g} s"
    elif isinstance(outcome, Failed):
        text = f"error: {outcome.message}"
    elif not isinstance(outcome.value, str):
        text = f"error: the tool gave {type(outcome.value).__name__}, and no text"
    else:
        text = outcome.value
    if len(text) > limit_chars:
        text = text[: max(0, limit_chars - len(CUT))] + CUT
    return f"\n<{RESULT}>{text}</{RESULT}>\n"


def run_call(call: Call, tools: Sequence[Tool], workers: Workers, limit_chars: int) -> "Future[str]":
    """A future of the `result_text` of a call, that of an unknown tool included; it raises on account of neither."""
    for tool in tools:
        if tool.name == call.name:
            return then(
                workers.submit(tool, call.argument), lambda outcome: result_text(outcome, limit_chars)
            )
    known = ", ".join(tool.name for tool in tools)
    future: Future[str] = Future()
    future.set_result(result_text(Failed(f"no tool called {call.name!r}; there are {known}"), limit_chars))
    return future
