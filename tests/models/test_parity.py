"""The decoder against transformers (torch, float32): random small models of each family, and a real one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from references import VARIANTS

from rlvr_jax.models.load import load
from rlvr_jax.models.tokenizer import load_tokenizer, render
from rlvr_jax.stats import logits_of

CLOSE = dict(rtol=0, atol=1e-4)
"""Two implementations in float32: some 50 sums of 24 to 1536 terms in a row, each to 1e-7 of values of order 10."""


@jax.jit(static_argnums=0)
def logits(graphdef, params, prompt, length, tokens):
    """What predicts tokens 1, 2, ... of each row: `tokens` opens with the last prompt token."""
    model = nnx.merge(graphdef, params)
    hidden = model.hidden(tokens, model.prefill(prompt, length))
    return logits_of(hidden, model.head(), softcap=model.config.softcap)


def torch_logits(model, ids):
    import torch

    with torch.no_grad():
        return model(torch.tensor(np.asarray(ids), dtype=torch.long)[None]).logits[0].numpy()


TIED = [("llama", True), ("qwen2", False)]
CASES = TIED + [(variant, variant.startswith("gemma") or variant == "qwen3") for variant in VARIANTS]


@pytest.mark.parametrize("variant, tied", dict.fromkeys(CASES))
def test_logits_of_ragged_prompts_equal_transformers(reference, variant, tied):
    """Prompts of 1 to 6 tokens and 5 more: past every window, and past the original length of the scaled rotation."""
    model, folder = reference(variant, tied)
    graphdef, params = nnx.split(load(folder)[0])
    random, longest, width = np.random.default_rng(0), 6, 5
    lengths = np.arange(1, longest + 1)
    prompt = random.integers(0, 48, (longest, longest), dtype=np.int32)
    completion = random.integers(0, 48, (longest, width), dtype=np.int32)
    prompt[2, :3] = 0  # the padding id inside a prompt is a token like any other
    tokens = np.concatenate([prompt[np.arange(longest), lengths - 1][:, None], completion], axis=1)
    got = logits(graphdef, params, prompt, (lengths - 1).astype(np.int32), tokens)
    for row, length in enumerate(lengths):
        want = torch_logits(model, np.concatenate([prompt[row, :length], completion[row]]))
        np.testing.assert_allclose(got[row], want[length - 1 :], **CLOSE)


@jax.jit(static_argnums=0)
def packed_logits(graphdef, params, tokens, segments):
    model = nnx.merge(graphdef, params)
    return logits_of(model.packed(tokens, segments), model.head(), softcap=model.config.softcap)


@pytest.mark.parametrize("variant", ["llama3", "mistral", "qwen2", "qwen3", "gemma3"])
def test_packed_texts_have_the_logits_that_transformers_gives_each_alone(reference, variant):
    model, folder = reference(variant, variant == "gemma3")
    graphdef, params = nnx.split(load(folder)[0])
    random, lengths = np.random.default_rng(2), [[5, 1, 6], [9, 3], [12]]
    tokens = random.integers(0, 48, (3, 12), dtype=np.int32)
    segments = np.array([np.repeat(np.arange(len(row)), row) for row in lengths], np.int32) * 7 - 3
    got = packed_logits(graphdef, params, tokens, segments)
    for row, parts in enumerate(lengths):
        for start, length in zip(np.cumsum([0, *parts[:-1]]), parts, strict=True):
            span = slice(start, start + length)
            np.testing.assert_allclose(got[row, span], torch_logits(model, tokens[row, span]), **CLOSE)


def test_gradients_of_the_mean_log_probability_equal_torch(reference):
    import torch

    model, folder = reference("qwen2", True)
    graphdef, params = nnx.split(load(folder)[0])
    ids = np.random.default_rng(1).integers(0, 48, 9).astype(np.int32)

    model.zero_grad()
    row = torch.tensor(ids, dtype=torch.long)
    picked = model(row[None]).logits[0].log_softmax(-1)[3:-1].gather(1, row[4:, None])
    picked.mean().backward()
    want = {name: p.grad.numpy() for name, p in model.named_parameters()}

    @jax.grad
    def gradient(params):
        z = logits(graphdef, params, ids[None, :3], np.array([3], np.int32), ids[None, 3:-1])
        return jnp.take_along_axis(jax.nn.log_softmax(z[0]), ids[4:, None], axis=1).mean()

    got = nnx.to_pure_dict(gradient(params))
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(got))
    pairs = {"embedding": (got["embedding"], want["model.embed_tokens.weight"])}
    pairs["final_norm"] = (got["final_norm"], want["model.norm.weight"])
    modules = dict(q="self_attn.q_proj", k="self_attn.k_proj", v="self_attn.v_proj", o="self_attn.o_proj")
    modules |= dict(gate="mlp.gate_proj", up="mlp.up_proj", down="mlp.down_proj")
    for layer in range(2):
        for ours, theirs in modules.items():
            reference_gradient = want[f"model.layers.{layer}.{theirs}.weight"].T
            pairs[f"{ours}{layer}"] = (got["layers"][ours][layer], reference_gradient)
        for ours in ("q", "k", "v"):
            bias = want[f"model.layers.{layer}.self_attn.{ours}_proj.bias"]
            pairs[f"{ours}_bias{layer}"] = (got["layers"][f"{ours}_bias"][layer], bias)
    scale = np.linalg.norm(want["model.embed_tokens.weight"])
    for name, (ours, theirs) in pairs.items():
        error = np.linalg.norm(np.asarray(ours).ravel() - theirs.ravel())
        # relative to the gradient; a bias on k cancels in the softmax, so its gradient is rounding around 0
        assert error < 1e-3 * max(np.linalg.norm(theirs), 1e-3 * scale), name


TEXTS = [
    """The capital of France is Paris. It lies on the river Seine, and about two million people live inside the city
    limits. Visitors come for the museums, the bridges and the food; the Louvre alone receives more than eight million
    of them in a good year, most of whom hurry to a single painting.""",
    """Tom starts with 3 apples. He buys 4 more, so now he has 3 + 4 = 7 apples. Then he gives 2 apples to his sister,
    which leaves 7 - 2 = 5 apples. Finally he eats one of them after lunch, so 5 - 1 = 4 apples remain in the basket
    on the table. The answer is 4.""",
    """def add(a, b):\n    return a + b\n\n\nfor i in range(10):\n    print(i, add(i, i * i))\n\n# The loop prints ten
    lines. Each line holds the index and the sum of the index and its square, which is what the exercise asked for.""",
    """Es war einmal ein König, der hatte drei Söhne. Der älteste war klug, der zweite war stark, und der jüngste war
    freundlich zu allen Tieren des Waldes. Eines Tages rief der König sie zu sich und sprach: geht in die Welt.""",
]

CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "user", "content": "Tom has 3 apples, buys 4, gives away 2 and eats 1. How many are left?"}],
    [
        {"role": "system", "content": "You write code."},
        {"role": "user", "content": "Show me a loop in Python."},
    ],
    [
        {"role": "user", "content": "Hi!"},
        {"role": "assistant", "content": "Hello. What would you like?"},
        {"role": "user", "content": "A fairy tale, in German."},
    ],
]


def gguf_reference(path):
    """What `from_pretrained(gguf_file=...)` gives, which would ask for one more package."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    left = model.load_state_dict(tensors, strict=False)
    assert (left.missing_keys, left.unexpected_keys) == (["lm_head.weight"], [])  # it is the embedding
    return model


@pytest.mark.slow
def test_smollm2_gives_real_tokens_the_log_probabilities_of_transformers(smollm2):
    import torch

    tokenizer = load_tokenizer(smollm2)
    graphdef, params = nnx.split(load(smollm2)[0])
    chats = [render(tokenizer, chat) for chat in CHATS]
    answers = np.array([render(tokenizer, text)[:64] for text in TEXTS], np.int32)
    lengths = np.array([len(chat) - 1 for chat in chats], np.int32)
    prompt = np.zeros((4, max(lengths)), np.int32)
    for row, chat in enumerate(chats):
        prompt[row, : lengths[row]] = chat[:-1]
    tokens = np.concatenate([[[chat[-1]] for chat in chats], answers[:, :-1]], axis=1).astype(np.int32)
    z = jax.nn.log_softmax(logits(graphdef, params, prompt, lengths, tokens))
    got = np.take_along_axis(np.asarray(z), answers[:, :, None], axis=2)[..., 0]
    assert got.shape == (4, 64)

    model = gguf_reference(smollm2)
    for row, chat in enumerate(chats):
        ids = [*chat, *answers[row].tolist()]
        z = torch.tensor(torch_logits(model, ids)).log_softmax(-1)[len(chat) - 1 : -1]
        np.testing.assert_allclose(got[row], z.numpy()[np.arange(64), answers[row]], **CLOSE)
