"""Random tiny models of transformers: every family, and what its config may set apart."""

VARIANTS = {
    "llama": ("llama", {}),
    "llama3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8,
            },
            "max_position_embeddings": 32,
        },
    ),
    "linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}}),
    "mistral": ("mistral", {"sliding_window": 3}),
    "qwen2": ("qwen2", {}),
    "qwen2_window": ("qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "gemma3": (
        "gemma3_text",
        {
            "sliding_window": 3,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 12,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "gemma3_softcap": ("gemma3_text", {"sliding_window": 4, "final_logit_softcapping": 2.0}),
}
"""Name -> family, and what its config sets apart. Windows and original lengths are shorter than the rows of the tests."""


def reference_model(variant, tied, *, layers=2, seed=0):
    """A float32 model on the CPU whose every parameter is random, norms and biases too."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    family, settings = VARIANTS[variant]
    settings = CONFIG_MAPPING[family](
        **{
            "vocab_size": 48,
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "tie_word_embeddings": tied,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            **({} if "rope_parameters" in settings else {"rope_theta": 5000.0}),
            **settings,
        }
    )
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(
                torch.randn_like(parameter) * 0.3
                + (1.0 if "norm" in name and family != "gemma3_text" else 0.0)
            )
    return model.eval()
