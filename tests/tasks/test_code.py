"""Answers that are programs: what is read, taken out of an answer, judged right and wrong, and cannot be forged."""

import concurrent.futures
import json
import math
import os
import pickle
import time

import pytest
from hostile import PROGRAMS, needs_bwrap, nothing_stays

from rlvr_jax import registry
from rlvr_jax.tasks import code, sandbox
from rlvr_jax.tasks.base import Reason
from rlvr_jax.tasks.code import Code, extract, fenced
from rlvr_jax.tasks.code_inside import Opaque, agree, decode, encode
from rlvr_jax.tasks.code_records import shaped
from rlvr_jax.tasks.programs import Programs, same_output
from rlvr_jax.tasks.records import RecordError

DOUBLE = {
    "id": "double",
    "prompt": "Write f(x), which doubles a number.",
    "code": "import math\ndef f(x): return 2 * x",
    "test_list": [
        "assert f(3) == 6",
        "assert [f(x) for x in range(-4, 4)] == list(range(-8, 8, 2))",
        "assert math.isclose(f(0.25), 0.5)",
        "assert all(map(lambda x: f(x) == x + x, (7, 8, 9)))",
    ],
}
DOUBLE_PLUS = {
    "id": "double+",
    "prompt": '"""\nWrite f(x), which doubles a number.\nassert f(3) == 6\n"""\n',
    "entry_point": "f",
    "canonical_solution": "def f(x): return 2 * x",
    "base_input": [[3]],
    "plus_input": [[0.25], [-4], [{"__float__": "inf"}]],
    "assertion": "assert f(3) == 6",
    "atol": 0,
}


def task(folder, *lines, kind=Code, **fields):
    (folder / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return kind(path=str(folder), **fields)


def answer(source):
    return f"Here it is:\n```python\n{source}\n```\nIt works."


# ----------------------------------------------------------------------------------------------------------------- extract


@pytest.mark.parametrize(
    "text, blocks",
    [
        ("```python\na\n```", ["a\n"]),
        ("x\n```py\na\n```\ny\n```\nb\n```", ["a\n", "b\n"]),
        ("```cpp\na\n```\n```Python3\nb\n```", ["b\n"]),
        ("```python\nnot closed", ["not closed"]),
        ("  ```python title=x\n  a\n  ```", ["  a\n"]),
        ("`f` and ``` in a line", []),
    ],
)
def test_python_stands_between_fences(text, blocks):
    assert fenced(text) == blocks


HEAD = 'import math\n\n\ndef f(x):\n    """Doubles."""\n'


@pytest.mark.parametrize(
    "text, head, program",
    [
        (answer("def f(x): return 1"), "", "\n\ndef f(x): return 1\n"),
        # The last that defines it, not the last.
        (answer("def f(x): return 1") + answer("def f(x): return 2") + answer("print(f(2))"), "", "\n\ndef f(x): return 2\n"),
        (answer("def f(x): return 1") + answer("def f2(x): return 2"), "", "\n\ndef f(x): return 1\n"),
        ("<think>" + answer("def f(x): return 1") + "</think>def f(x): return 2", "", "\n\ndef f(x): return 2"),
        ("def f(x): return 2", HEAD, f"\n{HEAD}\ndef f(x): return 2"),
        ("f = lambda x: 2 * x", "", "\n\nf = lambda x: 2 * x"),
        ("f: object = abs", "", "\n\nf: object = abs"),
        ("async def f(x): pass", "", "\n\nasync def f(x): pass"),
        ("class f:\n    pass", "", "\n\nclass f:\n    pass"),
        ("from __future__ import annotations\ndef f(x): pass", HEAD, f"from __future__ import annotations\n{HEAD}\n\ndef f(x): pass"),
        ("    return 2 * x\n\nprint(f(1))\n", HEAD, f"{HEAD}    return 2 * x\n\n"),
        ("\n    y = x\n\n    return 2 * y", HEAD, f"{HEAD}\n    y = x\n\n    return 2 * y"),
        ("    return 2 * x", "", None),
        ("The function doubles.", HEAD, None),
        ("", HEAD, None),
        ("\n\n", HEAD, None),
        (answer("f == 3"), "", None),
        ("<think>def f(x): return 2", "", None),
        (answer("def f(x): return 1\n#" + "x" * code.LONGEST_PROGRAM), "", None),
    ],
)  # fmt: skip
def test_the_program_of_an_answer(text, head, program):
    assert extract(text, "f", head) == program


# ----------------------------------------------------------------------------------------------------------------- records


def test_a_sample_comes_with_the_package_and_the_splits_are_apart():
    for each in (Code(), Programs()):
        train, test = each.records("train"), each.records("test")
        assert min(len(train), len(test)) >= 6
        assert not {r["prompt"] for r in train} & {r["prompt"] for r in test}
        assert json.loads(json.dumps(list(train))) == pickle.loads(pickle.dumps(train))
        assert registry.build("task", each.name) == each


def test_problems_ask_for_code_and_show_one_test_of_theirs(tmp_path):
    made = task(tmp_path, DOUBLE, DOUBLE_PLUS)
    first, second = made.records("test")
    assert made.prompt(first) == [
        {
            "role": "user",
            "content": "Write f(x), which doubles a number.\n\nIt has to pass this test:\n\n```python\nassert f(3) == 6\n```\n\n"
            "Answer with one block of Python code between ```python and ```.",
        }
    ]
    assert made.prompt(second)[0]["content"].startswith(
        "Write f(x), which doubles a number.\nassert f(3) == 6\n\nAnswer with"
    )
    raw = Code(form="completion")
    assert raw.prompt(second) == '"""\nWrite f(x), which doubles a number.\nassert f(3) == 6\n"""\n'
    function = raw.records("test")[0]
    assert raw.prompt(function) == function["head"] and function["head"].startswith("from typing import List")
    assert extract(raw.demonstration(function), function["names"][0], function["head"]) is not None


def without(line, field):
    return {key: value for key, value in line.items() if key != field}


@pytest.mark.parametrize(
    "line, message",
    [
        ({"prompt": "p"}, "a problem has tests in one of the fields test, test_list, base_input; this has none."),
        (without(DOUBLE, "code"), "field 'code' is missing, which a problem with 'test_list' has."),
        (DOUBLE | {"code": "def g(x): pass"}, "no test calls a function that the answer has to define."),
        (DOUBLE | {"test_list": ["assert f("]}, "the tests cannot be read: '(' was never closed (<unknown>, line 1)"),
        (DOUBLE_PLUS | {"base_input": [], "plus_input": []}, "no test calls a function that the answer has to define."),
    ],
)  # fmt: skip
def test_a_broken_problem_is_one_error(tmp_path, line, message):
    with pytest.raises(RecordError) as error:
        task(tmp_path, line).records("test")
    assert str(error.value) == f"{tmp_path}/test.jsonl, line 1: {message}"


@pytest.mark.parametrize(
    "value, like, expected",
    [
        ([[1, 2]], [(3, 4)], [(1, 2)]),
        ([[1, [2, [3]]]], [(1, (2,))], [(1, (2, (3,)))]),
        ([[1], [2]], [[{5}, (6,)]][0], [{1}, (2,)]),
        ([{"1": [2]}], [{7: (8,)}], [{1: (2,)}]),
        ([["a"], 5], [], [["a"], 5]),
        (["(1+2j)", "0"], [1j, 2], [1 + 2j, 0]),
        (["a"], [3], ["a"]),
    ],
)
def test_arguments_get_back_what_json_took_from_them(value, like, expected):
    assert shaped(value, like) == expected
    assert repr(shaped(value, like)) == repr(expected)


# ------------------------------------------------------------------------------------------------------------------ values

PLAIN = [
    None, True, 0, -1, 1 << 63, -(1 << 64), 10**5000, 0.1, -0.0, 1e308, math.inf, 2 + 3j, complex(math.inf, 1), "", "é\0\ud800",
    b"\0\xff", bytearray(b"a"), [], [[1], [2.0]], (), (1,), ((), []), {1, "a"}, frozenset({(1, 2)}), {}, {1: 2, "1": (3,)},
    {(1, 2): {3}}, range(3), range(0, 10**9, 7),
]  # fmt: skip


def spelt(value):
    """Sets in an order of their own, which is another one in each process."""
    return sorted(map(repr, value)) if isinstance(value, set | frozenset) else repr(value)


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_values_travel_as_what_they_are(value):
    travelled = decode(json.loads(json.dumps(encode(value))))
    assert type(travelled) is type(value) and spelt(travelled) == spelt(value)
    assert agree(travelled, value, 0.0)


# `repr` of 10**5000 is what Python refuses, and not ours to judge.
PLAIN.remove(10**5000)


def test_what_is_not_plain_becomes_plain_or_equal_to_nothing():
    class Everything(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    travelled = decode(encode([Everything(3), (x * x for x in range(3)), object(), {1: 2}.keys()]))
    assert type(travelled[0]) is int and travelled[0] != 4
    assert list(travelled[1]) == [0, 1, 4] and list(travelled[3]) == [1]
    assert isinstance(travelled[2], Opaque) and travelled[2] != object() and bool(travelled[2])


@pytest.mark.parametrize(
    "value, expected, atol, same",
    [
        (1, 1, 0, True),
        (True, 1, 0, True),
        (1.0 + 5e-7, 1.0, 0, True),
        (1.0 + 5e-6, 1.0, 0, False),
        (1.0 + 5e-5, 1.0, 1e-4, True),
        (1e9 + 50, 1e9, 0, True),
        (1, 1.0, 0, True),
        ("1.0", 1.0, 0, False),
        (1.0 + 5e-7, 1, 0, False),
        (math.nan, math.nan, 0, True),
        (math.inf, math.inf, 0, True),
        (1.0, math.inf, 0, False),
        (math.nan, 1.0, 0, False),
        ([1.0 + 1e-9, "a"], [1.0, "a"], 0, True),
        ((1.0,), [1.0], 0, False),
        ([1.0, 2.0], [1.0], 0, False),
        ({"a": 1.0 + 1e-9}, {"a": 1.0}, 0, True),
        ({"b": 1.0}, {"a": 1.0}, 0, False),
        ({1, 2}, {2, 1}, 0, True),
        ([True], Opaque(), 0, True),
        (None, Opaque(), 0, False),
    ],
)
def test_floats_agree_within_a_tolerance_and_the_rest_exactly(value, expected, atol, same):
    assert agree(value, expected, float(atol)) is same


# ---------------------------------------------------------------------------------------------------------------- verdicts


@needs_bwrap
@pytest.mark.parametrize(
    "text, reason",
    [
        (answer("def f(x): return 2 * x"), Reason.CORRECT),
        (answer("print('hello')\ndef f(x): return sum(y for y in (x, x))\nif __name__ == '__main__': 1 / 0"), Reason.CORRECT),
        (answer("def f(x): return 2 * x if x < 9 else 0"), Reason.WRONG),
        (answer("def f(x) return 2 * x"), Reason.WRONG),
        (answer("f = 3"), Reason.WRONG),
        (answer("import numpy\ndef f(x): return 2 * x"), Reason.WRONG),
        (answer("def g(x): return 2 * x"), Reason.UNPARSABLE),
        ("It is 2 * x.", Reason.UNPARSABLE),
        ("", Reason.UNPARSABLE),
    ],
)  # fmt: skip
def test_an_answer_is_judged_by_its_program(tmp_path, text, reason):
    made = task(tmp_path, DOUBLE, seconds=20.0)
    (record,) = made.records("test")
    assert made.verify(record, text).reason is reason


@needs_bwrap
def test_functions_of_all_forms_are_judged(tmp_path):
    function = {
        "prompt": "import math\n\ndef helper(x):\n    return x + x\n\ndef f(x: float) -> float:\n    '''Doubles.'''\n",
        "entry_point": "f",
        "test": "def check(candidate):\n    assert candidate(3) == helper(3)\n    try:\n        candidate('')\n"
        "    except ValueError:\n        return\n    assert False",
    }
    made = task(tmp_path, function, DOUBLE_PLUS, seconds=20.0)
    head, plus = made.records("test")
    body = "    if x == '':\n        raise {}('empty')\n    return math.fsum([helper(x)])\n\nThat was it."
    assert made.verify(head, body.format("ValueError")).reason is Reason.CORRECT
    assert made.verify(head, body.format("TypeError")).reason is Reason.WRONG
    assert (
        made.verify(plus, answer("def f(x): return x + x + (1e-9 if x == 0.25 else 0)")).reason
        is Reason.CORRECT
    )
    assert made.verify(plus, answer("def f(x): return 2 * x if x < 1e9 else 0")).reason is Reason.WRONG
    assert made.verify(plus, made.demonstration(plus)).reason is Reason.CORRECT


@needs_bwrap
def test_what_takes_too_long_is_a_timeout_and_what_breaks_the_tests_an_error(tmp_path, mark):
    broken = DOUBLE | {"code": "def f(x): return 2 * x\n1 / 0"}
    made = task(tmp_path, DOUBLE, broken, seconds=2.0)
    slow, broken = made.records("test")
    assert made.verify(slow, answer("def f(x):\n    while True: pass")).reason is Reason.TIMEOUT
    assert made.verify(broken, answer("def f(x): return 2 * x")).reason is Reason.ERROR
    assert nothing_stays(mark)


def test_without_a_sandbox_the_task_says_so_and_no_answer_is_wrong(tmp_path, monkeypatch):
    sandbox.require_sandbox.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    for made in (Code(), Programs()):
        with pytest.raises(sandbox.SandboxError, match="install bubblewrap"):
            made.check()
        record = made.records("test")[0]
        assert made.verify(record, made.demonstration(record)).reason is Reason.ERROR
    with pytest.raises(ValueError, match=r"^seconds=0\.0: a program has"):
        Code(seconds=0.0)


FORGED = [
    "exits when called",
    "int that equals all",
    "patches the tests",
    "writes to all descriptors",
    "raises StopIteration",
]


@needs_bwrap
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_answer_is_wrong(tmp_path, name):
    made = task(tmp_path, DOUBLE, seconds=20.0)
    assert made.verify(made.records("test")[0], answer(PROGRAMS[name])).reason is Reason.WRONG


@needs_bwrap
@pytest.mark.slow
@pytest.mark.parametrize("line", [DOUBLE, DOUBLE_PLUS], ids=["assertions", "inputs"])
def test_hostile_answers_all_at_once_are_contained_and_none_is_right(tmp_path, mark, line):
    made = task(tmp_path, line, seconds=6.0)
    (record,) = made.records("test")
    assert len(PROGRAMS) >= 60

    def verdict(name):
        return name, made.verify(record, answer(f"def f(x): return 0\n{PROGRAMS[name]}")).reason

    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(64) as threads:
        reasons = dict(threads.map(verdict, PROGRAMS))
    # Tests begin within 6 s and end within 6 more; the rest is for two busy cores to start and end 130 sandboxes.
    assert time.monotonic() - begun < 45
    assert {
        name: reason for name, reason in reasons.items() if reason not in (Reason.WRONG, Reason.TIMEOUT)
    } == {}
    assert nothing_stays(mark)
    assert not [
        place for place in ("/x", "/job.json", "/sandboxed.py", "/tmp/hostile") if os.path.exists(place)
    ]
    assert made.verify(record, answer("def f(x): return 2 * x")).reason is Reason.CORRECT


# ---------------------------------------------------------------------------------------------------------------- programs

SUM = {
    "id": "sum",
    "prompt": "Add the numbers.",
    "tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "5 -7", "output": "-2"}],
    "time_limit_s": 20.0,
}


@pytest.mark.parametrize(
    "given, expected, same",
    [
        ("1 2\n3", "1 2 3\n", True),
        ("  1\t2 ", "1 2", True),
        ("1 2", "1 2 3", False),
        ("1 2 3", "1 2", False),
        ("", "", True),
        ("YES", "Yes", False),
        ("0.3333333", "0.33333333", True),
        ("0.3334", "0.33333333", False),
        ("1", "1.0", True),
        ("1.0", "1", False),
        ("nan", "1.5", False),
        ("x", "1.5", False),
        ("1e9", "1000000000", False),
    ],
)
def test_outputs_are_compared_word_by_word(given, expected, same):
    assert same_output(given, expected) is same


@needs_bwrap
@pytest.mark.parametrize(
    "text, reason",
    [
        (answer("print(sum(map(int, input().split())))"), Reason.CORRECT),
        ("```\nx = 1\n```\n" + answer("print(sum(map(int, open(0).read().split())))"), Reason.CORRECT),
        (answer("print(3)"), Reason.WRONG),
        (answer("print(sum(map(int, input().split())))\nraise SystemExit(1)"), Reason.WRONG),
        (answer("while True: print(3)"), Reason.WRONG),
        (answer("print(3)\nprint(-2)\nprint('passed')"), Reason.WRONG),
        ("print(3)", Reason.UNPARSABLE),
        (answer(""), Reason.UNPARSABLE),
        ("```cpp\nint main() {}\n```", Reason.UNPARSABLE),
    ],
)
def test_a_program_is_judged_by_what_it_prints(tmp_path, text, reason):
    made = task(tmp_path, SUM, kind=Programs, seconds=30.0)
    (record,) = made.records("test")
    assert made.verify(record, text).reason is reason


@needs_bwrap
def test_a_program_has_the_time_of_its_record(tmp_path):
    made = task(tmp_path, SUM | {"time_limit_s": 1.0}, kind=Programs, seconds=30.0)
    begun = time.monotonic()
    assert made.verify(made.records("test")[0], answer("while True: pass")).reason is Reason.TIMEOUT
    assert time.monotonic() - begun < 10


def test_records_that_comparing_cannot_judge_are_left_out(tmp_path):
    many = SUM | {"id": "many", "may_have_many_answers": True}
    assert [record["id"] for record in task(tmp_path, many, SUM, kind=Programs).records("test")] == ["sum"]
    with pytest.raises(RecordError) as error:
        task(tmp_path, SUM | {"tests": [{"input": 3}]}, kind=Programs).records("test")
    assert str(error.value) == (
        f"{tmp_path}/test.jsonl, line 1: field 'tests' has to be a list of objects with the texts 'input' and 'output', at least one."
    )


# -------------------------------------------------------------------------------------------------------------- acceptance

TOO_MUCH = {
    # 79,079 tuples of 76 and more: lines of over 30 MB, and one may have 16 (`code_inside.LONGEST_LINE`).
    "Mbpp/255": lambda colours, size: size > 70,
    # Sums of up to 100,000,007 numbers, one by one: half a minute for the tests, and as much for the answer.
    "Mbpp/599": lambda number: number > 10_000_000,
}
"""Inputs of EvalPlus on which the published solution itself is too slow, or its value too large: by problem, which."""


def unsolved(made, records):
    """The solutions that are not judged right, and what they are judged."""
    records = [
        record | {"inputs": [args for args in record["inputs"] if not TOO_MUCH[record["id"]](*decode(args))]}
        if record["id"] in TOO_MUCH
        else record
        for record in records
    ]
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        verdicts = threads.map(lambda record: made.verify(record, made.demonstration(record)), records)
        return {r["id"]: v.reason for r, v in zip(records, verdicts, strict=True) if not v.correct}


@needs_bwrap
@pytest.mark.slow
def test_all_solutions_of_the_samples_are_right():
    made = Programs(seconds=30.0)
    assert unsolved(made, [*made.records("train"), *made.records("test")]) == {}
    completing = Code(form="completion", seconds=20.0)
    assert unsolved(completing, completing.records("test")) == {}


@needs_bwrap
@pytest.mark.slow
@pytest.mark.parametrize(
    "file, count",
    [
        ("humaneval/humaneval.jsonl", 164),
        ("mbpp/sanitized.jsonl", 427),
        ("humaneval_plus/humaneval_plus.jsonl.gz", 164),
        ("mbpp_plus/mbpp_plus.jsonl.gz", 378),
    ],
)
def test_all_published_solutions_are_right(shared, tmp_path, file, count):
    source = shared / "data" / file
    (tmp_path / source.name.replace(source.name.partition(".")[0], "test")).symlink_to(source)
    made = Code(path=str(tmp_path), seconds=60.0)  # HumanEval/139 takes four, alone on a core
    records = made.records("test")
    assert len(records) == count
    assert unsolved(made, records) == {}
