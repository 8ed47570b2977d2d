"""`rlvr-jax study`: compute what is not there yet, conclude, and write all of it down."""

import dataclasses
import importlib.metadata
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import yaml
from rich.console import Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rlvr_jax import registry
from rlvr_jax.configfile import read
from rlvr_jax.studies import categorical, tail_miss  # noqa: F401  (registers them)
from rlvr_jax.studies.study import Found, Statement, Study
from rlvr_jax.train.rundir import differences, write_whole

FOLDER = pathlib.Path("configs/studies")
PACKAGES = ("jax", "jaxlib", "numpy", "optax", "rlvr_jax")
CELLS, RESULT, PAGE, PICTURE = "cells.jsonl", "result.json", "README.md", "figure.png"


def named(name: str, quick: bool) -> list[tuple[pathlib.Path, Study]]:
    """The study of a file, or that of configs/studies/NAME.yaml; `all`: those of all files there.

    A file has the fields of its study, and under `quick` those that are otherwise with --quick. Raises ValueError for what is
    no study.
    """
    if name == "all":
        paths = sorted(FOLDER.glob("*.yaml"))
        if not paths:
            raise ValueError(f"there is no study in {FOLDER}: run this in a checkout of the project.")
    else:
        paths = [path if (path := pathlib.Path(name)).suffix == ".yaml" else FOLDER / f"{name}.yaml"]
    return [(path, _study(path, quick)) for path in paths]


def _study(path: pathlib.Path, quick: bool) -> Study:
    fields = dict(read(path))
    less = fields.pop("quick", None) or {}
    if "study" not in fields:
        raise ValueError(
            f"{path} does not say which study it is: study: {' or '.join(registry.names('study'))}."
        )
    return registry.build("study", fields.pop("study"), **(fields | less if quick else fields))


def run(study: Study, folder: pathlib.Path, command: str, progress: Progress) -> dict[str, Any]:
    """The result, from cells that are in the folder already and those that are computed now.

    Raises ValueError where the folder holds a study with other fields.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fields, kept = json.loads(json.dumps(dataclasses.asdict(cast(Any, study)))), folder / "study.yaml"
    if kept.is_file():
        others = differences(yaml.safe_load(kept.read_text())["fields"], fields)
        if others:
            words = "; ".join(f"{key}: {was} there, {now} now" for key, (was, now) in others.items())
            raise ValueError(f"{folder} holds this study with other fields ({words}): choose another --out.")
    write_whole(kept, yaml.safe_dump({"study": study.name, "fields": fields}))
    cells, found = study.cells(), dict(_kept(folder / CELLS))
    task = progress.add_task(study.name, total=len(cells), completed=sum(c.name in found for c in cells))
    with (folder / CELLS).open("a", encoding="utf-8") as file:
        for cell in cells:
            if cell.name not in found:
                found[cell.name] = json.loads(json.dumps(study.compute(cell)))
                file.write(json.dumps({"cell": cell.name, **found[cell.name]}) + "\n")
                file.flush()
                progress.advance(task)
    found = {cell.name: found[cell.name] for cell in cells}
    result = {
        "study": study.name,
        "title": study.title,
        "command": command,
        "fields": fields,
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "statements": [dataclasses.asdict(s) for s in study.conclude(found)],
        "table": study.table(found),
        "cells": found,
    }
    write_whole(folder / RESULT, json.dumps(result, indent=1) + "\n")
    write_whole(folder / PAGE, page(result))
    _draw(study, found, folder / PICTURE)
    return result


def _kept(path: pathlib.Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Cells that are there. A line that a kill has cut short is dropped, from the file too, and computed again."""
    if not path.is_file():
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines = lines[:-1]
        write_whole(path, "".join(lines))
    for line in lines:
        record = json.loads(line)
        yield record.pop("cell"), record


def _draw(study: Study, found: Found, path: pathlib.Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(study.title)
    study.plot(found, figure)
    figure.savefig(path, dpi=110)


def page(result: dict[str, Any]) -> str:
    """A result in Markdown."""
    lines = [f"# {result['title']}", "", f"`{result['command']}`", ""]
    for each in (Statement(**s) for s in result["statements"]):
        p = "" if each.p_value is None else f" (p = {each.p_value:.2g})"
        lines += [f"**{each.claim}** {each.source}", "", f"- paper: {each.paper}", f"- ours: {each.ours}{p}"]
        lines += [f"- verdict: **{each.verdict}**; {each.rule}", ""]
    heads, *rows = result["table"]
    lines += [f"![{result['title']}]({PICTURE})", ""]
    lines += [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(lines) + "\n"


def report(result: dict[str, Any]) -> Group:
    """A result for a terminal."""
    table = Table("claim", "paper", "ours", "verdict", title=result["title"], show_lines=True)
    for each in result["statements"]:
        table.add_row(each["claim"], each["paper"], each["ours"], each["verdict"])
    heads, *rows = result["table"]
    figures = Table(*heads)
    for row in rows:
        figures.add_row(*row)
    return Group(figures, table)


def study(
    name: str, out: pathlib.Path, quick: bool, say: Callable[[Group], None], console: Any
) -> list[dict[str, Any]]:
    """Run the studies of a name, each in a folder of its own under `out`; their results."""
    chosen = named(name, quick)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    results = []
    with Progress(*columns, console=console) as progress:
        for path, each in chosen:
            command = (
                f"rlvr-jax study {path if name.endswith('.yaml') else path.stem}{' --quick' if quick else ''}"
            )
            results.append(run(each, out / path.stem, command, progress))
            say(report(results[-1]))
    return results
