"""Records that are read: from JSON Lines files at once, from anywhere else (`sources`) when they are asked for.

A record has a place ("FILE, line N"), for errors about what it holds: one error says where the broken one is.
"""

import abc
import functools
import gzip
import json
import operator
import pathlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, SupportsIndex, TypeAlias, overload

from rlvr_jax.tasks.base import Split

Placed: TypeAlias = tuple[str, dict]
"""A record, and before it where it stands."""


class RecordError(ValueError):
    """A data file, or a record of one, that cannot be used."""


class NoSuchSplit(RecordError):
    """Data without the split that was asked for."""


def split_file(folder: str | pathlib.Path, split: Split) -> pathlib.Path:
    """`folder/<split>.jsonl` or `folder/<split>.jsonl.gz`.

    Raises: NoSuchSplit when neither is there, RecordError when both are.
    """
    folder = pathlib.Path(folder)
    candidates = [folder / f"{split}.jsonl", folder / f"{split}.jsonl.gz"]
    found = [path for path in candidates if path.is_file()]
    if not found:
        raise NoSuchSplit(
            f"no {candidates[0].name} or {candidates[1].name} in {folder}; "
            "put the split there, one JSON object a line."
        )
    if len(found) > 1:
        raise RecordError(f"{folder} has both {found[0].name} and {found[1].name}; keep one of them.")
    return found[0]


def read_jsonl(path: str | pathlib.Path, required: Iterable[str] = ()) -> list[Placed]:
    """All objects of a file, in order, each with its place ("FILE, line N") for errors about what it holds.

    Empty lines are passed over, and count as lines.

    Raises: RecordError with file name and line number for a line that is not UTF-8, not JSON, not an
    object, or that lacks a required field; and for a file that cannot be read to its end, or has no records.
    """
    path = pathlib.Path(path)
    required = tuple(required)
    lines = ((f"{path}, line {number}", line) for number, line in _lines(path) if line.strip())
    records = [(where, _record(line, where, required)) for where, line in lines]
    if not records:
        raise RecordError(f"{path} has no records; expected one JSON object a line.")
    return records


def _lines(path: pathlib.Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield number, line
    except FileNotFoundError as error:
        raise RecordError(f"there is no file {path}.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise RecordError(f"{path} cannot be read after line {number}: {error}") from error


def _record(line: bytes, where: str, required: tuple[str, ...]) -> dict:
    try:
        record = json.loads(line.decode("utf-8-sig").strip())
    except UnicodeDecodeError as error:
        raise RecordError(f"{where}: not UTF-8 at byte {error.start + 1}; save the file as UTF-8.") from error
    except json.JSONDecodeError as error:
        raise RecordError(f"{where}: not JSON at column {error.colno}: {error.msg}.") from error
    return _checked(record, where, required)


def _checked(record: Any, where: str, required: tuple[str, ...]) -> dict:
    if not isinstance(record, dict):
        raise RecordError(f"{where}: expected an object in braces, got {type(record).__name__}.")
    for field in required:
        if field not in record:
            raise RecordError(
                f"{where}: field {field!r} is missing; there are {', '.join(record) or 'none'}."
            )
    return record


class LazySequence(Sequence[Any], abc.ABC):
    """Random access to items that are made when they are asked for."""

    @abc.abstractmethod
    def item(self, index: int) -> Any:
        """The item at a place from 0 to the length less one."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"index {place}: there are {len(self)} records.")
        return self.item(place % len(self))


class StoredRecords(LazySequence):
    """The records of a split, each with its place, read when they are asked for.

    It is a path, a split and the fields that every record must have; what is open is left behind when it is pickled.
    """

    def __init__(self, path: str, split: Split, required: Iterable[str] = ()):
        self.path, self.split, self.required = path, split, tuple(required)
        if not len(self):
            raise RecordError(f"{path} has no records in its split {split!r}.")
        where, first = self[0]
        try:
            json.dumps(first)
        except TypeError as error:
            raise RecordError(
                f"{where}: {error}; records hold text, numbers, lists and objects alone."
            ) from error

    @abc.abstractmethod
    def open(self) -> Any:
        """What the records are read from; has a length. Raises RecordError where it cannot be opened."""

    @abc.abstractmethod
    def read(self, rows: Any, index: int) -> Any:
        """One record of what `open` gave."""

    @functools.cached_property
    def _rows(self) -> Any:
        return self.open()

    def __len__(self) -> int:
        return len(self._rows)

    def item(self, index: int) -> Placed:
        where = f"{self.path}, record {index} of {self.split!r}"
        return where, _checked(self.read(self._rows, index), where, self.required)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_rows"}


def converted(records: Sequence[Placed], convert: Callable[[int, str, dict], dict]) -> Sequence[dict]:
    """`convert(index, place, record)` of each. What was read at once is converted at once, so that a broken record is
    found before a run starts; what is read when asked for is converted then.

    `convert` is a module's function, or a `functools.partial` of one: a sequence of records is picklable.
    """
    if isinstance(records, list):
        return [convert(i, where, record) for i, (where, record) in enumerate(records)]
    return _Converted(records, convert)


class _Converted(LazySequence):
    def __init__(self, records: Sequence[Placed], convert: Callable[[int, str, dict], dict]):
        self._records, self._convert = records, convert

    def __len__(self) -> int:
        return len(self._records)

    def item(self, index: int) -> dict:
        return self._convert(index, *self._records[index])
