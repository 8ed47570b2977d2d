"""Configurations: read from and written for transformers, and refused where the decoder would compute something else."""

import dataclasses
import json

import pytest

from rlvr_jax.models.config import ModelConfig, RopeScaling
from rlvr_jax.models.families import FAMILIES, from_huggingface, to_huggingface

LLAMA = ModelConfig(vocab_size=40, num_layers=2, dim=16, num_heads=4, num_kv_heads=2, head_dim=8, mlp_dim=24)
GEMMA = dataclasses.replace(
    LLAMA,
    family="gemma3_text",
    qk_norm=True,
    rope_theta=1e6,
    local_rope_theta=1e4,
    windows=(7, 0),
    activation="gelu_tanh",
    norm_offset=1.0,
    post_norms=True,
    embedding_scale=4.0,
    attention_scale=0.25,
)
LLAMA3 = RopeScaling("llama3", 8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=50)
CONFIGS = {
    "llama": LLAMA,
    "llama3": dataclasses.replace(LLAMA, rope_theta=5e5, rope_scaling=LLAMA3),
    "linear": dataclasses.replace(LLAMA, rope_scaling=RopeScaling("linear", 4.0)),
    "mistral": dataclasses.replace(LLAMA, family="mistral", windows=(9, 9), tied_embeddings=False),
    "mistral_whole": dataclasses.replace(LLAMA, family="mistral"),
    "qwen2": dataclasses.replace(
        LLAMA, family="qwen2", attention_bias=True, tied_embeddings=False, rope_theta=1e6
    ),
    "qwen2_window": dataclasses.replace(LLAMA, family="qwen2", attention_bias=True, windows=(0, 5)),
    "qwen3": dataclasses.replace(LLAMA, family="qwen3", qk_norm=True, norm_eps=1e-5, max_positions=100),
    "gemma3": GEMMA,
    "gemma3_softcap": dataclasses.replace(
        GEMMA, softcap=30.0, rope_scaling=RopeScaling("linear", 8.0), windows=(0, 7)
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_comes_back_from_its_own_file_and_from_transformers(name):
    from transformers import CONFIG_MAPPING

    config = CONFIGS[name]
    written = to_huggingface(config)
    assert written["model_type"] == config.family
    assert from_huggingface(written) == config
    assert from_huggingface(CONFIG_MAPPING[config.family](**written).to_dict()) == config


@pytest.mark.parametrize("family", FAMILIES)
def test_files_as_small_as_can_be_mean_what_transformers_takes_them_for(family):
    from transformers import CONFIG_MAPPING

    sizes = dict(
        vocab_size=40, num_hidden_layers=7, hidden_size=16, num_attention_heads=4, intermediate_size=24
    )
    ours = from_huggingface({"model_type": family, **sizes, "sliding_window": 4, "use_sliding_window": True})
    theirs = CONFIG_MAPPING[family](**sizes, sliding_window=4, use_sliding_window=True).to_dict()
    theirs |= {
        "num_key_value_heads": 4,
        "head_dim": ours.head_dim,
    }  # whose defaults are those of one released model
    assert ours == from_huggingface(theirs)


def test_what_a_file_leaves_out_has_the_defaults_of_transformers():
    from transformers import CONFIG_MAPPING

    sizes = dict(
        vocab_size=40, num_hidden_layers=2, hidden_size=16, num_attention_heads=4, intermediate_size=24
    )
    got = from_huggingface({"model_type": "llama", **sizes})
    assert got == from_huggingface(CONFIG_MAPPING["llama"](**sizes).to_dict())
    assert (got.num_kv_heads, got.head_dim, got.tied_embeddings, got.max_positions) == (4, 4, False, 2048)


def test_older_and_newer_spellings_of_rotary_settings_agree():
    file = to_huggingface(CONFIGS["qwen2"])
    newer = file.pop("rope_parameters")
    assert newer == {"rope_type": "default", "rope_theta": 1e6}
    assert from_huggingface({**file, "rope_theta": 1e6}) == CONFIGS["qwen2"]
    scaling = {"type": "linear", "factor": 8.0}
    gemma = to_huggingface(CONFIGS["gemma3_softcap"])
    del gemma["rope_parameters"]
    older = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": scaling}
    assert from_huggingface(gemma | older) == CONFIGS["gemma3_softcap"]


def test_unknown_families_are_refused():
    with pytest.raises(ValueError) as error:
        from_huggingface({"model_type": "mamba"})
    assert (
        str(error.value)
        == "model_type 'mamba' is not supported; it must be one of llama, mistral, qwen2, qwen3, gemma3_text."
    )


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
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope scaling of type 'yarn'"),
        (
            {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}},
            "rope scaling of type 'longrope'",
        ),
        ({"attention_bias": True}, "attention_bias=true"),
        ({"quantization_config": {"bits": 4}}, 'quantization_config={"bits": 4}'),
        ({"mlp_bias": True, "attn_logit_softcapping": 50.0}, "mlp_bias=true; attn_logit_softcapping=50.0"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            'layer_types=["full_attention", "sliding_attention"]',
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ],
)
def test_every_field_that_would_change_the_computation_is_listed(change, shown):
    with pytest.raises(ValueError) as error:
        from_huggingface({**to_huggingface(LLAMA), **change})
    assert str(error.value) == (
        f"this llama model needs what the decoder does not compute: {shown}. Choose a model without."
    )


def test_a_second_base_under_windows_is_not_scaled():
    file = to_huggingface(CONFIGS["gemma3_softcap"])
    file["rope_parameters"]["sliding_attention"] |= {"rope_type": "linear", "factor": 2.0}
    with pytest.raises(ValueError, match=r"does not compute: rope scaling of type 'linear' under windows\."):
        from_huggingface(file)


def test_every_field_that_nobody_knows_is_listed():
    """A field that came after this was written may change the computation."""
    file = {**to_huggingface(LLAMA), "use_qk_norm": True, "logit_scale": 0.5, "new": None, "_private": 1}
    file["rope_parameters"] |= {"mrope_section": [1, 2]}
    with pytest.raises(ValueError) as error:
        from_huggingface(file)
    assert str(error.value) == (
        "the config of this llama model has fields that are not known here: use_qk_norm=true; logit_scale=0.5; "
        "mrope_section=[1, 2] of the rotary settings. If they do not change what the model computes, take them out "
        "of config.json."
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_that_transformers_writes_is_known(family, tmp_path):
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[family](torch_dtype="bfloat16", cache_implementation="hybrid")
    assert from_huggingface(config.to_dict()).family == family
    config.save_pretrained(tmp_path)
    file = json.loads((tmp_path / "config.json").read_text())
    assert from_huggingface(file).family == family
    # what the released files of SmolLM2, Qwen2.5 and Llama 3.1 hold besides
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"}
    scaling["original_max_position_embeddings"] = 8192
    older = dict(is_llama_config=True, rope_interleaved=False, use_mrope=False, rope_scaling=scaling)
    older |= {"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}}
    assert from_huggingface({**file, **older}).family == family


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
        ({"windows": (4,)}, "windows has 1 entries for 2 layers; give one a layer, or none."),
    ],
)
def test_impossible_sizes_are_refused(change, message):
    with pytest.raises(ValueError) as error:
        dataclasses.replace(LLAMA, **change)
    assert str(error.value) == message
