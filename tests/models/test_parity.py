"""The decoder against transformers (torch, float32): random small models of each family."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from references import VARIANTS
from tiny import QUICK

from rlvr_jax.models.layout import layer_layout, outer_layout
from rlvr_jax.models.load import load
from rlvr_jax.models.names import layer_name, outer_name
from rlvr_jax.stats import logits_of

CLOSE = dict(rtol=0, atol=1e-4)
"""Two implementations in float32: some 50 sums of 24 to 1536 terms in a row, each to 1e-7 of values of order 10."""


@jax.jit(static_argnums=0, compiler_options=QUICK)
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


@jax.jit(static_argnums=0, compiler_options=QUICK)
def packed_logits(graphdef, params, tokens, segments):
    model = nnx.merge(graphdef, params)
    nothing = model.prefill(tokens[:, :0], jnp.zeros(len(tokens), jnp.int32))
    hidden = model.hidden(tokens, nothing, segments=segments)
    return logits_of(hidden, model.head(), softcap=model.config.softcap)


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


@pytest.mark.parametrize("variant", ["llama3", "mistral", "gemma3"])
def test_transformers_with_padding_on_the_left_gives_the_same(reference, variant):
    """What its users batch with; ours pads prompts on the right."""
    import torch

    model, folder = reference(variant, variant == "gemma3")
    graphdef, params = nnx.split(load(folder)[0])
    lengths, width = np.array([2, 7, 5]), 7
    prompt = np.random.default_rng(3).integers(0, 48, (3, width), dtype=np.int32)
    tokens = np.concatenate([prompt[np.arange(3), lengths - 1][:, None], prompt[:, :4]], axis=1)
    got = logits(graphdef, params, prompt, (lengths - 1).astype(np.int32), tokens)

    whole = [np.concatenate([prompt[i, :n], prompt[i, :4]]) for i, n in enumerate(lengths)]
    left = np.stack([np.pad(row, (width + 4 - len(row), 0)) for row in whole])
    real = np.stack([np.arange(width + 4) >= width + 4 - len(row) for row in whole])
    places = np.maximum(real.cumsum(1) - 1, 0)
    inputs = (torch.tensor(x.astype(np.int64)) for x in (left, real, places))
    with torch.no_grad():
        want = model(**dict(zip(("input_ids", "attention_mask", "position_ids"), inputs, strict=True))).logits
    np.testing.assert_allclose(got, want[:, -5:].numpy(), **CLOSE)


@pytest.mark.parametrize(
    "variant, tied",
    [*TIED, ("llama3", False), ("mistral", False), ("qwen3", True), ("gemma3_softcap", True)],
)
def test_gradients_of_the_mean_log_probability_equal_torch(reference, variant, tied):
    import torch

    model, folder = reference(variant, tied)
    decoder, config = load(folder)
    graphdef, params = nnx.split(decoder)
    ids = np.random.default_rng(1).integers(0, 48, 9).astype(np.int32)

    model.zero_grad()
    row = torch.tensor(ids, dtype=torch.long)
    picked = model(row[None]).logits[0].log_softmax(-1)[3:-1].gather(1, row[4:, None])
    picked.mean().backward()

    def mean(params):
        prompt, tokens = jnp.asarray(ids[None, :3]), jnp.asarray(ids[None, 3:-1])
        z = logits.__wrapped__(graphdef, params, prompt, jnp.array([3]), tokens)
        return jnp.take_along_axis(jax.nn.log_softmax(z[0]), ids[4:, None], axis=1).mean()

    got = nnx.to_pure_dict(jax.jit(jax.grad(mean), compiler_options=QUICK)(params))
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(got))
    ours = {outer_name(name): got[name] for name in outer_layout(config)}
    for name in layer_layout(config):
        ours |= {layer_name(config, name, i): got["layers"][name][i] for i in range(config.num_layers)}
    theirs = {name: p.grad.numpy() for name, p in model.named_parameters()}
    assert ours.keys() == theirs.keys()
    scale = np.linalg.norm(theirs["model.embed_tokens.weight"])
    for name, want in theirs.items():
        matrix = name.endswith("proj.weight")  # [outputs, inputs], where ours has inputs first
        error = np.linalg.norm(np.asarray(ours[name]).ravel() - (want.T if matrix else want).ravel())
        # relative to the gradient; a bias on k cancels in the softmax, so its gradient is rounding around 0
        assert error < 1e-3 * max(np.linalg.norm(want), 1e-3 * scale), name
