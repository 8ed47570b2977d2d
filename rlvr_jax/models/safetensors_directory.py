"""The weights in a Hugging Face directory: one `model.safetensors`, or several behind an index."""

import json
import pathlib
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy the name bfloat16, which safetensors asks it for)
import numpy as np
from jaxtyping import Float

INDEX = "model.safetensors.index.json"


class SafetensorsDirectory:
    """Names and shapes of all tensors; `read` brings one into memory.

    Raises FileNotFoundError where there are no weights, or naming every file of the index that is not there.
    """

    def __init__(self, path: pathlib.Path):
        from safetensors import safe_open

        self.path = path
        self._files: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for file in _files(path):
            handle = safe_open(file, framework="np")
            for name in handle.keys():
                self._files[name] = handle
                self.shapes[name] = tuple(handle.get_slice(name).get_shape())

    def read(self, name: str) -> Float[np.ndarray, "..."]:
        """One tensor in float32."""
        return self._files[name].get_tensor(name).astype(np.float32)


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
