"""`rlvr-jax data`: build, check and show, from the words of a user to what is printed, and the exit status."""

import contextlib
import io
import json

import pytest
import yaml

from rlvr_jax.cli import main
from rlvr_jax.tasks.sources import read_records

LINES = {
    "train": [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(4)],
    "test": [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(10, 12)],
}


def run(*words):
    """(exit status, lines of standard output, standard error)."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(w) for w in words])
    return status, out.getvalue().splitlines(), err.getvalue()


@pytest.fixture
def folder(tmp_path):
    for split, rows in LINES.items():
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_what_was_built_is_what_the_task_reads(folder):
    status, (at,), _ = run("data", "build", folder, "--name", "sums", "--out", folder / "built")
    assert status == 0 and at == str(folder / "built" / "sums" / "1.0.0")
    assert [record for _, record in read_records(at, "test")] == LINES["test"]
    status, lines, _ = run("data", "show", "gsm8k", "-n", 2, "--json", "--task.path", at)
    assert status == 0
    assert [json.loads(line)["record"]["question"] for line in lines] == [
        row["question"] for row in LINES["train"][:2]
    ]


def test_building_twice_needs_a_word(folder):
    words = ("data", "build", folder, "--name", "sums", "--out", folder / "built")
    assert run(*words)[0] == 0
    status, _, error = run(*words)
    assert status == 2 and error.startswith(
        f"rlvr-jax: {folder / 'built' / 'sums' / '1.0.0'} exists; build with"
    )
    assert run(*words, "--replace")[0] == 0
    status, _, error = run(*words, "--names", "x")
    assert (status, error) == (
        2,
        "rlvr-jax: data build has no option '--names x': see rlvr-jax data build --help.\n",
    )


def test_the_status_says_whether_something_is_to_be_mended(folder):
    words = ("data", "check", "gsm8k", "--json", "--task.path", folder)
    status, (line,), _ = run(*words)
    assert status == 0 and json.loads(line)["splits"]["train"]["records"] == 4
    with (folder / "test.jsonl").open("a") as file:
        file.write(json.dumps(LINES["train"][2]) + "\n")
    status, (line,), _ = run(*words)
    assert status == 1
    assert json.loads(line)["problems"] == [
        "1 test prompts are training prompts, gsm8k-test-2 is gsm8k-train-2."
    ]
    status, lines, _ = run(*words[:3], *words[4:])
    assert status == 1 and any("problem: 1 test prompts are training prompts" in line for line in lines)
    (folder / "test.jsonl").write_text("{\n")
    status, lines, error = run(*words)
    assert status == 2 and not lines and f"{folder / 'test.jsonl'}, line 1: not JSON" in error


def test_a_config_is_looked_at_with_its_own_tokenizer_and_limit(tmp_path):
    path = tmp_path / "c.yaml"
    tree = {"task": {"name": "maze", "size": 5, "test_size": 1}, "prompts": {"max_tokens": 16}}
    path.write_text(yaml.safe_dump(tree))
    status, (line,), _ = run("data", "check", path, "--records", 20, "--json")
    found = json.loads(line)
    assert status == 1 and found["unit"] == "tokens" and found["max_tokens"] == 16
    assert found["splits"]["train"]["over_limit"] == found["splits"]["train"]["looked_at"] == 20
    status, (line,), _ = run("data", "check", path, "--records", 20, "--json", "--prompts.too-long", "drop")
    assert status == 0
    status, lines, _ = run("data", "show", path, "-n", 1, "--split", "test")
    assert status == 0 and lines[1].startswith("<bos> GRID_START") and len(lines) == 4


def test_a_task_without_a_model_shows_its_messages():
    status, lines, _ = run("data", "show", "arithmetic", "-n", 1)
    assert status == 0 and lines[1].startswith("[user] What is ") and lines[2].startswith("demonstration: ")


@pytest.mark.parametrize(
    "words, message",
    [
        (("check", "mase"), "no task called 'mase'. Did you mean 'maze'? Known: "),
        (("check", "nowhere.yaml"), "no config file 'nowhere.yaml'."),
        (("show", "maze", "--task.sise", 5), "task 'maze' has no field 'sise'; Did you mean 'size'?"),
        (("build", "nowhere", "--name", "x", "--out", "y"), "no train.jsonl or train.jsonl.gz in nowhere;"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line(words, message):
    status, lines, error = run("data", *words)
    assert status == 2 and not lines
    assert error.startswith(f"rlvr-jax: {message}") and error.count("\n") == 1
