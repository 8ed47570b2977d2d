"""What a plan says, and its exit status, for figures that are made up."""

import dataclasses
import json

import jax
import pytest
import yaml

from rlvr_jax import cli
from rlvr_jax.configfile import parse
from rlvr_jax.plan import command
from rlvr_jax.plan.advice import advice, rows_at_once
from rlvr_jax.plan.chips import CHIPS, GIB
from rlvr_jax.plan.measure import Figures, Memory, roofline, too_large
from rlvr_jax.plan.models import described
from rlvr_jax.plan.planning import Planned
from rlvr_jax.plan.programs import Call
from rlvr_jax.plan.report import as_json, as_text
from rlvr_jax.plan.search import search
from rlvr_jax.plan.topology import Target, open_topology
from rlvr_jax.plan.work import Traffic, Work

V5E = Target("v5e:4x4", CHIPS["v5e"], (None,) * 16)
CONFIG = parse({"model": {"scratch": {}, "remat": "none"}, "batch": {"prompts": 32, "group_size": 8}})


def memory(arguments, temporaries):
    sizes = dict(outputs=GIB, aliased=GIB, code=0, beside=2 * GIB)
    return Memory(
        arguments=arguments * GIB, temporaries=None if temporaries is None else temporaries * GIB, **sizes
    )


def update(arguments=4, temporaries=8, **fields):
    seconds = {"products": 3.0, "memory": 1.0, "links": 0.0}
    fields = {"flops": 1.1e15, "bytes": 1e9, "seconds": seconds, "seconds_apart": 5.0} | fields
    return Figures("update", 2.0, 30.0, memory(arguments, temporaries), **fields)


def plan(*figures):
    names = {each.name: 1e15 for each in figures}
    return Planned("v5e:4x4", 16, {"data": 1, "fsdp": 16, "tensor": 1}, figures, names, names, 61.0)


def test_the_peak_is_all_that_is_there_at_once():
    assert memory(4, 8).peak == (4 + 8 + 2) * GIB
    assert update().fits(CHIPS["v5e"]) is True and update(temporaries=10).fits(CHIPS["v5e"]) is False


def test_a_lower_bound_can_only_say_that_something_is_too_much():
    assert update(temporaries=None).fits(CHIPS["v5e"]) is None
    assert update(arguments=15, temporaries=None).fits(CHIPS["v5e"]) is False
    assert update().fits(None) is None


def test_each_part_of_a_program_takes_as_long_as_what_takes_it_longest():
    chip = dataclasses.replace(CHIPS["v5e"], flops=1e12, bandwidth=1e9, link=1e8)
    parts = [
        Work(10.0, flops=2e12, bytes=1e9, collectives={}),
        Work(3.0, flops=1e11, bytes=1e9, collectives={"all-gather": Traffic(1.0, 5e8)}),
    ]
    seconds, apart = roofline(parts, 4e12, chip)
    assert seconds == {"products": 4.0 + 20.0, "memory": 0.0, "links": 15.0}
    assert apart == pytest.approx(4.0 + 10 * (2 + 1) + 3 * (0.1 + 1 + 5))


def test_time_and_mfu_follow_from_the_runs_of_a_step():
    found = plan(update())
    assert found.step_seconds() == 2 * 4.0
    assert found.mfu(V5E) == pytest.approx(2e15 / (8.0 * 16 * 197e12))
    assert found.repeated("update") == pytest.approx(0.1)


def test_what_does_not_fit_is_told_what_to_change():
    words = advice(CONFIG, plan(update(temporaries=12, flops=1e15)), V5E)
    assert words[0] == "update does not fit: keep less for the backward pass, --model.remat dots."
    assert words[1] == "update does not fit: fewer rows at once, --batch.micro_batches 2."
    decode = Figures("decode", 1.0, 1.0, needs=20.0 * GIB, error="too large")
    assert (
        advice(CONFIG, plan(decode), V5E)[0]
        == "decode does not fit: fewer rows at once, --decoding.slots 128."
    )
    assert advice(CONFIG, plan(update(flops=1e15)), V5E) == []


def test_repeated_work_and_slow_links_are_told():
    slow = {"products": 1.0, "memory": 0.0, "links": 3.0}
    words = advice(CONFIG, plan(update(seconds=slow)), V5E)
    assert words[0].startswith("update computes 10% more than one device would")
    assert words[1].startswith("update waits for the links")


def test_text_and_json_hold_every_figure():
    found = plan(update(collectives={"all-gather": Traffic(7.0, 3e9)}))
    data, text = as_json(CONFIG, found, V5E), as_text(CONFIG, found, V5E)
    assert json.loads(json.dumps(data)) == data
    assert data["programs"]["update"]["memory"]["peak"] == 14 * GIB and data["step_seconds"] == 8.0
    assert data["chip"]["source"].startswith("https://")
    for piece in ("14.00", "15.75", "3 (7)", "+10.0%", "197 TFLOP/s", "It fits. Planned in 61 s."):
        assert piece in text


@pytest.mark.parametrize(
    "figures, status",
    [(update(), 0), (update(temporaries=20), 3), (update(temporaries=None), 0)],
    ids=["fits", "does not", "unknown"],
)
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_the_exit_status_says_whether_it_fits(figures, status, words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("rlvr_jax.plan.topology.open_topology", lambda name: V5E)
    monkeypatch.setattr("rlvr_jax.plan.planning.plan_run", lambda *_: plan(figures))
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"task": {"name": "maze", "size": 9}}))
    assert cli.main(["plan", str(path), "--topology", "v5e:4x4", *words]) == status
    assert command.DOES_NOT_FIT == 3 and capsys.readouterr().out


@pytest.mark.parametrize(
    "name, message",
    [
        ("v5e", "--topology 'v5e': it is a chip and how many there are"),
        ("v9:4x4", "--topology 'v9:4x4': it is a chip and how many there are"),
        ("v5p:4x4", "--topology 'v5p:4x4': v5p is a torus of 3 axes, as v5p:4x4x4."),
        ("h100:2x4", "--topology 'h100:2x4': h100 has one number, as h100:8."),
        ("cpu:9", "9 devices are needed and JAX has 8 processors"),
    ],
)
def test_a_topology_that_does_not_exist_is_refused(name, message):
    jax.devices()  # JAX runs already, so the number of processors is settled
    with pytest.raises(ValueError) as error:
        open_topology(name)
    assert str(error.value).startswith(message)


def test_a_search_needs_to_know_what_fits():
    with pytest.raises(ValueError, match="A cpu has no fixed memory"):
        search(CONFIG, described(CONFIG), 1, Target("cpu:8", None, ()), print, tries=1)


def test_rows_at_once_shrink_with_micro_batches():
    assert [rows_at_once(CONFIG, 4, n) for n in (1, 2, 64)] == [64, 32, 1]


def test_chips_are_in_the_range_of_what_is_sold():
    for name, chip in CHIPS.items():
        assert 1e14 < chip.flops < 1e16 and 15 * GIB < chip.memory < 200 * GIB, name
        assert chip.flops / chip.bandwidth > 100 and chip.bandwidth > chip.link > 1e11, name


def test_what_the_compiler_cannot_place_is_a_result_with_its_size():
    call = Call("update", None, (), 2.0, 1, 0)
    message = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (18.50G) exceeds "
        "available HBM (15.75G)."
    )
    found = too_large(call, message, 3.0)
    assert found.needs == 18.5 * GIB and found.fits(CHIPS["v5e"]) is False
    assert too_large(call, "RESOURCE_EXHAUSTED: no number", 3.0).fits(CHIPS["v5e"]) is False
    with pytest.raises(RuntimeError, match="update does not compile: INTERNAL: other"):
        too_large(call, "INTERNAL: other", 3.0)
