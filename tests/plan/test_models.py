"""Shapes of public models, by the number of parameters that their names and cards give."""

import math
import pathlib
import re

import pytest

from rlvr_jax.configfile import load, parse
from rlvr_jax.models.families import from_huggingface
from rlvr_jax.models.layout import layer_layout, outer_layout
from rlvr_jax.plan.chips import CHIPS, GIB
from rlvr_jax.plan.models import MODELS, described

PAPERS = sorted((pathlib.Path(__file__).resolve().parents[2] / "configs" / "papers").glob("*.yaml"))

PARAMETERS = {  # of the model cards, in billions
    "Qwen/Qwen2.5-0.5B": 0.49,
    "Qwen/Qwen2.5-1.5B": 1.54,
    "Qwen/Qwen2.5-3B": 3.09,
    "Qwen/Qwen2.5-7B": 7.61,
    "Qwen/Qwen2.5-14B": 14.7,
    "Qwen/Qwen2.5-Math-1.5B": 1.54,
    "Qwen/Qwen2.5-Math-7B": 7.61,
    "Qwen/Qwen3-0.6B": 0.6,
    "Qwen/Qwen3-1.7B": 1.7,
    "Qwen/Qwen3-4B": 4.0,
    "Qwen/Qwen3-8B": 8.2,
    "meta-llama/Llama-3.2-1B": 1.23,
    "meta-llama/Llama-3.2-3B": 3.21,
    "meta-llama/Llama-3.1-8B": 8.03,
}


def test_each_shape_has_the_parameters_of_its_card():
    assert PARAMETERS.keys() == MODELS.keys()
    for name, billions in PARAMETERS.items():
        c = from_huggingface(MODELS[name])
        layer = sum(math.prod(leaf.shape) for leaf in layer_layout(c).values())
        count = c.num_layers * layer + sum(math.prod(leaf.shape) for leaf in outer_layout(c).values())
        assert count / 1e9 == pytest.approx(billions, rel=0.02), name


def test_a_path_that_is_not_here_is_known_by_its_name():
    config = parse({"task": "arithmetic", "model": {"path": "models/Qwen2.5-7B-Instruct"}})
    found = described(config)
    assert (found.model.dim, found.model.attention_bias, found.stop) == (3584, True, (151643,))
    assert described(config, "Qwen3-4B").model.qk_norm
    assert described(config, "Qwen3-4B-Base").model == described(config, "Qwen3-4B").model


def test_configs_of_papers_are_planned_for_a_slice_that_their_header_names():
    for path in PAPERS:
        header = [line for line in path.read_text().splitlines() if line.startswith("#")]
        name = re.search(
            rf"rlvr-jax plan configs/papers/{path.name} --topology (\S+)$", "\n".join(header), re.M
        )[1]
        chip, shape = name.split(":")
        figures = re.search(r"^# Planned .*: ([\d.]+) of ([\d.]+) GiB a device", "\n".join(header), re.M)
        assert float(figures[1]) <= float(figures[2]) == pytest.approx(CHIPS[chip].memory / GIB, abs=0.01), (
            path
        )
        config = load(path, [])
        assert described(config).model.num_layers
        devices = math.prod(map(int, shape.split("x")))
        assert config.batch.prompts * config.batch.group_size % devices == 0, path


def test_an_unknown_shape_is_refused_with_the_nearest():
    config = parse({"task": "arithmetic", "model": {"path": "models/mine"}})
    with pytest.raises(ValueError) as error:
        described(config)
    assert str(error.value).startswith(
        "model.path='models/mine' is not here, and its name is no known shape. Known: Qwen/"
    )
    with pytest.raises(ValueError, match="Did you mean 'Qwen/Qwen2.5-3B'"):
        described(config, "Qwen/Qwen2.5-3")
