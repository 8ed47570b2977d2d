"""A TFDS data set of ArrayRecord files from any records: our builder, which needs no TensorFlow."""

import contextlib
import io
import json
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rlvr_jax.tasks.base import Split
from rlvr_jax.tasks.records import Placed, RecordError
from rlvr_jax.tasks.sources import ABSENT, JSON_FIELDS, read_splits

VERSION = "1.0.0"


def build(
    source: str | pathlib.Path,
    out: str | pathlib.Path,
    name: str,
    *,
    replace: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> pathlib.Path:
    """Write the splits of `source` (whatever `sources.read_records` reads) to `out/name/1.0.0`; the directory, for a
    task's `path`.

    A field that is text in every record is a text feature of that name; any other is text that holds JSON, which our
    reader takes back. The order is that of the source. All or nothing: a directory is there when it is complete.
    `progress(done, total)` counts records.

    Raises: ValueError for a name that TFDS does not take, FileExistsError for a directory that is there without
    `replace`, RecordError for records that cannot be read.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(
            f"a data set cannot be called {name!r}: TFDS names are small letters, digits and underscores, and begin with a "
            "letter."
        )
    out = pathlib.Path(out)
    target = out / name / VERSION
    if target.exists() and not replace:
        raise FileExistsError(
            f"{target} exists; build with --replace to put the new data in its place, or elsewhere."
        )
    splits = read_splits(source)
    total = sum(map(len, splits.values()))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=out) as draft:
        _write(pathlib.Path(draft), name, splits, lambda done: progress(done, total))
        _move(pathlib.Path(draft) / name / VERSION, target, pathlib.Path(draft) / "before")
    return target


def _write(
    folder: pathlib.Path,
    name: str,
    splits: Mapping[Split, Sequence[Placed]],
    count: Callable[[int], None],
) -> None:
    import tensorflow_datasets as tfds

    text, coded = _fields(record for records in splits.values() for record in records)
    done = 0

    class JsonRecords(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        """Records as they are, in the order of their source."""

        VERSION = tfds.core.Version(VERSION)
        url_infos: Any = {}  # nothing is downloaded, so there is no file of checksums to look for

        def _info(self) -> tfds.core.DatasetInfo:
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict({f: tfds.features.Text() for f in sorted(text | coded)}),
                metadata=tfds.core.MetadataDict({JSON_FIELDS: sorted(coded)}),
                disable_shuffling=True,
            )

        def _split_generators(self, dl_manager: Any) -> dict[str, Iterator]:
            return {split: self._generate_examples(records) for split, records in splits.items()}

        def _generate_examples(self, records: Sequence[Placed]) -> Iterator[tuple[int, dict[str, str]]]:
            nonlocal done
            for index, (_, record) in enumerate(records):
                yield index, _encoded(record, text, coded)
                done += 1
                count(done)

    JsonRecords.name = name
    tfds.disable_progress_bar()
    # Not what others may have prepared under this name.
    here = tfds.download.DownloadConfig(try_download_gcs=False)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints where it downloads to
        JsonRecords(data_dir=folder, file_format="array_record").download_and_prepare(download_config=here)


def _fields(records: Iterable[Placed]) -> tuple[frozenset[str], frozenset[str]]:
    """The names of fields that are text in every record, and of all others."""
    counts: dict[str, int] = {}
    other, total = set(), 0
    for where, record in records:
        total += 1
        for field, value in record.items():
            if not field or "/" in field:
                raise RecordError(
                    f"{where}: a field is called {field!r}; TFDS keeps no empty names, and no slashes in them."
                )
            counts[field] = counts.get(field, 0) + 1
            if not (isinstance(value, str) and _is_utf8(value)):
                other.add(field)
    other |= {field for field, count in counts.items() if count < total}
    return frozenset(counts) - other, frozenset(other)


def _is_utf8(text: str) -> bool:
    """Half of a surrogate pair is JSON, and no UTF-8."""
    return not re.search("[\ud800-\udfff]", text)


def _encoded(record: dict, text: frozenset[str], coded: frozenset[str]) -> dict[str, str]:
    values = {field: json.dumps(record[field]) if field in record else ABSENT for field in coded}
    return values | {field: record[field] for field in text}


def _move(draft: pathlib.Path, target: pathlib.Path, before: pathlib.Path) -> None:
    """Put a finished directory in its place; what stood there comes back where that fails."""
    target.parent.mkdir(exist_ok=True)
    if not target.exists():
        draft.rename(target)
        return
    target.rename(before)
    try:
        draft.rename(target)
    except OSError:
        before.rename(target)
        raise
