"""The weights in a Hugging Face directory: one `model.safetensors`, or several behind an index."""

import json
import pathlib
from typing import Any

import ml_dtypes  # teaches numpy the name bfloat16 too, which safetensors asks it for
import numpy as np
from jaxtyping import Float

INDEX = "model.safetensors.index.json"


_PRECISIONS = ("F64", "F32", "F16", "BF16")


class SafetensorsDirectory:
    """Names and shapes of all tensors; `read` brings a part of one into memory.

    Raises FileNotFoundError where there are no weights, or naming every file of the index that is not there, and
    ValueError for a damaged file or listing every tensor that is quantised.
    """

    def __init__(self, path: pathlib.Path):
        from safetensors import SafetensorError, safe_open

        self.path = path
        self._files: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        coded = []
        for file in _files(path):
            try:
                handle = safe_open(file, framework="np")
            except SafetensorError as error:
                raise ValueError(
                    f"{file} cannot be read as safetensors ({error}); is it complete?"
                ) from error
            for name in handle.keys():
                view = handle.get_slice(name)
                self._files[name], self.shapes[name] = handle, tuple(view.get_shape())
                coded += [f"{name} ({view.get_dtype()})"] if view.get_dtype() not in _PRECISIONS else []
        if coded:
            raise ValueError(f"{path} has quantised tensors, which are not decoded: {', '.join(coded)}.")

    def read(self, name: str, index: tuple[slice, ...]) -> Float[np.ndarray, "..."]:
        """A part of one tensor, which alone is read; as it is stored if in bfloat16, else in float32."""
        values = self._files[name].get_slice(name)[index]
        return values if values.dtype == ml_dtypes.bfloat16 else values.astype(np.float32, copy=False)


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    if (path / INDEX).is_file():
        names = sorted(set(json.loads((path / INDEX).read_text())["weight_map"].values()))
        absent = [name for name in names if not (path / name).is_file()]
        if absent:
            raise FileNotFoundError(f"{path / INDEX} lists files that are not there: {', '.join(absent)}.")
        return [path / name for name in names]
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    raise FileNotFoundError(
        f"{path} has no weights: it needs model.safetensors or {INDEX} (other formats are not read)."
    )
