"""The names of `import rlvr_jax`: all there, the same objects as at home, and imported only when used."""

import ast
import importlib
import json
import pathlib
import re
import subprocess
import sys

import pytest

import rlvr_jax

SOURCE = ast.parse(pathlib.Path(rlvr_jax.__file__).read_text(encoding="utf-8"))
SEEN = {
    alias.asname: (node.module, alias.name)
    for block in SOURCE.body
    if isinstance(block, ast.If)
    for node in block.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
"""Public name -> (module, name there), as type checkers see it."""

HEAVY = ("transformers", "grain", "orbax", "tensorflow_datasets", "matplotlib", "tyro")


def imported_by(code):
    """Top-level packages that a fresh interpreter has imported after `code`."""
    show = "import json, sys; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", SEEN)
def test_a_name_is_the_object_at_its_home(name):
    module, there = SEEN[name]
    assert getattr(rlvr_jax, name) is getattr(importlib.import_module(module), there)


def test_what_runs_and_what_type_checkers_see_are_the_same_names():
    assert set(rlvr_jax._MODULES) == set(SEEN)
    assert set(SEEN) <= set(dir(rlvr_jax))
    for name in (
        "Objective",
        "preset",
        "chain",
        "Stage",
        "Stateless",
        "register",
        "needs",
        "Pass",
        "Stat",
        "fit",
    ):
        assert name in SEEN


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match=re.escape("module 'rlvr_jax' has no attribute 'presets'")):
        rlvr_jax.presets  # noqa: B018
    assert not hasattr(rlvr_jax, "__wrapped__")


def test_importing_the_package_imports_nothing_else():
    assert not imported_by("import rlvr_jax; dir(rlvr_jax)") & {"jax", "numpy", "flax", *HEAVY}


def test_composing_stages_needs_no_heavy_package():
    loaded = imported_by(
        "from rlvr_jax import Objective, Stateless, chain, needs, preset, register; preset('dapo')"
    )
    assert "jax" in loaded and not loaded & {"flax", *HEAVY}
