"""Every command that the README, the docs and the configs show is run, at its smallest, in a reader's folder."""

import contextlib
import functools
import io
import pathlib
import re
import shlex
import shutil
import time

import pytest

from rlvr_jax.cli import main, parse
from rlvr_jax.commands import Plan, Study, Train
from rlvr_jax.configfile import load

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "launch/README.md", "docs/**/*.md", "configs/**/*.yaml")

NOT_RUN = {
    "make": "sets up a machine; that the target exists is checked below",
    "launch/local.sh": "run for real by test_launch.py, with a stand-in for rlvr-jax and without",
    "python": "the script is run by test_readme.py",
}
"""Programs other than `rlvr-jax`, and why their commands are not run here."""

SMALLEST = shlex.split(
    "--steps 2 --task.size 5 --task.test-size 1 --sampling.max-new-tokens 4 --prompts.max-tokens 48 --batch.prompts 8"
    " --batch.group-size 2 --warmup.steps 0 --evaluation.prompts 0 --logging.tensorboard false"
    " --model.scratch '{num_layers: 1, dim: 16, num_heads: 2, num_kv_heads: 1, mlp_dim: 16}'"
)
"""What training costs least with; what else a command says stays."""
SMALLEST_PLAN = shlex.split(
    "--task maze --model.path null --model.vocab-chunk 64 --sampling.max-new-tokens 16 --prompts.max-tokens 48"
    " --batch.prompts 64 --batch.group-size 2 --parts sample --tries 1 --topology v5e:2x2"
    " --model.scratch '{num_layers: 1, dim: 128, num_heads: 2, num_kv_heads: 2, mlp_dim: 128}'"
)
"""The same for plans: the program that compiles fastest."""


def shown(path):
    """Lines of a page that are commands: in a block without a language or of `sh`, or indented in the comment of a config."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yaml":
        return [re.split(r" {3,}", line)[0] for line in re.findall(r"^# {3,}(.*)$", text, re.MULTILINE)]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    known = ("rlvr-jax ", *(f"{program} " for program in NOT_RUN))
    return [
        line
        for language, block in blocks
        if language in ("", "sh")
        for line in block.splitlines()
        if language == "sh" or line.startswith(known)
    ]


@functools.cache
def commands():
    """(words, where it is shown first) of each command once, the README's first."""
    found = {}
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            for line in shown(path):
                found.setdefault(tuple(shlex.split(line, comments=True)), str(path.relative_to(ROOT)))
    return [(words, where) for words, where in found.items() if words]


OURS = [words[1:] for words, _ in commands() if words[0] == "rlvr-jax"]


def test_no_command_is_of_a_program_that_nobody_runs():
    for words, where in commands():
        assert words[0] == "rlvr-jax" or words[0] in NOT_RUN, f"{where}: {' '.join(words)}"
    assert {words[0] for words, _ in commands()} == {"rlvr-jax", *NOT_RUN}, (
        "a reason that is no longer needed"
    )


def test_make_has_the_targets_that_are_shown():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {words[1] for words, _ in commands() if words[0] == "make"} <= targets


@pytest.mark.parametrize("words", OURS, ids=" ".join)
def test_its_words_are_read_and_so_is_its_config(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    if words[-1] == "--help":
        with pytest.raises(SystemExit) as ended, contextlib.redirect_stdout(io.StringIO()):
            parse(words)
        assert ended.value.code == 0
        return
    command, rest = parse(words)
    if isinstance(command, Train | Plan):
        load(command.config, rest).check_training()
    elif isinstance(command, Study):
        assert command.what == "all" or pathlib.Path("configs", "studies", f"{command.what}.yaml").is_file()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a reader stands: the configs and the package's data are there, and a run that `make demo` has left."""
    for name in ("configs", "rlvr_jax"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "configs/quickstart.yaml", *SMALLEST]) == 0


@pytest.mark.slow
def test_every_command_that_needs_nothing_from_outside_runs(folder, capfd):
    """One after another, as a reader would; how long each took is told where one fails."""
    failed, took, planned = [], [], set()
    for words in OURS:
        if words[0] == "plan":  # seconds each: one with each set of options, of all configs
            options = frozenset(word for word in words if word.startswith("--"))
            if options in planned:
                continue
            planned.add(options)
        began = time.monotonic()
        status = run(words)
        took.append(f"{time.monotonic() - began:5.1f} s {' '.join(words)}")
        told = capfd.readouterr()
        if status:
            failed.append((" ".join(words), status, told.err[-500:]))
    print(*took, sep="\n")
    assert not failed


def run(words):
    """The exit status of a command with the smallest sizes behind it; None where it cannot be run here, and was read above."""
    if words[-1] == "--help" or any(word.isupper() for word in words):  # MODEL stands for one of the reader's
        return None
    command, rest = parse(words)
    if isinstance(command, Plan):
        return main([*words, *SMALLEST_PLAN])
    if isinstance(command, Study):  # minutes, and run at its smallest by test_studies.py
        return None
    if not isinstance(command, Train):
        return main(words)
    config = load(command.config, rest)
    if config.model.path is not None:  # its weights are not here
        return None
    shutil.rmtree(config.run_dir, ignore_errors=True)  # two commands may be shown for one directory
    return main([*words, *SMALLEST])
