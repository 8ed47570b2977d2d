"""Configs: files and overrides to a `Config` and back, and one clear sentence for everything that cannot be run."""

import copy
import dataclasses
import json
import pathlib

import hypothesis
import pytest
import yaml
from hypothesis import strategies as st

from rlvr_jax import registry
from rlvr_jax.config import Batch, Config
from rlvr_jax.configfile import load, override, parse, to_plain, to_yaml
from rlvr_jax.objective.aggregates import TokenMean
from rlvr_jax.objective.clips import Ppo
from rlvr_jax.objective.presets import PRESETS
from rlvr_jax.tasks.arithmetic import Arithmetic
from rlvr_jax.tasks.maze import Maze

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "configs"
CONFIGS = [*sorted(FOLDER.glob("*.yaml")), *sorted(FOLDER.glob("papers/*.yaml"))]


def refused(message, function, *arguments):
    with pytest.raises(ValueError) as error:
        function(*arguments)
    assert str(error.value) == message


# ---- there and back ----------------------------------------------------------------------------------------------


def assert_round_trip(config):
    plain = to_plain(config)
    assert json.loads(json.dumps(plain)) == plain
    assert parse(plain) == config
    assert parse(yaml.safe_load(to_yaml(config))) == config


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_of_the_repository_can_be_trained_and_round_trips(path):
    config = load(path)
    config.check_training()
    assert_round_trip(config)


def test_the_defaults_round_trip_and_spell_out_every_option():
    assert parse({}) == Config()
    assert_round_trip(Config())
    assert set(to_plain(Config())) == {f.name for f in dataclasses.fields(Config)}


positive = st.integers(1, 10_000)
rates = st.floats(1e-9, 1e3)


def some(**fields):
    """A mapping with any of the keys."""
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def batches(draw):
    """Sizes that divide each other: whole groups or even parts of one in a micro-batch."""
    minibatches, each = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    group_size = draw(st.integers(2, 8))
    whole = [m for m in range(1, each + 1) if each % m == 0]
    parts = [each * d for d in range(1, group_size + 1) if group_size % d == 0]
    return {
        "prompts": minibatches * each,
        "group_size": group_size,
        "minibatches": minibatches,
        "epochs": draw(st.integers(1, 3)),
        "micro_batches": draw(st.sampled_from(whole + parts)),
    }


objectives = st.one_of(
    st.sampled_from(sorted(PRESETS)),
    some(
        preset=st.sampled_from(sorted(PRESETS)),
        clip=st.one_of(
            st.just("ppo"), st.fixed_dictionaries({"name": st.just("ppo"), "low": st.floats(0, 1)})
        ),
        ratio=st.just("token"),
        mask=st.lists(st.sampled_from(registry.names("mask")), max_size=2),
        advantage=st.lists(
            st.one_of(st.just("group"), st.builds(lambda gamma: {"name": "focal", "gamma": gamma}, rates)),
            max_size=3,
        ),
        regularisers=st.lists(st.builds(lambda c: {"name": "kl", "coef": c}, rates), max_size=1),
    ).map(lambda slots: slots if "clip" not in slots else {**slots, "ratio": "token"}),
)

trees = some(
    run_dir=st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=20),
    seed=st.integers(0, 2_000_000_000),
    steps=st.integers(0, 10**6),
    task=st.one_of(
        st.sampled_from(["maze", "maze_exact", "arithmetic"]),
        some(size=st.sampled_from([9, 11, 17]), seed=positive).map(lambda t: {"name": "maze", **t}),
        some(max_operand=st.integers(1, 99), operations=st.sampled_from([["plus"], ["times", "minus"]])).map(
            lambda t: {"name": "arithmetic", **t}
        ),
    ),
    objective=objectives,
    sampling=some(
        temperature=st.floats(0, 10),
        top_k=st.integers(-1, 100),
        top_p=st.floats(0, 1, exclude_min=True),
        max_new_tokens=positive,
    ),
    batch=batches(),
    prompts=some(max_tokens=positive, too_long=st.sampled_from(["error", "drop", "cut_left"])),
    optimizer=some(
        learning_rate=st.one_of(rates, rates.map(str)),
        schedule=st.sampled_from(["constant", "linear", "cosine"]),
        warmup_steps=st.integers(0, 100),
        beta1=st.floats(0, 1, exclude_max=True),
        weight_decay=st.floats(0, 1),
        clip_norm=st.one_of(rates, st.just(float("inf"))),
    ),
    warmup=some(steps=st.integers(0, 100), target=st.none() | st.floats(0.01, 0.99)),
    mesh=some(data=st.sampled_from([-1, 1, 8]), fsdp=positive, tensor=positive),
    checkpoint=some(every=positive, keep=positive),
    evaluation=some(prompts=st.integers(0, 100), k=st.lists(st.integers(1, 16), min_size=1, max_size=4)),
    logging=some(tensorboard=st.booleans(), wandb=st.none() | st.sampled_from(["mazes", "1", "null", "on"])),
)


@hypothesis.settings(max_examples=100, derandomize=True, deadline=None, database=None)
@hypothesis.given(trees, st.booleans())
def test_any_config_round_trips(tree, pretrained):
    if pretrained or str(tree.get("task")).startswith(("arithmetic", "{'name': 'arithmetic'")):
        tree = {**tree, "model": {"path": "somewhere", "dtype": "bfloat16"}}
    assert_round_trip(parse(tree))


# ---- files -------------------------------------------------------------------------------------------------------


def test_a_file_and_what_is_laid_over_it(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "steps: 3\nbatch: {prompts: 6, group_size: 2}\nobjective: {preset: dapo}\noptimizer: {learning_rate: 1e-6}\n"
    )
    assert load(path).batch == Batch(prompts=6, group_size=2)
    assert load(path).optimizer.learning_rate == 1e-6  # text to YAML, which wants 1.0e-6
    changed = load(str(path), ["--batch.group-size", "4", "--steps=5"])
    assert (changed.batch, changed.steps) == (Batch(prompts=6, group_size=4), 5)
    path.write_text("")
    assert load(path) == Config()


def test_a_file_that_is_not_there_is_named_with_the_nearest(tmp_path):
    (tmp_path / "quickstart.yaml").write_text("steps: 3")
    wanted, near = tmp_path / "quikstart.yaml", tmp_path / "quickstart.yaml"
    refused(f"no config file {str(wanted)!r}. Did you mean {str(near)!r}?", load, wanted)
    far = tmp_path / "missing" / "x"
    refused(f"no config file {str(far)!r}.", load, far)
    refused(f"no config file {str(tmp_path)!r}.", load, tmp_path)


def test_what_is_no_yaml_is_said_in_one_line_with_its_place(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("steps: 3\nbatch: {prompts: 6\n")
    refused(
        f'{path} is not YAML: while parsing a flow mapping in "<unicode string>", line 2, column 8: batch: {{prompts: 6 ^ '
        "expected ',' or '}', but got '<stream end>' in \"<unicode string>\", line 3, column 1: ^",
        load,
        path,
    )
    path.write_bytes(b"steps: \xff\n")
    refused(
        f"{path} is not YAML: 'utf-8' codec can't decode byte 0xff in position 7: invalid start byte",
        load,
        path,
    )
    path.write_text("- steps\n")
    refused(f"{path} holds list, a config is a mapping of keys.", load, path)


# ---- overrides ---------------------------------------------------------------------------------------------------


def test_keys_may_have_dashes_and_values_may_follow_an_equals_sign():
    words = ["--batch.group-size", "16", "--run-dir=runs/a=b", "--mesh.data", "-1", "--logging.wandb", "null"]
    tree = override({"batch": {"prompts": 4}, "logging": {"wandb": "x"}}, words)
    assert tree == {
        "batch": {"prompts": 4, "group_size": 16},
        "run_dir": "runs/a=b",
        "mesh": {"data": -1},
        "logging": {"wandb": None},
    }


def test_values_are_read_as_in_a_file_and_text_that_is_no_yaml_stays_text():
    tree = override(
        {}, ["--evaluation.k", "[1, 8]", "--run-dir", "a: b: c", "--optimizer.learning-rate", "3e-4"]
    )
    assert tree == {"evaluation": {"k": [1, 8]}, "run_dir": "a: b: c", "optimizer": {"learning_rate": "3e-4"}}
    assert parse(tree).optimizer.learning_rate == 3e-4


def test_a_stage_is_addressed_by_its_name_in_a_preset_or_in_a_list():
    words = ["--objective.advantage.focal.gamma", "1", "--objective.clip.high=0.28"]
    for objective in (
        "f_grpo",
        {"preset": "f_grpo"},
        {"advantage": ["group", {"name": "focal"}], "aggregate": "token_mean"},
    ):
        found = parse(override({"objective": objective}, words)).objective
        assert [s.name for s in found.advantage.stages] == ["group", "focal"]
        assert found.advantage.stages[1].gamma == 1.0
        assert found.clip == Ppo(0.2, 0.28) and found.aggregate == TokenMean()


def test_an_objective_is_switched_whole_or_by_its_preset():
    tree = {"objective": {"preset": "grpo", "clip": {"name": "ppo", "high": 0.5}}}
    assert parse(override(tree, ["--objective", "f_dapo"])).objective == PRESETS["f_dapo"]
    kept = parse(override(tree, ["--objective.preset", "dapo"])).objective
    assert kept == dataclasses.replace(PRESETS["dapo"], clip=Ppo(0.2, 0.5))
    for start in ({}, {"objective": "grpo"}):
        assert parse(override(start, ["--objective.preset", "dapo"])).objective == PRESETS["dapo"]
    both = override({}, ["--objective", "f_dapo", "--objective.advantage.focal.gamma", "2"])
    assert parse(both).objective.advantage.stages[1].gamma == 2.0


def test_a_task_given_by_name_takes_fields():
    assert parse(override({"task": "maze"}, ["--task.size", "11"])).task == Maze(size=11)
    with_path = {"model": {"path": "x"}}
    assert parse(override(with_path, ["--task", "arithmetic", "--task.max-operand", "9"])).task == Arithmetic(
        max_operand=9
    )


def test_overriding_leaves_the_tree_as_it_was():
    tree = {"batch": {"prompts": 4}, "objective": {"advantage": ["group"]}, "run_dir": "x"}
    before = copy.deepcopy(tree)
    override(tree, ["--batch.prompts", "8", "--objective.advantage.group.ddof", "0", "--run-dir", "y"])
    assert tree == before


@pytest.mark.parametrize(
    "tree, words, message",
    [
        ({}, ["seed", "3"], "expected --field value, got 'seed'."),
        ({}, ["--seed", "1", "2"], "expected --field value, got '2'."),
        ({}, ["--"], "expected --field value, got '--'."),
        ({}, ["--seed"], "--seed has no value."),
        ({"steps": 3}, ["--steps.a", "1"], "--steps.a: steps is 3 and has no fields."),
        (
            {},
            ["--objective.advantage.focal.gamma", "1"],
            "--objective.advantage.focal.gamma: advantage holds group; name one of them and its field.",
        ),
        (
            {"objective": "f_grpo"},
            ["--objective.advantage.focal", "1"],
            "--objective.advantage.focal: advantage holds group, focal; name one of them and its field.",
        ),
        (
            {},
            ["--objective.mask.drop_truncated.x", "1"],
            "--objective.mask.drop_truncated.x: mask holds nothing; name one of them and its field.",
        ),
        (
            {},
            ["--objective.clip.high", "0.3", "--objective.preset", "dapo"],
            "--objective.preset: every slot of the objective is set already, so its preset changes nothing; take another "
            "objective whole with --objective NAME, before its fields.",
        ),
    ],
)
def test_words_that_override_nothing_are_errors(tree, words, message):
    refused(message, override, tree, words)
