"""A run's directory: found again, refused where its config differs, and never half written."""

import importlib.metadata
import json
import os
import platform
import types

import jax
import pytest
import yaml

from rlvr_jax.train import rundir
from rlvr_jax.train.rundir import (
    OutOfSpaceError,
    check_resume,
    open_run,
    require_space,
    saved_config,
    versions,
)

OLD = {
    "seed": 0,
    "steps": 100,
    "objective": {"clip": {"name": "ppo", "high": 0.28}, "advantage": [{"name": "focal", "gamma": 2.0}]},
    "evaluation": {"k": [1, 8], "every": 10},
}


def test_a_new_directory_gets_config_and_versions(tmp_path):
    run = tmp_path / "runs" / "a"
    assert open_run(run, yaml.safe_dump(OLD)) is False
    assert saved_config(run) == OLD
    assert sorted(p.name for p in run.iterdir()) == ["config.yaml", "versions.json"]


def test_an_existing_run_is_found_and_takes_the_new_config(tmp_path):
    open_run(tmp_path, yaml.safe_dump(OLD))
    longer = {**OLD, "steps": 200}
    assert open_run(tmp_path, yaml.safe_dump(longer), free={"steps"}) is True
    assert saved_config(tmp_path) == longer


def test_another_config_is_refused_and_the_saved_one_stays(tmp_path):
    open_run(tmp_path, yaml.safe_dump(OLD))
    with pytest.raises(ValueError, match="seed: 0 in the run, 1 now"):
        open_run(tmp_path, yaml.safe_dump({**OLD, "seed": 1}))
    assert saved_config(tmp_path) == OLD


def test_a_directory_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError) as error:
        open_run(tmp_path, "seed: 0\n")
    assert str(error.value) == (
        f"{tmp_path} exists and is no run (it has no config.yaml): set run_dir to a new directory."
    )
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_no_run(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="exists and is no run"):
        open_run(tmp_path / "file", "seed: 0\n")


def test_killed_while_the_config_is_written_leaves_no_run_and_can_start_again(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            open_run(tmp_path, "seed: 0\n")
    assert saved_config(tmp_path) is None
    assert open_run(tmp_path, "seed: 1\n") is False
    assert saved_config(tmp_path) == {"seed": 1}


def test_every_differing_key_is_named_with_both_values():
    new = {
        "seed": 1,
        "steps": 100,
        "objective": {"clip": {"name": "ppo", "high": 0.2}, "advantage": [{"name": "focal", "gamma": 1.0}]},
        "evaluation": {"k": [1, 8, 64]},
    }
    with pytest.raises(ValueError) as error:
        check_resume(OLD, new)
    assert str(error.value) == (
        "the run was made with another config, and these keys must stay as they are:\n"
        "  evaluation.every: 10 in the run, absent now\n"
        "  evaluation.k: [1, 8] in the run, [1, 8, 64] now\n"
        "  objective.advantage[0].gamma: 2.0 in the run, 1.0 now\n"
        "  objective.clip.high: 0.28 in the run, 0.2 now\n"
        "  seed: 0 in the run, 1 now\n"
        "Go back to the run's values, or set run_dir to a new directory."
    )


def test_free_keys_and_all_below_them_may_differ():
    new = {
        **OLD,
        "steps": 7,
        "evaluation": {"k": [2]},
        "objective": {**OLD["objective"], "advantage": [{"name": "x"}]},
    }
    check_resume(OLD, new, free={"steps", "evaluation", "objective.advantage"})
    with pytest.raises(ValueError, match="steps: 100 in the run, 7 now"):
        check_resume(OLD, new, free={"step", "evaluation", "objective.advantage"})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"k": [1, 2]}, {"k": (1, 2)}),
        ({"gamma": 1}, {"gamma": 1.0}),
        ({"stages": []}, {"stages": ()}),
        ({}, {}),
    ],
)
def test_the_same_config_in_other_types_is_the_same(old, new):
    check_resume(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"stages": [{"name": "a"}, {"name": "b"}]}, {"stages": [{"name": "b"}, {"name": "a"}]}),
        ({"stages": [{"name": "a"}]}, {"stages": []}),
        ({"path": None}, {}),
        ({"model": {"path": "x"}}, {"model": {}}),
    ],
)
def test_order_and_absence_count(old, new):
    with pytest.raises(ValueError):
        check_resume(old, new)


def test_no_room_is_an_error_with_both_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(rundir.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=300_000_000))
    require_space(tmp_path, 300_000_000)
    with pytest.raises(OutOfSpaceError) as error:
        require_space(tmp_path / "not" / "there yet", 1_200_000_000)
    assert str(error.value) == (
        f"a checkpoint needs 1.2 GB, 0.3 GB free in {tmp_path}: "
        "the previous checkpoint stays; free space or set run_dir elsewhere."
    )


def test_small_sizes_are_in_megabytes(tmp_path, monkeypatch):
    monkeypatch.setattr(rundir.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=0))
    with pytest.raises(OutOfSpaceError, match=r"a checkpoint needs 2\.5 MB, 0\.0 MB free in "):
        require_space(tmp_path, 2_500_000)


def test_versions_name_python_packages_and_devices():
    seen = versions()
    assert seen["python"] == platform.python_version()
    assert seen["packages"]["jax"] == importlib.metadata.version("jax")
    assert seen["backend"] == "cpu"
    assert seen["devices"] == {"kind": "cpu", "count": len(jax.devices()), "processes": 1}


def test_versions_grow_only_with_a_new_environment(tmp_path, monkeypatch):
    for _ in range(2):
        open_run(tmp_path, "seed: 0\n")
    other = {**versions(), "python": "4.0.0"}
    monkeypatch.setattr(rundir, "versions", lambda: other)
    open_run(tmp_path, "seed: 0\n")
    first, second = json.loads((tmp_path / "versions.json").read_text())
    assert (first["python"], second["python"]) == (platform.python_version(), "4.0.0")
