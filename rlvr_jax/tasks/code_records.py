"""Coding problems with tests, in the forms in which they are published, as records of one form.

- HumanEval: `prompt` (the head of a function), `entry_point`, `test` (source that defines `check`), and perhaps
  `canonical_solution` (the function's body);
- MBPP: `prompt` (in words), `code` (a solution), `test_list` (assertions), and perhaps `test_imports`;
- EvalPlus, of either: `prompt`, `entry_point`, `canonical_solution`, `base_input` and `plus_input` (lists of arguments),
  `atol`, and of MBPP `assertion`. The solution says what is right on each input.
"""

import ast
import re
import warnings
from collections.abc import Iterable
from typing import Any

from rlvr_jax.tasks.base import Split
from rlvr_jax.tasks.code_inside import encode
from rlvr_jax.tasks.records import RecordError

FORMS = {
    "test": ("entry_point", "test"),
    "test_list": ("code", "test_list"),
    "base_input": ("entry_point", "canonical_solution", "base_input", "plus_input"),
}
"""The field by which a form is known, and those that it has to have."""

ROOT_OF_POLYNOMIAL = {"find_zero": "poly"}
"""Functions with many right values: one is right where this function of the problem is 0 there."""


def read_record(split: Split, index: int, where: str, line: dict[str, Any]) -> dict[str, Any]:
    """A line as a record.

        id, prompt                 what is asked, in words and code
        head                       the code that a bare completion continues; "" where there is none
        names                      what the answer has to define, the function that is asked for first
        setup, tests               source that the tests need, and the tests
        inputs, atol, zero         lists of arguments, encoded; absolute tolerance of floats; see `code_inside.tests`
        solution                   source of a right answer, without the head; "" where the line has none

    Raises: RecordError for a line of no known form, and for tests that are not Python or test nothing.
    """
    form = next((form for form in FORMS if form in line), None)
    if form is None:
        raise RecordError(
            f"{where}: a problem has tests in one of the fields {', '.join(FORMS)}; this has none."
        )
    for field in FORMS[form]:
        if field not in line:
            raise RecordError(f"{where}: field {field!r} is missing, which a problem with {form!r} has.")
    record = {"id": str(line.get("id", line.get("task_id", f"code-{split}-{index}")))}
    try:
        with warnings.catch_warnings(
            action="ignore"
        ):  # of escapes such as "\\w", which published solutions have
            record |= {"test": _humaneval, "test_list": _mbpp, "base_input": _plus}[form](line)
            for field in ("setup", "tests"):
                compile(record[field], field, "exec")
    except (SyntaxError, ValueError, TypeError, AttributeError) as error:
        raise RecordError(f"{where}: the tests cannot be read: {error}") from error
    if not record["names"] or not (record["tests"].strip() or record["inputs"]):
        raise RecordError(f"{where}: no test calls a function that the answer has to define.")
    return {"inputs": [], "atol": 0.0, "zero": ""} | record


def _in_words(code: str) -> str:
    return f"Complete this function:\n\n```python\n{code.strip()}\n```"


def _humaneval(line: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt": _in_words(line["prompt"]),
        "head": line["prompt"],
        "names": [line["entry_point"]],
        "setup": f"{line['prompt']}\n{line['test']}",
        "tests": "check(candidate)",
        "solution": line.get("canonical_solution", ""),
    }


def _mbpp(line: dict[str, Any]) -> dict[str, Any]:
    tests = list(line["test_list"])
    # What the tests use and the solution defines is asked for; what else it defines or imports, the tests may use too.
    defined = [node.name for node in ast.parse(line["code"]).body if isinstance(node, ast.FunctionDef)]
    used = _names("\n".join(tests))
    return {
        "prompt": f"{line['prompt']}\n\nIt has to pass this test:\n\n```python\n{tests[0]}\n```",
        "head": "",
        "names": sorted((name for name in defined if name in used), key=used.index),
        "setup": "\n".join([*line.get("test_imports", ()), line["code"]]),
        "tests": "\n".join(tests),
        "solution": line["code"],
    }


def _plus(line: dict[str, Any]) -> dict[str, Any]:
    name, prompt = line["entry_point"], line["prompt"]
    is_head = re.search(rf"^def {name}\b", prompt, re.MULTILINE) is not None
    head = prompt if is_head else ""
    shapes = list(_arguments(line.get("assertion", ""), name))
    model = max(shapes, key=lambda shape: len(repr(shape)), default=[])
    inputs = [_restored(arguments) for arguments in (*line["base_input"], *line["plus_input"])]
    return {
        "prompt": _in_words(prompt)
        if is_head
        else prompt.strip().removeprefix('"""').removesuffix('"""').strip(),
        "head": head,
        "names": [name],
        "setup": head + line["canonical_solution"],
        "tests": "",
        "inputs": [encode(shaped(arguments, model)) for arguments in inputs],
        "atol": float(line.get("atol", 0.0)),
        "zero": ROOT_OF_POLYNOMIAL.get(name, ""),
        "solution": line["canonical_solution"],
    }


def _names(source: str) -> list[str]:
    """Names of a source in the order of their first use."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    return [node.id for node in sorted(found, key=lambda node: (node.lineno, node.col_offset))]


def _arguments(assertions: str, name: str) -> Iterable[list[Any]]:
    """The arguments of each call of a function in a source, where they are literals."""
    for node in ast.walk(ast.parse(assertions)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            try:
                yield [ast.literal_eval(argument) for argument in node.args]
            except ValueError:
                continue


def _restored(value: Any) -> Any:
    """With the floats that JSON cannot hold, which stand there as {"__float__": "inf"}."""
    if isinstance(value, dict):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        return {key: _restored(each) for key, each in value.items()}
    return [_restored(each) for each in value] if isinstance(value, list) else value


def shaped(value: Any, like: Any, around: Any = None) -> Any:
    """`value`, read from JSON, with the tuples, sets, complex numbers and keys that are not text of its model `like`.

    Elements that the model does not have follow its last one, and lists that it does not have the one `around` it.
    """
    if isinstance(value, str) and isinstance(like, int | float | complex):
        try:
            return complex(value) if "j" in value else ast.literal_eval(value)
        except (ValueError, SyntaxError):
            return value
    if isinstance(value, dict) and isinstance(like, dict) and like:
        key, inner = next(iter(like.items()))
        read = str if isinstance(key, str) else ast.literal_eval
        return {read(k): shaped(each, inner, like) for k, each in value.items()}
    if not isinstance(value, list):
        return value
    like = like if isinstance(like, list | tuple | set | frozenset) else around
    if not isinstance(like, list | tuple | set | frozenset):
        return value
    models = list(like) or [None]
    models += models[-1:] * (len(value) - len(models))
    return type(like)(shaped(each, model, like) for each, model in zip(value, models, strict=False))
