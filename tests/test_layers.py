"""The structure of the package, read from its source: who imports whom, sizes, names, docstrings."""

import ast
import graphlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rlvr_jax"
FILES = sorted(PACKAGE.rglob("*.py"))

LAYERS = (
    {"types", "registry", "numerics", "products", "sharding", "cluster", "memory"},
    {"stats", "distributed"},
    {"objective", "models", "tasks"},
    {"rollout", "analysis"},
    {"config"},
    {"configfile"},
    {"train"},
    {"plan", "report", "studies"},
    {"commands"},
    {"cli"},
)
"""Modules and packages directly under rlvr_jax, lowest first. Each imports only from layers below its own; inside a
package any order will do that has no cycle."""

HEAVY = {
    "datasets",
    "gguf",
    "grain",
    "math_verify",
    "matplotlib",
    "mlflow",
    "plotly",
    "tensorboardX",
    "tensorflow",
    "tensorflow_datasets",
    "torch",
    "transformers",
    "tyro",
    "wandb",
}
"""Slow to import, or optional: imported in the function that uses them."""

HEAVY_AT_TOP = {
    "rlvr_jax.cli": {"tyro"},  # every command's arguments are made by it, and no module imports cli
    "rlvr_jax.commands": {"tyro"},  # the same arguments, and cli alone imports it
}
"""module -> heavy packages it may import at its top, each with the reason in a comment."""


def name(path):
    """rlvr_jax.train.loop, and rlvr_jax.train for its __init__."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path, nodes=None):
    """Dotted names of what a file imports, wherever the import stands."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree) if nodes is None else nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}:{node.lineno} imports relatively; write the whole name."
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def at_top(tree):
    """Nodes that run when the module is imported: not those in functions."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)


def own_imports(path):
    """Modules of rlvr_jax (as in `name`) that a file imports."""
    modules = {name(f) for f in FILES}
    found = set()
    for target in imports(path):
        while target and target not in modules:
            target = target.rpartition(".")[0]
        found |= {target} - {""}
    return found


def layer(module):
    if module == "rlvr_jax":
        return len(LAYERS)
    part = module.split(".")[1]
    assert any(part in names for names in LAYERS), f"rlvr_jax/{part} has no layer: put it into LAYERS."
    return next(i for i, names in enumerate(LAYERS) if part in names)


def each_file(files=FILES):
    return pytest.mark.parametrize("path", files, ids=name)


@each_file()
def test_imports_go_down(path):
    here = name(path)
    up = [
        f"{here} (layer {layer(here)}) imports {there} (layer {layer(there)})"
        for there in sorted(own_imports(path))
        if there.split(".")[:2] != here.split(".")[:2] and layer(there) >= layer(here)
    ]
    assert not up, up


def test_no_cycles_inside_a_package():
    graphlib.TopologicalSorter({name(f): own_imports(f) for f in FILES}).prepare()


def slots(path):
    """Slots of the objective that a file fills."""
    return set(re.findall(r'@register\("(\w+)"', path.read_text(encoding="utf-8")))


@each_file([f for f in FILES if f.parent.name == "objective" and slots(f)])
def test_slots_do_not_import_each_other(path):
    """A slot may fill several files; those may import one another."""
    siblings = {m.split(".")[2] for m in own_imports(path) if m.startswith("rlvr_jax.objective.")}
    mine = {f.stem for f in path.parent.glob("*.py") if slots(f) == slots(path)}
    others = siblings - mine - {"base"}
    assert not others, f"{name(path)} imports {others}; a slot stands on base and its own files."


@each_file()
def test_heavy_packages_are_imported_where_used(path):
    heavy = {target.split(".")[0] for target in imports(path, at_top)} & HEAVY
    assert heavy <= HEAVY_AT_TOP.get(name(path), set()), (
        f"{name(path)} imports {sorted(heavy)} at its top: move that into the function, or give a reason in HEAVY_AT_TOP."
    )


@each_file()
def test_no_file_is_long(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 400, f"{name(path)} has {lines} lines, 400 at the most: split it by topic."


@each_file()
def test_no_future_annotations(path):
    future = {t for t in imports(path) if t.startswith("__future__")}
    assert not future, f"{name(path)}: run-time checks of shapes need real annotations, not strings."


def test_no_file_is_named_for_nothing():
    bad = [
        str(f.relative_to(ROOT))
        for f in FILES
        if f.stem in {"utils", "util", "helpers", "helper", "common", "misc"}
    ]
    assert not bad, f"{bad}: name a file for what it holds."


@each_file([f for f in FILES if f.stem != "__init__"])
def test_public_things_have_docstrings(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bare = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert ast.get_docstring(tree), f"{name(path)} has no docstring."
    assert not bare, f"{name(path)}: {bare} have no docstring; one line will do."


def test_the_checks_see_what_they_should(tmp_path):
    path = tmp_path / "m.py"
    path.write_text(
        "import torch.nn\nif True:\n    from gguf import x\ndef f():\n    import wandb\nclass C:\n    import tyro\n"
    )
    assert imports(path, at_top) == {"torch.nn", "gguf.x", "tyro"}
    assert imports(path) == {"torch.nn", "gguf.x", "tyro", "wandb"}
    assert layer("rlvr_jax.types") == 0 and layer("rlvr_jax.train.loop") == 6
    assert slots(PACKAGE / "objective" / "virtual.py") == {"advantage"}
    assert own_imports(PACKAGE / "train" / "metrics.py") == {"rlvr_jax.types"}
