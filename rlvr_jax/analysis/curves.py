"""A run at a glance: the learning curves as one picture."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

PANELS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("pass rate of the training batch", (("reward/correct", "pass rate"),)),
    (
        "groups that teach nothing",
        (("acr/all", "ACR"), ("acr/all_wrong", "all wrong"), ("acr/all_right", "all right")),
    ),
    ("entropy of the policy, nats a token", (("policy/entropy", "entropy"),)),
    ("response length, tokens", (("length/mean", "length"),)),
    ("gradient norm", (("optimizer/grad_norm", "before clipping"),)),
)
"""Title and (metric, label) of each panel. The first one also shows the held-out evaluations."""


def plot_curves(
    rows: Sequence[Mapping[str, Any]],
    evaluations: Mapping[int, Mapping[str, Any]],
    path: pathlib.Path,
    title: str,
) -> None:
    """Write a PNG: `rows` are lines of metrics.jsonl, `evaluations` lines of evaluations.jsonl by step.

    Thin lines are steps, thick ones their running mean over a twentieth of the run; held-out pass@k stands with its
    interval where it was measured.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    axes = figure.subplots(2, 3).flat
    width = max(1, len(rows) // 20)
    for axis, (heading, lines) in zip(axes, PANELS, strict=False):
        axis.set_title(heading, fontsize=10)
        axis.set_xlabel("step")
        for i, (name, label) in enumerate(lines):
            points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
            if points:
                steps, values = zip(*points, strict=True)
                axis.plot(steps, values, color=f"C{i}", alpha=0.3, linewidth=0.8)
                axis.plot(steps, _running_mean(values, width), color=f"C{i}", label=label)
        if len(lines) > 1 and axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    _plot_pass_at_k(axes[len(PANELS)], evaluations)
    figure.savefig(path, dpi=110)


def _plot_pass_at_k(axis: Any, evaluations: Mapping[int, Mapping[str, Any]]) -> None:
    """Held-out pass@k over k, one line for each evaluated step, with 95 % intervals."""
    axis.set_title("held-out pass@k, 95 % interval", fontsize=10)
    axis.set_xlabel("k")
    axis.set_xscale("log", base=2)
    axis.set_ylim(0, 1.02)
    axis.grid(alpha=0.3)
    for i, (step, found) in enumerate(sorted(evaluations.items())):
        k = sorted(int(x) for x in found["pass_at_k"])
        rates = [found["pass_at_k"][str(x)] for x in k]
        value = [r["value"] for r in rates]
        axis.plot(k, value, marker="o", color=f"C{i}", label=f"step {step}")
        axis.fill_between(k, [r["low"] for r in rates], [r["high"] for r in rates], color=f"C{i}", alpha=0.15)
    if evaluations:
        axis.legend(fontsize=8)


def _running_mean(values: Sequence[float], width: int) -> list[float]:
    """Mean of the last `width` values at each place."""
    return [sum(values[max(0, i - width + 1) : i + 1]) / min(i + 1, width) for i in range(len(values))]
