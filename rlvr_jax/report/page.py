"""The page: sections of figures, answers and tables, as one HTML file that asks for nothing outside itself."""

import dataclasses
import importlib.resources
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from rlvr_jax.report import answers, maps
from rlvr_jax.report.curves import Panel, curve, gradient_norm, pass_over_k, pass_over_steps
from rlvr_jax.report.figures import Figure, colour
from rlvr_jax.report.heads import head
from rlvr_jax.report.runs import Band, RunData, bands, configs_apart, read_runs
from rlvr_jax.train.rundir import differences, write_whole

REPORT = "report.html"
MOST_BANDS = 4
"""Bands that have maps of their own, each of its first run."""
AT_ONCE = 100e6
"""Bytes of rollouts.jsonl that are read within two or three seconds."""

REWARDS = (Panel("reward/mean", "Reward of the batch"), Panel("reward/correct", "Right answers", ".0%"))
COLLAPSE = (
    Panel("acr/all", "Groups with one reward (ACR)", ".0%"),
    Panel("acr/all_wrong", "Groups all wrong", ".0%"),
    Panel("acr/all_right", "Groups all right", ".0%"),
)
LENGTHS = (Panel("length/mean", "Tokens of an answer"), Panel("length/truncated", "Cut at the limit", ".1%"))
POLICY = (
    Panel("policy/entropy", "Entropy, nats a token"),
    Panel("policy/clip_fraction", "Tokens whose clip is in force", ".2%"),
    Panel("policy/kl_old", "KL to the old policy", ".2~e"),
    Panel("policy/kl_ref", "KL to the reference", ".2~e"),
    Panel("policy/kl_sampler", "KL to the sampler", ".2~e"),
)
OPTIMISER = (
    Panel("loss", "Loss"),
    Panel("advantage/magnitude", "Mean size of the credit"),
    Panel("optimizer/learning_rate", "Learning rate", ".2~e"),
)
SPEED = (
    Panel("time/step", "Seconds of a step"),
    Panel("time/tokens_per_second", "Sampled tokens a second", ".3~s"),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Section:
    """`lines` stand in the place of figures for which there are no data, or that would be flat."""

    name: str
    title: str
    figures: tuple[Figure, ...]
    lines: tuple[str, ...]


def write_report(paths: Sequence[pathlib.Path], output: pathlib.Path) -> None:
    """One HTML file about some runs, all or nothing. Raises ValueError for a directory that is no run."""
    page = render(read_runs(paths))
    output.parent.mkdir(parents=True, exist_ok=True)
    write_whole(output, page)


def is_quick(run_dir: pathlib.Path) -> bool:
    """Whether the report of a run is a matter of seconds."""
    rollouts = run_dir / "rollouts.jsonl"
    return not rollouts.exists() or rollouts.stat().st_size <= AT_ONCE


def sections(found: Sequence[Band]) -> tuple[Section, ...]:
    """All that is drawn, in the order of the page."""
    ks = sorted(
        {
            int(k)
            for band in found
            for run in band.runs
            for e in run.evaluations.values()
            for k in e["pass_at_k"]
        }
    )
    ends = dict.fromkeys([ks[0], ks[-1]]) if ks else ()
    shown = found[:MOST_BANDS]

    def curves(panels: Iterable[Panel]) -> list[Figure | str | None]:
        return [curve(found, panel) for panel in panels]

    def each(draw: Callable[[RunData, int], Figure | None]) -> list[Figure | None]:
        return [_titled(draw(band.runs[0], band.colour), len(found) > 1 and band) for band in shown]

    return (
        _section(
            "result",
            "Result",
            [*(pass_over_steps(found, k) for k in ends), *each(pass_over_k)],
            "no held-out evaluation: evaluation.prompts is 0, or none has been made yet",
        ),
        _section(
            "rewards", "Rewards", [*curves(REWARDS), *each(maps.reward_histograms), *each(maps.verdicts)]
        ),
        _section("collapse", "Collapse", [*each(maps.collapse_map), *curves(COLLAPSE)]),
        _section("length", "Length and truncation", [*curves(LENGTHS), *each(maps.lengths)]),
        _section("policy", "Policy", curves(POLICY)),
        _section("optimiser", "Optimiser", [gradient_norm(found), *curves(OPTIMISER)]),
        _section("time", "Time", [*each(maps.phase_times), *curves(SPEED if len(found) > 1 else SPEED[1:])]),
    )


def _titled(figure: Figure | None, band: Band | Literal[False]) -> Figure | None:
    """With the name of its run, where there are several."""
    if figure is None or not band:
        return figure
    return dataclasses.replace(figure, title=f"{figure.title}: {band.runs[0].name}")


def _section(
    name: str,
    title: str,
    found: Sequence[Figure | str | None],
    nothing: str = "no step has been written down yet",
) -> Section:
    figures = tuple(f for f in found if isinstance(f, Figure))
    lines = tuple(f for f in found if isinstance(f, str))
    return Section(name, title, figures, lines or (() if figures else (f"No data: {nothing}.",)))


def render(runs: Sequence[RunData]) -> str:
    """The page as HTML."""
    import jinja2
    from plotly.offline import get_plotlyjs

    found = bands(runs)
    files = importlib.resources.files("rlvr_jax.report") / "assets"
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    drawn = sections(found)
    kept: list[dict[str, Any]] = [f.as_json() for section in drawn for f in section.figures]
    return environment.from_string((files / "page.html.jinja").read_text(encoding="utf-8")).render(
        title=", ".join(run.name for run in runs),
        heads=[head(run, band) for band in found for run in band.runs],
        bands=[(band.label, colour(band.colour)) for band in found],
        colour=colour,
        sections=drawn,
        unmapped=len(found) - MOST_BANDS,
        answers=[(band.runs[0].name, answers.telling(band.runs[0].credit)) for band in found[:MOST_BANDS]],
        apart=configs_apart(found) if len(found) > 1 else [],
        settings=[(key, value) for key, (value, _) in differences(runs[0].config, {}).items()],
        figures=kept,
        style=(files / "page.css").read_text(encoding="utf-8"),
        script=(files / "page.js").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
    )
