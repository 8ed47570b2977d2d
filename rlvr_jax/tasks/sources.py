"""Where records come from, which a task's `path` says: files of JSON Lines, a TFDS directory, a directory of Hugging Face
`datasets`, or a Python function.

Each gives random access, in the same order every time, and can be pickled: what `grain` asks of a data source.
"""

import json
import pathlib
import pkgutil
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rlvr_jax.tasks.base import Split, check_split
from rlvr_jax.tasks.records import NoSuchSplit, Placed, RecordError, StoredRecords, read_jsonl, split_file

ABSENT = ""
"""In a field that holds JSON: this record has no such field. No JSON text is empty."""

JSON_FIELDS = "json_fields"
"""Key of a TFDS directory's metadata: the names of the fields that hold JSON."""


def read_records(path: str | pathlib.Path, split: Split, required: Iterable[str] = ()) -> Sequence[Placed]:
    """All records of a split in order, each with its place for errors about what it holds. `path` is one of

    - a folder with `<split>.jsonl` or `<split>.jsonl.gz`: a list, read and checked at once;
    - a TFDS directory of ArrayRecord files, as `rlvr-jax data build` writes it, or a folder with just one inside;
    - a directory of `datasets`: what `save_to_disk` wrote, or parquet files called `<split>.parquet`,
      `<split>-*.parquet`, the same under `data/`, or anything under `<split>/`;
    - `package.module:function`: called with the split, it returns a sequence, or an iterable that ends, of objects.

    All but the first are read when asked for, and checked then.

    Raises: RecordError for a folder that is none of these or several, for a record that lacks a required field; and
    ModuleNotFoundError where the package `datasets` is not installed.
    """
    check_split(split)
    required = tuple(required)
    if is_function(path):
        return FunctionRecords(str(path), split, required)
    folder = pathlib.Path(path)
    forms = {
        "JSON Lines": any(folder.glob("*.jsonl")) or any(folder.glob("*.jsonl.gz")),
        "TFDS": bool(tfds_directories(folder)),
        "datasets": is_saved_dataset(folder) or bool(parquet_files(folder)),
    }
    found = [form for form, there in forms.items() if there]
    if len(found) > 1:
        raise RecordError(f"{folder} holds data as {' and as '.join(found)}; keep one of them.")
    if found == ["TFDS"]:
        return TfdsRecords(str(folder), split, required)
    if found == ["datasets"]:
        return DatasetsRecords(str(folder), split, required)
    return read_jsonl(split_file(folder, split), required)


def read_splits(path: str | pathlib.Path) -> dict[Split, Sequence[Placed]]:
    """`read_records` of each split that is there. Raises: RecordError where none is."""
    found, problems = {}, []
    splits: tuple[Split, ...] = ("train", "test")
    for split in splits:
        try:
            found[split] = read_records(path, split)
        except NoSuchSplit as error:
            problems.append(error)
    if not found:
        raise problems[0]
    return found


# ---- a Python function -------------------------------------------------------------------------------------------


def is_function(path: str | pathlib.Path) -> bool:
    """Whether a path is the name of a function, `package.module:function`, and no file."""
    return (
        re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", str(path)) is not None
        and not pathlib.Path(path).exists()
    )


class FunctionRecords(StoredRecords):
    """What a function of the user's returns for a split: a sequence, which is asked for one record at a time, or an
    iterable, which is read to its end."""

    def open(self) -> Sequence[Any]:
        try:
            function = pkgutil.resolve_name(self.path)
        except (ImportError, AttributeError) as error:
            raise RecordError(
                f"there is no function {self.path!r} ({error}); its module has to be importable, so install it or put its "
                "folder into PYTHONPATH."
            ) from error
        found = function(self.split)
        if isinstance(found, str | bytes | dict) or not isinstance(found, Iterable):
            raise RecordError(
                f"{self.path}({self.split!r}) returned {type(found).__name__}; it has to return a sequence or an iterable of "
                "objects (dict)."
            )
        return found if isinstance(found, Sequence) else list(found)

    def read(self, rows: Sequence[Any], index: int) -> Any:
        return rows[index]


# ---- TFDS --------------------------------------------------------------------------------------------------------


def tfds_directories(folder: pathlib.Path) -> list[pathlib.Path]:
    """The folder itself, or those one or two below it, that hold a prepared TFDS data set: `name/1.0.0`."""
    files = (f for depth in ("", "*/", "*/*/") for f in folder.glob(f"{depth}features.json"))
    inside = [f.parent for f in files if not any(p.startswith(".") for p in f.relative_to(folder).parts)]
    return sorted(d for d in inside if (d / "dataset_info.json").is_file())


class TfdsRecords(StoredRecords):
    """A split of a TFDS directory, through `as_data_source`: ArrayRecord files, read without TensorFlow.

    Fields that our builder wrote as JSON are read back; of data sets that others prepared, text is decoded, and
    arrays become lists.
    """

    def open(self) -> tuple[Any, frozenset[str]]:
        directories = tfds_directories(pathlib.Path(self.path))
        if len(directories) > 1:
            raise RecordError(
                f"{self.path} holds {len(directories)} data sets, {', '.join(str(d) for d in directories)}; name one of them."
            )
        import tensorflow_datasets as tfds

        try:
            builder: Any = tfds.builder_from_directory(directories[0])
        except (
            Exception
        ) as error:  # it raises what it likes: a missing key, protobuf's errors, AssertionError
            raise RecordError(f"{directories[0]} is no readable TFDS directory: {error}") from error
        if self.split not in builder.info.splits:
            raise _no_such_split(self.path, self.split, builder.info.splits)
        try:
            rows = builder.as_data_source(split=self.split)
        except Exception as error:  # the same; here for file formats without random access, and missing files
            raise RecordError(
                f"split {self.split!r} of {directories[0]} cannot be read: {error} (only ArrayRecord files can be read at "
                "random; build the directory with file_format='array_record', or with rlvr-jax data build)."
            ) from error
        return rows, frozenset((builder.info.metadata or {}).get(JSON_FIELDS, ()))

    def __len__(self) -> int:
        return len(self._rows[0])

    def read(self, rows: tuple[Any, frozenset[str]], index: int) -> dict:
        source, coded = rows
        try:
            found = source[index]
        except Exception as error:  # the reader in C++ raises RuntimeError, and others with the file's state
            raise RecordError(
                f"{self.path}, record {index} of {self.split!r} cannot be read: {error}; build the directory again."
            ) from error
        fields = {name: plain(value) for name, value in found.items()}
        return {
            name: json.loads(value) if name in coded else value
            for name, value in fields.items()
            if not (name in coded and value == ABSENT)
        }


def plain(value: Any) -> Any:
    """NumPy and bytes as JSON has them: numbers, lists, text."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


# ---- Hugging Face datasets ---------------------------------------------------------------------------------------


def is_saved_dataset(folder: pathlib.Path) -> bool:
    """Whether `save_to_disk` wrote the folder, or folders of its splits."""
    one = any((folder / split / "state.json").is_file() for split in ("train", "test"))
    return one or (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def parquet_files(folder: pathlib.Path) -> dict[str, list[str]]:
    """The parquet files of each split that has some."""
    found = {}
    for split in ("train", "test"):
        patterns = (f"{split}.parquet", f"{split}-*.parquet", f"{split}/*.parquet")
        files = [f for root in (folder, folder / "data") for p in patterns for f in root.glob(p)]
        if files:
            found[split] = sorted(map(str, files))
    return found


class DatasetsRecords(StoredRecords):
    """A split of a directory of `datasets`, memory-mapped.

    Columns are typed there, so an object that lacks a key in one record has it with `None`.
    """

    def open(self) -> Any:
        try:
            import datasets
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{self.path} is a directory of `datasets`, and that package is not installed: pip install 'rlvr_jax[datasets]'."
            ) from error
        folder = pathlib.Path(self.path)
        files = parquet_files(folder)
        if files:
            if self.split not in files:
                raise _no_such_split(self.path, self.split, files)
            return datasets.load_dataset(
                "parquet", data_files={self.split: files[self.split]}, split=self.split
            )
        if (folder / self.split / "state.json").is_file():
            return datasets.load_from_disk(str(folder / self.split))
        if (folder / "state.json").is_file():
            raise RecordError(
                f"{folder} is one data set without splits; save a DatasetDict with 'train' and 'test'."
            )
        there = [f.parent.name for f in folder.glob("*/state.json")]
        raise _no_such_split(self.path, self.split, there)

    def read(self, rows: Any, index: int) -> dict:
        return rows[index]


def _no_such_split(path: str, split: str, there: Iterable[str]) -> NoSuchSplit:
    return NoSuchSplit(f"{path} has no split {split!r}; it has {', '.join(sorted(there)) or 'none'}.")
