"""Objectives for people to read: the presets, the pipeline of one, and docs/methods.md with all there is.

python -m rlvr_jax.objective.describe > docs/methods.md        (`make docs`)
"""

import dataclasses
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from rlvr_jax import registry
from rlvr_jax.objective import docstrings
from rlvr_jax.objective.base import Part
from rlvr_jax.objective.docstrings import ARXIV, show
from rlvr_jax.objective.objective import Objective
from rlvr_jax.objective.presets import PLURAL, PRESETS, SOURCES, preset

WIDTH = 100
"""Columns of the text."""

TITLES = {
    "1707.06347": "Proximal Policy Optimization Algorithms",
    "1802.01561": "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
    "1912.09729": "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning",
    "2203.02155": "Training language models to follow instructions with human feedback",
    "2402.03300": "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
    "2402.14740": "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
    "2501.03262": "REINFORCE++",
    "2503.14476": "DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
    "2503.20783": "Understanding R1-Zero-Like Training: A Critical Perspective",
    "2505.12929": "Do Not Let Low-Probability Tokens Over-Dominate in RL for LLMs",
    "2505.19590": "Learning to Reason without External Rewards",
    "2505.22660": "Maximizing Confidence Alone Improves Reasoning",
    "2506.01939": "Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning for LLM Reasoning",
    "2506.13585": "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention",
    "2507.18071": "Group Sequence Policy Optimization",
    "2509.02333": "DCPO: Dynamic Clipping Policy Optimization",
    "2511.00066": "Sharpness-Guided Group Relative Policy Optimization via Probability Shaping",
    "2602.06717": "F-GRPO: Don't Let Your Policy Learn the Obvious and Forget the Rare",
    "2605.21125": "Advantage Collapse in Group Relative Policy Optimization: Diagnosis and Mitigation",
    "2607.26862": "ReCo",
}
"""arXiv id -> title of each paper that a preset or a stage cites."""


@dataclasses.dataclass(frozen=True)
class Description:
    """The same content as text and as plain data."""

    text: str
    data: Any


def listing() -> Description:
    """Every preset: a line of text with its source; as data its stages as well."""
    width = max(map(len, PRESETS))
    data = [
        {
            "name": name,
            "source": SOURCES[name],
            "arxiv": ARXIV.findall(SOURCES[name]),
            "stages": [
                {
                    "slot": slot(part),
                    "name": part.name,
                    "fields": _fields(part),
                    "sources": ARXIV.findall(docstrings.parse(type(part)).reference),
                }
                for part in objective.parts
            ],
        }
        for name, objective in PRESETS.items()
    ]
    return Description(text="\n".join(f"{name:<{width}}  {SOURCES[name]}" for name in PRESETS), data=data)


def describe(name: str) -> Description:
    """The pipeline of one preset in the order in which it runs: each stage with all that is known about it.

    Raises ValueError for a name that is no preset's, with the nearest.
    """
    objective = preset(name)
    stages = [entry(part) for part in objective.parts]
    reads, notes = _stats(objective), list(objective.notes)
    lines = [*_wrapped(f"{name}: {SOURCES[name]}", after="    ")]
    for stage in stages:
        lines += ["", *_stage_lines(stage)]
    lines += ["", f"reads: {', '.join(reads)}"]
    for note in notes:
        lines += _wrapped(f"note: {note}", after="    ")
    data = {
        "name": name,
        "source": SOURCES[name],
        "arxiv": ARXIV.findall(SOURCES[name]),
        "stages": stages,
        "reads": reads,
        "notes": notes,
    }
    return Description(text="\n".join(lines), data=data)


def entry(part: Part) -> dict[str, Any]:
    """All that is known about a part, as plain data."""
    doc = docstrings.parse(type(part))
    return {
        "slot": slot(part),
        "name": part.name,
        "summary": doc.summary,
        "equation": doc.equation,
        "function": docstrings.function(type(part)),
        "text": doc.text,
        "constants": docstrings.constants(part),
        "sources": ARXIV.findall(doc.reference),
        "reference": doc.reference,
        "deviations": doc.deviations,
        "reads": _stats(part),
        "state": docstrings.state(part),
        "note": part.note,
    }


def slot(part: Part) -> str:
    """What a config calls the slot of a part."""
    return next((key for key, value in PLURAL.items() if value == part.slot), part.slot)


def _fields(part: Part) -> dict[str, Any]:
    return dataclasses.asdict(part)  # type: ignore[call-overload]


def _stats(reader: Part | Objective) -> list[str]:
    return sorted(f"{which}.{stat}" for which, stat in reader.needs)


def _standing(constant: dict[str, Any]) -> str:
    """`paper: section 4.1`"""
    return ": ".join(filter(None, (constant["standing"], constant["why"])))


def _state(stage: dict[str, Any]) -> list[str]:
    return [f"{leaf['name']} {leaf['shape']} {leaf['dtype']}" for leaf in stage["state"]]


def _wrapped(text: str, first: str = "", after: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=after,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _stage_lines(stage: dict[str, Any]) -> Iterator[str]:
    yield f"{stage['slot']}: {stage['name']}"
    yield from _wrapped(stage["summary"], "  ", "  ")
    yield from ("", *(f"      {line}".rstrip() for line in stage["equation"].splitlines()), "")
    if stage["text"]:
        yield from (*_wrapped(stage["text"], "  ", "  "), "")
    told = [f"{c['name']} = {show(c['value'])} ({_standing(c)})" for c in stage["constants"]]
    for label, entries in (
        ("constants", told),
        ("source", [stage["reference"]]),
        ("deviations", [stage["deviations"]]),
        ("reads", [", ".join(stage["reads"])]),
        ("state", _state(stage)),
    ):
        for i, text in enumerate(filter(None, entries)):
            yield from _wrapped(
                text, f"  {'' if i else label:<12}", " " * (16 if label == "constants" else 14)
            )


def methods() -> str:
    """docs/methods.md: an index of the papers, the presets, and every stage of the package."""
    kinds = [PLURAL.get(field.name, field.name) for field in dataclasses.fields(Objective)]
    classes = [registry.lookup(kind, name) for kind in kinds for name in registry.names(kind)]
    stages = [entry(cls()) for cls in classes if cls.__module__.startswith("rlvr_jax.")]
    sections = [_PREFACE, *_index(stages), "## Presets", *map(_preset_section, PRESETS), "## Stages"]
    sections += [_stage_section(stage) for stage in stages]
    return "\n\n".join(sections) + "\n"


_PREFACE = """# Methods

Written by `make docs` from the docstrings of `rlvr_jax/objective/`; `rlvr-jax variants NAME` shows the same for one preset.

An objective is a row of slots, here in the order in which they run. Every constant has a standing:

- **paper**: the cited paper, or its authors' code, states it;
- **reported**: the method's by the word of a third party, who is named;
- **our proposal**: no source of the method gives it.

Symbols: B rows (responses) in P groups of G, T tokens; sg stops the gradient; a state's `num_prompts` is the size of the
data set. Statistics are read from a forward pass: `sampler` (while sampling), `old` (before the update), `ref` (the
reference model) or `new` (in the update)."""


def _index(stages: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "## Papers"
    rows = []
    for paper in sorted(
        {p for s in stages for p in s["sources"]} | {p for s in SOURCES.values() for p in ARXIV.findall(s)}
    ):
        named = [f"[`{name}`](#{name})" for name in PRESETS if paper in ARXIV.findall(SOURCES[name])]
        own = [_link(stage) for stage in stages if paper in stage["sources"]]
        rows.append((_linked(f"arXiv:{paper}"), TITLES.get(paper, ""), ", ".join(named), ", ".join(own)))
    yield _table(("paper", "title", "presets", "stages"), rows)


def _preset_section(name: str) -> str:
    rows = []
    for part in PRESETS[name].parts:
        values = ", ".join(f"{key} = {show(value)}" for key, value in _fields(part).items())
        rows.append((slot(part), f"[`{part.name}`](#{slot(part)}-{part.name})", values))
    return f"### {name}\n\n{_linked(SOURCES[name])}\n\n{_table(('slot', 'stage', 'constants'), rows)}"


def _stage_section(stage: dict[str, Any]) -> str:
    users = [
        f"[`{name}`](#{name})"
        for name, objective in PRESETS.items()
        if any((slot(part), part.name) == (stage["slot"], stage["name"]) for part in objective.parts)
    ]
    constants = [(f"`{c['name']}`", show(c["value"]), _standing(c), c["meaning"]) for c in stage["constants"]]
    blocks = [
        f"### {stage['slot']} {stage['name']}",
        stage["summary"],
        f"```\n{stage['equation']}\n```",
        stage["function"] and f"As a function: `{stage['function']}`",
        stage["text"],
        _table(("constant", "default", "standing", "meaning"), constants) if constants else "",
        "\n".join(
            f"- {label}: {text}"
            for label, text in (
                ("Reference", _linked(stage["reference"])),
                ("Deviations", stage["deviations"]),
                ("Reads", ", ".join(f"`{stat}`" for stat in stage["reads"])),
                ("State", ", ".join(f"`{leaf}`" for leaf in _state(stage))),
                ("Note", stage["note"]),
                ("Presets", ", ".join(users) or "none; for compositions of your own"),
            )
            if text
        ),
    ]
    return "\n\n".join(filter(None, blocks))


def _link(stage: dict[str, Any]) -> str:
    return f"[{stage['slot']} `{stage['name']}`](#{stage['slot']}-{stage['name']})"


def _linked(text: str) -> str:
    return ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([re.sub(r"\|", r"\\|", cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(methods(), end="")
