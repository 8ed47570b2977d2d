"""Weights from files straight onto the mesh, one parameter at a time."""

import json
import pathlib
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Float

from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.decoder import Decoder
from rlvr_jax.models.families import from_huggingface
from rlvr_jax.models.gguf_file import is_gguf, open_gguf
from rlvr_jax.models.gguf_weights import GgufWeights
from rlvr_jax.models.layout import layer_layout, outer_layout
from rlvr_jax.models.names import HEAD, from_stored, layer_name, outer_name, stored_shapes
from rlvr_jax.models.safetensors_directory import SafetensorsDirectory
from rlvr_jax.sharding import named

Weights: TypeAlias = SafetensorsDirectory | GgufWeights


def load(
    path: str | pathlib.Path, dtype: Any = jnp.float32, remat: str = "none", mesh: Mesh | None = None
) -> tuple[Decoder, ModelConfig]:
    """The decoder in a Hugging Face directory or a `.gguf` file; float32 parameters, laid out on `mesh` if given.

    The host holds one (stacked) parameter at a time beside what is placed already.

    Raises FileNotFoundError where there is no such model, and ValueError listing every tensor that is missing, not
    expected, or of another shape than the configuration asks for.
    """
    config, weights = _open(pathlib.Path(path))
    _check(config, weights)
    abstract = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), dtype=dtype, remat=remat))
    graphdef, params = nnx.split(abstract)

    def fill(path: tuple[Any, ...], param: nnx.Variable) -> nnx.Variable:
        values = _assemble(config, weights, path[-1].key)
        if mesh is None:
            return param.replace(jnp.asarray(values))
        place = named(mesh, param.axes, values.shape)
        return param.replace(jax.make_array_from_callback(values.shape, place, lambda index: values[index]))

    params = jax.tree.map_with_path(fill, params, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    return nnx.merge(graphdef, params), config


def read_config(path: str | pathlib.Path) -> ModelConfig:
    """The configuration alone. Raises what `load` would, names and shapes of the weights included."""
    config, weights = _open(pathlib.Path(path))
    _check(config, weights)
    return config


def _open(path: pathlib.Path) -> tuple[ModelConfig, Weights]:
    if not path.exists():
        raise FileNotFoundError(
            f"there is no model at {path}; give a Hugging Face directory or a .gguf file."
        )
    if is_gguf(path):
        weights = GgufWeights(open_gguf(path))
        return from_huggingface(weights.mapping()), weights
    file = path / "config.json"
    if not file.is_file():
        raise FileNotFoundError(f"{path} has no config.json; give a Hugging Face directory or a .gguf file.")
    try:
        mapping = json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is not JSON ({error}); is the file complete?") from error
    return from_huggingface(mapping), SafetensorsDirectory(path)


def _check(config: ModelConfig, weights: Weights) -> None:
    """Names and shapes, before anything is read. A tied model may repeat its embedding as a head."""
    want, have = stored_shapes(config), dict(weights.shapes)
    table = outer_name("embedding")
    if config.tied_embeddings and have.pop(HEAD, None) and table in have:
        if not np.array_equal(weights.read(HEAD), weights.read(table)):
            raise ValueError(
                f"{weights.path} ties its embeddings but {HEAD} differs from {table}; "
                "set tie_word_embeddings to false in config.json."
            )
    wrong = [f"missing {name}" for name in want if name not in have]
    # old Llama files carry the rotary frequencies, which follow from the configuration
    wrong += [
        f"unexpected {name}" for name in have if name not in want and not name.endswith("rotary_emb.inv_freq")
    ]
    wrong += [
        f"{name} has shape {have[name]} instead of {shape}"
        for name, shape in want.items()
        if name in have and have[name] != shape
    ]
    if wrong:
        raise ValueError(f"the tensors in {weights.path} do not match its configuration: {'; '.join(wrong)}.")


def _assemble(config: ModelConfig, weights: Weights, name: str) -> Float[np.ndarray, "..."]:
    """One parameter of ours, its layers stacked."""
    if name in outer_layout(config):
        return from_stored(weights.read(outer_name(name)), outer_layout(config)[name])
    leaf = layer_layout(config)[name]
    stack = np.empty((config.num_layers, *leaf.shape), np.float32)
    for layer in range(config.num_layers):
        stack[layer] = from_stored(weights.read(layer_name(config, name, layer)), leaf)
    return stack
