"""What a run came to: held-out pass@k before and after, the picture of its curves, and where everything lies."""

import pathlib
from typing import Any

from rich.console import Console
from rich.table import Table

from rlvr_jax.analysis.curves import plot_curves
from rlvr_jax.train.evaluate import load_evaluations
from rlvr_jax.train.metrics import METRICS, read_rows

CURVES = "curves.png"


def summarize(run_dir: pathlib.Path, title: str) -> dict[str, Any]:
    """Draw the curves of a run and return its figures as plain data."""
    rows = read_rows(run_dir / METRICS)
    evaluations = load_evaluations(run_dir)
    plot_curves(rows, evaluations, run_dir / CURVES, title)
    ordered = [evaluations[step] for step in sorted(evaluations)]
    return {
        "run_dir": str(run_dir),
        "curves": str(run_dir / CURVES),
        "steps": len(rows),
        "train_reward": {
            "first": _mean(rows[: max(1, len(rows) // 10)], "reward/mean"),
            "last": _mean(rows[-max(1, len(rows) // 10) :], "reward/mean"),
        },
        "before": ordered[0]["pass_at_k"] if ordered else None,
        "after": ordered[-1]["pass_at_k"] if len(ordered) > 1 else None,
    }


def print_summary(summary: dict[str, Any], console: Console) -> None:
    """The figures as a table, for a person."""
    before, after = summary["before"], summary["after"]
    if before is not None and after is not None:
        table = Table(title="held-out prompts, 95 % bootstrap intervals over prompts")
        for column in ("", "before", "after", "gain"):
            table.add_column(column, justify="left" if not column else "right")
        for k, rate in sorted(before.items(), key=lambda item: int(item[0])):
            now = after[k]
            table.add_row(f"pass@{k}", _rate(rate), _rate(now), f"{now['value'] - rate['value']:+.3f}")
        console.print(table)
    reward = summary["train_reward"]
    if summary["steps"]:
        console.print(
            f"training reward, first and last tenth of {summary['steps']} steps: "
            f"{reward['first']:.3f} -> {reward['last']:.3f}"
        )
    console.print(f"curves: {summary['curves']}", soft_wrap=True)
    console.print(f"run directory: {summary['run_dir']}", soft_wrap=True)


def rate_table(found: dict[str, Any]) -> Table:
    """One evaluation as a table."""
    table = Table(title=f"{found['prompts']} held-out prompts, {found['samples']} samples each")
    table.add_column("k", justify="right")
    table.add_column("pass@k, 95 % interval", justify="right")
    for k, rate in found["pass_at_k"].items():
        table.add_row(k, _rate(rate))
    return table


def _rate(rate: dict[str, float]) -> str:
    return f"{rate['value']:.3f} [{rate['low']:.3f}, {rate['high']:.3f}]"


def _mean(rows: list[dict[str, Any]], name: str) -> float | None:
    return sum(row[name] for row in rows) / len(rows) if rows else None
