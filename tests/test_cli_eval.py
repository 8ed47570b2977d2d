"""`rlvr-jax eval` from end to end on the start weights of a config: stopped, gone on with, compared."""

import contextlib
import functools
import io
import json
import os
import signal

import pytest
import yaml

from rlvr_jax.cli import main
from rlvr_jax.train import evaluate, policy
from rlvr_jax.train.stop import STOPPED

TREE = {
    "task": {"name": "maze", "size": 5, "test_size": 1},
    "model": {"scratch": {"num_layers": 2, "dim": 16, "num_heads": 4, "num_kv_heads": 2, "mlp_dim": 24}},
    "sampling": {"max_new_tokens": 5, "temperature": 1.0},
    "prompts": {"max_tokens": 80},
    "mesh": {"data": 4, "tensor": 2},
    "batch": {"prompts": 4, "group_size": 2},
    "evaluation": {"task": {"name": "maze", "size": 7, "test_size": 7}, "sampling": {"temperature": 0.7}},
}


def run(*words):
    """(exit status, standard output)."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main([str(w) for w in words])
    return status, out.getvalue()


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """(config file, folder, figures) of an evaluation that was sent SIGTERM in its second request, and started again."""
    folder = tmp_path_factory.mktemp("eval")
    config = folder / "tiny.yaml"
    config.write_text(yaml.safe_dump(TREE))
    words = ("eval", config, "--samples", 4, "--k", 1, 4, "--output", folder / "e", "--json")
    requests = []

    def interrupted(*args):
        requests.append(args)
        if len(requests) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return ask(*args)

    ask = evaluate.ask
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "ask", interrupted)
        patch.setattr(policy, "assemble", functools.cache(policy.assemble))  # compiled once for both starts
        assert run(*words) == (STOPPED, "") and len(requests) == 2
        assert (
            len((folder / "e" / "answers.jsonl").read_text().splitlines()) == 8
        )  # two requests of four shares
        status, text = run(*words)
    assert status == 0 and len(requests) == 4
    return config, folder / "e", json.loads(text)


def test_an_evaluation_that_was_stopped_is_finished_by_the_same_command(done):
    config, folder, found = done
    assert (found["prompts"], found["samples"], found["policy"]) == (7, 4, str(config))
    assert found["task"]["size"] == 7 and found["split"] == "test" and found["step"] is None
    assert found["sampling"]["temperature"] == 0.7  # the config's evaluation has its own
    assert set(found["pass_at_k"]) == set(found["majority_at_k"]) == {"1", "4"}
    assert sum(found["reasons"].values()) == 28 and set(found["length"]) == {"mean", "p50", "p95"}
    assert 0 < found["diversity"]["distinct_2"] <= 1 and 0 <= found["diversity"]["self_bleu"] <= 1
    assert found["folder"] == str(folder)
    names = ["answers.jsonl", "evaluation.json", "evaluation.png", "settings.yaml"]
    assert sorted(p.name for p in folder.iterdir()) == names
    assert (folder / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    assert len(json.loads((folder / "evaluation.json").read_text())["problems"]) == 7


def test_other_figures_of_the_same_answers_are_a_table_without_sampling(done, monkeypatch):
    config, folder, _ = done
    monkeypatch.setattr(evaluate, "ask", None)  # nothing is left to ask
    status, text = run("eval", config, "--samples", 3, "--prompts", 5, "--k", 2, "--output", folder)
    assert status == 0 and "5 prompts, 3 samples each" in text and "majority@k" in text
    assert f"{config} on maze (test), seed 0: temperature 0.7, top_k 0, top_p 1.0" in text
    assert "verdicts: " in text and "Self-BLEU" in text and f"folder: {folder}" in text


def test_two_evaluations_are_compared(done, tmp_path):
    _, folder, _ = done
    first = json.loads((folder / "evaluation.json").read_text())
    better = [{**problem, "right": first["samples"]} for problem in first["problems"][:4]]
    second = tmp_path / "better.json"
    second.write_text(json.dumps({**first, "problems": better, "seed": 5}))
    status, text = run("eval", "--compare", folder, second, "--k", 1, "--json")
    found = json.loads(text)
    assert status == 0 and found["common"] == 4 and found["settings"] == {"seed": ["0", "5"]}
    assert found["pass_at_k"]["1"]["second"] == 1.0
    status, text = run("eval", "--compare", folder, second, "--k", 1)
    assert status == 0 and "4 common problems" in text and "seed: 0 and 5" in text


def test_what_cannot_be_evaluated_or_compared_is_one_line(done, tmp_path, capsys):
    config, folder, _ = done
    for words, message in (
        (["eval"], "eval takes a run, a config or a model; or two evaluations with --compare."),
        (
            ["eval", config, "--compare", folder, folder],
            f"eval --compare takes two evaluations, and --k; got {str(config)!r} beside them.",
        ),
        (
            ["eval", "--compare", folder, tmp_path],
            f"{tmp_path} has no evaluation.json; name the folder of an evaluation.",
        ),
        (["eval", tmp_path / "no.yaml"], f"no config file {str(tmp_path / 'no.yaml')!r}."),
        (
            ["eval", config, "--step", 3],
            f"{config} is no run, so it has no step 3: leave --step out.",
        ),
        (
            ["eval", config, "--seed", 1, "--output", tmp_path.parent],
            f"{tmp_path.parent} exists and is no evaluation (it has no settings.yaml): name another folder.",
        ),
    ):
        assert main([str(w) for w in words]) == 2
        captured = capsys.readouterr()
        assert captured.err == f"rlvr-jax: {message}\n" and captured.out == ""
