"""The directory of a run: what it was started with, so that it can be resumed and repeated."""

import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import jax
import yaml

from rlvr_jax.distributed import barrier, is_first

CONFIG = "config.yaml"
VERSIONS = "versions.json"


class OutOfSpaceError(OSError):
    """The disk has no room for what is about to be written."""


def open_run(run_dir: pathlib.Path, config: str, free: Collection[str] = ()) -> bool:
    """Create a run directory, or reopen one; True where there was a run already.

    `config` is the resolved configuration as YAML. It replaces the saved one, from which it may differ only in the
    keys `free` (see `check_resume`). versions.json gets an entry for each different environment the run has seen.
    Of several processes all look, and the first one writes.

    Raises ValueError where the configs differ in more, and where the directory holds something that is no run.
    """
    saved = saved_config(run_dir)
    if saved is not None:
        check_resume(saved, yaml.safe_load(config), free)
    elif run_dir.exists() and (not run_dir.is_dir() or any(p.name[0] != "." for p in run_dir.iterdir())):
        raise ValueError(
            f"{run_dir} exists and is no run (it has no {CONFIG}): set run_dir to a new directory."
        )
    barrier()
    if is_first():
        run_dir.mkdir(parents=True, exist_ok=True)
        write_whole(run_dir / CONFIG, config)
        _record_versions(run_dir / VERSIONS)
    barrier()
    return saved is not None


def saved_config(run_dir: pathlib.Path) -> dict[str, Any] | None:
    """The resolved config a run was started with; None where there is no run."""
    path = run_dir / CONFIG
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None


def check_resume(old: Mapping[str, Any], new: Mapping[str, Any], free: Collection[str] = ()) -> None:
    """Raise one ValueError that names every key in which two configs differ, with both values.

    Keys are dotted (`objective.clip.high`, `objective.advantage[0].gamma`). Those in `free`, and all below them, may
    differ.
    """
    lines = [
        f"  {key}: {before} in the run, {now} now"
        for key, (before, now) in differences(old, new).items()
        if not _is_free(key, free)
    ]
    if lines:
        raise ValueError(
            "the run was made with another config, and these keys must stay as they are:\n"
            + "\n".join(lines)
            + "\nGo back to the run's values, or set run_dir to a new directory."
        )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Dotted keys in which two trees of plain data differ, sorted, and both values as text ("absent" where there is none)."""
    before, now = dict(_flatten(old)), dict(_flatten(new))
    return {
        key: (_show(before, key), _show(now, key))
        for key in sorted(before.keys() | now.keys())
        if before.get(key, ...) != now.get(key, ...)
    }


def _flatten(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves with dotted keys. A list is a leaf unless it holds mappings; what is empty is a leaf too."""
    if isinstance(tree, Mapping) and tree:
        for name, value in tree.items():
            yield from _flatten(value, f"{key}.{name}" if key else str(name))
    elif isinstance(tree, list | tuple) and any(isinstance(value, Mapping) for value in tree):
        for i, value in enumerate(tree):
            yield from _flatten(value, f"{key}[{i}]")
    else:
        yield key, list(tree) if isinstance(tree, tuple) else tree


def _show(leaves: Mapping[str, Any], key: str) -> str:
    return repr(leaves[key]) if key in leaves else "absent"


def _is_free(key: str, free: Collection[str]) -> bool:
    return any(key == name or key.startswith((f"{name}.", f"{name}[")) for name in free)


def require_space(path: pathlib.Path, bytes_needed: int) -> None:
    """Raise OutOfSpaceError where the disk of `path`, which need not exist yet, has fewer bytes free."""
    here = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    there_is = shutil.disk_usage(here).free
    if there_is < bytes_needed:
        raise OutOfSpaceError(
            f"a checkpoint needs {_size(bytes_needed)}, {_size(there_is)} free in {here}: "
            "the previous checkpoint stays; free space or set run_dir elsewhere."
        )


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def versions() -> dict[str, Any]:
    """What computes here: Python, platform, JAX's backend and devices, and every installed package."""
    devices = jax.devices()
    packages = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "backend": jax.default_backend(),
        "devices": {"kind": devices[0].device_kind, "count": len(devices), "processes": jax.process_count()},
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    }


def _record_versions(path: pathlib.Path) -> None:
    seen = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    current = versions()
    if not seen or seen[-1] != current:
        write_whole(path, json.dumps([*seen, current], indent=1) + "\n")


def write_whole(path: pathlib.Path, text: str) -> None:
    """All or nothing, whenever the process is killed."""
    draft = path.with_name(f".{path.name}.draft")
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
