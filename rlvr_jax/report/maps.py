"""One run in two dimensions: which prompts collapsed when, rewards and lengths over time, where the time went."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlvr_jax.report.figures import PALETTE, PARTS, REST, RIGHT, WRONG, Figure, faint, numbers
from rlvr_jax.report.runs import Group, RunData

MOST_ROWS = 400
"""Prompts that have a row of their own; of more, or where most are met once, a row is a place in the batch."""
FEW = 8
"""Rewards that are shown each by its own share; more of them in bins."""

SHARE_RIGHT = (
    (0.0, WRONG),
    (0.0001, faint(WRONG, 0.4)),
    (0.5, faint(REST, 0.25)),
    (0.9999, faint(RIGHT, 0.4)),
    (1.0, RIGHT),
)
"""Full colours where the whole group is wrong or right, pale ones between."""


def collapse_map(run: RunData, place: int) -> Figure | None:
    """Share of right answers of each group: a row for each prompt where prompts come back, else for each place in the
    batch, sorted by that share."""
    groups = run.sampled.groups
    if not groups:
        return None
    prompts = {g.prompt_id for g in groups}
    own_rows = len(prompts) <= MOST_ROWS and len(groups) >= 2 * len(prompts)
    cells = _by_prompt(groups) if own_rows else _by_place(groups)
    steps = sorted({g.step for g in groups})
    column = {step: i for i, step in enumerate(steps)}
    height = 1 + max(row for row, _ in cells)
    z = np.full((height, len(steps)), np.nan)
    text = np.full(z.shape, "", object)
    for row, g in cells:
        z[row, column[g.step]] = g.right / g.answers
        what = "all wrong" if g.right == 0 else "all right" if g.right == g.answers else "mixed"
        text[row, column[g.step]] = f"prompt {g.prompt_id}: {g.right} of {g.answers} right ({what})" + (
            ", one reward" if g.flat else ""
        )
    data = {
        "type": "heatmap",
        "x": steps,
        "z": [numbers(row) for row in z],
        "text": text.tolist(),
        "zmin": 0,
        "zmax": 1,
        "colorscale": [list(stop) for stop in SHARE_RIGHT],
        "hovertemplate": "step %{x}<br>%{text}<extra></extra>",
        "hoverongaps": False,
        "xgap": 1 if len(steps) <= 120 else 0,
        "ygap": 1 if height <= 64 else 0,
        "colorbar": {"tickformat": ".0%", "title": {"text": "right", "side": "right"}},
    }
    rows = "prompts, hardest at the bottom" if own_rows else "groups, sorted"
    wrong, right = (sum(g.flat and g.right == (n and g.answers) for g in groups) for n in (0, 1))
    flat = sum(g.flat for g in groups)
    note = (
        f"Of {len(groups)} groups {flat} got one reward for all answers and taught nothing: {wrong} all wrong, {right} "
        "all right. Full colours are all wrong and all right."
    )
    layout = {
        "yaxis": {"title": {"text": rows}, "showticklabels": False, "ticks": "", "showgrid": False},
        "hovermode": "closest",
        "height": 380,
    }
    title = "Which groups collapsed when"
    return Figure(f"collapse-map-{place}", title, [data], layout, note, wide=True)


def _by_prompt(groups: Sequence[Group]) -> list[tuple[int, Group]]:
    shares = collections.defaultdict(list)
    for g in groups:
        shares[g.prompt_id].append(g.right / g.answers)
    order = sorted(shares, key=lambda prompt: (np.mean(shares[prompt]), prompt))
    row = {prompt: i for i, prompt in enumerate(order)}
    return [(row[g.prompt_id], g) for g in groups]


def _by_place(groups: Sequence[Group]) -> list[tuple[int, Group]]:
    by_step = collections.defaultdict(list)
    for g in groups:
        by_step[g.step].append(g)
    return [
        (i, g)
        for each in by_step.values()
        for i, g in enumerate(sorted(each, key=lambda g: (g.right / g.answers, g.prompt_id)))
    ]


def reward_histograms(run: RunData, place: int) -> Figure | None:
    """Shares of the rewards over the steps: each value its own where they are few, else in 20 bins."""
    rewards = run.sampled.rewards
    if not rewards:
        return None
    steps = sorted(rewards)
    values = np.unique(np.concatenate([rewards[s] for s in steps]).round(6))
    title, layout = "Rewards over time", {"yaxis": {"tickformat": ".0%", "hoverformat": ".1%"}}
    name = f"rewards-{place}"
    if len(values) <= FEW:
        tones = _between(len(values))
        data = [
            _bars(f"reward {value:g}", tone, steps, [np.isclose(rewards[s], value).mean() for s in steps])
            for value, tone in zip(values, tones, strict=True)
        ]
        return Figure(name, title, data, layout | STACKED)
    edges = np.linspace(values[0], values[-1], 21)
    z = np.array([np.histogram(rewards[s], edges)[0] / len(rewards[s]) for s in steps]).T
    data = {
        "type": "heatmap",
        "x": steps,
        "y": numbers((edges[1:] + edges[:-1]) / 2),
        "z": [numbers(row) for row in z],
        "colorscale": [[0.0, "rgba(43,127,255,0)"], [0.5, "rgba(43,127,255,0.6)"], [1.0, "#10295c"]],
        "hovertemplate": "step %{x}<br>reward about %{y}<br>%{z:.1%} of the answers<extra></extra>",
        "showscale": False,
    }
    return Figure(name, title, [data], {"yaxis": {"title": {"text": "reward"}}, "hovermode": "closest"})


STACKED = {"barmode": "stack", "bargap": 0, "showlegend": True}


def _between(count: int) -> list[str]:
    """Colours from wrong to right."""
    ends = [np.array([int(c[i : i + 2], 16) for i in (1, 3, 5)]) for c in (WRONG, RIGHT)]
    mixed = (ends[0] * (1 - t) + ends[1] * t for t in np.linspace(0, 1, count))
    return ["#{:02x}{:02x}{:02x}".format(*m.round().astype(int)) for m in mixed]


def _bars(name: str, tone: str, steps: Sequence[int], values: Sequence[float] | np.ndarray) -> dict[str, Any]:
    marker = {"color": tone, "line": {"width": 0}}
    return {"type": "bar", "name": name, "x": list(steps), "y": numbers(values), "marker": marker}


def verdicts(run: RunData, place: int) -> Figure | None:
    """Shares of what the verifier said, over the steps."""
    axis = {"tickformat": ".0%", "hoverformat": ".1%"}
    return _stacked(run, "verdict/", f"verdicts-{place}", "Verdicts", axis)


def phase_times(run: RunData, place: int) -> Figure | None:
    """Seconds of each step by phase; `other` is what no phase accounts for. Sampling one step ahead runs beside the rest."""
    axis: dict[str, Any] = {"ticksuffix": " s", "hoverformat": ".3~g"}
    title, (_, total) = "Seconds of a step", run.series("time/step")
    note, usual = "", 1.2 * float(total[1:].max(initial=0.0))
    if len(total) > 2 and total[0] > 2 * usual:
        axis["range"] = [0, usual]
        note = f"The first step, which compiles, took {total[0]:.1f} s and is cut off."
    drawn = _stacked(run, "time/", f"times-{place}", title, axis, whole="time/step")
    return None if drawn is None else dataclasses.replace(drawn, note=note)


ORDER = ("sample", "verify", "score", "credit", "update", "evaluation", "correct", "wrong")
TONES = {
    "correct": RIGHT,
    "wrong": WRONG,
    "unparsable": "#dcae52",
    "truncated": "#8a6df0",
    "other": "#8b93a1",
}
"""Of parts that mean something; the others take theirs from the palette."""
NO_PHASE = {"time/step", "time/tokens_per_second", "time/traces"}


def _stacked(
    run: RunData, start: str, name: str, title: str, axis: dict[str, Any], whole: str | None = None
) -> Figure | None:
    metrics = dict.fromkeys(key for row in run.metrics for key in row if key.startswith(start))
    parts = sorted(
        (m for m in metrics if m not in NO_PHASE),
        key=lambda m: ORDER.index(m.removeprefix(start)) if m.removeprefix(start) in ORDER else len(ORDER),
    )
    steps = [row["step"] for row in run.metrics]
    table = {m.removeprefix(start): np.array([row.get(m) or 0.0 for row in run.metrics]) for m in parts}
    if whole is not None and any(whole in row for row in run.metrics):
        total = np.array([row.get(whole) or 0.0 for row in run.metrics])
        table["other"] = np.maximum(total - sum(table.values()), 0.0)
    shown = {part: values for part, values in table.items() if values.any()}
    data = [
        _bars(part, TONES.get(part, PARTS[i % len(PARTS)]), steps, v)
        for i, (part, v) in enumerate(shown.items())
    ]
    return Figure(name, title, data, {"yaxis": axis} | STACKED) if data else None


def lengths(run: RunData, place: int) -> Figure | None:
    """How long the answers were: the median, and the ranges of the middle 50 % and 80 %."""
    found = run.sampled.lengths
    if not found:
        return None
    steps = sorted(found)
    low, left, middle, right, high = np.array(
        [np.quantile(found[s], (0.1, 0.25, 0.5, 0.75, 0.9)) for s in steps]
    ).T
    tone = PALETTE[place % len(PALETTE)]

    def line(values: np.ndarray, name: str, fill: str | None = None, width: float = 0.0) -> dict[str, Any]:
        mode = "lines" if len(steps) > 1 else "markers"
        base = {"type": "scatter", "mode": mode, "name": name, "x": steps, "y": numbers(values)}
        look = {"line": {"width": width, "color": tone}, "marker": {"color": tone}}
        return base | look | ({"fill": "tonexty", "fillcolor": fill} if fill else {})

    pale = faint(REST, 0.22)
    data = [
        line(low, "10 %"),
        line(left, "25 %", pale),
        line(right, "75 %", faint(REST, 0.45)),
        line(high, "90 %", pale),
        line(middle, "median", width=2.2),
    ]
    title = "Lengths, middle 50 % and 80 %"
    return Figure(f"lengths-{place}", title, data, {"yaxis": {"title": {"text": "tokens"}}})
