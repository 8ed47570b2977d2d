"""A `.gguf` file: metadata by key, and tensors under their own names, dequantised one at a time."""

import functools
import pathlib
from typing import Any

import numpy as np
from jaxtyping import Float


class GgufFile:
    """Read-only view of a file; the tensors stay on disk (memory-mapped) until `read`.

    Raises ImportError without the package `gguf`, ValueError where the file is not in the format.
    """

    def __init__(self, path: pathlib.Path):
        try:
            import gguf
        except ImportError as error:
            raise ImportError(
                f"reading {path} needs the package gguf: pip install 'rlvr_jax[gguf]'."
            ) from error
        try:
            reader = gguf.GGUFReader(path)
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path} cannot be read as GGUF ({error}); is the file complete?") from error
        self.path = path
        self._dequantize = gguf.dequantize
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.shapes = {name: tuple(int(n) for n in reversed(t.shape)) for name, t in self._tensors.items()}

    def get(self, key: str, default: Any = None) -> Any:
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def read(self, name: str) -> Float[np.ndarray, "..."]:
        """One tensor in float32, its axes ordered as in a safetensors file; a copy, never a view of the file."""
        tensor = self._tensors[name]
        values = self._dequantize(tensor.data, tensor.tensor_type)
        return np.array(values, np.float32).reshape(self.shapes[name])


def open_gguf(path: pathlib.Path) -> GgufFile:
    """The file, parsed once however often it is asked for (tens of thousands of strings take seconds).

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
