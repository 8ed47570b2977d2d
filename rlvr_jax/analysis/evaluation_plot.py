"""An evaluation as a picture: pass@k over k, and how hard each problem is."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlvr_jax.analysis.evaluation import Rate
from rlvr_jax.analysis.pass_at_k import pass_at_k


def plot_evaluation(evaluation: Mapping[str, Any], path: pathlib.Path, title: str) -> None:
    """Write a PNG of what `rlvr-jax eval` found: the curve at all powers of 2 with its 95 % band, majority@k where the
    task has it, and a histogram of the problems' shares of right answers."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    curve, histogram = figure.subplots(1, 2)
    n = evaluation["samples"]
    right = np.array([problem["right"] for problem in evaluation["problems"]])
    powers = sorted({*(2**i for i in range(n.bit_length()) if 2**i <= n), n})
    rates = [Rate.of(k, pass_at_k(n, right, k)) for k in powers]
    curve.plot(powers, [r.value for r in rates], marker="o", label="pass@k")
    curve.fill_between(powers, [r.low for r in rates], [r.high for r in rates], alpha=0.2)
    if evaluation["majority_at_k"]:
        votes = {int(k): rate["value"] for k, rate in evaluation["majority_at_k"].items()}
        curve.plot(list(votes), list(votes.values()), marker="s", linestyle="--", label="majority@k")
    curve.set(title="over k, 95 % interval", xlabel="k", ylim=(0, 1.02))
    curve.set_xscale("log", base=2)
    curve.legend(fontsize=8)
    curve.grid(alpha=0.3)
    histogram.hist(right / n, bins=min(20, n + 1), range=(0, 1))
    histogram.set(title="problems by their share of right answers", xlabel="share right", ylabel="problems")
    histogram.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
