"""Real models against transformers (torch, float32) with the same dequantised weights, on real text."""

import functools
import pathlib
import struct

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx

from rlvr_jax.models.load import load
from rlvr_jax.models.tokenizer import load_tokenizer, render
from rlvr_jax.rollout.engine import Engine, structure
from rlvr_jax.rollout.sampling import Sampling
from rlvr_jax.stats import logits_of

NEW = 64

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
    [{"role": "user", "content": "Name three colours, one a line."}],
    [{"role": "user", "content": "Is 91 a prime number? Think step by step."}],
    [{"role": "user", "content": "Write a short letter to a neighbour whose dog barks at night."}],
    [{"role": "user", "content": "Translate into French: the cat sleeps on the chair."}],
]


LICENSE = pathlib.Path(__file__).resolve().parents[2] / "LICENSE"
"""A long English text."""


class Reader(gguf.GGUFReader):
    """Passes over vocabularies: the package makes an array of every string and number, which takes half a minute."""

    def _get_field_parts(self, orig_offs, raw_type):
        if raw_type == gguf.GGUFValueType.ARRAY:
            kind, count = struct.unpack_from("<IQ", self.data, orig_offs)
            at = orig_offs + 12
            if count > 1000 and kind == gguf.GGUFValueType.STRING:
                for _ in range(count):
                    at += 8 + struct.unpack_from("<Q", self.data, at)[0]
                return at - orig_offs, [], [], [gguf.GGUFValueType.ARRAY]
            if count > 1000:
                size = np.dtype(self.gguf_scalar_to_np[gguf.GGUFValueType(kind)]).itemsize
                return 12 + count * size, [], [], [gguf.GGUFValueType.ARRAY]
        return super()._get_field_parts(orig_offs, raw_type)


def gguf_reference(path, vocab_size, monkeypatch):
    """The model of transformers with the file's weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    torch.set_num_threads(1)  # two that wait for each other by spinning are slower on a machine that is busy
    monkeypatch.setattr(gguf, "GGUFReader", functools.cache(Reader))
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, vocab_size=vocab_size)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    left = model.load_state_dict(tensors, strict=False)
    assert (left.missing_keys, left.unexpected_keys) == (["lm_head.weight"], [])  # it is the embedding
    return model


@functools.partial(jax.jit, static_argnums=0)
def picked(graphdef, params, prompt, length, tokens, answers):
    """Log-probabilities of `answers`; `tokens` are what stands before each of them."""
    model = nnx.merge(graphdef, params)
    hidden = model.hidden(tokens, model.prefill(prompt, length))
    z = jax.nn.log_softmax(logits_of(hidden, model.head(), softcap=model.config.softcap))
    return jnp.take_along_axis(z, answers[:, :, None], axis=2)[..., 0]


def check(path, prompts, answers, monkeypatch):
    """Log-probabilities of 64 real tokens behind each prompt, and the 64 most likely ones instead of them."""
    import torch

    graphdef, params = nnx.split(load(path)[0])
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    padded = np.zeros((len(prompts), max(lengths)), np.int32)
    for row, prompt in enumerate(prompts):
        padded[row, : lengths[row]] = prompt
    answers = np.array(answers, np.int32)
    assert answers.shape == (len(prompts), NEW)
    tokens = np.concatenate([[[prompt[-1]] for prompt in prompts], answers[:, :-1]], axis=1).astype(np.int32)
    got = np.asarray(picked(graphdef, params, padded[:, :-1], lengths - 1, tokens, answers))

    never = int(params["embedding"].shape[0]) - 1  # 64 tokens, whatever they are
    sampler = Engine(structure(graphdef, params), Sampling(temperature=0.0, max_new_tokens=NEW), (never,))
    sampler.push(params, version=0)
    rows = np.arange(len(prompts), dtype=np.int32)
    greedy = sampler.sample(tiny.request((padded, lengths, rows, 0 * rows), group=1)).tokens

    model = gguf_reference(path, never + 1, monkeypatch)
    for row, prompt in enumerate(prompts):
        ids = torch.tensor([[*prompt, *answers[row].tolist()]])
        with torch.no_grad():
            z = model(ids, logits_to_keep=NEW + 1).logits[0, :-1].log_softmax(-1).numpy()
        want = z[np.arange(NEW), answers[row]]
        print(f"prompt of {len(prompt)}: largest difference {np.abs(got[row] - want).max():.1e}")
        np.testing.assert_allclose(got[row], want, rtol=0, atol=2e-4)

        # each token is the most likely one behind all before it, so it is what greedy decoding gives
        ids = torch.tensor([[*prompt, *greedy[row].tolist()]])
        with torch.no_grad():
            z = model(ids, logits_to_keep=NEW + 1).logits[0, :-1]
        assert greedy[row].tolist() == z.argmax(-1).tolist()
    return model, greedy


def torch_greedy(model, prompts, never):
    """What `generate` gives; it pads prompts on the left."""
    import torch

    width = max(map(len, prompts))
    ids = torch.tensor([[never] * (width - len(prompt)) + prompt for prompt in prompts])
    real = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    settings = dict(do_sample=False, max_new_tokens=NEW, eos_token_id=never, pad_token_id=never)
    return model.generate(ids, attention_mask=real, **settings)[:, width:].tolist()


@pytest.mark.slow
def test_smollm2_gives_the_log_probabilities_and_greedy_answers_of_transformers(smollm2, monkeypatch):
    tokenizer = load_tokenizer(smollm2)
    prompts = [render(tokenizer, chat) for chat in CHATS]
    answers = [render(tokenizer, text)[:NEW] for text in TEXTS * 2]
    model, greedy = check(smollm2, prompts, answers, monkeypatch)
    assert greedy.tolist() == torch_greedy(model, prompts, never=len(tokenizer) - 1)


@pytest.mark.slow
def test_gemma3_gives_the_log_probabilities_and_greedy_answers_of_transformers(gemma3, monkeypatch):
    """One prompt is longer than the window of 512 tokens, so that what follows it no longer sees its start.

    `generate` would take minutes of a processor for a vocabulary of 262144, and says no more than `check` does.
    """
    tokenizer = load_tokenizer(gemma3)
    texts = [render(tokenizer, text) for text in TEXTS[:3]]
    texts += [render(tokenizer, LICENSE.read_text())[: 620 + NEW]]
    check(gemma3, [text[:-NEW] for text in texts], [text[-NEW:] for text in texts], monkeypatch)
