"""Prompts as padded batches of token ids: an endless resumable stream to train on, a list to evaluate."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int

from rlvr_jax.models.tokenizer import render
from rlvr_jax.rollout.order import endless_indices, rows_of
from rlvr_jax.tasks.base import Prompt, Split, Task
from rlvr_jax.tasks.mixture import MixedRecords

LongPrompts: TypeAlias = Literal["error", "drop", "cut_left"]
"""What to do with a prompt over the limit. `cut_left` keeps its end, and its BOS where it has one."""

POLICIES = ("error", "drop", "cut_left")
SMALLEST_BUCKET = 16
PATIENCE = 50_000
"""So many dropped prompts in a row, or as many as the split has, end the run instead of an endless search."""


@dataclasses.dataclass(frozen=True, eq=False)
class PromptBatch:
    """P prompts, padded on the right to S tokens.

    `length` says how much of a row is real; padding is never recognised by its id. `prompt_id` is the index
    of the record in its split, and `occurrence` counts earlier rows of this batch with the same id:
    randomness is a function of identity, so a repeated prompt needs it to get samples of its own. Rows
    where `valid` is false only fill up the last batch of an evaluation.
    """

    tokens: Int[np.ndarray, "P S"]
    length: Int[np.ndarray, " P"]
    prompt_id: Int[np.ndarray, " P"]
    occurrence: Int[np.ndarray, " P"]
    valid: Bool[np.ndarray, " P"]
    records: tuple[dict, ...]

    def after(self, batches: int) -> "PromptBatch":
        """The same prompts where so many batches of this size come before them in a step: a prompt that was in one of
        those gets samples of its own."""
        return dataclasses.replace(self, occurrence=self.occurrence + np.int32(batches * len(self.length)))

    def rows(self, rows: slice) -> "PromptBatch":
        """Some of the rows, as wide as all of them are."""
        fields = {f.name: getattr(self, f.name)[rows] for f in dataclasses.fields(self)}
        return PromptBatch(**fields)


def check_policy(policy: str) -> None:
    """Raises ValueError for a policy that is not one of `POLICIES`."""
    if policy not in POLICIES:
        raise ValueError(f"no long-prompt policy called {policy!r}; there are {', '.join(POLICIES)}.")


def bucket(length: int, limit: int) -> int:
    """A width that many batches share: the next power of two, from 16, up to the limit (a multiple of 16)."""
    most = -(-limit // SMALLEST_BUCKET) * SMALLEST_BUCKET
    return min(max(SMALLEST_BUCKET, 1 << (length - 1).bit_length()), most)


@runtime_checkable
class Asks(Protocol):
    """What turns a record into a prompt; every task does."""

    def prompt(self, record: dict) -> Prompt: ...


class PromptEncoder:
    """Records to token ids under a length limit; counts what it dropped and what it cut."""

    def __init__(self, task: Asks, tokenizer: Any, max_prompt_tokens: int, policy: LongPrompts):
        check_policy(policy)
        if max_prompt_tokens < 1:
            raise ValueError(f"max_prompt_tokens={max_prompt_tokens}: a prompt has at least 1 token.")
        self.task, self.tokenizer = task, tokenizer
        self.max_prompt_tokens, self.policy = max_prompt_tokens, policy
        self.dropped = self.cut = 0

    def encode(self, index: int, record: dict) -> list[int] | None:
        """The ids of one prompt, or `None` for one that is dropped.

        Raises: ValueError for a prompt that cannot be rendered, and for one over the limit under "error".
        """
        try:
            ids = render(self.tokenizer, self.task.prompt(record))
        except ValueError as error:
            raise ValueError(f"{_name(index, record)} cannot be rendered: {error}") from error
        if len(ids) <= self.max_prompt_tokens:
            return ids
        if self.policy == "error":
            raise ValueError(
                f"{_name(index, record)} has {len(ids)} tokens, more than prompts.max_tokens="
                f"{self.max_prompt_tokens}; raise the limit, or set prompts.too_long to 'drop' or 'cut_left'."
            )
        if self.policy == "drop":
            self.dropped += 1
            return None
        self.cut += 1
        kept = ids[-self.max_prompt_tokens :]
        bos = getattr(self.tokenizer, "bos_token_id", None)
        return [ids[0], *kept[1:]] if ids[0] == bos else kept

    def batch(self, rows: Sequence[tuple[int, list[int], dict]], valid: int) -> PromptBatch:
        """Pad encoded rows (index, ids, record); the first `valid` of them count."""
        length = np.array([len(ids) for _, ids, _ in rows], np.int32)
        tokens = np.zeros((len(rows), bucket(int(length.max()), self.max_prompt_tokens)), np.int32)
        for row, (_, ids, _) in zip(tokens, rows, strict=True):
            row[: len(ids)] = ids
        prompt_id = [index for index, _, _ in rows]
        return PromptBatch(
            tokens=tokens,
            length=length,
            prompt_id=np.array(prompt_id, np.int32),
            occurrence=np.array([prompt_id[:i].count(p) for i, p in enumerate(prompt_id)], np.int32),
            valid=np.arange(len(rows)) < valid,
            records=tuple(record for _, _, record in rows),
        )


def _name(index: int, record: dict) -> str:
    return f"prompt {index}" + (f" ({record['id']})" if "id" in record else "")


def fingerprint(records: Sequence[dict]) -> str:
    """The identity of a data set: its size and a hash over up to eight of its records."""
    some = sorted({round(i) for i in np.linspace(0, len(records) - 1, 8)}) if len(records) else []
    text = json.dumps([len(records), [records[i] for i in some]], sort_keys=True, default=str)
    return f"{len(records)}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


class PromptStream:
    """Endless batches of prompts, shuffled anew each epoch, that can be stopped and continued at any batch.

    A batch may span two epochs, so no record is left out at an epoch's end. Two streams with the same task,
    seed and state give the same batches. `dropped` and `cut` count the prompts over the limit since the start
    of the run. A mixture is drawn from by weight, and each of its tasks has epochs of its own.

    Of several processes each gets its rows of every batch, in the order of the processes: together they are the batch
    that one process would get. All of them go through the whole batch, because its width, the repetitions in it and
    what is dropped on the way concern every row; so a state is that of any process, and of any number of them.

    Raises: ValueError for an empty split, an impossible limit, batch, seed or policy, and for a batch that does not
    spread over the processes.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: Any,
        split: Split,
        batch: int,
        max_prompt_tokens: int,
        policy: LongPrompts = "error",
        seed: int = 0,
        shuffle: bool = True,
        process_index: int = 0,
        process_count: int = 1,
    ):
        self._encoder = PromptEncoder(task, tokenizer, max_prompt_tokens, policy)
        self._records = _some_records(task, split, batch)
        self._batch, self._split = batch, split
        self._rows = rows_of(process_index, process_count, batch)
        self._order: dict[str, Any] = {"seed": seed, "shuffle": shuffle}
        if isinstance(self._records, MixedRecords):
            self._order["weights"] = list(self._records.weights)
        self._fingerprint = fingerprint(self._records)
        self._indices = endless_indices(self._records, seed, shuffle)

    @property
    def num_prompts(self) -> int:
        return len(self._records)

    @property
    def dropped(self) -> int:
        return self._encoder.dropped

    @property
    def cut(self) -> int:
        return self._encoder.cut

    def __iter__(self) -> "PromptStream":
        return self

    def __next__(self) -> PromptBatch:
        """Records are taken one at a time, so the state after a batch lies exactly behind its last record."""
        rows: list[tuple[int, list[int], dict]] = []
        in_a_row = 0
        while len(rows) < self._batch:
            index = int(next(self._indices))
            record = self._records[index]
            ids = self._encoder.encode(index, record)
            if ids is not None:
                rows.append((index, ids, record))
            in_a_row = in_a_row + 1 if ids is None else 0
            if in_a_row >= min(self.num_prompts, PATIENCE):
                raise ValueError(
                    f"{in_a_row} prompts of {self._split!r} in a row have more than prompts.max_tokens="
                    f"{self._encoder.max_prompt_tokens} tokens and were dropped; raise the limit."
                )
        return self._encoder.batch(rows, valid=len(rows)).rows(self._rows)

    def fingerprint(self) -> str:
        return self._fingerprint

    def get_state(self) -> dict[str, Any]:
        """A JSON-able dict."""
        return {
            "position": self._indices.get_state(),
            "dropped": self.dropped,
            "cut": self.cut,
            "fingerprint": self._fingerprint,
            "order": dict(self._order),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue where `get_state` was called.

        Raises: ValueError for a state of other data, or of another order.
        """
        if state["order"] != self._order:
            raise ValueError(
                f"the saved position is for the order {state['order']}, this stream has {self._order}; "
                "resume with the seed of the run, or start a new run."
            )
        if state["fingerprint"] != self._fingerprint:
            raise ValueError(
                f"the data of split {self._split!r} changed: the saved position is for "
                f"{state['fingerprint']}, this is {self._fingerprint} (size and hash); "
                "resume with the data of the run, or start a new run."
            )
        self._indices.set_state(state["position"])
        self._encoder.dropped, self._encoder.cut = state["dropped"], state["cut"]


def evaluation_batches(
    task: Task,
    tokenizer: Any,
    split: Split,
    batch: int,
    count: int | None = None,
    *,
    max_prompt_tokens: int,
    policy: LongPrompts = "error",
) -> list[PromptBatch]:
    """The first `count` records (all by default), in order, each exactly once.

    The last batch is filled up with its last record, and `valid` is false there: 7 records in batches of 4
    score 7.
    Under the policy "drop" fewer rows than `count` are valid.

    Raises: ValueError for more records than there are, and when nothing is left.
    """
    encoder = PromptEncoder(task, tokenizer, max_prompt_tokens, policy)
    records = _some_records(task, split, batch)
    count = len(records) if count is None else count
    if not 1 <= count <= len(records):
        raise ValueError(
            f"count={count}: split {split!r} has {len(records)} records; ask for 1 to {len(records)}."
        )
    rows = list(_encoded(encoder, records, range(count)))
    if not rows:
        raise ValueError(
            f"all {count} prompts of {split!r} have more than prompts.max_tokens={max_prompt_tokens} tokens "
            "and were dropped; raise the limit."
        )
    parts = [rows[i : i + batch] for i in range(0, len(rows), batch)]
    return [encoder.batch(part + [part[-1]] * (batch - len(part)), valid=len(part)) for part in parts]


def _encoded(
    encoder: PromptEncoder, records: Sequence[dict], indices: Iterable[int]
) -> Iterable[tuple[int, list[int], dict]]:
    for index in indices:
        record = records[index]
        ids = encoder.encode(index, record)
        if ids is not None:
            yield index, ids, record


def _some_records(task: Task, split: Split, batch: int) -> Sequence[dict]:
    if batch < 1:
        raise ValueError(f"batch={batch}: a batch has at least 1 prompt.")
    records = task.records(split)
    if not len(records):
        raise ValueError(
            f"split {split!r} of {type(task).__name__} has no records; there is nothing to prompt with."
        )
    return records
