"""Random tiny models of transformers, saved as Hugging Face directories."""

import pytest

FAMILIES = ("llama", "qwen2", "qwen3")


def reference_model(family, tied, *, layers=2, seed=0):
    """A float32 model on the CPU whose every parameter is random, norms and biases too."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    settings = CONFIG_MAPPING[family](
        vocab_size=48,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=tied,
        rope_theta=5000.0,
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if "norm" in name else 0.0))
    return model.eval()


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """`reference(family, tied)`: the model and its directory, made once."""
    made = {}

    def make(family="llama", tied=True):
        if (family, tied) not in made:
            model, folder = reference_model(family, tied), tmp_path_factory.mktemp(f"{family}-{tied}")
            model.save_pretrained(folder)
            made[family, tied] = model, folder
        return made[family, tied]

    return make
