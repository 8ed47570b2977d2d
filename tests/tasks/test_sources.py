"""Sources of records: whatever a path names gives the same records, read at random, pickled, and named in errors."""

import json
import os
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest

from rlvr_jax.tasks import sources
from rlvr_jax.tasks.records import NoSuchSplit, RecordError, converted, read_jsonl
from rlvr_jax.tasks.sources import read_records, read_splits
from rlvr_jax.tasks.tfds_builder import build

ROWS = {
    "train": [
        {"id": "a", "question": "1 + 1?", "answer": "2"},
        {
            "id": "b",
            "question": 'é\n"quoted" \u2028',
            "answer": 2,
            "tests": [{"in": None, "out": [1.5, True]}],
        },
        {"id": "c", "question": "", "answer": None, "odd": "\ud800"},
    ],
    "test": [{"id": "d", "question": "2 + 2?", "answer": "4", "level": 10**20}],
}


def write_jsonl(folder, rows=ROWS):
    folder.mkdir(parents=True, exist_ok=True)
    for split, records in rows.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def bare(records):
    """Records without their places, read one by one from the end."""
    return [records[i][1] for i in reversed(range(len(records)))][::-1]


def from_function(split):
    return ROWS[split]


def nothing(split):
    return []


def from_generator(split):
    yield from ROWS[split]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    counts = []
    at = build(
        write_jsonl(folder / "lines"), folder / "out", "rows", progress=lambda *seen: counts.append(seen)
    )
    return at, counts


# ---- TFDS --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("up", [0, 1, 2])
def test_what_the_builder_writes_is_read_as_it_was(built, up):
    at, counts = built
    assert counts == [(n, 4) for n in range(1, 5)]
    folder = at.parents[up - 1] if up else at
    for split, rows in ROWS.items():
        assert bare(read_records(folder, split, ("id", "answer"))) == rows


def test_the_directory_is_one_that_tfds_reads_itself(built):
    tfds = pytest.importorskip("tensorflow_datasets")
    builder = tfds.builder_from_directory(built[0])
    assert builder.info.full_name == "rows/1.0.0"
    assert {name: split.num_examples for name, split in builder.info.splits.items()} == {
        "train": 3,
        "test": 1,
    }
    assert [row["id"] for row in builder.as_data_source("train")] == [b"a", b"b", b"c"]


def test_a_directory_that_others_prepared_is_read_as_json_has_it(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")

    class Theirs(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        name = "theirs"
        VERSION = tfds.core.Version("2.0.0")
        url_infos = {}

        def _info(self):
            whole, part = tfds.features.Scalar(np.int64), tfds.features.Tensor(shape=(2,), dtype=np.float64)
            text = tfds.features.Text()
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict({"n": whole, "x": part, "q": {"t": text}})
            )

        def _split_generators(self, dl_manager):
            return {"train": iter([(0, {"n": 7, "x": [0.5, 2.0], "q": {"t": "é"}})])}

        def _generate_examples(self):
            raise AssertionError

    Theirs(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    assert bare(read_records(tmp_path, "train")) == [{"n": 7, "x": [0.5, 2.0], "q": {"t": "é"}}]
    with pytest.raises(NoSuchSplit) as error:
        read_records(tmp_path, "test")
    assert str(error.value) == f"{tmp_path} has no split 'test'; it has train."


def test_building_again_is_refused_unless_the_old_is_to_be_replaced(built, tmp_path):
    out = tmp_path / "out"
    first = build(write_jsonl(tmp_path / "one"), out, "rows")
    other = {"train": ROWS["test"], "test": ROWS["train"][:1]}
    write_jsonl(tmp_path / "two", other)
    with pytest.raises(FileExistsError) as error:
        build(tmp_path / "two", out, "rows")
    assert (
        str(error.value)
        == f"{first} exists; build with --replace to put the new data in its place, or elsewhere."
    )
    assert bare(read_records(out, "train")) == ROWS["train"]
    assert build(tmp_path / "two", out, "rows", replace=True) == first
    assert bare(read_records(out, "train")) == other["train"]


def test_a_build_that_fails_leaves_what_was_there(tmp_path):
    out = tmp_path / "out"
    build(write_jsonl(tmp_path / "one"), out, "rows")
    before = sorted(out.rglob("*"))

    def stop(done, total):
        raise RuntimeError(f"no space left after {done} of {total}")

    with pytest.raises(RuntimeError, match="after 1 of 4"):
        build(tmp_path / "one", out, "rows", replace=True, progress=stop)
    with pytest.raises(RuntimeError, match="after 1 of 4"):
        build(tmp_path / "one", out, "others", progress=stop)
    assert sorted(out.rglob("*")) == before
    assert bare(read_records(out, "train")) == ROWS["train"]


@pytest.mark.parametrize("name", ["Rows", "2rows", "a/b", ""])
def test_names_that_tfds_does_not_take_are_refused(tmp_path, name):
    with pytest.raises(ValueError) as error:
        build(write_jsonl(tmp_path / "one"), tmp_path / "out", name)
    assert str(error.value) == (
        f"a data set cannot be called {name!r}: TFDS names are small letters, digits and underscores, and begin with a "
        "letter."
    )
    assert not (tmp_path / "out").exists()


def test_a_field_that_tfds_cannot_name_is_refused_with_its_record(tmp_path):
    write_jsonl(tmp_path, {"train": [{"a/b": 1}]})
    with pytest.raises(RecordError) as error:
        build(tmp_path, tmp_path / "out", "rows")
    assert str(error.value) == (
        f"{tmp_path / 'train.jsonl'}, line 1: a field is called 'a/b'; TFDS keeps no empty names, and no slashes in them."
    )


def test_text_that_is_no_utf8_is_kept(tmp_path):
    rows = [{"question": "half of a pair: \ud83d"}, {"question": "\U0001f600"}]
    build(write_jsonl(tmp_path / "one", {"train": rows}), tmp_path / "out", "rows")
    assert bare(read_records(tmp_path / "out", "train")) == rows


def test_a_source_of_one_split_is_built_with_it(tmp_path):
    build(write_jsonl(tmp_path / "one", {"test": ROWS["test"]}), tmp_path / "out", "rows")
    assert list(read_splits(tmp_path / "out")) == ["test"]


def test_two_data_sets_under_a_folder_are_told_apart_by_naming_one(tmp_path):
    lines = write_jsonl(tmp_path / "one")
    build(lines, tmp_path / "out", "x")
    build(lines, tmp_path / "out", "y")
    with pytest.raises(RecordError) as error:
        read_records(tmp_path / "out", "train")
    x, y = (tmp_path / "out" / name / "1.0.0" for name in "xy")
    assert str(error.value) == f"{tmp_path / 'out'} holds 2 data sets, {x}, {y}; name one of them."


def test_a_directory_that_lost_its_records_is_named(tmp_path):
    at = build(write_jsonl(tmp_path / "one"), tmp_path / "out", "rows")
    for file in at.glob("*train*"):
        file.unlink()
    with pytest.raises(RecordError, match=f"^{at}, record 0 of 'train' cannot be read: .*No such file"):
        read_records(at, "train")


def test_gsm8k_comes_back_from_tfds_record_by_record_and_without_tensorflow(shared, tmp_path):
    script = (
        "import sys\nfrom rlvr_jax.tasks.sources import read_records\nfrom rlvr_jax.tasks.tfds_builder import build\n"
        f"at = build({str(shared / 'data' / 'gsm8k')!r}, {str(tmp_path)!r}, 'gsm8k')\n"
        "assert len(read_records(at, 'train')) == 7473\nassert 'tensorflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    for split, size in (("train", 7473), ("test", 1319)):
        ours = read_records(tmp_path, split, ("question", "answer"))
        assert bare(ours) == bare(read_records(shared / "data" / "gsm8k", split)) and len(ours) == size


# ---- Hugging Face datasets ---------------------------------------------------------------------------------------

FLAT = {split: [{"id": r["id"], "question": r["question"]} for r in rows] for split, rows in ROWS.items()}


def save(folder, form):
    datasets = pytest.importorskip("datasets")
    splits = datasets.DatasetDict({split: datasets.Dataset.from_list(rows) for split, rows in FLAT.items()})
    if form == "saved":
        splits.save_to_disk(str(folder))
        return
    for split, data in splits.items():
        name = {"parquet": f"{split}.parquet", "hub": f"data/{split}-00000-of-00001.parquet"}[form]
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        data.to_parquet(str(folder / name))


@pytest.mark.parametrize("form", ["saved", "parquet", "hub"])
def test_a_directory_of_datasets_is_read(tmp_path, monkeypatch, form):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.utils.tqdm, "disable", True, raising=False)
    save(tmp_path / "data set", form)
    for split, rows in FLAT.items():
        records = read_records(tmp_path / "data set", split, ("question",))
        assert bare(records) == bare(pickle.loads(pickle.dumps(records))) == rows
    with pytest.raises(RecordError) as error:
        read_records(tmp_path / "data set", "train", ("id", "answer"))
    assert str(error.value) == (
        f"{tmp_path / 'data set'}, record 0 of 'train': field 'answer' is missing; there are id, question."
    )


def test_without_the_package_the_error_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "train.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError) as error:
        read_records(tmp_path, "train")
    assert str(error.value) == (
        f"{tmp_path} is a directory of `datasets`, and that package is not installed: pip install 'rlvr_jax[datasets]'."
    )


def test_values_that_json_has_not_are_refused(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict({"train": datasets.Dataset.from_list([{"raw": b"x"}])}).save_to_disk(str(tmp_path))
    with pytest.raises(RecordError) as error:
        read_records(tmp_path, "train")
    assert str(error.value) == (
        f"{tmp_path}, record 0 of 'train': Object of type bytes is not JSON serializable; "
        "records hold text, numbers, lists and objects alone."
    )


# ---- a function --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["from_function", "from_generator"])
def test_a_function_gives_records_by_its_name(monkeypatch, name):
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parent))
    records = read_records(f"test_sources:{name}", "train", ("id",))
    assert bare(records) == bare(pickle.loads(pickle.dumps(records))) == ROWS["train"]
    assert records[-1][0] == f"test_sources:{name}, record 2 of 'train'"


@pytest.mark.parametrize(
    "path, message",
    [
        (
            "json:nothing",
            "there is no function 'json:nothing' (module 'json' has no attribute 'nothing'); its module has to be "
            "importable, so install it or put its folder into PYTHONPATH.",
        ),
        (
            "os.path:basename",
            "os.path:basename('train') returned str; it has to return a sequence or an iterable of objects (dict).",
        ),
        (
            "builtins:list",
            "builtins:list, record 0 of 'train': expected an object in braces, got str.",
        ),
        ("itertools:product", None),
    ],
)
def test_a_function_that_gives_no_records_is_refused(path, message):
    with pytest.raises(RecordError) as error:
        read_records(path, "train")
    if message is not None:
        assert str(error.value) == message


def test_a_function_without_records_has_none(monkeypatch):
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parent))
    with pytest.raises(RecordError) as error:
        read_records("test_sources:nothing", "train")
    assert str(error.value) == "test_sources:nothing has no records in its split 'train'."


# ---- which of them -----------------------------------------------------------------------------------------------


def test_json_lines_are_read_at_once(tmp_path):
    records = read_records(write_jsonl(tmp_path), "train", ("id",))
    assert records == read_jsonl(tmp_path / "train.jsonl") and isinstance(records, list)
    assert sources.read_splits(tmp_path).keys() == ROWS.keys()


def test_a_folder_with_two_forms_is_refused(tmp_path, built):
    write_jsonl(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train-0.parquet").write_bytes(b"")
    with pytest.raises(RecordError) as error:
        read_records(tmp_path, "train")
    assert str(error.value) == f"{tmp_path} holds data as JSON Lines and as datasets; keep one of them."


def test_a_folder_with_nothing_asks_for_json_lines(tmp_path):
    with pytest.raises(NoSuchSplit) as error:
        read_splits(tmp_path)
    assert str(error.value) == (
        f"no train.jsonl or train.jsonl.gz in {tmp_path}; put the split there, one JSON object a line."
    )


def test_positions_are_those_of_a_list(built):
    records, listed = read_records(built[0], "train"), bare(read_records(built[0], "train"))
    assert [record for _, record in records] == listed
    assert [record for _, record in records[1:]] == listed[1:]
    assert [record for _, record in records[::-1]] == listed[::-1]
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"^index {index}: there are 3 records.$"):
            records[index]


def test_a_pickle_holds_no_open_file_and_is_small(built):
    records = read_records(built[0], "train")
    before = len(os.listdir(f"/proc/{os.getpid()}/fd")) if os.path.exists("/proc") else None
    packed = pickle.dumps(records)
    assert len(packed) < 400
    assert bare(pickle.loads(packed)) == ROWS["train"]
    assert before is None or len(os.listdir(f"/proc/{os.getpid()}/fd")) <= before + 1


def shout(index, where, record):
    return {"n": index, "where": where, "question": record["question"].upper()}


def test_what_is_read_when_asked_for_is_converted_then(built):
    lazy = converted(read_records(built[0], "train"), shout)
    assert pickle.loads(pickle.dumps(lazy))[1]["question"] == ROWS["train"][1]["question"].upper()
    assert [record["n"] for record in lazy] == [0, 1, 2]
    assert lazy[2]["where"] == f"{built[0]}, record 2 of 'train'"
    asked = []
    at_once = converted([("line 1", {"question": "a"})], lambda *seen: asked.append(seen) or {})
    assert at_once == [{}] and asked == [(0, "line 1", {"question": "a"})]
