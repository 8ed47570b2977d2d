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


def evaluation_table(found: dict[str, Any]) -> Table:
    """The rates of one evaluation as a table."""
    table = Table(title=f"{found['prompts']} prompts, {found['samples']} samples each")
    votes = found["majority_at_k"]
    table.add_column("k", justify="right")
    table.add_column("pass@k, 95 % interval", justify="right")
    if votes is not None:
        table.add_column("majority@k", justify="right")
    for k, rate in found["pass_at_k"].items():
        table.add_row(k, _rate(rate), *([] if votes is None else [_rate(votes[k])]))
    return table


def evaluation_lines(found: dict[str, Any]) -> list[str]:
    """What was asked and how, and the other figures of an evaluation, for a person."""
    at = "" if found["step"] is None else f" after step {found['step']}"
    named = ("temperature", "top_k", "top_p", "min_p", "max_new_tokens")
    drawn = ", ".join(f"{name} {found['sampling'][name]}" for name in named)
    count = found["prompts"] * found["samples"]
    reasons = ", ".join(f"{name} {number / count:.1%}" for name, number in found["reasons"].items())
    length, differ = found["length"], found["diversity"]
    return [
        f"{found['policy']}{at} on {found['task']['name']} ({found['split']}), seed {found['seed']}: {drawn}",
        *(f"{kind} ({of['prompts']}): {_rates(of['pass_at_k'])}" for kind, of in found["kinds"].items()),
        f"verdicts: {reasons}; cut at the limit: {found['truncated']:.1%}",
        f"tokens: mean {length['mean']:.1f}, median {length['p50']:.0f}, 95 % below {length['p95']:.0f}",
        f"first {differ['answers']} answers to a prompt: distinct-2 {_known(differ['distinct_2'])}, Self-BLEU "
        f"{_known(differ['self_bleu'])}; p(1-p) by thirds: {', '.join(map(_known, differ['bernoulli_variance']))}",
    ]


def comparison_table(found: dict[str, Any]) -> Table:
    """Two evaluations of the same problems as a table."""
    alone = f"{found['only_first']} and {found['only_second']} are of one evaluation alone"
    table = Table(title=f"{found['common']} common problems ({alone})")
    for column in ("k", "first", "second", "second - first, 95 % interval", "p"):
        table.add_column(column, justify="right")
    for k, row in found["pass_at_k"].items():
        between = f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
        table.add_row(k, f"{row['first']:.3f}", f"{row['second']:.3f}", between, f"{row['p_value']:.4f}")
    return table


def _rates(rates: dict[str, dict[str, float]]) -> str:
    return ", ".join(f"pass@{k} {_rate(rate)}" for k, rate in rates.items())


def _known(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _rate(rate: dict[str, float]) -> str:
    return f"{rate['value']:.3f} [{rate['low']:.3f}, {rate['high']:.3f}]"


def _mean(rows: list[dict[str, Any]], name: str) -> float | None:
    return sum(row[name] for row in rows) / len(rows) if rows else None
