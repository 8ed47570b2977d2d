"""Curves over steps: one colour a band, smoothed, with the range of its seeds; and pass@k."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlvr_jax.report.figures import REST, Figure, colour, faint, numbers, smooth
from rlvr_jax.report.runs import Band, RunData

SPIKE = 3.0
"""A gradient norm is an outlier above this many times its running median; our proposal."""
WINDOW = 50
"""Steps before each, of which that median is."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """A metric, its title, and how its numbers are written (d3-format)."""

    metric: str
    title: str
    format: str = ".3~g"


def curve(bands: Sequence[Band], panel: Panel) -> Figure | str | None:
    """A figure; a sentence where the metric is one number throughout; None where no run has it."""
    found = [
        (band, [s for s in (run.series(panel.metric) for run in band.runs) if len(s[0])]) for band in bands
    ]
    seen = {float(v) for _, each in found for _, values in each for v in values}
    if not seen:
        return None
    if len(seen) == 1 and max(len(s) for _, each in found for s, _ in each) > 1:
        return f"{panel.title}: {seen.pop():g} in every step"
    data = [trace for band, each in found if each for trace in _traces(band, each)]
    axis: dict[str, Any] = {"tickformat": panel.format, "hoverformat": panel.format}
    return Figure(f"curve-{panel.metric.replace('/', '-')}", panel.title, data, {"yaxis": axis})


def _traces(band: Band, each: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[dict[str, Any]]:
    if len(each) == 1:
        ((steps, values),) = each
        width = max(1, len(steps) // 10)
        raw = _line(band, steps, values, width=1.0, alpha=0.35) | {"hoverinfo": "skip"}
        return [raw, _line(band, steps, smooth(values, width))]
    width = max(1, min(len(steps) for steps, _ in each) // 10)
    by_step: dict[int, list[float]] = {}
    for steps, values in each:
        for step, value in zip(steps, smooth(values, width), strict=True):
            by_step.setdefault(int(step), []).append(value)
    steps = np.array(sorted(by_step))
    low, mean, high = ([f(by_step[s]) for s in steps] for f in (min, np.mean, max))
    edge = {"line": {"width": 0, "color": colour(band.colour)}, "hoverinfo": "skip"}
    filled = {"fill": "tonexty", "fillcolor": faint(colour(band.colour), 0.18)}
    return [
        _line(band, steps, low) | edge,
        _line(band, steps, high) | edge | filled,
        _line(band, steps, mean),
    ]


def _line(band: Band, steps: Any, values: Any, width: float = 2.2, alpha: float = 1.0) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if len(steps) > 1 else "markers",
        "x": [int(s) for s in steps],
        "y": numbers(values),
        "name": band.label,
        "meta": band.label,
        "line": {"width": width, "color": faint(colour(band.colour), alpha)},
        "marker": {"color": colour(band.colour)},
    }


def spikes(values: np.ndarray) -> np.ndarray:
    """Which values are above `SPIKE` times the median of those before them, `WINDOW` at the most and 5 at the least."""
    medians = [np.median(values[max(0, i - WINDOW) : i]) if i >= 5 else np.inf for i in range(len(values))]
    return values > SPIKE * np.array(medians)


def gradient_norm(bands: Sequence[Band]) -> Figure | None:
    """Before clipping, with outliers marked; the note has mean, 95th percentile, maximum and their number."""
    metric, data, told = "optimizer/grad_norm", [], []
    for band in bands:
        each = [s for s in (run.series(metric) for run in band.runs) if len(s[0])]
        if not each:
            continue
        data += _traces(band, each)
        marked = [(steps[spikes(values)], values[spikes(values)]) for steps, values in each]
        steps, norms = (np.concatenate(x) for x in zip(*marked, strict=True))
        if len(steps):
            look = {"symbol": "x", "size": 8, "color": colour(band.colour)}
            data.append(_line(band, steps, norms) | {"mode": "markers", "marker": look, "name": "outlier"})
        all_norms = np.concatenate([values for _, values in each])
        start = f"{band.label}: " if len(bands) > 1 else ""
        told.append(
            f"{start}mean {all_norms.mean():.3g}, 95 % below {np.quantile(all_norms, 0.95):.3g}, at most "
            f"{all_norms.max():.3g}, outliers {len(steps)}"
        )
    if not data:
        return None
    note = f"{'; '.join(told)}. × marks steps above {SPIKE:g} times the running median."
    return Figure("gradient-norm", "Gradient norm, before clipping", data, {}, note)


def pass_over_steps(bands: Sequence[Band], k: int) -> Figure | None:
    """Held-out pass@k of every run at the steps where it was measured, with its interval."""
    data = []
    for band in bands:
        for i, run in enumerate(band.runs):
            steps = [s for s in sorted(run.evaluations) if str(k) in run.evaluations[s]["pass_at_k"]]
            if steps:
                rates = [run.evaluations[s]["pass_at_k"][str(k)] for s in steps]
                shift = 0.006 * (max(steps) or 1) * (band.colour + i / max(2, len(band.runs)))
                data.append(
                    _rates(run.name, colour(band.colour), [s + shift for s in steps], rates)
                    | {"meta": band.label}
                )
    axis = {"tickformat": ".0%", "hoverformat": ".1%", "rangemode": "tozero"}
    title = f"Held-out pass@{k}, by step"
    return Figure(f"pass-{k}", title, data, {"yaxis": axis, "hovermode": "closest"}) if data else None


def pass_over_k(run: RunData, place: int) -> Figure | None:
    """Held-out pass@k over k, of the first and the last evaluation."""
    data = []
    ends = [f(run.evaluations) for f in (min, max)] if run.evaluations else []
    for i, step in enumerate(dict.fromkeys(ends)):
        rates = run.evaluations[step]["pass_at_k"]
        k = sorted(map(int, rates))
        tone = REST if i == 0 and len(set(ends)) > 1 else colour(place)
        data.append(_rates(f"step {step}", tone, k, [rates[str(x)] for x in k]))
    if not data:
        return None
    ticks = data[-1]["x"]
    layout = {
        "xaxis": {
            "type": "log",
            "title": {"text": "k"},
            "tickvals": ticks,
            "ticktext": list(map(str, ticks)),
        },
        "yaxis": {"tickformat": ".0%", "hoverformat": ".1%", "rangemode": "tozero"},
        "showlegend": len(data) > 1,
        "hovermode": "closest",
    }
    return Figure(f"pass-over-k-{place}", "Held-out pass@k, over k", data, layout)


def _rates(
    name: str, tone: str, x: Sequence[int | float], rates: Sequence[dict[str, float]]
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": list(x),
        "y": numbers([r["value"] for r in rates]),
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": numbers([r["high"] - r["value"] for r in rates]),
            "arrayminus": numbers([r["value"] - r["low"] for r in rates]),
            "thickness": 1.2,
            "width": 3,
        },
        "line": {"color": tone, "width": 2.2},
        "marker": {"color": tone, "size": 7},
    }
