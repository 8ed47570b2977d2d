"""A broken data file is one error, with its place."""

import gzip

import pytest

from rlvr_jax.tasks.records import RecordError, read_jsonl, split_file

GOOD = b'{"question": "q", "answer": "1"}\n'


def write(folder, content, name="train.jsonl"):
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz"])
def test_objects_come_in_order_with_their_place(tmp_path, name):
    path = write(tmp_path, b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": "\xc3\xa9"}', name)
    assert read_jsonl(path) == [(f"{path}, line 1", {"a": 1}), (f"{path}, line 4", {"a": "\u00e9"})]


@pytest.mark.parametrize(
    "line, message",
    [
        (b'{"question": "q", "answer": }', "not JSON at column 29: Expecting value."),
        (b'{"question": "q", "answer": "1"', "not JSON at column 32: Expecting ',' delimiter."),
        (b'["question", "answer"]', "expected an object in braces, got list."),
        (b"7", "expected an object in braces, got int."),
        (b'{"question": "q"}', "field 'answer' is missing; there are question."),
        (b"{}", "field 'question' is missing; there are none."),
        (b'{"question": "\xff"}', "not UTF-8 at byte 15; save the file as UTF-8."),
    ],
)
@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz"])
def test_a_broken_line_is_named(tmp_path, line, message, name):
    path = write(tmp_path, GOOD * 2 + b"\n" + line + b"\n" + GOOD, name)
    with pytest.raises(RecordError) as error:
        read_jsonl(path, ("question", "answer"))
    assert str(error.value) == f"{path}, line 4: {message}"


def test_a_gzip_file_that_stops_early_is_named(tmp_path):
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD * 3)[:-12])
    with pytest.raises(
        RecordError, match=r"train\.jsonl\.gz cannot be read after line \d+: Compressed file ended"
    ):
        read_jsonl(path)


def test_a_plain_file_called_gz_is_named(tmp_path):
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(GOOD)
    with pytest.raises(RecordError) as error:
        read_jsonl(path)
    assert str(error.value) == f"{path} cannot be read after line 0: Not a gzipped file (b'{{\"')"


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_records_is_named(tmp_path, content):
    path = write(tmp_path, content)
    with pytest.raises(RecordError) as error:
        read_jsonl(path)
    assert str(error.value) == f"{path} has no records; expected one JSON object a line."


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RecordError) as error:
        read_jsonl(tmp_path / "no.jsonl")
    assert str(error.value) == f"there is no file {tmp_path / 'no.jsonl'}."


def test_a_split_is_one_file_plain_or_gzipped(tmp_path):
    with pytest.raises(RecordError) as error:
        split_file(tmp_path, "test")
    assert str(error.value) == (
        f"no test.jsonl or test.jsonl.gz in {tmp_path}; put the split there, one JSON object a line."
    )
    packed = write(tmp_path, GOOD, "test.jsonl.gz")
    assert split_file(str(tmp_path), "test") == packed
    write(tmp_path, GOOD, "test.jsonl")
    with pytest.raises(RecordError) as error:
        split_file(tmp_path, "test")
    assert str(error.value) == f"{tmp_path} has both test.jsonl and test.jsonl.gz; keep one of them."
