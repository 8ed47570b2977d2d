"""A part of an objective as data: its docstring taken apart, its constants with their standing, its state.

Nothing is written twice: equations are the indented blocks of a docstring, what it says behind `Reference:` and
`Deviations:` is the source, and state is what `init` gives.
"""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import types
import typing
from typing import Any

import jax

from rlvr_jax.objective.base import Part, Stage
from rlvr_jax.types import BatchSpec

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
_LABEL = re.compile(r"(?:^|(?<=[.)] ))(Reference|Deviations)(?: from the paper)?: ")

_SPEC = BatchSpec(groups=1009, group_size=1013, length=1019, num_prompts=1021)
_SYMBOLS = {1009: "P", 1013: "G", 1009 * 1013: "B", 1019: "T", 1021: "num_prompts"}
"""Sizes that no state has for another reason, so that a shape can be read back in symbols."""


@dataclasses.dataclass(frozen=True)
class Docstring:
    """One line, the equations (a line each), and what is said beside the reference and the deviations."""

    summary: str
    equation: str
    text: str
    reference: str
    deviations: str


def parse(cls: type) -> Docstring:
    """The docstring of a part."""
    found: dict[str, list[str]] = {"": [], "Reference": [], "Deviations": []}
    equations = []
    for number, paragraph in enumerate(re.split(r"\n\s*\n", inspect.getdoc(cls) or "")):
        lines = paragraph.splitlines()
        if number and all(line.startswith("    ") for line in lines):
            equations.append(textwrap.dedent(paragraph))
            continue
        said, *labelled = _LABEL.split(" ".join(line.strip() for line in lines))
        found[""].append(said.strip())
        for label, text in zip(labelled[::2], labelled[1::2], strict=True):
            found[label].append(text.strip())
    summary, *rest = found[""]
    return Docstring(
        summary=summary,
        equation="\n".join(equations),
        text=" ".join(filter(None, rest)),
        reference=" ".join(found["Reference"]),
        deviations=" ".join(found["Deviations"]),
    )


def constants(part: Part) -> list[dict[str, Any]]:
    """Each field: its value, where that comes from, why, and what the field means."""
    meanings = _meanings(type(part))
    out = []
    for field in dataclasses.fields(part):  # type: ignore[arg-type]
        value = getattr(part, field.name)
        standing, why = str(field.metadata.get("standing", "")), field.metadata.get("why", "")
        if value != field.default:
            known = f" [{': '.join(filter(None, (standing, why)))}]" if standing else ""
            standing, why = "set by the preset", f"the stage's default is {show(field.default)}{known}"
        meaning = meanings.get(field.name, "")
        out.append({"name": field.name, "value": value, "standing": standing, "why": why, "meaning": meaning})
    return out


def _meanings(cls: type) -> dict[str, str]:
    """Docstrings of fields, which only the source has: a string that follows the field."""
    try:
        (body,) = (n.body for n in ast.parse(textwrap.dedent(inspect.getsource(cls))).body)  # type: ignore[attr-defined]
    except (OSError, TypeError):  # a class that was typed in
        return {}
    return {
        field.target.id: " ".join(str(ast.literal_eval(doc.value)).split())
        for field, doc in zip(body, body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
    }


def state(part: Part) -> list[dict[str, str]]:
    """Leaves of a stage's state, shapes in symbols: B = P * G rows of T tokens, and the prompts of the data set."""
    if not isinstance(part, Stage):
        return []
    leaves = jax.tree_util.tree_leaves_with_path(jax.eval_shape(lambda: part.init(_SPEC)))
    return [
        {
            "name": jax.tree_util.keystr(path, simple=True, separator="/") or part.name,
            "shape": f"[{', '.join(str(_SYMBOLS.get(n, n)) for n in leaf.shape)}]",
            "dtype": str(leaf.dtype),
        }
        for path, leaf in leaves
    ]


def function(cls: type) -> str:
    """The signature of the pure function that a docstring names, its arrays with their axes; "" where there is none."""
    module = sys.modules[cls.__module__]
    for name in re.findall(r"`(\w+)`", inspect.getdoc(cls) or ""):
        found = getattr(module, name, None)
        if isinstance(found, types.FunctionType):
            return f"{name}{_signature(inspect.signature(found))}"
    return ""


def _signature(signature: inspect.Signature) -> str:
    shown, star = [], False
    for argument in signature.parameters.values():
        if argument.kind is argument.KEYWORD_ONLY and not star:
            shown, star = [*shown, "*"], True
        default = "" if argument.default is argument.empty else f"={show(argument.default)}"
        shown.append(f"{argument.name}{_axes(argument.annotation)}{default}")
    return f"({', '.join(shown)}) ->{_axes(signature.return_annotation)}"


def _axes(annotation: Any) -> str:
    """` [B, T]` of `Float[Array, "B T"]`, ` ([B], [P, 3])` of a tuple, nothing of a number."""
    if typing.get_origin(annotation) is tuple:
        return f" ({', '.join(_axes(a).strip() for a in typing.get_args(annotation))})"
    named = [getattr(a, "dim_str", None) for a in (annotation, *typing.get_args(annotation))]
    return next((f" [{', '.join(n.split())}]" for n in named if n is not None), "")


def show(value: Any) -> str:
    """A value as one writes it: 1e-6, not 1e-06."""
    return re.sub(r"e([+-])0+(\d)", r"e\1\2", repr(value)).replace("e+", "e")
