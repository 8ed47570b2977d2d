"""What is wrong with a data set: repeated and contradictory prompts, overlap of train and test, answers that are missing
or that the verifier does not accept, and how long prompts are."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from rlvr_jax.analysis.overlap import COMMON, NGRAM, SHOWN, Overlap, digest, normal, wording
from rlvr_jax.models.tokenizer import render
from rlvr_jax.tasks.base import Prompt, Split, Task
from rlvr_jax.tasks.mixture import Mixture

JUDGED = 100
"""Demonstrations of a split that are put to the verifier: not all, since judging one may take seconds."""

WORDED = 50
"""Prompts of each split from which a task's wording is read."""

PERCENTILES = (50, 90, 99)

LongPrompts: TypeAlias = Literal["error", "drop", "cut_left"]
Progress: TypeAlias = Callable[[int, int], None]


def check_data(
    task: Task,
    tokenizer: Any | None,
    *,
    max_tokens: int | None,
    too_long: LongPrompts,
    most: int = 0,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Figures about both splits of a task and their overlap, as plain data; `most` records of each, evenly spread (0:
    all).

    Lengths are tokens of the rendered prompt where there is a tokenizer, else characters. `problems` are what should be
    mended before a run, `notes` what should be known.
    """
    splits: tuple[Split, ...] = ("test", "train")  # the smaller one is kept, the larger one passes by
    records: dict[Split, Sequence[dict]] = {split: task.records(split) for split in splits}
    indices: dict[Split, Sequence[int]] = {split: spread(len(records[split]), most) for split in splits}
    total, done = sum(map(len, indices.values())), 0
    around = _wordings(task, records, indices)
    overlap, found = Overlap(), {}
    for split in splits:
        figures = _Split(task, tokenizer, max_tokens)
        for index in indices[split]:
            record = records[split][index]
            name = _name(index, record)
            text = figures.add(name, record)
            add = overlap.add_test if split == "test" else overlap.add_train
            add(name, text, around[_kind(task, record)])
            done += 1
            progress(done, total)
        judged = [records[split][indices[split][i]] for i in spread(len(indices[split]), JUDGED)]
        found[split] = figures.as_json(len(records[split])) | _judged(task, judged)
    out = {
        "task": task.name,
        "unit": "characters" if tokenizer is None else "tokens",
        "max_tokens": max_tokens,
        "splits": {split: found[split] for split in ("train", "test")},
        "overlap": overlap.as_json(),
    }
    return out | {"problems": _problems(out, too_long), "notes": _notes(out, too_long)}


def _wordings(
    task: Task, records: Mapping[Split, Sequence[dict]], indices: Mapping[Split, Sequence[int]]
) -> Mapping[str, tuple[int, int]]:
    """The `wording` of a task's prompts; of a mixture's, that of each task."""
    texts: dict[str, list[str]] = defaultdict(list)
    for split, mine in indices.items():
        for i in spread(len(mine), WORDED * (len(task.tasks) if isinstance(task, Mixture) else 1)):
            record = records[split][mine[i]]
            texts[_kind(task, record)].append(normal(text_of(task.prompt(record))))
    return defaultdict(lambda: (0, 0), {kind: wording(some) for kind, some in texts.items()})


def _kind(task: Task, record: dict) -> str:
    return record["task"] if isinstance(task, Mixture) else task.name


def spread(count: int, most: int) -> Sequence[int]:
    """Up to `most` (0: all) of `count` indices, evenly spread and ascending."""
    if not most or count <= most:
        return range(count)
    return np.linspace(0, count - 1, most).round().astype(int).tolist()


def text_of(prompt: Prompt) -> str:
    """All that a prompt says: its text, or the contents of its messages."""
    return prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)


def _name(index: int, record: dict) -> str:
    return str(record.get("id", index))


class _Split:
    """What is counted over the records of one split."""

    def __init__(self, task: Task, tokenizer: Any | None, max_tokens: int | None):
        self._task, self._tokenizer, self._max_tokens = task, tokenizer, max_tokens
        self._answers: dict[bytes, tuple[str, str | None]] = {}
        self._lengths: list[int] = []
        self._duplicates: list[tuple[str, str]] = []
        self._contradictions: list[tuple[str, str]] = []
        self._unreadable: list[tuple[str, str]] = []
        self._filled: Counter[str] = Counter()
        self._looked = self._demonstrated = 0

    def add(self, name: str, record: dict) -> str:
        """Count one record; its normalised prompt."""
        self._looked += 1
        self._filled.update(field for field, value in record.items() if value not in (None, "", [], {}))
        prompt, answer = self._task.prompt(record), self._task.demonstration(record)
        self._demonstrated += bool(answer)
        text = normal(text_of(prompt))
        found = self._answers.setdefault(digest(text), mine := (name, answer))
        if found is not mine:
            first, before = found
            self._duplicates.append((first, name))
            if before != answer:
                self._contradictions.append((first, name))
        try:
            length = len(text_of(prompt) if self._tokenizer is None else render(self._tokenizer, prompt))
        except ValueError as error:
            self._unreadable.append((name, str(error)))
        else:
            self._lengths.append(length)
        return text

    def as_json(self, records: int) -> dict[str, Any]:
        lengths = np.array(self._lengths, int)
        limit = self._max_tokens if self._tokenizer is not None else None
        return {
            "records": records,
            "looked_at": self._looked,
            "duplicates": len(self._duplicates),
            "duplicate_examples": self._duplicates[:SHOWN],
            "contradictions": len(self._contradictions),
            "contradiction_examples": self._contradictions[:SHOWN],
            "unreadable": len(self._unreadable),
            "unreadable_examples": self._unreadable[:SHOWN],
            "without_demonstration": self._looked - self._demonstrated,
            "empty_fields": {f: self._looked - n for f, n in self._filled.items() if n < self._looked},
            "length": _lengths(lengths),
            "histogram": histogram(lengths),
            "over_limit": None if limit is None else int((lengths > limit).sum()),
        }


def _lengths(lengths: np.ndarray) -> dict[str, float] | None:
    if not len(lengths):
        return None
    middle = {f"p{p}": float(np.percentile(lengths, p)) for p in PERCENTILES}
    return {
        "min": float(lengths.min()),
        "mean": float(lengths.mean()),
        **middle,
        "max": float(lengths.max()),
    }


def histogram(lengths: np.ndarray) -> list[tuple[int, int]]:
    """(most, count): prompts of up to 16, 32, 64, ... and more than the one before; from the first that has some."""
    if not len(lengths):
        return []
    edges = [16]
    while edges[0] < lengths.min():
        edges[0] *= 2
    while edges[-1] < lengths.max():
        edges.append(2 * edges[-1])
    places = np.searchsorted(edges, lengths)
    return [(edge, int((places == i).sum())) for i, edge in enumerate(edges)]


def _judged(task: Task, records: Sequence[dict]) -> dict[str, Any]:
    """How many demonstrations the verifier was asked about, and those that it does not accept, with its reason."""
    try:
        task.check()
    except (OSError, RuntimeError, ValueError) as error:
        return {"judged": 0, "refused": 0, "refused_examples": [], "cannot_judge": str(error)}
    shown = [(record, task.demonstration(record)) for record in records]
    verdicts = [(record, task.verify(record, text)) for record, text in shown if text]
    refused = [(_name(0, record), v.reason.value) for record, v in verdicts if not v.correct]
    return {"judged": len(verdicts), "refused": len(refused), "refused_examples": refused[:SHOWN]}


def _problems(found: dict[str, Any], too_long: LongPrompts) -> list[str]:
    out = []
    for split, x in found["splits"].items():
        if not x["records"]:
            out.append(f"{split} has no records.")
        if x["unreadable"]:
            (name, error), *_ = x["unreadable_examples"]
            out.append(f"{split}: {x['unreadable']} prompts cannot be rendered, {name} first: {error}")
        if x["contradictions"]:
            first, second = x["contradiction_examples"][0]
            out.append(
                f"{split}: {x['contradictions']} records repeat a prompt with another answer, {second} that of {first}."
            )
        if missing := x["empty_fields"].get("answer"):
            out.append(f"{split}: {missing} records have no answer.")
        if x["refused"]:
            name, reason = x["refused_examples"][0]
            out.append(
                f"{split}: the verifier does not accept {x['refused']} of {x['judged']} demonstrations, that of {name} first "
                f"({reason})."
            )
        if x["over_limit"] and too_long == "error":
            out.append(
                f"{split}: {x['over_limit']} prompts have more than prompts.max_tokens={found['max_tokens']} tokens, which "
                "ends a run; raise the limit, or set prompts.too_long to 'drop' or 'cut_left'."
            )
    if found["overlap"]["exact"]:
        train, test = found["overlap"]["examples"][0]
        out.append(f"{found['overlap']['exact']} test prompts are training prompts, {test} is {train}.")
    return out


def _notes(found: dict[str, Any], too_long: LongPrompts) -> list[str]:
    out = []
    for split, x in found["splits"].items():
        if x["looked_at"] < x["records"]:
            out.append(f"{split}: looked at {x['looked_at']} of {x['records']} records, evenly spread.")
        if x["duplicates"]:
            first, second = x["duplicate_examples"][0]
            out.append(f"{split}: {x['duplicates']} records repeat a prompt, {second} that of {first}.")
        if x["over_limit"] and too_long != "error":
            done = {"drop": "are dropped", "cut_left": "lose their beginning"}[too_long]
            out.append(f"{split}: {x['over_limit']} prompts over prompts.max_tokens {done}.")
        if "cannot_judge" in x:
            out.append(f"{split}: no demonstration was judged: {x['cannot_judge']}")
    if found["overlap"]["ngram"] > found["overlap"]["exact"]:
        out.append(
            f"{found['overlap']['ngram']} test prompts share {NGRAM} words in a row with a training prompt (words that more "
            f"than {COMMON} training prompts share do not count)."
        )
    return out
