"""Every config that cannot be run is refused with one sentence that has the value, the rule and the fix."""

import dataclasses

import pytest

from rlvr_jax import registry
from rlvr_jax.config import Config
from rlvr_jax.configfile import parse
from rlvr_jax.objective.presets import PRESETS


def refused(message, function, *arguments):
    with pytest.raises(ValueError) as error:
        function(*arguments)
    assert str(error.value) == message


TOP = ", ".join(f.name for f in dataclasses.fields(Config))
KNOWN = ", ".join(sorted(PRESETS))
SIZES = "prompts, group_size, minibatches, epochs, micro_batches, max_rounds, ahead"
EITHER = "model is either a path to weights or `scratch` (random ones): set exactly one of model.path and model.scratch."

BAD = [
    # unknown names, with the nearest
    ({"stepz": 3}, f"config has no field 'stepz'; Did you mean 'steps'? its fields are {TOP}."),
    ({"smapling": {}}, f"config has no field 'smapling'; Did you mean 'sampling'? its fields are {TOP}."),
    (
        {"batch": {"group": 4}},
        f"batch has no field 'group'; Did you mean 'group_size'? its fields are {SIZES}.",
    ),
    (
        {"model": {"scratch": {"layers": 2}}},
        "model.scratch has no field 'layers'; Did you mean 'num_layers'? its fields are num_layers, dim, num_heads, "
        "num_kv_heads, mlp_dim, rope_theta.",
    ),
    ({8: 2}, f"config has no field '8'; its fields are {TOP}."),
    ({True: 2}, f"config has no field 'True'; its fields are {TOP}."),  # YAML's on, yes, true
    (
        {"task": "mazze"},
        f"no task called 'mazze'. Did you mean 'maze'? Known: {', '.join(registry.names('task'))}; "
        "one of your own is known once the module that registers it is imported.",
    ),
    (
        {"task": {"name": "maze", "sise": 7}},
        "task 'maze' has no field 'sise'; Did you mean 'size'? its fields are size, train_size, test_size, seed.",
    ),
    (
        {"task": {"name": "maze", "slot": 7}},
        "task 'maze' has no field 'slot'; its fields are size, train_size, test_size, seed.",
    ),
    ({"objective": "f_gpro"}, f"no objective called 'f_gpro'. Did you mean 'f_grpo'? Known: {KNOWN}."),
    (
        {"objective": {"preset": "dappo"}},
        f"no objective called 'dappo'. Did you mean 'dapo'? Known: {KNOWN}.",
    ),
    (
        {"objective": {"clipp": "ppo"}},
        "an objective has no slot 'clipp'. Did you mean 'clip'? Its slots: advantage, aggregate, clip, gates, mask, "
        "passes, ratio, regularisers, response_weight, reward, token_weight.",
    ),
    (
        {"objective": {"clip": "pppo"}},
        f"no clip called 'pppo'. Did you mean 'ppo'? Known: {', '.join(registry.names('clip'))}; "
        "one of your own is known once the module that registers it is imported.",
    ),
    (
        {"objective": {"clip": {"name": "ppo", "hihg": 0.3}}},
        "clip 'ppo' has no field 'hihg'; Did you mean 'high'? its fields are low, high.",
    ),
    # wrong types
    ({"batch": 3}, "batch is a mapping of keys, got 3."),
    ({"batch": None}, "batch is a mapping of keys, got None."),  # `batch:` with nothing below it
    ({"model": {"scratch": "big"}}, "model.scratch is a mapping of keys, got 'big'."),
    ({"task": None}, "task is a name, or a mapping with `name` and its fields; got None."),
    ({"task": {"size": 7}}, "task is a name, or a mapping with `name` and its fields; got {'size': 7}."),
    ({"task": {"name": 3}}, "task is a name, or a mapping with `name` and its fields; got {'name': 3}."),
    ({"objective": 3}, "objective is a preset's name or a mapping of slots, got 3."),
    (
        {"objective": {"advantage": "group"}},
        "objective.advantage is a list of stages ([] for none), got 'group'.",
    ),
    ({"steps": "ten"}, "config field 'steps' is a whole number, got 'ten'."),
    ({"steps": 1.5}, "config field 'steps' is a whole number, got 1.5."),
    ({"steps": True}, "config field 'steps' is a whole number, got True."),
    ({"steps": None}, "config field 'steps' is a whole number, got None."),
    ({"run_dir": 7}, "config field 'run_dir' is text, got 7."),
    ({"sampling": {"temperature": "hot"}}, "sampling field 'temperature' is a number, got 'hot'."),
    ({"logging": {"tensorboard": 1}}, "logging field 'tensorboard' is true or false, got 1."),
    ({"evaluation": {"k": 4}}, "evaluation field 'k' is a list, got 4."),
    ({"evaluation": {"k": ["one"]}}, "evaluation field 'k' is a whole number, got 'one'."),
    ({"mesh": {"data": "two"}}, "mesh field 'data' is a whole number, got 'two'."),
    (
        {"model": {"path": "x", "dtype": "fp16"}},
        "model field 'dtype' is one of float32, bfloat16, got 'fp16'.",
    ),
    (
        {"prompts": {"too_long": "cut"}},
        "prompts field 'too_long' is one of error, drop, cut_left, got 'cut'.",
    ),
    (
        {"optimizer": {"schedule": "step"}},
        "optimizer field 'schedule' is one of constant, linear, cosine, got 'step'.",
    ),
    # out of range
    ({"steps": -1}, "config.steps is 0 or more, got -1."),
    ({"seed": 3_000_000_000}, "config.seed is 2000000000 at the most, got 3000000000."),
    ({"batch": {"group_size": 0}}, "batch.group_size is 1 or more, got 0."),
    ({"batch": {"max_rounds": 0}}, "batch.max_rounds is 1 or more, got 0."),
    (
        {"batch": {"max_rounds": 5}},
        "batch.max_rounds=5 replaces the groups that a filter of the objective leaves out, and this objective has none: add "
        "drop_uniform_groups to objective.mask (objective dapo has it), or set it to 1.",
    ),
    ({"model": {"path": "x", "vocab_chunk": 0}}, "model.vocab_chunk is 1 or more, got 0."),
    ({"prompts": {"max_tokens": 0}}, "prompts.max_tokens is 1 or more, got 0."),
    ({"optimizer": {"learning_rate": 0}}, "optimizer.learning_rate is positive, got 0.0."),
    ({"optimizer": {"learning_rate": float("nan")}}, "optimizer.learning_rate is positive, got nan."),
    ({"optimizer": {"clip_norm": 0}}, "optimizer.clip_norm is positive, got 0.0."),
    ({"optimizer": {"beta1": 1}}, "optimizer.beta1 is in [0, 1), got 1.0."),
    ({"optimizer": {"weight_decay": float("nan")}}, "optimizer.weight_decay is >= 0, got nan."),
    ({"optimizer": {"warmup_steps": -1}}, "optimizer.warmup_steps is 0 or more, got -1."),
    ({"warmup": {"check_every": 0}}, "warmup.check_every is 1 or more, got 0."),
    ({"warmup": {"learning_rate": 0}}, "warmup.learning_rate is positive, got 0.0."),
    ({"warmup": {"target": 1}}, "warmup.target is a pass rate in (0, 1), got 1.0."),
    ({"checkpoint": {"keep": 0}}, "checkpoint.keep is 1 or more, got 0."),
    ({"evaluation": {"prompts": -1}}, "evaluation.prompts is 0 or more, got -1."),
    # impossible together
    ({"model": {}}, EITHER),
    ({"model": {"path": "x", "scratch": {"dim": 64}}}, EITHER),
    (
        {"model": {"scratch": {"dim": 28, "num_heads": 4}}},
        "model.scratch.dim=28 is no multiple of 2 * num_heads=8: heads have dim / num_heads, and rotary embeddings turn "
        "pairs of it.",
    ),
    (
        {"model": {"scratch": {"num_heads": 4, "num_kv_heads": 3}}},
        "model.scratch.num_kv_heads=3 does not divide num_heads=4: key heads are shared evenly.",
    ),
    (
        {"batch": {"prompts": 6, "minibatches": 4}},
        "batch.minibatches=4 does not divide batch.prompts=6: a group stays in one optimiser step.",
    ),
    (
        {"batch": {"prompts": 4, "group_size": 8, "micro_batches": 3}},
        "batch.micro_batches=3 does not divide the 32 rows of an optimiser step.",
    ),
    (
        {"batch": {"group_size": 1}},
        "advantage 'group' compares the responses of a group, and group_size=1 leaves nothing to compare: every advantage "
        "would be 0. Set batch.group_size to 2 or more.",
    ),
    (
        {"objective": "imitation", "batch": {"group_size": 1}, "task": "gsm8k"},
        "task 'gsm8k' needs a pretrained tokenizer: set model.path instead of model.scratch.",
    ),
    (
        {"objective": {"ratio": "none"}},
        "clip 'ppo' bounds the ratio of two policies, and ratio 'none' is the log-likelihood of one: use it with ratio "
        "'token', or take clip 'unclipped'.",
    ),
    (
        {"evaluation": {"samples": 4, "k": [1, 8]}},
        "evaluation.k=[1, 8]: every k is in 1..evaluation.samples=4, pass@k needs k samples.",
    ),
    (
        {"evaluation": {"k": []}},
        "evaluation.k=[]: every k is in 1..evaluation.samples=16, pass@k needs k samples.",
    ),
]


@pytest.mark.parametrize("tree, message", BAD, ids=[str(tree)[:60] for tree, _ in BAD])
def test_a_config_that_cannot_be_run_is_refused_with_one_sentence(tree, message):
    refused(message, parse, tree)


def test_a_greedy_policy_can_be_described_but_not_trained():
    greedy = parse({"sampling": {"temperature": 0}})
    refused(
        "sampling.temperature=0 gives the 8 responses of a group the same tokens, so there is nothing to learn from: "
        "train with a positive temperature.",
        greedy.check_training,
    )
    Config().check_training()


def test_a_group_of_one_suits_an_objective_that_compares_nothing():
    assert parse({"objective": "imitation", "batch": {"group_size": 1}}).batch.group_size == 1
