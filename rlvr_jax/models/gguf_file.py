"""A `.gguf` file: metadata by key, and tensors under their own names, dequantised one at a time.

The header is parsed here: it is a plain list of keys, values and tensors, where the package `gguf` makes an array of
every string of a vocabulary. What the blocks of a quantised tensor mean is left to that package.
Source: the GGUF specification, version 3.
"""

import functools
import math
import mmap
import pathlib
import struct
from typing import Any

import numpy as np
from jaxtyping import Float

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)


class GgufFile:
    """Read-only view of a file; the tensors stay on disk (memory-mapped) until `read`.

    Raises ImportError without the package `gguf`, ValueError where the file is not in the format or incomplete.
    """

    def __init__(self, path: pathlib.Path):
        try:
            import gguf
        except ImportError as error:
            raise ImportError(
                f"reading {path} needs the package gguf: pip install 'rlvr_jax[gguf]'."
            ) from error
        self.path = path
        self._dequantize = gguf.dequantize
        self._data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
        self._tensors: dict[str, tuple[gguf.GGMLQuantizationType, np.ndarray]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        try:
            self._fields, tensors, start = _header(path)
            for name, shape, kind, offset in tensors:
                quantisation = gguf.GGMLQuantizationType(kind)
                block, size = gguf.GGML_QUANT_SIZES[quantisation]
                self.shapes[name] = shape
                width = shape[-1] // block * size
                self._tensors[name] = quantisation, self._bytes(start + offset, (*shape[:-1], width))
        except (ValueError, struct.error) as error:
            raise ValueError(f"{path} cannot be read as GGUF ({error}); is the file complete?") from error

    def get(self, key: str, default: Any = None) -> Any:
        return self._fields.get(key, default)

    def read(self, name: str, rows: slice = slice(None)) -> Float[np.ndarray, "..."]:
        """One tensor in float32, or `rows` of it, its axes ordered as in a safetensors file; a copy, never a view."""
        quantisation, data = self._tensors[name]
        data = np.array(data[rows])  # off the disk
        return np.array(self._dequantize(data, quantisation), np.float32, copy=None)

    def _bytes(self, start: int, shape: tuple[int, ...]) -> np.ndarray:
        stop = start + math.prod(shape)
        if stop > self._data.size:
            raise ValueError(f"its tensors end at byte {stop}, the file at {self._data.size}")
        return self._data[start:stop].reshape(shape)


class _Header:
    """Reads little-endian values one after another."""

    def __init__(self, data: mmap.mmap):
        self.data, self.at = data, 0

    def numbers(self, code: str, count: int = 1) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{count}{code}", self.data, self.at)
        self.at += struct.calcsize(f"<{count}{code}")
        return values

    def text(self) -> str:
        (length,) = self.numbers("Q")
        self.at += length
        return str(self.data[self.at - length : self.at], "utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            (kind,), (count,) = self.numbers("I"), self.numbers("Q")
            if kind in _SCALARS:
                return list(self.numbers(_SCALARS[kind], count))
            return [self.value(kind) for _ in range(count)]
        if kind not in _SCALARS:
            raise ValueError(f"a value of the unknown type {kind}")
        return self.numbers(_SCALARS[kind])[0]


def _header(path: pathlib.Path) -> tuple[dict[str, Any], list[tuple[str, tuple[int, ...], int, int]], int]:
    """Metadata; name, shape, type and offset of each tensor; and where the first one starts."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            header = _Header(data)
            _, version = header.numbers("I", 2)
            if version not in _VERSIONS:
                raise ValueError(f"it is of version {version}; versions 2 and 3, little-endian, are read")
            tensors, fields = header.numbers("Q", 2)
            metadata = {header.text(): header.value(*header.numbers("I")) for _ in range(fields)}
            listed = []
            for _ in range(tensors):
                name, (axes,) = header.text(), header.numbers("I")
                shape = tuple(reversed(header.numbers("Q", axes)))  # the file counts the fastest axis first
                listed.append((name, shape, *header.numbers("I"), *header.numbers("Q")))
            alignment = metadata.get("general.alignment", 32)
            return metadata, listed, -(-header.at // alignment) * alignment


def open_gguf(path: pathlib.Path) -> GgufFile:
    """The file, parsed once however often it is asked for.

    Raises FileNotFoundError where there is none.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no model at {path}; give a Hugging Face directory or a .gguf file."
        )
    status = path.stat()
    return _parse(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=2)
def _parse(path: pathlib.Path, modified: int, size: int) -> GgufFile:
    return GgufFile(path)


def is_gguf(path: pathlib.Path) -> bool:
    """By its name; what it holds is checked when it is opened."""
    return path.suffix == ".gguf"
