"""Where a task's training and test records are, when they are in one place, in two, or in files of any name."""

import pathlib
from collections.abc import Iterable, Sequence

from rlvr_jax.tasks.base import Split, check_split
from rlvr_jax.tasks.records import Placed, RecordError, read_jsonl
from rlvr_jax.tasks.sources import read_records

SAMPLES = pathlib.Path(__file__).parent / "data"
"""A folder for each task that comes with a sample."""


def read_split(
    path: str | None, test_path: str | None, sample: str, split: Split, required: Iterable[str]
) -> Sequence[Placed]:
    """The records of a split of `path`, or for the test of `test_path` where that is given.

    Each is what `sources.read_records` reads, or one .jsonl(.gz) file, all of whose records are of the split. `path=None`
    is the folder `sample` of `SAMPLES`.

    Raises: RecordError, also for a file in `path` when the test split is asked for and there is no `test_path`.
    """
    check_split(split)
    place = test_path if split == "test" and test_path else path or str(SAMPLES / sample)
    if not place.endswith((".jsonl", ".jsonl.gz")):
        return read_records(place, split, required)
    if split == "test" and not test_path:
        raise RecordError(f"path={place!r} is one file, of training records: set test_path too.")
    return read_jsonl(place, required)
