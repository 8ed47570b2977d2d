"""Weights from files straight onto the mesh, one parameter at a time."""

import functools
import json
import pathlib
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.decoder import Decoder
from rlvr_jax.models.families import from_huggingface
from rlvr_jax.models.gguf_file import is_gguf, open_gguf
from rlvr_jax.models.gguf_weights import GgufWeights
from rlvr_jax.models.layout import Leaf, layer_layout, outer_layout
from rlvr_jax.models.names import HEAD, from_stored, layer_name, outer_name, stored_shape, stored_shapes
from rlvr_jax.models.safetensors_directory import SafetensorsDirectory
from rlvr_jax.sharding import named, spec

Weights: TypeAlias = SafetensorsDirectory | GgufWeights


def load(
    path: str | pathlib.Path, dtype: Any = jnp.float32, remat: str = "none", mesh: Mesh | None = None
) -> tuple[Decoder, ModelConfig]:
    """The decoder in a Hugging Face directory or a `.gguf` file; float32 parameters, laid out on `mesh` if given.

    Beside what is placed already the host holds one tensor of the file, and of that only what its own devices get.

    Raises FileNotFoundError where there is no such model, and ValueError listing every tensor that is missing, not
    expected, or of another shape than the configuration asks for.
    """
    config, weights = _open(pathlib.Path(path))
    _check(config, weights)
    abstract = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), dtype=dtype, remat=remat))
    graphdef, params = nnx.split(abstract)
    return nnx.merge(graphdef, _filled(params, config, weights, mesh)), config


def load_params(path: str | pathlib.Path, like: Any, mesh: Mesh) -> Any:
    """The parameters of `load` in the structure and the dtypes of `like`. Raises what `load` would."""
    config, weights = _open(pathlib.Path(path))
    _check(config, weights)
    return _filled(like, config, weights, mesh)


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
    if config.tied_embeddings and have.get(HEAD) == have.get(table) == want[table]:
        if not _same(weights, HEAD, table, want[table]):
            raise ValueError(
                f"{weights.path} ties its embeddings but {HEAD} differs from {table}; "
                "set tie_word_embeddings to false in config.json."
            )
    if config.tied_embeddings:
        have.pop(HEAD, None)
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


def _filled(params: Any, config: ModelConfig, weights: Weights, mesh: Mesh | None) -> Any:
    """Each parameter of a decoder's state from the files."""

    def fill(path: tuple[Any, ...], param: nnx.Variable) -> nnx.Variable:
        return param.replace(_parameter(config, weights, path[-1].key, param.dtype, mesh))

    return jax.tree.map_with_path(fill, params, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))


def _same(weights: Weights, one: str, other: str, shape: tuple[int, ...], rows: int = 4096) -> bool:
    """Whether two tensors are equal, some rows at a time."""
    cuts = (slice(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows))
    rest = _everything(shape[1:])
    return all(
        np.array_equal(weights.read(one, (cut, *rest)), weights.read(other, (cut, *rest))) for cut in cuts
    )


def _parameter(config: ModelConfig, weights: Weights, name: str, dtype: Any, mesh: Mesh | None) -> jax.Array:
    """One parameter on its devices; where layers are stacked, one layer after another is written into the stack."""
    outer = outer_layout(config)
    if name in outer:
        return _placed(weights, outer_name(name), outer[name], mesh).astype(dtype)
    leaf = layer_layout(config)[name]
    stacked = leaf.stacked(config.num_layers)
    place = named(mesh, stacked.axes, stacked.shape) if mesh else None
    stack = jnp.zeros(stacked.shape, dtype, device=place)
    for layer in range(config.num_layers):
        values = _placed(weights, layer_name(config, name, layer), leaf, mesh)
        # without waiting, the tensors of all layers would queue up
        stack = jax.block_until_ready(_write(stack, values, layer, leaf))
    return stack


def _placed(weights: Weights, name: str, leaf: Leaf, mesh: Mesh | None) -> jax.Array:
    """One tensor as it is stored, split over the devices as its parameter will be; replicas share what is read."""
    shape = stored_shape(leaf)
    if mesh is None:
        return jnp.asarray(weights.read(name, _everything(shape)))
    read = functools.cache(lambda *bounds: weights.read(name, tuple(slice(*pair) for pair in bounds)))

    def part(index: tuple[slice, ...]) -> np.ndarray:
        return read(*(cut.indices(size)[:2] for cut, size in zip(index, shape, strict=True)))

    return jax.make_array_from_callback(shape, NamedSharding(mesh, _stored_spec(leaf, mesh)), part)  # pyright: ignore[reportArgumentType]


def _stored_spec(leaf: Leaf, mesh: Mesh) -> PartitionSpec:
    """How a file's [outputs, inputs] is split. Of the axes that are flattened into one only the first is ever split."""
    split = tuple(spec(leaf.axes, leaf.shape, mesh))
    if len(stored_shape(leaf)) == len(leaf.shape) and not leaf.inputs:
        return PartitionSpec(*split)
    return PartitionSpec(split[leaf.inputs], *split[: min(leaf.inputs, 1)])


@functools.partial(jax.jit, static_argnames="leaf", donate_argnums=0)
def _write(stack: jax.Array, values: jax.Array, layer: jax.Array | int, leaf: Leaf) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(stack, from_stored(values, leaf).astype(stack.dtype), layer, 0)


def _everything(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(0, size) for size in shape)
