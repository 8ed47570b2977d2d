"""The picture of a run: what is drawn is what was measured."""

import matplotlib.image
import numpy as np
import pytest
from matplotlib.axes import Axes

from rlvr_jax.analysis.curves import PANELS, plot_curves

ROWS = [{"step": i, **{name: float(i) for _, lines in PANELS for name, _ in lines}} for i in range(40)]


def evaluation(*values):
    rates = {k: {"value": v, "low": v - 0.1, "high": v + 0.1} for k, v in values}
    return {"pass_at_k": rates}


@pytest.fixture
def drawn(monkeypatch):
    """What the axes were asked to plot: (x, y) of each line."""
    lines = []
    plot = Axes.plot
    monkeypatch.setattr(
        Axes, "plot", lambda self, x, y, **k: lines.append((list(x), list(y))) or plot(self, x, y, **k)
    )
    return lines


def test_pass_at_k_goes_up_in_k_whatever_the_order_of_the_keys(tmp_path, drawn):
    plot_curves([], {0: evaluation(("1", 0.2), ("64", 0.9), ("8", 0.5))}, tmp_path / "c.png", "t")
    assert drawn == [([1, 8, 64], [0.2, 0.5, 0.9])]


def test_a_panel_shows_each_step_and_the_mean_of_the_last_twentieth(tmp_path, drawn):
    plot_curves(ROWS, {}, tmp_path / "c.png", "t")
    steps, values = drawn[0]
    assert (steps, values) == (list(range(40)), [float(i) for i in range(40)])
    assert drawn[1] == (list(range(40)), [0.0] + [i - 0.5 for i in range(1, 40)])  # means of two
    assert len(drawn) == 2 * sum(len(lines) for _, lines in PANELS)


def test_steps_without_a_figure_are_left_out(tmp_path, drawn):
    rows = [{"step": 0, "reward/correct": None}, {"step": 1, "reward/correct": 0.5}, {"step": 2}]
    plot_curves(rows, {}, tmp_path / "c.png", "t")
    assert drawn[0] == ([1], [0.5])


def test_the_file_is_a_picture(tmp_path):
    plot_curves(ROWS, {0: evaluation(("1", 0.2)), 40: evaluation(("1", 0.6))}, tmp_path / "c.png", "t")
    image = matplotlib.image.imread(tmp_path / "c.png")
    assert image.ndim == 3 and np.ptp(image) > 0.5
