"""Which right answers survive a thousand policy gradients, by the number of samples and the focal weight."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rlvr_jax.analysis.categorical import Categorical
from rlvr_jax.registry import register
from rlvr_jax.studies.study import Cell, Found, Paired, Statement, Study

_HELD, _LOST = 0.9, 0.5
"""Retained mass that counts as kept, and as collapsed. Our proposal: the paper shows curves."""


@register("study", "categorical")
@dataclasses.dataclass(frozen=True)
class CategoricalStudy(Study):
    """`analysis.categorical.Categorical` over numbers of samples, with and without the focal weight.

    Source: F-GRPO, arXiv:2602.06717, appendix J and figure 2.
    """

    title = "Right answers that survive, by the number of samples"

    powers: int = 17
    """2 to 2^powers samples a step."""
    every: int = 1
    """Each so many-th power, the largest included."""
    gammas: tuple[float, ...] = (0.0, 1.0)
    steps: int = 1000
    seeds: int = 5

    def samples(self) -> list[int]:
        return [2**i for i in range(self.powers, 0, -self.every)][::-1]

    def cells(self) -> Sequence[Cell]:
        return [
            Cell(f"samples={n},gamma={gamma},seed={seed}", {"samples": n, "gamma": gamma, "seed": seed})
            for n in self.samples()
            for gamma in self.gammas
            for seed in range(self.seeds)
        ]

    def compute(self, cell: Cell) -> dict[str, Any]:
        """The ends, and twenty-one points of the course."""
        of = cell.settings
        course = jax.device_get(Categorical(steps=self.steps).run(of["samples"], of["gamma"], of["seed"]))
        points = np.linspace(0, self.steps - 1, 21).astype(int)
        return {
            **of,
            "right": float(course.end[0]),
            "retained": float(course.end[1]),
            "start": float(course.right[0]),
            "steps": points.tolist(),
            "retained_by_step": course.retained[points].round(5).tolist(),
            "unsampled_by_step": course.unsampled[points].round(5).tolist(),
        }

    def _ends(self, found: Found, key: str, n: int, gamma: float) -> np.ndarray:
        """By seed."""
        mine = [r for r in found.values() if (r["samples"], r["gamma"]) == (n, gamma)]
        return np.array([r[key] for r in sorted(mine, key=lambda r: r["seed"])])

    def conclude(self, found: Found) -> Sequence[Statement]:
        sizes, (plain, focal) = self.samples(), (self.gammas[0], self.gammas[-1])
        gain = Paired.of(np.array([r["right"] - r["start"] for r in found.values()]))
        up = sum(r["right"] > r["start"] for r in found.values())
        means = [float(self._ends(found, "retained", n, plain).mean()) for n in sizes]
        lowest = int(np.argmin(means))
        three = means[0] >= _HELD and means[-1] >= _HELD and means[lowest] <= _LOST
        differences = np.array(
            [self._ends(found, "retained", n, focal) - self._ends(found, "retained", n, plain) for n in sizes]
        )
        collapsed = [i for i, mean in enumerate(means) if mean <= _LOST]
        where = Paired.of(differences[collapsed].mean(0)) if collapsed else Paired.of(differences.mean(0))
        largest = int(differences.mean(1).argmax())
        return [
            Statement(
                claim="The mass of right answers goes up at any number of samples.",
                source="arXiv:2602.06717, figure 2",
                paper="for all N",
                ours=f"in {up} of {len(found)} runs; by {gain.text} on average",
                rule="shown where it is all runs",
                verdict="shown" if up == len(found) else "not shown",
                p_value=gain.p_value,
            ),
            Statement(
                claim="Few and very many samples retain what was right; in between it is lost to what is sampled often.",
                source="arXiv:2602.06717, figure 2",
                paper="three regimes; only N = 131,072 retains about all of the large ones",
                ours=f"retained {means[0]:.3f} at N = {sizes[0]}, {means[lowest]:.3f} at {sizes[lowest]}, "
                f"{means[-1]:.3f} at {sizes[-1]}",
                rule=f"shown where both ends retain {_HELD} or more, and some size between {_LOST} or less",
                verdict="shown" if three else "not shown",
            ),
            Statement(
                claim=f"The focal weight (gamma {focal:g}) retains more, most where it is lost without.",
                source="arXiv:2602.06717, figure 2",
                paper="gamma 1 raises what is retained mostly in the collapse zone",
                ours=f"{where.text} over the {len(collapsed)} collapsed sizes; most, "
                f"{differences.mean(1)[largest]:+.3f}, at N = {sizes[largest]}",
                rule="shown where the 95 % interval over seeds lies above 0; paired by seed",
                verdict=where.verdict,
                p_value=where.p_value,
            ),
        ]

    def table(self, found: Found) -> list[list[str]]:
        heads = [f"{what}, gamma {g:g}" for g in self.gammas for what in ("right", "retained")]
        rows = [["N", *heads]]
        for n in self.samples():
            ends = [self._ends(found, key, n, g) for g in self.gammas for key in ("right", "retained")]
            rows.append([f"{n:,}", *(f"{x.mean():.3f} ± {x.std(ddof=1):.3f}" for x in ends)])
        return rows

    def plot(self, found: Found, figure: Any) -> None:
        ends, course = figure.subplots(1, 2)
        for i, gamma in enumerate(self.gammas):
            each = np.array([self._ends(found, "retained", n, gamma) for n in self.samples()])
            ends.plot(self.samples(), each.mean(1), "o-", color=f"C{i}", label=f"gamma {gamma:g}")
            ends.fill_between(self.samples(), each.min(1), each.max(1), color=f"C{i}", alpha=0.2)
        ends.set(title="retained after all steps (band: seeds)", xlabel="samples a step", ylim=(-0.02, 1.02))
        ends.set_xscale("log", base=2)
        ends.legend()
        sizes = self.samples()
        for i, n in enumerate(sizes[:: max(1, len(sizes) // 5)]):
            mine = [r for r in found.values() if (r["samples"], r["gamma"]) == (n, self.gammas[0])]
            mean = np.mean([r["unsampled_by_step"] for r in mine], axis=0)
            course.plot(mine[0]["steps"], mean, color=f"C{i}", label=f"N = {n:,}")
        course.set(title=f"right answers not sampled, gamma {self.gammas[0]:g}", xlabel="step", ylabel="mass")
        course.legend(fontsize=8)
        for axis in (ends, course):
            axis.grid(alpha=0.3)
