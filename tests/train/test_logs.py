"""Warnings of a run on their way: to whoever watches, to warnings.jsonl and to the services that show the run."""

import pytest

from rlvr_jax.config import Config, Logging
from rlvr_jax.train.logs import _Files
from rlvr_jax.train.metrics import WARNINGS, read_rows


def write(run, start, stop):
    run.mkdir(exist_ok=True)
    with _Files(Config(steps=40, logging=Logging(tensorboard=False)), run, start) as files:
        for step in range(start, stop):
            files.write(
                step, {"verdict/timeout": 0.5 * (step < 10), "rollout/nonfinite": float(step == 25)}, []
            )


def test_a_warning_is_told_and_kept(tmp_path, capsys):
    write(tmp_path, 0, 30)
    assert [(row["step"], row["name"]) for row in read_rows(tmp_path / WARNINGS)] == [
        (9, "timeouts"),
        (25, "not_finite"),
    ]
    told = capsys.readouterr().err
    assert (
        "warning: step 9: the verifier ran out of time on 50.0% of the answers of the last 10 steps" in told
    )
    assert told.count("warning: ") == 2


@pytest.mark.parametrize("killed, resumed", [(30, 20), (15, 9), (12, 12)])
def test_a_run_that_goes_on_keeps_the_same_warnings(tmp_path, killed, resumed):
    write(tmp_path / "whole", 0, 30)
    write(tmp_path / "killed", 0, killed)
    write(tmp_path / "killed", resumed, 30)
    assert (tmp_path / "killed" / WARNINGS).read_bytes() == (tmp_path / "whole" / WARNINGS).read_bytes()
