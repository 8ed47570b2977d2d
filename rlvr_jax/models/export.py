"""A policy as a Hugging Face directory: sharded safetensors, configuration, tokenizer; and its adapter, as `peft` reads it."""

import contextlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from jaxtyping import Float

from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.families import to_huggingface
from rlvr_jax.models.layout import layer_layout, outer_layout
from rlvr_jax.models.lora import A, B, Lora, adapter_layout, product
from rlvr_jax.models.names import layer_name, outer_name, stored_shapes, to_stored
from rlvr_jax.models.safetensors_directory import INDEX

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

ADAPTER = "adapter"
"""The folder in an exported directory that holds the adapter alone."""

Tensors = Mapping[str, Callable[[], Float[np.ndarray, "..."]]]
"""What a file is to hold: name -> what brings that tensor into memory."""

_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json", "vocab.json", "merges.txt", "tokenizer.model"),
)


def export(
    params: Any,
    config: ModelConfig,
    tokenizer: Any,
    directory: str | pathlib.Path,
    *,
    dtype: str = "float32",
    eos: Sequence[int] = (),
    source: str | pathlib.Path | None = None,
    lora: Lora | None = None,
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """Write the decoder with parameters `params` (`nnx.split(decoder)[1]`) so that `transformers` computes the same.

    With adapters, `directory` holds the weights with them merged in (in float32, then rounded to `dtype`), and its folder
    `adapter` the adapters alone. `eos` are all ids that end a response, where the tokenizer's is not the only one. `source` is
    the Hugging Face directory that the model came from: its tokenizer files and generation settings are taken over as they
    are. The host holds the tensors of one file at a time, `max_shard_bytes` or a single larger tensor.

    The directory appears when it is whole, or not at all. Raises ValueError where it exists and holds something.
    """
    directory = require_empty(directory)
    files = pathlib.Path(source) if source is not None and pathlib.Path(source).is_dir() else None
    ids = _special_ids(tokenizer, eos)
    with _draft(directory) as draft:
        shapes = stored_shapes(config)
        _write_weights(draft, shapes, _model(params, config, lora), DTYPES[dtype], max_shard_bytes)
        _write_json(draft / "config.json", {**to_huggingface(config), "dtype": dtype, **ids})
        generation = files / "generation_config.json" if files else None
        settings = json.loads(generation.read_text()) if generation and generation.is_file() else {}
        _write_json(draft / "generation_config.json", {**settings, **ids})
        _write_tokenizer(tokenizer, draft, files)
        if lora is not None:
            _write_adapter(draft / ADAPTER, params, config, lora, source)


def require_empty(directory: str | pathlib.Path) -> pathlib.Path:
    """That directory. Raises ValueError where it exists and holds something."""
    directory = pathlib.Path(directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(f"{directory} exists and is not empty: name a new directory for the model.")
    return directory


def size_in_bytes(text: str) -> int:
    """Of "5GB", "200 MB", "10KB" (powers of 1000) or a number of bytes. Raises ValueError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(KB|MB|GB|TB)?", text.strip(), re.IGNORECASE)
    power = ("", "KB", "MB", "GB", "TB").index((found[2] or "").upper()) if found else 0
    size = round(float(found[1]) * 1000**power) if found else 0
    if size < 1:
        raise ValueError(f"{text!r} is no size of a file: give a number with KB, MB or GB, such as 5GB.")
    return size


# ---- weights -------------------------------------------------------------------------------------------------------


def shards(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Names in their order, as many to a file as `limit` bytes have room for, one at the least."""
    files: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not files or size > room:
            files.append([])
            room = limit
        files[-1].append(name)
        room -= size
    return files


def _model(params: Any, config: ModelConfig, lora: Lora | None) -> Tensors:
    """The model's tensors by their names in a file, with what adapters add."""
    merged = set() if lora is None else set(lora.targets)

    def outer(name: str) -> Float[np.ndarray, "..."]:
        return to_stored(np.asarray(params[name][...]), outer_layout(config)[name])

    def inner(name: str, layer: int) -> Float[np.ndarray, "..."]:
        leaf, values = layer_layout(config)[name], _layer(params, name, layer)
        if lora is not None and name in merged:
            values = values + product(
                _layer(params, name + A, layer), _layer(params, name + B, layer), lora, leaf
            )
        return to_stored(values, leaf)

    tensors: dict[str, Callable] = {outer_name(n): lambda n=n: outer(n) for n in outer_layout(config)}
    for layer in range(config.num_layers):
        for name in layer_layout(config):
            tensors[layer_name(config, name, layer)] = lambda n=name, i=layer: inner(n, i)
    return tensors


def _layer(params: Any, name: str, layer: int) -> Float[np.ndarray, "..."]:
    """One layer of a stacked parameter, on the host; cut out where the stack lies."""
    return np.asarray(params["layers"][name][...][layer])


def _write_weights(
    folder: pathlib.Path,
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Tensors,
    dtype: np.dtype,
    limit: int,
) -> None:
    """One file, or several behind an index."""
    sizes = {name: int(np.prod(shape)) * dtype.itemsize for name, shape in shapes.items()}
    parts = shards(sizes, limit)
    where = {}
    for i, names in enumerate(parts, 1):
        file = "model.safetensors" if len(parts) == 1 else f"model-{i:05}-of-{len(parts):05}.safetensors"
        _write_safetensors(folder / file, {name: tensors[name] for name in names}, dtype)
        where |= dict.fromkeys(names, file)
    if len(parts) > 1:
        total = {"total_size": sum(sizes.values())}
        _write_json(folder / INDEX, {"metadata": total, "weight_map": where})


def _write_safetensors(file: pathlib.Path, tensors: Tensors, dtype: np.dtype) -> None:
    from safetensors.numpy import save_file

    values = {name: np.ascontiguousarray(read().astype(dtype)) for name, read in tensors.items()}
    save_file(values, file, {"format": "pt"})


def _write_adapter(
    folder: pathlib.Path, params: Any, config: ModelConfig, lora: Lora, source: str | pathlib.Path | None
) -> None:
    """What `peft` loads onto the model that the adapter was trained on, in float32."""
    folder.mkdir()
    tensors: dict[str, Callable] = {}
    modules = {}
    leaves = adapter_layout(config, lora)
    for layer in range(config.num_layers):
        for name in lora.targets:
            module = layer_name(config, name, layer).removesuffix(".weight")
            modules[name] = module.rsplit(".", 1)[1]
            for ours, theirs in ((A, "lora_A"), (B, "lora_B")):
                key = f"base_model.model.{module}.{theirs}.weight"
                tensors[key] = lambda n=name + ours, i=layer: to_stored(_layer(params, n, i), leaves[n])
    _write_safetensors(folder / "adapter_model.safetensors", tensors, DTYPES["float32"])
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None if source is None else str(source),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": list(modules.values()),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    _write_json(folder / "adapter_config.json", settings)


# ---- the files beside them -----------------------------------------------------------------------------------------


def _special_ids(tokenizer: Any, eos: Sequence[int]) -> dict[str, Any]:
    ends = sorted({*eos, tokenizer.eos_token_id} - {None})
    return {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _write_tokenizer(tokenizer: Any, folder: pathlib.Path, files: pathlib.Path | None) -> None:
    """The files of the directory that the model came from; without one, the tokenizer as it is in memory."""
    if files is not None:
        for name in _TOKENIZER_FILES:
            if (files / name).is_file():
                shutil.copyfile(files / name, folder / name)
        return
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    # transformers 5 writes a name of its own for the class, which older versions and other programs do not know
    _write_json(file, {**json.loads(file.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"})


def _write_json(file: pathlib.Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _draft(directory: pathlib.Path) -> Iterator[pathlib.Path]:
    """A directory beside the one that is asked for, which takes its place when it is whole."""
    directory = directory.resolve()
    draft = directory.with_name(f".{directory.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        os.replace(draft, directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
