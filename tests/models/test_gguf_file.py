"""The header of a `.gguf` file, read as the package `gguf` reads it, and what is wrong with a damaged one."""

import re

import gguf
import numpy as np
import pytest

from rlvr_jax.models.gguf_file import GgufFile, open_gguf

TENSORS = {
    "whole": np.arange(12, dtype=np.float32).reshape(3, 4),
    "half": np.arange(6, dtype=np.float16).reshape(2, 3) / 8,
    "row": np.arange(5, dtype=np.float32),
}
BLOCKS = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)


@pytest.fixture
def path(tmp_path):
    """A file with a value of every type."""
    out = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(out, "llama")
    for kind in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        getattr(writer, f"add_{kind}")(f"number.{kind}", 101)
    writer.add_float32("number.float32", 0.1)
    writer.add_float64("number.float64", 0.1)
    writer.add_bool("switch", True)
    writer.add_string("text", "héllo\n漢字 🙂")
    writer.add_array("texts", ["", "a b", "\u2581"])
    writer.add_array("numbers", [3, -4, 5])
    writer.add_array("reals", [0.5, -1000.0])
    for name, values in TENSORS.items():
        writer.add_tensor(name, values)
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("blocks", gguf.quantize(BLOCKS, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def test_values_and_tensors_are_those_of_the_reference_reader(path):
    file, reference = GgufFile(path), gguf.GGUFReader(path)
    fields = {name: f.contents() for name, f in reference.fields.items() if not name.startswith("GGUF.")}
    assert len(fields) == 16
    assert {name: file.get(name) for name in fields} == fields
    assert file.get("absent") is None and file.get("absent", 3) == 3
    for name, values in TENSORS.items():
        assert file.shapes[name] == values.shape
        np.testing.assert_array_equal(file.read(name), values)
        assert file.read(name).dtype == np.float32
    want = gguf.dequantize(reference.tensors[-1].data, reference.tensors[-1].tensor_type)
    assert np.abs(want - BLOCKS).max() < 0.02  # a block's largest value, below 4, in 127 steps, halved
    np.testing.assert_array_equal(file.read("blocks"), want)
    np.testing.assert_array_equal(file.read("blocks", slice(1, 3)), want[1:3])


def test_what_is_read_is_a_copy(path):
    file = GgufFile(path)
    file.read("whole")[:] = 7
    np.testing.assert_array_equal(file.read("whole"), TENSORS["whole"])


def test_a_file_is_parsed_again_once_it_changes(path):
    first = open_gguf(path)
    assert open_gguf(path) is first
    path.write_bytes(path.read_bytes() + b"\0")
    assert open_gguf(path) is not first


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: b"", "it does not begin with GGUF"),
        (lambda data: b"GGML" + data[4:], "it does not begin with GGUF"),
        (lambda data: data[:4] + b"\x01" + data[5:], "it is of version 1; versions 2 and 3, little-endian, are read"),
        (lambda data: data[:40], "unpack_from requires a buffer of at least .* bytes"),
        (lambda data: data[:-64], r"its tensors end at byte \d+, the file at \d+"),
        (
            lambda data: data.replace(b"switch" + b"\x07", b"switch" + b"\x63"),
            "a value of the unknown type 99",
        ),
    ],
)  # fmt: skip
def test_damaged_files_are_refused_with_the_reason(path, damage, reason):
    path.write_bytes(damage(path.read_bytes()))
    message = rf"^{re.escape(str(path))} cannot be read as GGUF \({reason}.*\); is the file complete\?$"
    with pytest.raises(ValueError, match=message):
        GgufFile(path)
