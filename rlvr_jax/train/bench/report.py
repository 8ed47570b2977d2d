"""What was measured of an update or of a step, for people."""

from typing import Any

from rich.console import Group
from rich.table import Table

from rlvr_jax.rollout.bench.report import gib, kept, seconds, whole


def update_report(found: dict[str, Any]) -> Group:
    """Tables of what `update.measure` gives."""
    b, ours, other, limit, tokens = (
        found["batch"],
        found["ours"],
        found.get("torch"),
        found["limit"],
        found["tokens"],
    )
    table = Table("", "ours", f"torch ({other['way']})" if other else "torch", title=_title(found))
    table.caption = kept(found)
    for name, key, shown in (
        ("seconds", "seconds", seconds),
        ("useful tokens/s", "tokens_per_second", whole),
        ("MFU, 6 N T", "mfu", _share),
        ("peak memory", "peak_bytes", gib),
    ):
        table.add_row(name, shown(ours[key]), shown(other[key]) if other else "")
    table.add_row(
        "AdamW",
        seconds(found["parts"]["optimizer"]) if "parts" in found else "",
        seconds(other["optimizer_seconds"]) if other else "",
    )
    table.add_row("tokens computed", f"{tokens['computed']}", f"{tokens['padded']}" if other else "")
    table.add_row("planned by the host", f"{ours['plan_seconds'] * 1e3:.1f} ms", "")
    table.add_row("compile", seconds(ours["compile_seconds"]), "")
    table.add_row(
        "useful tokens", f"{tokens['useful']}, of these {tokens['live']} in responses with credit", ""
    )
    table.add_row("micro-batches", str(tokens["micro_batches"]), "")
    for row in _limit(limit):
        table.add_row(*row, "")
    if other:
        table.add_row("torch / ours", f"{other['ratio']:.2f}", "")
        if other["rows"] < b["prompts"] * b["group"]:
            table.add_row("", "", f"scaled up from {other['rows']} rows")
    more = [_parts(found["parts"], ours["seconds"])] if "parts" in found else []
    return Group(table, *more, *([_scaling(found["scaling"])] if "scaling" in found else []))


def step_report(found: dict[str, Any]) -> Group:
    """A table of what `step.measure` gives."""
    table = Table("", "seconds", "share", title=_title(found), caption=kept(found))
    for name, value in found["phases"].items():
        table.add_row(name, seconds(value), f"{value / found['seconds']:.0%}")
    table.add_row("step", seconds(found["seconds"]), "")
    table.add_row("limit of sampling", seconds(found["limit"]["sample_seconds"]), "")
    table.add_row("limit of the update", seconds(found["limit"]["update_seconds"]), "")
    table.add_row("of the limit", "", f"{found['limit']['share']:.0%}")
    table.add_row("compile", seconds(found["compile_seconds"]), "")
    table.add_row("peak memory", gib(found["peak_bytes"]), "")
    return Group(table)


def _title(found: dict[str, Any]) -> str:
    b = found["batch"]
    dead = f", {b['collapsed']:.0%} of the groups collapsed" if b["collapsed"] else ""
    return (
        f"{b['prompts']} prompts x {b['group']}, {b['prompt_tokens']} + {b['new_tokens']} tokens ({b['lengths']}){dead}, "
        f"{found['dtype']}, {found['device']}, {found['cores']} cores"
    )


def _limit(limit: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("limit", f"{limit['seconds']:.2f} s: {limit['flops'] / 1e12:.2f} TFLOP that the gradient needs"),
        (
            "this machine",
            f"{limit['layer_flops_per_second'] / 1e9:.0f} GFLOP/s (MLP), {limit['head_flops_per_second'] / 1e9:.0f} (head)",
        ),
        ("of the limit", f"{limit['share']:.0%}"),
    ]


def _parts(found: dict[str, float], total: float) -> Table:
    table = Table("part", "seconds", "of the update")
    for name, value in found.items():
        table.add_row(name, seconds(value), f"{value / total:.0%}")
    return table


def _scaling(rows: list[dict[str, Any]]) -> Table:
    table = Table("", "", "seconds", "useful tokens/s", "computed", "useful", "padded")
    for row in rows:
        counts = (str(row[name]) for name in ("computed", "useful", "padded"))
        table.add_row(
            row["what"],
            f"{row['value']:g}",
            seconds(row["seconds"]),
            whole(row["tokens_per_second"]),
            *counts,
        )
    return table


def _share(value: float) -> str:
    return f"{value:.0%}"
