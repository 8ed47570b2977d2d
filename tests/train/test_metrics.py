"""Files of a run: what a killed and resumed run leaves must be what an uninterrupted one leaves."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.train.metrics import (
    METRICS,
    ROLLOUTS,
    JsonLines,
    MetricsWriter,
    Phases,
    RolloutRow,
    RolloutWriter,
    plain,
    read_rows,
    without_times,
)
from rlvr_jax.types import Mean


def figures(step):
    return {
        "reward/mean": Mean(total=jnp.float32(step), count=jnp.float32(3)),
        "time/sample": 0.5 * step,
        "b": 1,
    }


def write_steps(run_dir, start, stop):
    with MetricsWriter(run_dir, start) as writer:
        for step in range(start, stop):
            writer.write(step, figures(step))


def test_a_line_is_a_flat_object_with_sorted_keys(tmp_path):
    write_steps(tmp_path, 0, 2)
    assert (tmp_path / METRICS).read_text().splitlines()[1] == (
        '{"b": 1, "reward/mean": 0.3333333333333333, "step": 1, "time/sample": 0.5}'
    )


def test_write_returns_the_numbers(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        assert writer.write(3, figures(3)) == {"reward/mean": 1.0, "time/sample": 1.5, "b": 1}


def test_plain_takes_means_arrays_and_numbers():
    got = plain(
        {"mean": Mean.of(jnp.array([1.0, 2.0])), "jax": jnp.int32(2), "np": np.float32(0.5), "int": 7}
    )
    assert got == {"mean": 1.5, "jax": 2.0, "np": 0.5, "int": 7}
    assert type(got["int"]) is int


def test_what_is_not_finite_is_null(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        got = writer.write(
            0, {"empty": Mean(total=jnp.zeros(()), count=jnp.zeros(())), "big": math.inf, "fine": 1.0}
        )
    assert math.isnan(got["empty"]) and got["big"] == math.inf
    assert read_rows(tmp_path / METRICS) == [{"step": 0, "empty": None, "big": None, "fine": 1.0}]


@pytest.mark.parametrize(
    "cut", [b"", b'{"b": 1, "rew', b"\x00\x00\x00"], ids=["whole", "half a line", "zeros"]
)
@pytest.mark.parametrize("resume_from", [0, 3, 5])
def test_a_killed_and_resumed_run_leaves_the_same_bytes(tmp_path, cut, resume_from):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    write_steps(whole, 0, 8)
    write_steps(killed, 0, 5)
    with open(killed / METRICS, "ab") as file:
        file.write(cut)
    write_steps(killed, resume_from, 8)
    assert (killed / METRICS).read_bytes() == (whole / METRICS).read_bytes()


def test_each_line_is_on_disk_when_write_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda fd: synced.append((tmp_path / METRICS).read_text().count("\n")))
    write_steps(tmp_path, 0, 3)
    assert synced == [0, 1, 2, 3]


def test_a_broken_line_in_the_middle_is_an_error_and_nothing_is_cut_off(tmp_path):
    path = tmp_path / METRICS
    path.write_text('{"step": 0}\n{"step": oops}\n{"step": 2}\n')
    before = path.read_bytes()
    with pytest.raises(ValueError) as error:
        JsonLines(path, 3)
    assert str(error.value) == (
        f"{path}, line 2 is no JSON object with a step: b'{{\"step\": oops}}\\n'. Mend the line, or move the file away."
    )
    assert path.read_bytes() == before


@pytest.mark.parametrize("line", ["[1]", '{"stop": 1}', '{"step": "1"}'])
def test_a_line_without_a_step_is_an_error(tmp_path, line):
    (tmp_path / METRICS).write_text(line + "\n")
    with pytest.raises(ValueError, match="line 1 is no JSON object with a step"):
        read_rows(tmp_path / METRICS)


def test_a_metric_may_not_be_called_step(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        with pytest.raises(
            ValueError, match="a metric is called 'step', which is the name of the step itself"
        ):
            writer.write(0, {"step": 1.0})


def test_without_times_drops_what_depends_on_the_clock():
    assert without_times({"step": 1, "time/sample": 2.0, "timely": 3.0}) == {"step": 1, "timely": 3.0}


def answer(sample, completion="1 2"):
    return RolloutRow(
        prompt_id=7,
        sample=sample,
        prompt="p",
        completion=completion,
        reward=0.5,
        correct=False,
        reason="wrong",
        length=2,
        truncated=True,
        version=0,
    )


def test_rollouts_are_cut_at_the_step_of_the_resume(tmp_path):
    for start in (0, 1):
        with RolloutWriter(tmp_path, start) as writer:
            for step in range(start, 3):
                writer.write(step, [answer(0), answer(1)])
    rows = read_rows(tmp_path / ROLLOUTS)
    assert [(row["step"], row["sample"]) for row in rows] == [(s, i) for s in range(3) for i in range(2)]
    assert rows[0] == {
        "step": 0,
        "prompt_id": 7,
        "sample": 0,
        "prompt": "p",
        "completion": "1 2",
        "reward": 0.5,
        "correct": False,
        "reason": "wrong",
        "length": 2,
        "truncated": True,
        "version": 0,
    }


@pytest.mark.parametrize("text", ["é 数 \u2028 \n\r \x00", "a lone \ud800 surrogate"])
def test_any_text_of_a_model_survives(tmp_path, text):
    with RolloutWriter(tmp_path) as writer:
        writer.write(0, [answer(0, text), answer(1)])
    first, second = read_rows(tmp_path / ROLLOUTS)
    assert (first["completion"], second["sample"]) == (text, 1)


def test_phases_add_up_and_start_anew():
    now = iter([0.0, 1.0, 3.0, 3.0, 3.5, 4.0, 6.0, 10.0, 11.0])
    phases = Phases(lambda: next(now))
    for name in ("sample", "update", "sample"):
        with phases(name):
            pass
    assert phases.collect() == {"time/sample": 4.0, "time/update": 0.5, "time/step": 10.0}
    assert phases.collect() == {"time/step": 1.0}


def test_a_phase_that_fails_is_still_counted():
    now = iter([0.0, 1.0, 3.0, 5.0])
    phases = Phases(lambda: next(now))
    with pytest.raises(KeyError):
        with phases("sample"):
            raise KeyError
    assert phases.collect() == {"time/sample": 2.0, "time/step": 5.0}


def test_lines_are_json_that_other_programs_read(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(0, {"a": math.nan})

    def refuse(word):
        raise AssertionError(word)

    json.loads((tmp_path / METRICS).read_text(), parse_constant=refuse)
