"""What was measured, for people."""

from typing import Any

from rich.console import Group
from rich.table import Table


def report(found: dict[str, Any]) -> Group:
    """Tables of what `measure` gives."""
    w, ours, limit = found["workload"], found["ours"], found["limit"]
    title = (
        f"{w['prompts']} prompts x {w['group']}, {w['prompt_tokens']} + {w['new_tokens']} tokens ({w['lengths']}), "
        f"{found['dtype']}, {found['device']}, {found['cores']} cores, devices: {found['devices']}"
    )
    table = Table("", "ours", "generate", title=title, caption=kept(found))
    other = found.get("generate")
    for name, key, shown in (
        ("seconds", "seconds", seconds),
        ("tokens/s", "tokens_per_second", whole),
        ("peak memory", "peak_bytes", gib),
    ):
        table.add_row(name, shown(ours[key]), shown(other[key]) if other else "")
    for name, value in (
        (
            "prefill",
            f"{seconds(ours['prefill_seconds'])}, {whole(ours['prefill_tokens_per_second'])} tokens/s",
        ),
        (
            "decode",
            f"{seconds(ours['decode_seconds'])}, {whole(ours['decode_tokens_per_second'])} tokens/s",
        ),
        ("step", f"{ours['step_seconds'] * 1e3:.1f} ms, {ours['steps']} of them with {ours['slots']} slots"),
        ("slots in use", f"{ours['occupancy']:.1%}"),
        ("compile", seconds(ours["compile_seconds"])),
        ("weights laid out", seconds(ours["push_seconds"])),
        (
            "limit of a step",
            f"{limit['step_seconds'] * 1e3:.1f} ms: {limit['step_flops'] / 1e9:.1f} GFLOP, "
            f"{limit['step_bytes'] / 2**20:.0f} MiB",
        ),
        (
            "this machine",
            f"{limit['layer_flops_per_second'] / 1e9:.0f} GFLOP/s (MLP), {limit['head_flops_per_second'] / 1e9:.0f} (head), "
            f"{limit['bytes_per_second'] / 1e9:.1f} GB/s",
        ),
        ("of the limit", f"{limit['share']:.0%}"),
    ):
        table.add_row(name, value, "")
    if other:
        table.add_row("generate / ours", f"{other['ratio']:.2f}", "")
    return Group(table, *([_scaling(found["scaling"])] if "scaling" in found else []))


def _scaling(rows: list[dict[str, Any]]) -> Table:
    table = Table("group", "decode step, same rows", "prefill, same prompts")
    for row in rows:
        table.add_row(
            str(row["group"]), f"{row['step_seconds'] * 1e3:.1f} ms", f"{row['prefill_seconds'] * 1e3:.0f} ms"
        )
    return table


def kept(found: dict[str, Any]) -> str:
    """A word of warning, where a CPU computes and malloc cannot be told to keep its buffers."""
    keeps = found["keeps_buffers"] or not found["device"].startswith("cpu")
    return "" if keeps else "malloc gives buffers back to the kernel, which takes time to clear them"


def seconds(value: float) -> str:
    """12.34 s."""
    return f"{value:.2f} s"


def whole(value: float) -> str:
    """Without decimals."""
    return f"{value:.0f}"


def gib(value: int) -> str:
    """Bytes in GiB."""
    return f"{value / 2**30:.2f} GiB"
