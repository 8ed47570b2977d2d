"""A small run planned: on processors quickly, on a TPU slice with its own compiler."""

import importlib.util
import json

import pytest
import yaml

from rlvr_jax.cli import main
from rlvr_jax.plan import planning
from rlvr_jax.sharding import MESH_AXES

TREE = {
    "task": {"name": "maze", "size": 9},
    "model": {
        "scratch": {"num_layers": 2, "dim": 256, "num_heads": 4, "num_kv_heads": 2, "mlp_dim": 512},
        "dtype": "bfloat16",
        "remat": "full",
        "vocab_chunk": 64,
    },
    "objective": "grpo",
    "sampling": {"max_new_tokens": 256},
    "prompts": {"max_tokens": 128},
    "batch": {"prompts": 8, "group_size": 4, "minibatches": 2},
    "decoding": {"segment": 16},
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "config.yaml"
    path.write_text(yaml.safe_dump(TREE))
    return str(path)


def planned(capsys, *words):
    status = main(["plan", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_processors_stand_in_for_devices_that_are_not_here(config, capsys):
    """Score, as it compiles fastest: all is there but what only the real compiler knows."""
    small = ["--sampling.max_new_tokens", "16", "--prompts.max_tokens", "32", "--mesh.fsdp", "2"]
    status, found = planned(capsys, config, "--topology", "h100:4", "--parts", "score", *small)
    score = found["programs"]["score"]
    assert status == 0 and found["mesh"] == {"data": 2, "fsdp": 2} | {a: 1 for a in MESH_AXES[2:]}
    assert found["fits"] is None and "stand in" in found["missing"]
    assert score["memory"]["temporaries"] is None and score["memory"]["arguments"] > 0
    assert score["seconds"].keys() == {"products", "memory", "links"}
    assert abs(score["repeated"]) < 0.05
    assert set(score["collectives"]) >= {"all-gather"}  # the weights, which fsdp splits


def test_a_plan_of_parts_that_a_config_does_not_have_says_so(config, capsys):
    on_policy = ["--batch.minibatches", "1", "--topology", "cpu:1", "--parts", "score"]
    assert main(["plan", config, *on_policy]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(
        "rlvr-jax: --parts score: there is nothing of it in this config, as where a run needs"
    )


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler: pip install libtpu"
)
def test_every_program_of_a_step_compiles_for_a_tpu_with_the_attention_kernel(config, capsys, monkeypatch):
    texts = {}

    def kept(call, target):
        figures, compiled = measure(call, target)
        texts[call.name] = compiled.as_text()
        return figures, compiled

    measure = planning.measure
    monkeypatch.setattr(planning, "measure", kept)
    mesh = ["--mesh.data", "1", "--mesh.fsdp", "2", "--mesh.tensor", "2"]
    status, found = planned(capsys, config, "--topology", "v5e:2x2", *mesh)
    assert status == 0 and found["fits"] and not found["missing"]
    assert {"prefill", "decode", "score", "update"} == set(found["programs"])
    for name, kernels in {
        "prefill": ["splash_mha_fwd"],
        "score": ["splash_mha_fwd"],
        "update": ["splash_mha_fwd", "splash_mha_dq", "splash_mha_dkv"],
    }.items():
        assert all(kernel in texts[name] for kernel in kernels), name
    for name, program in found["programs"].items():
        assert program["error"] == "" and program["memory"]["peak"] < found["chip"]["memory"], name
        assert abs(program["repeated"]) < 0.05, (name, program["repeated"])
        assert 0 < program["mfu"] < 1, name
    assert found["step_seconds"] > 0 and found["seconds_to_plan"] > 0

    # Where the weights are gathered once, the loop gathers none: what is left are numbers of rows and of the vocabulary's parts.
    gathered = ["--parts", "sample", "--decoding.weights", "gathered"]
    _, again = planned(capsys, config, "--topology", "v5e:2x2", *mesh, *gathered)
    sent = [
        f["programs"]["decode"]["collectives"].get("all-gather", {}).get("bytes", 0) for f in (found, again)
    ]
    assert sent[1] < sent[0] / 10, sent
