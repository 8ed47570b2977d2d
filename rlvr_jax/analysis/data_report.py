"""A data set for people: the figures of `data_check` as tables, and records as a model is asked about them."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from rlvr_jax.models.tokenizer import render
from rlvr_jax.tasks.base import Prompt, Split, Task

BAR = 30
"""Characters of the longest bar."""


def report(found: dict[str, Any]) -> Group:
    """Tables of what `check_data` gives."""
    splits = found["splits"]
    table = Table("", *splits, title=f"{found['task']}: records")
    for column in table.columns[1:]:
        column.justify = "right"
    rows = (
        ("records", "records"),
        ("of them repeat a prompt", "duplicates"),
        ("with another answer", "contradictions"),
        ("without a demonstration", "without_demonstration"),
        ("demonstrations judged", "judged"),
        ("of them not accepted", "refused"),
        ("prompts that cannot be rendered", "unreadable"),
        (f"prompts over {found['max_tokens']} tokens", "over_limit"),
    )
    for title, key in rows:
        if any(x[key] is not None for x in splits.values()):
            table.add_row(title, *(str(x[key]) for x in splits.values()))
    for field in sorted({field for x in splits.values() for field in x["empty_fields"]}):
        table.add_row(
            f"{field} missing or empty", *(str(x["empty_fields"].get(field, 0)) for x in splits.values())
        )
    for key in ("min", "mean", "p50", "p90", "p99", "max"):
        shown = (f"{x['length'][key]:.0f}" if x["length"] else "" for x in splits.values())
        table.add_row(f"{found['unit']} of a prompt, {key}", *shown)
    overlap = found["overlap"]
    table.add_section()
    table.add_row("in train, whole", "", str(overlap["exact"]))
    table.add_row(f"in train, {overlap['n']} words in a row", "", str(overlap["ngram"]))
    parts: list[Any] = [table]
    parts += [
        _bars(f"{split}: {found['unit']} of a prompt", x["histogram"])
        for split, x in splits.items()
        if x["length"]
    ]
    parts += [Text(f"problem: {line}", style="bold red") for line in found["problems"]]
    parts += [Text(f"note: {line}") for line in found["notes"]]
    return Group(*parts)


def _bars(title: str, histogram: Sequence[Sequence[int]]) -> Table:
    table = Table("up to", "prompts", "", title=title, box=None)
    longest = max(count for _, count in histogram)
    for most, count in histogram:
        table.add_row(str(most), str(count), "█" * -(-count * BAR // longest))
    return table


def show(task: Task, tokenizer: Any | None, split: Split, count: int) -> list[dict[str, Any]]:
    """The first records of a split: `id`, `prompt` as the model gets it, special tokens included (without a tokenizer the
    messages), `tokens` where there is a tokenizer, `demonstration`, and the `record` itself."""
    records = task.records(split)
    out = []
    for index in range(min(count, len(records))):
        record = records[index]
        prompt = task.prompt(record)
        ids = None if tokenizer is None else render(tokenizer, prompt)
        out.append(
            {
                "id": record.get("id", str(index)),
                "prompt": _readable(prompt) if tokenizer is None or ids is None else tokenizer.decode(ids),
                "tokens": None if ids is None else len(ids),
                "demonstration": task.demonstration(record),
                "record": record,
            }
        )
    return out


def _readable(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"[{message['role']}] {message['content']}" for message in prompt)


def shown(records: list[dict[str, Any]]) -> Group:
    """What `show` gives, one record below the other."""
    parts = []
    for each in records:
        tokens = "" if each["tokens"] is None else f", {each['tokens']} tokens"
        parts.append(Text(f"{each['id']}{tokens}", style="bold"))
        parts.append(Text(each["prompt"]))
        parts.append(Text(f"demonstration: {each['demonstration']}", style="green"))
        parts.append(Text(""))
    return Group(*parts)
