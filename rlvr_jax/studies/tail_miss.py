"""How often groups miss what is rare: the closed form against draws."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlvr_jax.analysis.tail_miss import active_probability, tail_miss_probability
from rlvr_jax.registry import register
from rlvr_jax.studies.study import Cell, Found, Statement, Study


@register("study", "tail_miss")
@dataclasses.dataclass(frozen=True)
class TailMiss(Study):
    """Groups are drawn of rare right, other right, and wrong answers, over the grid of the paper's figure.

    Source: F-GRPO, arXiv:2602.06717, lemma 3.1.
    """

    title = "The tail-miss probability over the group size"

    mu: tuple[float, ...] = (0.8, 0.5, 0.2)
    """Mass of right answers."""
    rho: tuple[float, ...] = (0.01, 0.05, 0.1, 0.2)
    """Share of it that is rare: tau = rho mu."""
    powers: int = 12
    """Groups of 2 to 2^powers answers."""
    draws: int = 200_000
    """Groups drawn for each."""
    seeds: int = 5

    def sizes(self) -> list[int]:
        return [2**i for i in range(1, self.powers + 1)]

    def cells(self) -> Sequence[Cell]:
        return [
            Cell(f"mu={mu},rho={rho},seed={seed}", {"mu": mu, "rho": rho, "seed": seed})
            for mu in self.mu
            for rho in self.rho
            for seed in range(self.seeds)
        ]

    def compute(self, cell: Cell) -> dict[str, Any]:
        mu, rho, seed = (cell.settings[key] for key in ("mu", "rho", "seed"))
        random = np.random.default_rng([seed, round(1e6 * mu), round(1e6 * rho)])
        missed, active = [], []
        for size in self.sizes():
            rare, right, wrong = random.multinomial(size, [rho * mu, mu - rho * mu, 1 - mu], self.draws).T
            mixed = (wrong > 0) & (wrong < size)
            active.append(int(mixed.sum()))
            missed.append(int((mixed & (rare == 0)).sum()))
        return {**cell.settings, "missed": missed, "active": active}

    def _groups(self, found: Found) -> dict[tuple[float, float], dict[str, np.ndarray]]:
        """Counts of all seeds, and the closed forms."""
        out = {}
        for mu in self.mu:
            for rho in self.rho:
                mine = [r for r in found.values() if (r["mu"], r["rho"]) == (mu, rho)]
                out[mu, rho] = {
                    "missed": np.sum([r["missed"] for r in mine], axis=0),
                    "active": np.sum([r["active"] for r in mine], axis=0),
                    "miss": np.array([float(tail_miss_probability(mu, rho * mu, n)) for n in self.sizes()]),
                    "mixed": np.array([float(active_probability(mu, n)) for n in self.sizes()]),
                }
        return out

    def conclude(self, found: Found) -> Sequence[Statement]:
        from scipy import stats

        groups, n = self._groups(found), self.draws * self.seeds
        p_values = [
            float(stats.binomtest(int(count), n, min(max(float(p), 0.0), 1.0)).pvalue)
            for each in groups.values()
            for counts, exact in ((each["missed"], each["miss"]), (each["active"], each["mixed"]))
            for count, p in zip(counts, exact, strict=True)
        ]
        least = min(1.0, min(p_values) * len(p_values))
        off = max(float(np.abs(each["missed"] / n - each["miss"]).max()) for each in groups.values())
        inside = sum(0 < int(each["miss"].argmax()) < len(each["miss"]) - 1 for each in groups.values())
        return [
            Statement(
                claim="A group is mixed and misses what is rare with probability (1-tau)^N - (mu-tau)^N - (1-mu)^N.",
                source="arXiv:2602.06717, lemma 3.1",
                paper="proved",
                ours=f"at most {off:.5f} off in {len(p_values)} comparisons of {n:,} groups each",
                rule="shown where no comparison has a binomial p-value below 0.01 over their number",
                verdict="shown" if least >= 0.01 else "contradicted",
                p_value=least,
            ),
            Statement(
                claim="Over the group size the probability goes up and down again.",
                source="arXiv:2602.06717, section 3 and its figure",
                paper="in all curves",
                ours=f"in {inside} of {len(groups)} curves the largest value lies between the smallest and the largest group",
                rule="shown where it is all of them",
                verdict="shown" if inside == len(groups) else "not shown",
            ),
        ]

    def table(self, found: Found) -> list[list[str]]:
        n = self.draws * self.seeds
        rows = [["mu", "rho", "N where it is largest", "there, drawn", "there, closed form"]]
        for (mu, rho), each in self._groups(found).items():
            top = int(each["miss"].argmax())
            drawn, exact = each["missed"][top] / n, each["miss"][top]
            rows.append([str(mu), str(rho), str(self.sizes()[top]), f"{drawn:.4f}", f"{exact:.4f}"])
        return rows

    def plot(self, found: Found, figure: Any) -> None:
        n, groups = self.draws * self.seeds, self._groups(found)
        for axis, mu in zip(
            figure.subplots(1, len(self.mu), sharey=True, squeeze=False)[0], self.mu, strict=True
        ):
            for i, rho in enumerate(self.rho):
                each = groups[mu, rho]
                axis.plot(self.sizes(), each["miss"], color=f"C{i}", label=f"rho {rho}")
                axis.plot(self.sizes(), each["missed"] / n, "o", color=f"C{i}", markersize=4)
            axis.set(title=f"right answers: {mu:.0%} of the mass", xlabel="group size N")
            axis.set_xscale("log", base=2)
            axis.grid(alpha=0.3)
        figure.axes[0].set_ylabel("mixed, and nothing rare in it (dots: drawn)")
        figure.axes[-1].legend(fontsize=8)
