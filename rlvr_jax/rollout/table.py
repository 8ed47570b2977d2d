"""What the rows of a request have written, on the host."""

import numpy as np

from rlvr_jax.rollout.decode_loop import Log
from rlvr_jax.rollout.protocol import OnRow, Samples
from rlvr_jax.rollout.sampling import Sampling
from rlvr_jax.types import Stat


class Table:
    """Filled in by the logs of segments. What a row wrote behind its end is taken out at the close."""

    def __init__(self, rows: int, sampling: Sampling, on_row: OnRow):
        shape = rows, sampling.max_new_tokens
        self.tokens, self.length = np.zeros(shape, np.int32), np.zeros(rows, np.int32)
        self.truncated, self._written = np.zeros(rows, bool), np.zeros(rows, np.int32)
        self._mask, self._logprob = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._stats = {s: np.zeros(shape, np.float32) for s in sampling.wanted - {Stat.LOGPROB}}
        self._on_row = on_row

    @property
    def longest(self) -> int:
        """Tokens so far of the longest row that is not over."""
        return int(np.where(self.length > 0, 0, self._written).max())

    def write(self, log: Log) -> None:
        """The lines of a segment."""
        real = log.row >= 0
        at = log.row[real], log.position[real]
        self.tokens[at], self._mask[at] = log.token[real], log.drawn[real]
        self._logprob[at] = log.logprob[real]
        np.maximum.at(self._written, at[0], at[1] + 1)
        for stat, values in log.stats.items():
            self._stats[stat][at] = values[real]

    def end_where_it_did(self, log: Log) -> None:
        """Rows end where the loop ended them."""
        over = (log.row >= 0) & (log.stopped | log.cut)
        for row, last, cut in zip(log.row[over], log.position[over], log.cut[over], strict=True):
            self.end(int(row), int(last) + 1, bool(cut))

    def end(self, row: int, tokens: int, truncated: bool) -> None:
        self.length[row], self.truncated[row] = tokens, truncated
        self._on_row(row, self.tokens[row, :tokens])

    def samples(self, version: int) -> Samples:
        """Everything. A tool's tokens have no log-probability that anything could use, so it is 0."""
        inside = np.arange(self.tokens.shape[1]) < self.length[:, None]
        mask = np.where(inside, self._mask, 0).astype(np.float32)
        return Samples(
            tokens=np.where(inside, self.tokens, 0).astype(np.int32),
            length=self.length,
            mask=mask,
            truncated=self.truncated,
            logprob=np.where(mask > 0, self._logprob, 0).astype(np.float32),
            stats={s: np.where(mask > 0, x, 0).astype(np.float32) for s, x in self._stats.items()},
            version=np.full(len(self.length), version, np.int32),
        )
