"""Test prompts that are in the training data: whole, or by many words in a row."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

NGRAM = 13
"""Words in a row by which a test prompt is recognised in training text: GPT-3 (arXiv:2005.14165), appendix C."""

COMMON = 10
"""N-grams in more training prompts than these are a way to put things, not a problem's text. Our proposal."""

SHOWN = 5
"""Pairs of records that are listed as examples."""


def normal(text: str) -> str:
    """Prompts that differ in white space or in case alone are one."""
    return " ".join(text.split()).casefold()


def digest(text: str) -> bytes:
    """16 bytes that stand for a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def wording(texts: Sequence[str]) -> tuple[int, int]:
    """How many words all texts begin with, and how many they end with: an instruction, and none of the problem. (0, 0) for
    fewer than two different texts."""
    words = [text.split() for text in set(texts)]
    if len(words) < 2:
        return 0, 0
    head = _shared(words)
    return head, _shared([each[head:][::-1] for each in words])


def _shared(rows: Sequence[Sequence[str]]) -> int:
    count = 0
    for column in zip(*rows, strict=False):
        if len(set(column)) > 1:
            break
        count += 1
    return count


def ngrams(words: Sequence[str], n: int = NGRAM) -> Iterator[int]:
    """A hash of each `n` words in a row; of all the words where there are fewer."""
    for i in range(max(1, len(words) - n + 1)):
        yield hash(tuple(words[i : i + n]))


class Overlap:
    """Normalised test prompts, then normalised training prompts, which are not kept.

    `around` is the `wording` at both ends of a prompt that n-grams leave out.
    """

    def __init__(self) -> None:
        self._whole: dict[bytes, list[str]] = {}
        self._grams: list[frozenset[int]] = []
        self._seen: Counter[int] | None = None
        self._pairs: list[tuple[str, str]] = []
        self._test: set[str] = set()

    def add_test(self, name: str, text: str, around: tuple[int, int]) -> None:
        """All of these come before any training prompt."""
        self._whole.setdefault(digest(text), []).append(name)
        self._grams.append(frozenset(ngrams(_within(text, around))))

    def add_train(self, name: str, text: str, around: tuple[int, int]) -> None:
        if self._seen is None:
            self._seen = Counter({gram: 0 for grams in self._grams for gram in grams})
        for test in self._whole.get(digest(text), ()):
            self._test.add(test)
            self._pairs.append((name, test))
        self._seen.update(gram for gram in set(ngrams(_within(text, around))) if gram in self._seen)

    def as_json(self) -> dict[str, Any]:
        """`exact` and `ngram`: test prompts that are found whole, and by `n` words in a row that at most 10 training
        prompts share; `examples`: (training, test) records of equal prompts."""
        shared = {gram for gram, count in (self._seen or {}).items() if 0 < count <= COMMON}
        return {
            "exact": len(self._test),
            "examples": self._pairs[:SHOWN],
            "ngram": sum(not shared.isdisjoint(grams) for grams in self._grams),
            "n": NGRAM,
        }


def _within(text: str, around: tuple[int, int]) -> list[str]:
    words = text.split()
    return words[around[0] : len(words) - around[1]]
