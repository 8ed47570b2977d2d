"""Between two segments of the decode loop: rows that ended on a string, and rows that called a tool and read its answer.

Token in, token out: a row is cut at the token that completes the string, nothing is encoded anew, and what a tool wrote
is appended as tokens of its own. The cache needs no repair: what lies behind a row's position is not read.
"""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import numpy as np

from rlvr_jax.distributed import exchanged, mine
from rlvr_jax.rollout.decode_loop import Edits, Log
from rlvr_jax.rollout.table import Table
from rlvr_jax.rollout.tools import RESULT, Turns, find_call, run_call, stop_strings
from rlvr_jax.rollout.workers import Workers


class Conversation:
    """What the host knows of a request's rows, and what it tells the slots.

    A row ends at its first stop token or stop string, or where there is no room left; with tools, where its calls are
    used up too. A call that fails or takes too long has that as its answer. Of several processes each runs the calls of
    its own rows, and all go by the same answers.
    """

    def __init__(
        self,
        tokenizer: Any,
        strings: Sequence[str],
        turns: Turns | None,
        workers: Workers | None,
        table: Table,
        slots: int,
    ):
        self._tokenizer, self._turns, self._workers, self._table = tokenizer, turns, workers, table
        self._tools = turns.tools if turns else ()
        self._strings = (*strings, *stop_strings(self._tools))
        rows = len(table.length)
        self._start = np.zeros(rows, np.int64)  # of the row's turn: behind the last answer it read
        self._checked = np.zeros(rows, np.int64)
        self._calls = np.zeros(rows, np.int64)
        self._asked: dict[int, tuple[int, int, Future | None]] = {}  # row: slot, tokens, answer to come
        self._edits = Edits.none(slots, turns.max_result_tokens if turns else 0)

    def read(self, log: Log) -> Edits:
        """What follows from a segment. Waits for an answer where nothing else is left to do."""
        self._edits = Edits.none(*self._edits.given.shape)
        self._table.write(log)
        for slot in np.flatnonzero((log.row >= 0).any(0)).tolist():
            for row in dict.fromkeys(log.row[log.row[:, slot] >= 0, slot].tolist()):
                self._look(row, slot, log)
        if self._asked and not (log.row >= 0).any() and not self._edits.on.any():
            wait([answer for _, _, answer in self._asked.values() if answer], return_when=FIRST_COMPLETED)
        for row, answer in self._answered().items():
            slot, tokens, _ = self._asked.pop(row)
            self._hand_over(row, slot, tokens, answer)
        return self._edits

    def _answered(self) -> dict[int, str]:
        """The calls that are done, by row: those of every process, as they see them together."""
        if not self._asked:
            return {}
        own = {row: each.result() for row, (_, _, each) in self._asked.items() if each and each.done()}
        return {row: answer for answers in exchanged(own) for row, answer in answers.items()}

    def _look(self, row: int, slot: int, log: Log) -> None:
        """A row that wrote something."""
        lines = log.row[:, slot] == row
        last = int(np.flatnonzero(lines)[-1])
        tokens = int(log.position[last, slot]) + 1
        stopped, cut = bool(log.stopped[last, slot]), bool(log.cut[last, slot])
        over = stopped or cut
        ends = self._first_end(row, tokens)
        self._checked[row] = tokens
        if ends is not None:
            text = self._text(row, ends)
            call = find_call(text, self._tools) if self._turns else None
            if call is None:
                self._end(row, slot, ends, truncated=False, there=not over)
            elif over and ends == tokens:  # there is no room for an answer, or a stop token ended the row
                self._end(row, slot, ends, truncated=cut, there=False)
            elif self._turns is not None and self._calls[row] < self._turns.max_calls:
                self._calls[row] += 1
                assert self._workers is not None
                limit = self._turns.max_result_chars
                answer = run_call(call, self._tools, self._workers, limit) if mine(row) else None
                self._asked[row] = slot, ends, answer
                self._set(slot, paused=True, position=ends, token=int(self._table.tokens[row, ends - 1]))
            else:
                self._end(row, slot, ends, truncated=True, there=not over)
        elif over:
            self._end(row, slot, tokens, truncated=cut, there=False)

    def _first_end(self, row: int, tokens: int) -> int | None:
        """How many tokens the row has where a string first ends it."""
        found = lambda n: any(s in self._text(row, n) for s in self._strings)  # noqa: E731
        first = max(int(self._checked[row]), int(self._start[row])) + 1
        if tokens < first or not found(tokens):
            return None
        return next(n for n in range(first, tokens + 1) if found(n))

    def _text(self, row: int, tokens: int) -> str:
        """What the row's turn says so far."""
        ids = self._table.tokens[row, self._start[row] : tokens].tolist()
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def _hand_over(self, row: int, slot: int, tokens: int, answer: str) -> None:
        """An answer, as tokens that the row reads before it draws again."""
        assert self._turns is not None
        ids, most = self._encode(answer), self._turns.max_result_tokens
        if len(ids) > most:
            close = self._encode(f"</{RESULT}>\n")
            ids = [*ids[: most - len(close)], *close]
        self._start[row] = self._checked[row] = tokens + len(ids)
        self._set(slot, paused=False, position=tokens, token=int(self._table.tokens[row, tokens - 1]))
        self._edits.given[slot, : len(ids)] = ids
        self._edits.pending[slot] = len(ids)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _end(self, row: int, slot: int, tokens: int, *, truncated: bool, there: bool) -> None:
        """A row is over. Its slot has to be told, where the slot is still `there` or, with tools, waits to hear."""
        self._table.end(row, tokens, truncated)
        if there or self._turns:
            self._edits.on[slot] = self._edits.end[slot] = True

    def _set(self, slot: int, *, paused: bool, position: int, token: int) -> None:
        self._edits.on[slot], self._edits.paused[slot] = True, paused
        self._edits.position[slot], self._edits.token[slot] = position, token
