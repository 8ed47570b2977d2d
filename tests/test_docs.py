"""docs/methods.md is what the docstrings say today, and leaves nothing out."""

import pathlib
import re
import subprocess
import sys

import pytest

from rlvr_jax import registry
from rlvr_jax.objective.describe import TITLES, entry, methods
from rlvr_jax.objective.presets import PLURAL, PRESETS, SOURCES

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "methods.md"
SLOTS = (
    "reward",
    "mask",
    "advantage",
    "response_weight",
    "token_weight",
    "passes",
    "aggregate",
    "ratio",
    "clip",
)
PARTS = [registry.build(kind, name) for kind in (*SLOTS, *PLURAL.values()) for name in registry.names(kind)]


def test_the_page_of_methods_is_current():
    assert PAGE.read_text(encoding="utf-8") == methods(), "docs/methods.md is out of date: run `make docs`."


def test_make_docs_writes_the_page():
    (command,) = re.findall(
        r"\$\(BIN\)/python (.*) > docs/methods.md$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    done = subprocess.run([sys.executable, *command.split()], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout.decode() == methods()


def test_the_page_has_every_preset_and_every_stage_once():
    heads = re.findall(r"^### (.*)$", methods(), re.MULTILINE)
    stages = [f"{found['slot']} {found['name']}" for found in map(entry, PARTS)]
    assert sorted(heads) == sorted([*PRESETS, *stages])


def test_every_link_of_the_page_leads_somewhere():
    page = methods()
    anchors = {head.replace(" ", "-") for head in re.findall(r"^#+ (.*)$", page, re.MULTILINE)}
    links = set(re.findall(r"\]\(#([^)]*)\)", page))
    assert links and links <= anchors


def test_every_cited_paper_has_a_title_and_no_other_has():
    cited = set(re.findall(r"arXiv:(\d{4}\.\d{4,5})", " ".join(SOURCES.values())))
    cited |= {source for part in PARTS for source in entry(part)["sources"]}
    assert cited == set(TITLES)


@pytest.mark.parametrize(
    "line", ["| constant | default | standing | meaning |", "- State: `smooth [num_prompts, 3] float32`"]
)
def test_the_page_shows_constants_and_state(line):
    assert line in methods().splitlines()


def test_the_index_leads_from_a_paper_to_its_presets_and_stages():
    (row,) = (line for line in methods().splitlines() if line.startswith("| [arXiv:2602.06717]"))
    assert "F-GRPO: Don't Let Your Policy Learn the Obvious and Forget the Rare" in row
    assert "[`f_grpo`](#f_grpo)" in row and "[advantage `focal`](#advantage-focal)" in row
