"""Answers are judged in worker processes while others are sampled: the same run, and no answer can hold it up."""

import dataclasses

import pytest
from test_resume import CONFIG
from tiny_task import Stuck

from rlvr_jax.configfile import parse
from rlvr_jax.train.loop import fit
from rlvr_jax.train.metrics import METRICS, read_rows

pytestmark = pytest.mark.slow

TINY = CONFIG | {"steps": 2, "warmup": {"steps": 0}, "batch": {"prompts": 8, "group_size": 2}}


def figures(run_dir, task=None, **sections):
    """The metrics of a run's steps but for times."""
    config = parse(TINY | {"run_dir": str(run_dir)} | sections)
    assert fit(config if task is None else dataclasses.replace(config, task=task)).complete
    rows = read_rows(run_dir / METRICS)
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def test_workers_judge_as_the_training_process_does(tmp_path):
    there = figures(tmp_path / "workers", verification={"workers": 2})
    assert there == figures(tmp_path / "here")
    assert len(there) == 2 and "verdict/correct" in there[0]


def test_a_verifier_that_never_comes_back_costs_its_deadline(tmp_path):
    rows = figures(tmp_path / "run", Stuck(), verification={"workers": 2, "deadline": 0.3})
    shares = [row["verdict/timeout"] for row in rows]
    assert 0 < sum(shares) < len(rows)
    judged = ("correct", "wrong", "unparsable", "truncated")
    for row, share in zip(rows, shares, strict=True):
        assert sum(row[f"verdict/{reason}"] for reason in judged) == pytest.approx(1 - share)
