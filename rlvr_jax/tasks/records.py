"""Records from JSON Lines files, plain or gzipped; a broken line is one error that says where it is."""

import gzip
import json
import pathlib
import zlib
from collections.abc import Iterable, Iterator

from rlvr_jax.tasks.base import Split


class RecordError(ValueError):
    """A data file, or a line of one, that cannot be used."""


def split_file(folder: str | pathlib.Path, split: Split) -> pathlib.Path:
    """`folder/<split>.jsonl` or `folder/<split>.jsonl.gz`.

    Raises: RecordError when neither is there, or both.
    """
    folder = pathlib.Path(folder)
    candidates = [folder / f"{split}.jsonl", folder / f"{split}.jsonl.gz"]
    found = [path for path in candidates if path.is_file()]
    if not found:
        raise RecordError(
            f"no {candidates[0].name} or {candidates[1].name} in {folder}; "
            "put the split there, one JSON object a line."
        )
    if len(found) > 1:
        raise RecordError(f"{folder} has both {found[0].name} and {found[1].name}; keep one of them.")
    return found[0]


def read_jsonl(path: str | pathlib.Path, required: Iterable[str] = ()) -> list[tuple[str, dict]]:
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
    if not isinstance(record, dict):
        raise RecordError(f"{where}: expected an object in braces, got {type(record).__name__}.")
    for field in required:
        if field not in record:
            raise RecordError(
                f"{where}: field {field!r} is missing; there are {', '.join(record) or 'none'}."
            )
    return record
