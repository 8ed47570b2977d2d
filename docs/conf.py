"""The docs as a static site, by Sphinx: `make docs` builds it, and the slightest warning fails.

Pages are Markdown; the notebooks are shown as they were run; options and API come from the docstrings. What the site says of
configs and tasks, it reads from them when it is built. It loads nothing from elsewhere.
"""

import pathlib
import re

import rlvr_jax.tasks  # noqa: F401  (registers every task)
from rlvr_jax import registry
from rlvr_jax.objective.base import Part
from rlvr_jax.train.advice import RULES

ROOT = pathlib.Path(__file__).resolve().parents[1]


project, author, language = "rlvr_jax", "the authors of rlvr_jax", "en"
project_copyright = "the authors of rlvr_jax, Apache-2.0"
extensions = ["myst_nb", "sphinx.ext.autodoc"]
exclude_patterns = ["**/.ipynb_checkpoints"]
html_theme = "furo"
html_title = "rlvr_jax"
html_copy_source = False
html_static_path, html_css_files = ["static"], ["site.css"]

source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
nb_execution_mode = "off"  # a test runs them; here stands what is in the repository
myst_enable_extensions = ["colon_fence", "substitution"]
myst_heading_anchors = 3  # as GitHub makes them

nitpicky = True  # a reference that leads nowhere is a warning
nitpick_ignore_regex = [("py:.*", ".*")]  # but for types in signatures, most of which are other packages'

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
add_module_names = False
default_role = "literal"


def header(config: pathlib.Path) -> dict[str, str]:
    """The comment on top of a config, by its parts: `about`, and what stands behind `Expected:` and `Planned`."""
    lines = []
    for line in config.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#"))
    prose = " ".join(line.strip() for line in lines if not line.startswith("   "))  # commands are indented
    parts = re.split(r"\b(Expected:|Planned\b)", prose)
    found = {"about": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))
    return {label: " ".join(text.split()) for label, text in found.items()}


def recipes() -> str:
    """The configs of the papers, by what their headers say."""
    found = []
    for config in sorted((ROOT / "configs" / "papers").glob("*.yaml")):
        said = header(config)
        told = [f"{label} {said[label]}" for label in ("Expected:", "Planned") if label in said]
        found += [f"**`{config.relative_to(ROOT)}`**", said["about"], "\n".join(f"- {line}" for line in told)]
    return "\n\n".join(found) or "There is none yet."


def tasks() -> str:
    """Every task, by the first paragraph of its docstring."""
    docs = {name: registry.lookup("task", name).__doc__ or "" for name in registry.names("task")}
    return "\n".join(
        f"- `{name}`: {' '.join(doc.split(chr(10) * 2)[0].split())}" for name, doc in docs.items()
    )


def warnings() -> str:
    """What a run warns of, by `train/advice.py`."""
    rows = [(f"`{rule.name}`", rule.limit, ", ".join(f"`{name}`" for name in rule.reads)) for rule in RULES]
    head = [("warning", "from", "figures in metrics.jsonl"), ("---",) * 3]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [*head, *rows])


myst_substitutions = {"recipes": recipes(), "tasks": tasks(), "warnings": warnings()}


def as_rest(app, what, name, obj, options, lines: list[str]) -> None:
    """Docstrings are plain text with `code` and indented equations: reStructuredText has other signs for both."""
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines))
    for place, paragraph in enumerate(paragraphs):
        if all(line.startswith("    ") for line in paragraph.splitlines()) and place:
            paragraphs[place] = f"::\n\n{paragraph}"
        else:
            pieces = paragraph.split("`")  # every second one is code
            pieces[::2] = [re.sub(r"([*_|\\])", r"\\\1", text) for text in pieces[::2]]
            pieces[1::2] = [f"``{code}``" for code in pieces[1::2]]
            paragraphs[place] = "".join(pieces)
    lines[:] = "\n\n".join(paragraphs).split("\n")


def is_shown_elsewhere(app, what, name, obj, skip, options) -> bool | None:
    """Stages have all of the page of methods."""
    return True if isinstance(obj, type) and issubclass(obj, Part) else None


def setup(app) -> None:
    app.connect("autodoc-process-docstring", as_rest)
