"""The command line: what a user gets for right input, and one line for wrong input before any model is built."""

import contextlib
import io
import json
import pathlib
import sys

import pytest
import yaml

from rlvr_jax.cli import main
from rlvr_jax.objective.presets import PRESETS, SOURCES
from rlvr_jax.registry import names
from rlvr_jax.train import loop, program

TREE = {
    "steps": 3,
    "task": {"name": "maze", "size": 5, "test_size": 1},
    "model": {"scratch": {"num_layers": 2, "dim": 32, "num_heads": 2, "num_kv_heads": 2, "mlp_dim": 32}},
    "objective": "f_grpo",
    "sampling": {"max_new_tokens": 6},
    "prompts": {"max_tokens": 48},
    "batch": {"prompts": 8, "group_size": 4},
    "evaluation": {"prompts": 1, "samples": 6, "k": [1, 4]},
}


def write(folder, **sections):
    """A config file in a folder, with its run directory beside it; a section of None is left out."""
    tree = {"run_dir": str(folder / "run"), **TREE, **sections}
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in tree.items() if v is not None}))
    return path


def run(*words):
    """(exit status, lines of standard output)."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main([str(w) for w in words])
    return status, out.getvalue().splitlines()


# ---- right input -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of three steps: (its directory, what it printed)."""
    folder = tmp_path_factory.mktemp("cli")
    status, lines = run("train", write(folder), "--json", "--logging.tensorboard", "false")
    assert status == 0
    return folder / "run", lines


def test_training_ends_with_a_line_of_json(trained):
    folder, lines = trained
    summary = json.loads(lines[-1])
    assert summary["run_dir"] == str(folder) and summary["steps"] == 3
    for when in ("before", "after"):
        assert set(summary[when]) == {"1", "4"}
        assert set(summary[when]["1"]) == {"value", "low", "high"}
    assert pathlib.Path(summary["curves"]).read_bytes().startswith(b"\x89PNG")
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3
    assert not (folder / "tensorboard").exists()  # the override
    text = "\n".join(lines[:-1])
    assert "pass@1" in text and str(folder) in text
    assert f"report: {folder / 'report.html'}" in text
    page = (folder / "report.html").read_text()  # about a real run: nothing that the report draws is missing
    assert "No data" not in page and page.count('class="answer"') >= 2


def test_evaluating_a_run_again_gives_what_it_wrote_at_its_end(trained):
    folder, _ = trained
    status, lines = run("eval", folder, "--samples", 6, "--k", 1, 4, "--json")
    assert (status, len(lines)) == (0, 1)
    written = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    assert [row["step"] for row in written] == [0, 3]
    found = json.loads(lines[0])
    assert {name: found[name] for name in written[-1]} == written[-1]
    assert found["policy"] == str(folder) and found["sampling"]["temperature"] == 1.0


def test_a_run_can_be_evaluated_greedily_as_a_table(trained):
    status, lines = run("eval", trained[0], "--samples", 4, "--sampling.temperature", 0)
    text = " ".join(" ".join(lines).split())  # the title is wrapped to the table
    assert status == 0
    assert "1 prompts, 4 samples each" in text and "0.000 [0.000, 0.000]" in text


def test_samples_are_repeatable_and_in_the_order_of_the_prompts(trained):
    prompts = ["GRID_START WALL PATH GRID_END PATH_START", "PATH_START"]
    words = ("sample", trained[0], "--prompt", *prompts, "--samples", 3, "--sampling.max-new-tokens", 5)
    status, lines = run(*words, "--json")
    found = [json.loads(line) for line in lines]
    assert (status, [f["prompt"] for f in found]) == (0, [p for p in prompts for _ in range(3)])
    for answer in found:
        assert 1 <= answer["tokens"] <= 5 and answer["logprob"] < 0
        assert answer["truncated"] <= (answer["tokens"] == 5)
    assert len({f["text"] for f in found}) > 1
    assert run(*words) == (0, [f["text"] for f in found])


def test_a_run_goes_on_only_with_its_own_config(trained, capsys):
    folder, _ = trained
    assert main(["train", str(folder.parent / "tiny.yaml"), "--seed", "1", "--batch.micro-batches", "2"]) == 2
    assert capsys.readouterr().err == (
        "rlvr-jax: the run was made with another config, and these keys must stay as they are:\n"
        "  seed: 0 in the run, 1 now\n"
        "Go back to the run's values, or set run_dir to a new directory.\n"
    )


def test_variants_lists_every_objective_with_its_source():
    status, lines = run("variants")
    assert (status, [line.split()[0] for line in lines]) == (0, list(PRESETS))
    assert all(line.endswith(SOURCES[name]) for line, name in zip(lines, PRESETS, strict=True))
    status, lines = run("variants", "--json")
    found = [(entry["name"], entry["source"]) for entry in json.loads(lines[0])]
    assert (status, found) == (0, [(name, SOURCES[name]) for name in PRESETS])


def test_variants_shows_one_objective_with_formulas_and_what_it_reads():
    status, lines = run("variants", "f_grpo")
    assert status == 0 and lines[0].startswith("f_grpo: arXiv:2602.06717. ")
    assert "advantage: focal" in lines and "clip: ppo" in lines
    assert "      A_i <- (1 - X/N)^gamma * A_i" in lines and lines[-1] == "reads: new.logprob, old.logprob"
    status, lines = run("variants", "f_grpo", "--json")
    data = json.loads(lines[0])
    assert (status, data["name"], data["reads"]) == (0, "f_grpo", ["new.logprob", "old.logprob"])
    slots = [(stage["slot"], stage["name"]) for stage in data["stages"]]
    assert slots[:2] == [("advantage", "group"), ("advantage", "focal")] and ("clip", "ppo") in slots


def test_a_run_that_was_stopped_has_the_exit_status_of_sigterm(tmp_path, monkeypatch):
    stopped = loop.Outcome(complete=False, steps=1, evaluations={})
    monkeypatch.setattr(loop, "fit", lambda config: stopped)
    assert run("train", write(tmp_path)) == (143, [])


# ---- wrong input -------------------------------------------------------------------------------------------------


@pytest.fixture
def unbuilt(monkeypatch):
    """No model may be built: an AssertionError, which `main` lets through."""

    def build(*_):
        raise AssertionError("a model was built")

    monkeypatch.setattr(program, "_decoder", build)
    monkeypatch.setattr(program, "load_params", build)


def refused(capsys, words, message):
    assert main([str(w) for w in words]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"rlvr-jax: {message}\n"
    assert captured.out == ""


KNOWN = ", ".join(sorted(PRESETS))

TRAINING = [
    (
        {},
        ["--stepz", "3"],
        "config has no field 'stepz'; Did you mean 'steps'? its fields are run_dir, seed, steps, task, model, objective, "
        "sampling, decoding, vllm, turns, verification, batch, prompts, optimizer, warmup, mesh, checkpoint, evaluation, "
        "logging.",
    ),
    ({}, ["--objective", "f_gpro"], f"no objective called 'f_gpro'. Did you mean 'f_grpo'? Known: {KNOWN}."),
    (
        {"objective": {"preset": "dappo"}},
        [],
        f"no objective called 'dappo'. Did you mean 'dapo'? Known: {KNOWN}.",
    ),
    ({}, ["--steps", "ten"], "config field 'steps' is a whole number, got 'ten'."),
    ({}, ["--steps"], "--steps has no value."),
    (
        {},
        ["--batch.group-size", "1"],
        "advantage 'group' compares the responses of a group, and group_size=1 leaves nothing to compare: every advantage "
        "would be 0. Set batch.group_size to 2 or more.",
    ),
    (
        {},
        ["--batch.minibatches", "3"],
        "batch.minibatches=3 does not divide batch.prompts=8: a group stays in one optimiser step.",
    ),
    (
        {},
        ["--batch.micro-batches", "5"],
        "batch.micro_batches=5 does not divide the 32 rows of an optimiser step.",
    ),
    (
        {},
        ["--batch.prompts", "6"],
        "batch.prompts=6 does not spread over the 8 data and fsdp shards of 8 devices: make it a multiple, or give more "
        "devices to mesh.tensor or mesh.sequence.",
    ),
    (
        {"warmup": {"steps": 1, "batch": 6}},
        [],
        "warmup.batch=6 does not spread over the 8 data and fsdp shards of 8 devices: make it a multiple, or give more "
        "devices to mesh.tensor or mesh.sequence.",
    ),
    (
        {},
        ["--mesh.data", "3"],
        "mesh {'data': 3, 'fsdp': 1, 'tensor': 1, 'sequence': 1} does not fill 8 devices: the sizes must multiply to 8; set one of them "
        "to -1.",
    ),
    (
        {},
        ["--sampling.temperature", "0"],
        "sampling.temperature=0 gives the 4 responses of a group the same tokens, so there is nothing to learn from: train "
        "with a positive temperature.",
    ),
    (
        {},
        ["--evaluation.prompts", "2"],
        "evaluation.prompts=2, but task 'maze' holds out 1 records: ask for fewer.",
    ),
    (
        {},
        ["--evaluation.k", "[1, 8]"],
        "evaluation.k=[1, 8]: every k is in 1..evaluation.samples=6, pass@k needs k samples.",
    ),
    (
        {"model": None},
        ["--model", "{}"],
        "model is either a path to weights or `scratch` (random ones): set exactly one of model.path and model.scratch.",
    ),
    (
        {"model": {"path": "no/such/model"}},
        [],
        "model.path='no/such/model' does not exist: give a Hugging Face directory or a .gguf file.",
    ),
    (
        {"task": "gsm8k"},
        [],
        "task 'gsm8k' needs a pretrained tokenizer: set model.path instead of model.scratch.",
    ),
]


@pytest.mark.parametrize("sections, words, message", TRAINING, ids=[str(i) for i in range(len(TRAINING))])
def test_a_config_that_cannot_be_trained_is_one_line_and_leaves_nothing(
    tmp_path, capsys, unbuilt, sections, words, message
):
    refused(capsys, ["train", write(tmp_path, **sections), *words], message)
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


def test_a_missing_or_broken_config_file_is_one_line(tmp_path, capsys, unbuilt):
    path = write(tmp_path)
    wrong = tmp_path / "tinny.yaml"
    refused(capsys, ["train", wrong], f"no config file {str(wrong)!r}. Did you mean {str(path)!r}?")
    path.write_text("steps: [3\n")
    refused(
        capsys,
        ["train", path],
        f'{path} is not YAML: while parsing a flow sequence in "<unicode string>", line 1, column 8: steps: [3 ^ '
        "expected ',' or ']', but got '<stream end>' in \"<unicode string>\", line 2, column 1: ^",
    )


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_broken_line_of_a_data_file_is_named(tmp_path, capsys, unbuilt, split):
    good = json.dumps({"question": "1 + 1?", "answer": "#### 2"})
    for name in ("train", "test"):
        lines = [good, good] if name != split else [good, '{"question": "2 + 2?", "answ']
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    config = write(tmp_path, task={"name": "gsm8k", "path": str(tmp_path)}, model={"path": "some/model"})
    refused(
        capsys,
        ["train", config],
        f"{tmp_path / split}.jsonl, line 2: not JSON at column 24: Unterminated string starting at.",
    )
    assert not (tmp_path / "run").exists()


def test_a_missing_package_for_logging_is_found_before_the_run(tmp_path, capsys, unbuilt, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    refused(
        capsys,
        ["train", write(tmp_path), "--logging.wandb", "mazes"],
        "logging to the wandb project 'mazes' needs the package wandb, which is not installed: pip install "
        "'rlvr_jax[logging]', or leave the project empty.",
    )


def test_a_policy_that_is_not_there_is_one_line(tmp_path, capsys, unbuilt):
    path = str(tmp_path / "nowhere")
    missing = f"model.path={path!r} does not exist: give a Hugging Face directory or a .gguf file."
    refused(capsys, ["eval", path], missing)
    refused(capsys, ["sample", path, "--prompt", "x"], missing)


def test_a_model_is_evaluated_on_a_task_that_is_named(tmp_path, capsys, unbuilt):
    refused(
        capsys,
        ["eval", tmp_path],
        f"{tmp_path} is no run, so it has no task of its own: name one with --task, of {', '.join(names('task'))}.",
    )
    for words in (
        ["--task", "arithmetic"],
        ["--task=arithmetic"],
        ["--task", "arithmetic", "--task.max-operand", "9"],
    ):
        refused(
            capsys,
            ["eval", tmp_path, *words],
            f"{tmp_path} has no tokenizer.json; save one there with `save_pretrained` of the model's tokenizer.",
        )


def test_an_evaluation_that_cannot_be_made_is_one_line(trained, capsys, unbuilt):
    folder, _ = trained
    refused(
        capsys,
        ["eval", folder, "--samples", 4, "--k", 1, 8],
        "evaluation.k=[1, 8]: every k is in 1..evaluation.samples=4, pass@k needs k samples.",
    )
    refused(
        capsys,
        ["eval", folder, "--prompts", 2],
        "prompts=2, but split 'test' of task 'maze' has 1 records: ask for fewer.",
    )
    refused(
        capsys,
        ["eval", folder, "--task", "mazze"],
        f"no task called 'mazze'. Did you mean 'maze'? Known: {', '.join(names('task'))}; one of your own is "
        "known once the module that registers it is imported.",
    )
    refused(
        capsys,
        ["eval", folder, "--sampling.temprature", 1],
        "sampling has no field 'temprature'; Did you mean 'temperature'? its fields are temperature, top_k, top_p, "
        "min_p, max_new_tokens, min_new_tokens, stop, statistics.",
    )


def test_a_prompt_outside_the_vocabulary_or_the_limit_is_one_line(trained, capsys):
    folder, _ = trained
    refused(
        capsys,
        ["sample", folder, "--prompt", "WALL FLOOR"],
        "prompt 0 cannot be rendered: 'WALL FLOOR' cannot be tokenised: is every word in the vocabulary? "
        "(WordLevel error: Missing [UNK] token from the vocabulary)",
    )
    refused(
        capsys,
        ["sample", folder, "--prompt", " ".join(["WALL"] * 48)],
        "prompt 0 has 49 tokens, more than prompts.max_tokens=48; raise the limit, or set prompts.too_long to 'drop' or "
        "'cut_left'.",
    )


def test_variants_takes_one_name(capsys):
    refused(
        capsys,
        ["variants", "f_gpro"],
        f"no objective called 'f_gpro'. Did you mean 'f_grpo'? Known: {KNOWN}.",
    )
    refused(
        capsys,
        ["variants", "f_grpo", "--gamma", "1"],
        "variants takes the name of one objective, got '--gamma 1' beside it.",
    )


@pytest.mark.parametrize(
    "words", [[], ["trian"], ["train"], ["sample", "x"], ["bench"], ["bench", "smapler"]]
)
def test_wrong_usage_has_exit_status_2(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "rlvr-jax" in capsys.readouterr().err
