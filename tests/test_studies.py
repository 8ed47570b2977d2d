"""Studies: their frame, what they conclude from records, and a little of each for real."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from scipy import stats

from rlvr_jax.cli import main
from rlvr_jax.studies.categorical import CategoricalStudy
from rlvr_jax.studies.run import named
from rlvr_jax.studies.study import Cell, Paired, Study
from rlvr_jax.studies.tail_miss import TailMiss

FILES = pathlib.Path(__file__).resolve().parents[1] / "configs" / "studies"

TABLE = {  # samples -> retained mass after 1,000 steps without and with the focal weight, of a simulation in NumPy, one seed
    2: (0.994, 0.994),
    8: (0.965, 0.966),
    256: (0.043, 0.149),
    4096: (0.038, 0.142),
    32768: (0.133, 0.994),
    131072: (0.995, 1.000),
}


@pytest.mark.parametrize("path", sorted(FILES.glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("quick", [False, True])
def test_each_file_is_a_study_with_seeds(path, quick):
    ((_, study),) = named(str(path), quick)
    assert study.seeds >= (2 if quick else 5)
    names = [cell.name for cell in study.cells()]
    assert len(set(names)) == len(names) > study.seeds


def test_a_study_that_was_stopped_goes_on_and_ends_the_same(tmp_path, monkeypatch, capsys):
    config = tmp_path / "small.yaml"
    config.write_text("{study: tail_miss, mu: [0.5], rho: [0.1, 0.2], powers: 6, draws: 500, seeds: 2}")
    words = ["study", str(config), "--json", "--out"]
    assert main([*words, str(tmp_path / "whole")]) == 0
    whole = json.loads(capsys.readouterr().out)

    calls, compute = [], TailMiss.compute

    def stops(self, cell):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(cell.name)
        return compute(self, cell)

    monkeypatch.setattr(TailMiss, "compute", stops)
    with pytest.raises(KeyboardInterrupt):
        main([*words, str(tmp_path / "parts")])
    cells = tmp_path / "parts" / "small" / "cells.jsonl"
    cells.write_text(cells.read_text() + '{"cell": "half of a l')
    calls.clear()
    assert main([*words, str(tmp_path / "parts")]) == 0
    assert calls == [TailMiss(mu=(0.5,), rho=(0.1, 0.2), seeds=2).cells()[3].name]
    assert json.loads(capsys.readouterr().out) == whole
    found = tmp_path / "parts" / "small"
    assert (found / "figure.png").read_bytes().startswith(b"\x89PNG")
    page = (found / "README.md").read_text()
    assert f"`rlvr-jax study {config}`" in page and page.count("verdict: **") == len(whole["statements"]) == 2

    config.write_text(config.read_text().replace("draws: 500", "draws: 600"))
    assert main([*words, str(tmp_path / "parts")]) == 2
    said = "holds this study with other fields (draws: 500 there, 600 now): choose another --out."
    assert capsys.readouterr().err.rstrip().endswith(said)


@pytest.mark.parametrize(
    "text, message",
    [
        ("{draws: 5}", "does not say which study it is: study: categorical or tail_miss."),
        (
            "{study: tail_mis}",
            "no study called 'tail_mis'. Did you mean 'tail_miss'? Known: categorical, tail_miss;",
        ),
        ("{study: tail_miss, seds: 1}", "study 'tail_miss' has no field 'seds'; Did you mean 'seeds'?"),
    ],
)
def test_what_is_no_study_is_one_line(tmp_path, capsys, text, message):
    (tmp_path / "x.yaml").write_text(text)
    assert main(["study", str(tmp_path / "x.yaml"), "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_paired_test_is_students():
    first, second = np.random.default_rng(0).normal(size=(2, 6))
    found, expected = Paired.of(first - second), stats.ttest_rel(first, second)
    assert found.p_value == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    verdicts = [
        Paired.of(np.array(x)).verdict for x in ([1.0, 1.1, 0.9], [-1.0, -1.1, -0.9], [1.0, -1.0, 0.1])
    ]
    assert verdicts == ["shown", "contradicted", "not shown"]
    with pytest.raises(ValueError, match="two pairs or more, got 1"):
        Paired.of(np.array([1.0]))


def test_a_closed_form_that_is_off_is_contradicted():
    study = TailMiss(mu=(0.5,), rho=(0.1,), powers=8, draws=20_000, seeds=2)
    found = {cell.name: study.compute(cell) for cell in study.cells()}
    assert [s.verdict for s in study.conclude(found)] == ["shown", "shown"]
    for record in found.values():
        record["missed"][2] += 800
    assert [s.verdict for s in study.conclude(found)] == ["contradicted", "shown"]


def records(retained, right=0.9):
    """Of a categorical study over 2, 16 and 128 samples: what is retained, by samples and gamma, a little more with each seed."""
    study = CategoricalStudy(powers=7, every=3, seeds=3)
    start = {"start": 0.6, "steps": [0], "retained_by_step": [1.0], "unsampled_by_step": [0.5]}

    def of(cell: Cell):
        n, gamma, seed = (cell.settings[key] for key in ("samples", "gamma", "seed"))
        return {**cell.settings, **start, "right": right, "retained": retained[n][int(gamma)] + 0.001 * seed}

    return study, {cell.name: of(cell) for cell in study.cells()}


@pytest.mark.parametrize(
    "retained, right, verdicts",
    [
        ({2: (0.99, 0.99), 16: (0.1, 0.4), 128: (0.95, 0.99)}, 0.9, ["shown"] * 3),
        ({2: (0.99, 0.99), 16: (0.1, 0.05), 128: (0.95, 0.99)}, 0.9, ["shown", "shown", "contradicted"]),
        ({2: (0.99, 0.99), 16: (0.7, 0.7), 128: (0.3, 0.3)}, 0.5, ["not shown", "not shown", "not shown"]),
    ],
)
def test_what_follows_from_what_was_retained(retained, right, verdicts):
    study, found = records(retained, right)
    assert study.samples() == [2, 16, 128]
    assert [s.verdict for s in study.conclude(found)] == verdicts
    assert [row[0] for row in study.table(found)] == ["N", "2", "16", "128"]


@pytest.mark.slow
@pytest.mark.parametrize("samples", [256])
def test_the_retained_mass_is_that_of_another_simulation(samples):
    study = CategoricalStudy()
    for gamma, expected in zip((0.0, 1.0), TABLE[samples], strict=True):
        found = study.compute(Cell("", {"samples": samples, "gamma": gamma, "seed": 0}))
        assert abs(found["retained"] - expected) < 0.05


def test_the_results_in_the_documentation_are_those_of_the_files():
    """And the retained mass of large numbers of samples, which takes minutes, is that of the other simulation too."""
    folder = FILES.parents[1] / "docs" / "studies"
    for path in sorted(FILES.glob("*.yaml")):
        ((_, study),) = named(str(path), False)
        result = json.loads((folder / path.stem / "result.json").read_text())
        assert result["fields"] == json.loads(json.dumps(dataclasses.asdict(study)))
        assert isinstance(study, Study) and set(result["cells"]) == {cell.name for cell in study.cells()}
        told = json.loads(json.dumps([dataclasses.asdict(s) for s in study.conclude(result["cells"])]))
        assert told == result["statements"]
    cells = json.loads((folder / "categorical" / "result.json").read_text())["cells"]
    for n, both in TABLE.items():
        for gamma, expected in zip((0.0, 1.0), both, strict=True):
            each = [c["retained"] for c in cells.values() if (c["samples"], c["gamma"]) == (n, gamma)]
            assert len(each) == 5 and abs(np.mean(each) - expected) < 0.05, (n, gamma, each)
