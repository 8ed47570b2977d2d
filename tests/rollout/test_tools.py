"""Calls that a model writes, the tools that answer them, and the text that comes back."""

import collections
import dataclasses
import gzip
import json
import math
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from rlvr_jax import registry
from rlvr_jax.rollout.tools import (
    Calculator,
    Call,
    Python,
    Search,
    Tool,
    Turns,
    find_call,
    read_corpus,
    result_text,
    run_call,
    stop_strings,
)
from rlvr_jax.rollout.workers import Done, Failed, Prepares, TimedOut, Workers

CITIES = [
    {"title": "Paris", "text": "The capital of France is Paris."},
    {"text": "Berlin is the capital of Germany, and was twice."},
    {"title": "Cheese", "text": "France has cheese. France has wine."},
    {"title": "Cheese", "text": "France has cheese. France has wine."},
    {"title": "Nowhere", "text": "Zürich, Łódź and Αθήνα 2024"},
]


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write(tmp_path_factory.mktemp("corpus") / "cities.jsonl", CITIES)


@pytest.fixture(scope="module")
def workers():
    with Workers(1, 30.0) as made:
        yield made


# ---------------------------------------------------------------------------------------------------------------- search


def bm25(documents, query, k1=1.5, b=0.75):
    """Scores from the formula of Kamphuis et al. (2020), table 1, "Lucene (accurate)", one document and word at a time."""
    bags = [collections.Counter(re.findall(r"\w+", d.lower())) for d in documents]
    mean = sum(bag.total() for bag in bags) / len(bags)
    scores = []
    for bag in bags:
        score = 0.0
        for word in re.findall(r"\w+", query.lower()):
            holding = sum(word in other for other in bags)
            idf = math.log(1 + (len(bags) - holding + 0.5) / (holding + 0.5))
            score += idf * bag[word] / (bag[word] + k1 * (1 - b + b * bag.total() / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize("seed", range(4))
def test_search_ranks_by_bm25(tmp_path, seed):
    rng = np.random.default_rng(seed)
    letters = list("abcdefghijklmnopqrst")
    texts = [" ".join(rng.choice(letters, rng.integers(1, 30))) for _ in range(40)]
    search = Search(write(tmp_path / "c.jsonl", [{"text": text} for text in texts]), top=40)
    for length in (1, 2, 5, 9):
        query = " ".join(rng.choice([*letters, "unknown"], length))
        expected = bm25(texts, query)
        hits = search.hits(query)
        assert {place for place, _ in hits} == {i for i, score in enumerate(expected) if score > 0}
        # float32, one rounding for each stored score and one for each of up to nine words that are added
        np.testing.assert_allclose([score for _, score in hits], [expected[i] for i, _ in hits], rtol=2e-6)
        ranked = [expected[place] for place, _ in hits]
        assert all(first >= second * (1 - 2e-6) for first, second in zip(ranked, ranked[1:], strict=False))


def test_search_answers_with_the_best_documents_of_equal_ones_the_earlier(corpus):
    assert Search(corpus, top=2)("capital of france") == (
        "[1] Paris\nThe capital of France is Paris.\n[2] Berlin is the capital of Germany, and was twice."
    )
    assert [place for place, _ in Search(corpus)("wine") and Search(corpus).hits("wine")] == [2, 3]
    assert [place for place, _ in Search(corpus, top=1).hits("wine")] == [2]


@pytest.mark.parametrize("query", ["", "  ", "?!", "elephant", "unknown words only"])
def test_search_says_when_there_is_nothing(corpus, query):
    assert Search(corpus)(query) == "nothing found"


def test_search_knows_titles_and_letters_of_all_languages(corpus):
    for query in ("NOWHERE", "zürich", "łódź", "αθήνα", "2024", "elephant Αθήνα"):
        assert [place for place, _ in Search(corpus).hits(query)] == [4]


def test_search_reads_gzip_and_passes_over_empty_lines(tmp_path):
    path = tmp_path / "c.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write('{"text": "one"}\n\n{"text": "two", "other": 3}\n')
    assert read_corpus(str(path)) == [("", "one"), ("", "two")]
    assert Search(str(path))("two") == "[1] two"


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "there is no file PATH."),
        ("", "PATH has no records; expected one JSON object a line."),
        ('{"text": "a"}\n{"text"', "PATH, line 2: not JSON at column 8: Expecting ':' delimiter."),
        ('{"title": "a"}', "PATH, line 1: field 'text' is missing; there are title."),
        ('{"text": 3}', "PATH, line 1: 'title' and 'text' have to be text, got '' and 3."),
        (
            '{"title": null, "text": "a"}',
            "PATH, line 1: 'title' and 'text' have to be text, got None and 'a'.",
        ),
        ('{"text": " - "}', "PATH, line 1: there is no word in the document; leave the line out."),
    ],
)
def test_a_corpus_that_cannot_be_used_is_one_error(tmp_path, content, message):
    path = tmp_path / "c.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError) as error:
        Search(str(path))
    expected = f"search corpus={str(path)!r} cannot be used: {message.replace('PATH', str(path))}"
    assert str(error.value) == expected


def test_a_search_for_nothing_is_refused(corpus):
    with pytest.raises(ValueError) as error:
        Search(corpus, top=0)
    assert str(error.value) == "search top=0: a search gives at least 1 document."


def test_a_search_travels_without_its_index(corpus):
    search = Search(corpus)
    search("france")
    assert len(pickle.dumps(search)) < 1000
    assert pickle.loads(pickle.dumps(search)) == search


def test_a_search_is_prepared_before_its_first_call_and_once(tmp_path):
    path = tmp_path / "c.jsonl"
    search = Search(write(path, CITIES))
    assert isinstance(search, Prepares)  # so that a worker does it, before the clock starts
    search.prepare()
    path.unlink()  # what is read now, is read from memory
    search.prepare()
    assert [place for place, _ in search.hits("wine")] == [2, 3]


def test_searching_does_not_bring_jax(corpus):
    code = (
        "import sys; from rlvr_jax.rollout.tools import Search; "
        f"print(Search({corpus!r}).hits('wine')[0][0], 'jax' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=pathlib.Path.cwd()
    )
    assert (run.stdout, run.stderr) == ("2 False\n", "")


# ------------------------------------------------------------------------------------------------------------ arithmetic


@pytest.mark.parametrize(
    "expression, value",
    [
        ("2 + 3 * 4", "14"),
        (" (2+3)*4\n", "20"),
        ("7/2", "3.5"),
        ("6/2", "3"),
        ("0.1+0.2", "0.3"),
        ("1/3", "0.333333333333333"),
        ("7 // 2 % 2", "1"),
        ("2^3+1", "9"),
        ("2**100", "1267650600228229401496703205376"),
        ("-2 - -3", "1"),
        ("0*-1.0", "0"),
        ("1,234,567 + 1", "1234568"),
        ("12 × 3 ÷ 4 \u2212 1", "8"),
        ("sqrt(16) + abs(-1)", "5"),
        ("2*pi", "6.28318530717959"),
        ("1e3", "1000"),
    ],
)
def test_the_calculator_calculates(expression, value):
    assert Calculator()(expression) == value


REFUSED = """2 + | (1 | 1 2 | 1,2 | x | 1 = 1 | 1; 2 | 'a' * 3 | [1] | __import__('os') | (1).real | 1 if 1 else 2 | True | sqrt
    | 1/0 | sqrt(-1) | (-8)**0.5 | 1e400 | 10.0**400 | 9**9**9 | 2**1001 | (9**99)**1000 | ((9**999)**999)**999 | 10**100 | 0x10 | pi.e"""


@pytest.mark.parametrize(
    "expression", ["", *re.split(r"\s+\|\s+", REFUSED), "1" + "+1" * 100, "(" * 99 + "1" + ")" * 98]
)
def test_the_calculator_refuses_at_once_what_it_cannot_calculate(expression):
    start = time.monotonic()
    with pytest.raises(Exception) as error:  # whatever the library raises: its message is for the model
        Calculator()(expression)
    assert str(error.value)
    assert time.monotonic() - start < 1  # none of them is calculated first


def test_a_result_is_never_longer_than_its_limits_allow():
    longest = Calculator()("9" * 99 + "+0")
    assert longest == "9" * 99
    with pytest.raises(ValueError, match="the value has more than 100 digits"):
        Calculator()("*".join(["9" * 60] * 3))


# ---------------------------------------------------------------------------------------------------------------- python


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs the Debian package bubblewrap")
@pytest.mark.parametrize(
    "program, said",
    [
        ("print(sum(range(5)))", "10"),
        ("```python\nx = 3\n```\nthen\n```\nprint(x)\n```", "3"),
        ("print(1)\n1 / 0", "1\nZeroDivisionError: division by zero"),
        ("1 +", "SyntaxError: invalid syntax"),
        ("import socket; socket.socket()", "PermissionError: [Errno 1] Operation not permitted"),
        ("print(1, flush=True)\nwhile True: pass", "1\nerror: more than 2 s"),
        ("import sys; sys.exit(3)", "error: exit status 3"),
        ("x = 1", "nothing printed"),
    ],
)
def test_python_says_what_it_printed_and_how_it_failed(program, said):
    python = pickle.loads(pickle.dumps(Python(seconds=2.0 if "while" in program else 20.0)))
    python.prepare()
    assert python(program) == said


def test_python_refuses_impossible_limits():
    with pytest.raises(ValueError) as error:
        Python(seconds=0.0)
    assert str(error.value) == "seconds=0.0: a program has a positive, finite number of seconds."


# ----------------------------------------------------------------------------------------------------------------- calls


@dataclasses.dataclass(frozen=True)
class Echo(Tool):
    """Says what it is told to, in a way that the test wants."""

    name = "echo"

    def __call__(self, argument):
        if argument == "raise":
            raise KeyError("no such thing")
        if argument == "number":
            return 7
        if argument == "loop":
            while True:
                pass
        return argument * 3


TOOLS = (Echo(), Calculator())


@pytest.mark.parametrize(
    "text, call",
    [
        ("Let me see. <echo>a b</echo>", Call("echo", "a b")),
        ("<echo>a</echo> so <calculator> 1+1 </calculator>\n", Call("calculator", "1+1")),
        ("<echo></echo>", Call("echo", "")),
        ("<echo>two\nlines < 3</echo>", Call("echo", "two\nlines < 3")),
        ("I may <echo> or <echo>b</echo>", Call("echo", "b")),
        ("<echo>of <other>x</other></echo>", Call("echo", "of <other>x</other>")),
        ("<echo>a</echo>.", None),
        ("<echo>a", None),
        ("a</echo>", None),
        ("<echo>a</calculator>", None),
        ("<echo>a <calculator>1</calculator></echo>", None),
        ("<echo>a <calculator> b</echo>", None),
        ("<echo>a</echo></echo>", None),
        ("<other>a</other>", None),
        ("<Echo>a</Echo>", None),
        ("<echo >a</echo>", None),
        ("</echo>a<echo>", None),
        ("", None),
    ],
)
def test_the_call_at_the_end_of_a_text(text, call):
    assert find_call(text, TOOLS) == call


def test_without_tools_nothing_is_a_call():
    assert find_call("<></>", ()) is None
    assert stop_strings(()) == ()


def test_decoding_stops_at_each_closing_tag():
    assert stop_strings(TOOLS) == ("</echo>", "</calculator>")
    assert all(find_call(f"<{stop[2:]}x{stop}", TOOLS) for stop in stop_strings(TOOLS))


@pytest.mark.parametrize(
    "outcome, limit, text",
    [
        (Done("Paris"), 5, "Paris"),
        (Done("Paris is a city"), 10, "Pari [cut]"),
        (Done("Paris"), 3, " [cut]"),
        (Done(7), 100, "error: the tool gave int, and no text"),
        (TimedOut(5.0), 100, "error: no answer within 5 s"),
        (Failed("KeyError: 'x'"), 100, "error: KeyError: 'x'"),
        (Failed("x" * 50), 20, "error: xxxxxxx [cut]"),
    ],
)
def test_what_the_model_reads_of_an_outcome(outcome, limit, text):
    assert result_text(outcome, limit) == f"\n<result>{text}</result>\n"


def run(text, workers, tools=TOOLS, limit=1000):
    return run_call(find_call(text, tools), tools, workers, limit).result(timeout=60)


def test_a_call_from_text_to_text(workers, corpus):
    assert run("<echo>a</echo>", workers) == "\n<result>aaa</result>\n"
    assert run("<echo>abcdef</echo>", workers, limit=12) == "\n<result>abcdef [cut]</result>\n"
    assert run("<calculator>6*7</calculator>", workers) == "\n<result>42</result>\n"
    assert run("<search>wine</search>", workers, (Search(corpus, top=1),)) == (
        "\n<result>[1] Cheese\nFrance has cheese. France has wine.</result>\n"
    )


def test_what_goes_wrong_is_said_to_the_model(workers):
    assert run("<echo>raise</echo>", workers) == "\n<result>error: KeyError: 'no such thing'</result>\n"
    assert run("<echo>number</echo>", workers) == "\n<result>error: the tool gave int, and no text</result>\n"
    assert run("<calculator>1/0</calculator>", workers) == (
        "\n<result>error: ZeroDivisionError: division by zero</result>\n"
    )
    assert run_call(Call("other", "a"), TOOLS, workers, 1000).result(timeout=60) == (
        "\n<result>error: no tool called 'other'; there are echo, calculator</result>\n"
    )
    with Workers(1, 0.2) as hasty:
        assert run("<echo>loop</echo>", hasty) == "\n<result>error: no answer within 0.2 s</result>\n"


def test_tools_are_known_by_name(corpus):
    assert {"calculator", "search"} <= set(registry.names("tool"))
    assert registry.build("tool", "search", corpus=corpus, top=2) == Search(corpus, 2)
    assert registry.build("tool", "calculator") == Calculator()


@dataclasses.dataclass(frozen=True)
class Named(Calculator):
    """A calculator of any name."""

    name: str = "x"  # type: ignore[assignment]


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"tools": ()}, "tools=(): there is nothing to call; name at least one tool."),
        (
            {"tools": (Echo(), Echo())},
            "two tools are called 'echo': a tag stands for one of them; take one out.",
        ),
        ({"tools": (Named("a b"),)}, "a tool is called 'a b': use a-z, 0-9 and _, and not 'result'."),
        ({"tools": (Named("result"),)}, "a tool is called 'result': use a-z, 0-9 and _, and not 'result'."),
        ({"max_calls": 0}, "max_calls=0: a row with tools may make at least 1 call."),
        (
            {"max_result_tokens": 15},
            "max_result_tokens=15: tags and an error take 16 tokens; use 16 or more.",
        ),
        ({"deadline": 0.0}, "deadline=0.0: a call has a positive, finite number of seconds."),
        ({"deadline": math.inf}, "deadline=inf: a call has a positive, finite number of seconds."),
    ],
)
def test_impossible_turns_are_refused(fields, message):
    with pytest.raises(ValueError) as error:
        Turns(**({"tools": TOOLS} | fields))
    assert str(error.value) == message


def test_turns_have_defaults_and_a_limit_in_characters():
    turns = Turns(TOOLS)
    assert (turns.max_calls, turns.max_result_tokens, turns.deadline) == (4, 256, 5.0)
    assert turns.max_result_chars == 1024
    assert hash(turns) == hash(Turns(TOOLS))
