"""A figure of the page: data for plotly.js as plain JSON, with colours by name, so that one file serves dark and light."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

PALETTE = ("#2b7fff", "#e8710a", "#8a6df0", "#c2459a", "#a88a00", "#5f7d95", "#7a5230", "#3d9950")
"""Of the bands, in their order; told apart on white and on black, and by most who do not see all colours."""

WRONG, RIGHT = "#cf4a5c", "#169c8c"
"""Of what is no band."""
PARTS = ("#6b8fb5", "#dcae52", "#7fb089", "#b591b8", "#b08968", "#7d8fe0")
"""Of the parts of a whole, such as the phases of a step."""
REST = "#8b93a1"


@dataclasses.dataclass(frozen=True, eq=False)
class Figure:
    """`data` and `layout` are plotly's; the page adds fonts, grid and margins. `note` stands below the title."""

    name: str
    title: str
    data: list[dict[str, Any]]
    layout: dict[str, Any] = dataclasses.field(default_factory=dict)
    note: str = ""
    wide: bool = False

    def as_json(self) -> dict[str, Any]:
        """What the script of the page draws."""
        return {"name": self.name, "data": self.data, "layout": self.layout}


def colour(place: int) -> str:
    """Of a band."""
    return PALETTE[place % len(PALETTE)]


def faint(hexadecimal: str, alpha: float) -> str:
    """A colour that lets others shine through."""
    red, green, blue = (int(hexadecimal[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def numbers(values: Sequence[float] | np.ndarray) -> list[float | None]:
    """Five digits, which is more than a screen shows; None where there is none."""
    return [float(f"{v:.5g}") if np.isfinite(v) else None for v in values]


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Mean of the `width` values around each place, of fewer at the ends."""
    ones = np.ones(min(width, len(values)))
    return np.convolve(values, ones, "same") / np.convolve(np.ones(len(values)), ones, "same")
