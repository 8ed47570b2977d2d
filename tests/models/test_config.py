"""Configurations: read from and written for transformers, and refused where the decoder would compute something else."""

import dataclasses

import pytest

from rlvr_jax.models.config import ModelConfig, from_huggingface

LLAMA = ModelConfig(vocab_size=40, num_layers=2, dim=16, num_heads=4, num_kv_heads=2, head_dim=8, mlp_dim=24)
FAMILIES = {
    "llama": LLAMA,
    "qwen2": dataclasses.replace(LLAMA, attention_bias=True, tied_embeddings=False, rope_theta=1e6),
    "qwen3": dataclasses.replace(LLAMA, qk_norm=True, norm_eps=1e-5, max_positions=100),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_comes_back_from_its_own_file_and_from_transformers(family):
    from transformers import CONFIG_MAPPING

    config = FAMILIES[family]
    written = config.to_huggingface()
    assert written["model_type"] == family
    assert from_huggingface(written) == config
    assert from_huggingface(CONFIG_MAPPING[family](**written).to_dict()) == config


def test_what_a_file_leaves_out_has_the_defaults_of_transformers():
    from transformers import CONFIG_MAPPING

    sizes = dict(
        vocab_size=40, num_hidden_layers=2, hidden_size=16, num_attention_heads=4, intermediate_size=24
    )
    got = from_huggingface({"model_type": "llama", **sizes})
    assert got == from_huggingface(CONFIG_MAPPING["llama"](**sizes).to_dict())
    assert (got.num_kv_heads, got.head_dim, got.tied_embeddings, got.max_positions) == (4, 4, False, 2048)


def test_older_and_newer_spellings_of_rotary_settings_agree():
    file = FAMILIES["qwen2"].to_huggingface()
    theta = file.pop("rope_theta")
    newer = {**file, "rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    assert from_huggingface(newer).rope_theta == theta


def test_unknown_families_are_refused():
    with pytest.raises(ValueError) as error:
        from_huggingface({"model_type": "mamba"})
    assert str(error.value) == "model_type 'mamba' is not supported; it must be one of llama, qwen2, qwen3."


def test_every_missing_field_is_listed():
    with pytest.raises(ValueError) as error:
        from_huggingface({"model_type": "llama", "vocab_size": 4, "hidden_size": 8, "num_attention_heads": 2})
    assert str(error.value) == (
        "the config of this llama model has no num_hidden_layers, intermediate_size; they have no default."
    )


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"hidden_act": "gelu"}, 'hidden_act="gelu"'),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope scaling of type 'llama3'"),
        ({"rope_scaling": {"type": "yarn"}}, "rope scaling of type 'yarn'"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "rope scaling of type 'linear'"),
        ({"attention_bias": True}, "attention_bias=true"),
        ({"quantization_config": {"bits": 4}}, 'quantization_config={"bits": 4}'),
        ({"mlp_bias": True, "use_sliding_window": True}, "mlp_bias=true; use_sliding_window=true"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            'layer_types=["full_attention", "sliding_attention"]',
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ],
)
def test_every_field_that_would_change_the_computation_is_listed(change, shown):
    with pytest.raises(ValueError) as error:
        from_huggingface({**LLAMA.to_huggingface(), **change})
    assert str(error.value) == (
        f"this llama model needs what the decoder does not compute: {shown}. Choose a model without."
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "model field num_layers is 0; it must be positive."),
        ({"rope_theta": float("nan")}, "model field rope_theta is nan; it must be positive."),
        (
            {"num_kv_heads": 3},
            "4 heads do not share 3 key heads evenly; num_heads must be a multiple of num_kv_heads.",
        ),
        ({"head_dim": 5}, "head_dim is 5; rotary embeddings turn pairs, so it must be even."),
        (
            {"attention_bias": True, "qk_norm": True},
            "attention_bias (Qwen2) and qk_norm (Qwen3) are both on; no known family has both.",
        ),
    ],
)
def test_impossible_sizes_are_refused(change, message):
    with pytest.raises(ValueError) as error:
        dataclasses.replace(LLAMA, **change)
    assert str(error.value) == message
