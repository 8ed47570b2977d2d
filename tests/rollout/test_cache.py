"""Decode attention against a float64 softmax, and what the types of a cache cost in memory and in accuracy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx
from tiny import CONFIG, FULL, G, P, T, prompts, rollout, sample, scorer

from rlvr_jax.models import decoding
from rlvr_jax.models.decoding import KeysValues, attend_one, cache_dtype, init_cache
from rlvr_jax.rollout.engine import Decoding
from rlvr_jax.stats import dense_stats
from rlvr_jax.types import Stat

# ---- attention of one query --------------------------------------------------------------------------------------


def softmax_mean(q, keys, values, scale):
    """softmax(q keys^T) values in float64."""
    z = np.asarray(keys, np.float64) @ np.asarray(q, np.float64) * scale
    e = np.exp(z - z.max())
    return e @ np.asarray(values, np.float64) / e.sum()


def rounded(x):
    """To 8 bits with a scale for each last axis, as numbers and as (int8, scale)."""
    scale = np.abs(x).max(-1) / 127
    eight = np.rint(x / np.where(scale > 0, scale, 1)[..., None]).astype(np.int8)
    return eight * scale[..., None], eight, scale.astype(np.float32)


def held(k, v, kind):
    """[B T K H] in the cache's layout, and the numbers that are then in it."""
    if kind == "float32":
        return laid_out(k, v, None, None), k, v
    (k, eight_k, scale_k), (v, eight_v, scale_v) = rounded(k), rounded(v)
    return laid_out(eight_k, eight_v, scale_k.transpose(0, 2, 1), scale_v.transpose(0, 2, 1)), k, v


def laid_out(k, v, *scales):
    k, v = k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)
    return KeysValues(keys=k, values=v, key_scale=scales[0], value_scale=scales[1])


@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("width", [5, 0])
def test_a_querys_two_parts_are_one_softmax(width, window, kind):
    """Three blocks of two rows, four heads on two key heads; prefixes of 5, 2 and 0 tokens, rows that are at their first
    token, their last, and between; scores large enough that one part outweighs the other."""
    random, length, position = np.random.default_rng(0), np.array([5, 2, 0]), np.array([0, 6, 3, 1, 6, 0])
    length, own, scale = np.minimum(length, width), 7, 0.5
    draw = lambda *shape: random.normal(0, 3, shape).astype(np.float32)  # noqa: E731
    q, (pk, pv), (k, v) = draw(6, 4, 8), draw(2, 3, width, 2, 8), draw(2, 6, own, 2, 8)
    shared, pk, pv = held(pk, pv, kind)
    mine, k, v = held(k, v, kind)

    reach = np.inf if window is None else window
    behind = length[:, None, None] + position.reshape(3, 2, 1) - np.arange(width)
    shared_seen = (np.arange(width) < length[:, None, None]) & (behind < reach)
    if window is None:
        shared_seen = shared_seen[:, :1]
    far = position[:, None] - np.arange(own)
    own_seen = (far >= 0) & (far < reach)
    arrays = jax.tree.map(jnp.asarray, (q, shared, mine, shared_seen, own_seen))
    found = np.asarray(jax.jit(functools.partial(attend_one, scale=scale))(*arrays))

    for row in range(6):
        for head in range(4):
            block, kv = row // 2, head // 2
            first = max(
                0, length[block] + position[row] - reach + 1
            )  # of all tokens that come before it, and itself
            keys = np.concatenate([pk[block, : length[block], kv], k[row, : position[row] + 1, kv]])
            values = np.concatenate([pv[block, : length[block], kv], v[row, : position[row] + 1, kv]])
            want = softmax_mean(q[row, head], keys[int(first) :], values[int(first) :], scale)
            # Scores of some 10 to 30, summed from 8 products, are off by a few 1e-6, and so are weights of them.
            np.testing.assert_allclose(found[row, head], want, rtol=0, atol=5e-5)


# ---- types of the cache ------------------------------------------------------------------------------------------


@functools.cache
def forced(kind, config=CONFIG, share=G):
    """jit of (params, rollout) -> log-probabilities [B, T] of the rows' own tokens, one decode step after another."""
    model = tiny.structure(*tiny.decoder(config))

    def logprobs(params, rows):
        filled = nnx.merge(nnx.graphdef(model), params)
        prompt, length = rows.prompt[::share], rows.prompt_length[::share]
        shared = decoding.shared_prompts(filled, filled.prefill(prompt[:, :-1], length - 1), kind)
        weights = decoding.decode_weights(filled)
        last = jnp.take_along_axis(rows.prompt, rows.prompt_length[:, None] - 1, axis=1)[:, 0]

        def step(carry, token):
            before, position, cache = carry
            hidden, cache = decoding.decode(model, weights, before, shared, cache, position)
            logits = decoding.decode_logits(model, weights, hidden)
            logprob = dense_stats(logits, token, frozenset({Stat.LOGPROB}))[Stat.LOGPROB]
            return (token, position + 1, cache), logprob

        cache = init_cache(model, len(rows.tokens), T, kind)
        return jax.lax.scan(step, (last, jnp.zeros_like(rows.prompt_length), cache), rows.tokens.T)[1].T

    return jax.jit(logprobs, compiler_options=tiny.QUICK)


@functools.cache
def tokens_of(seed=0):
    """Rows that no cache had a say in."""
    random = np.random.default_rng(seed)
    tokens, length, ids, _ = prompts()
    repeat = lambda x: np.repeat(x, G, axis=0)  # noqa: E731
    drawn = sample()  # for the other fields
    drawn = dataclasses.replace(drawn, tokens=random.integers(0, CONFIG.vocab_size, (P * G, T), np.int32))
    assert repeat(tokens).shape[0] == P * G and len(length) == len(ids) == P
    return rollout(drawn)


def test_by_default_the_cache_holds_what_the_model_computes():
    """On a CPU in float32, whatever the model computes in: the same numbers, and the same samples."""
    for dtype in ("float32", "bfloat16"):
        assert cache_dtype(tiny.structure(*tiny.decoder(dtype=dtype)), "auto") == jnp.float32
    params, rows = tiny.decoder()[1], tokens_of()
    found = np.asarray(forced("auto")(params, rows))
    np.testing.assert_array_equal(found, np.asarray(forced("float32")(params, rows)))
    np.testing.assert_allclose(found, np.asarray(scorer()(params, rows)[Stat.LOGPROB]), rtol=0, atol=1e-5)


def test_layers_in_a_scan_are_layers_one_after_another(monkeypatch):
    """What accelerators run, on this machine: weights and cache stacked, windows among the layers."""
    config = dataclasses.replace(CONFIG, windows=(4, 0))
    params, rows = tiny.decoder(config)[1], tokens_of()
    found = forced("auto", config)(params, rows)
    want = np.asarray(scorer(config=config)(params, rows)[Stat.LOGPROB])
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-5)
    assert np.abs(want - np.asarray(scorer()(params, rows)[Stat.LOGPROB])).max() > 0.01  # windows matter
    monkeypatch.setattr(decoding, "platform_in_use", lambda: "gpu")
    forced.cache_clear()
    for kind, tolerance in (("auto", 1e-5), ("int8", 0.1)):
        stacked = forced(kind, config)(params, rows)
        np.testing.assert_allclose(stacked, want, rtol=0, atol=tolerance)
    forced.cache_clear()


@pytest.mark.parametrize("kind, step", [("bfloat16", 2**-9), ("int8", 1 / 254)])
def test_a_rounded_cache_moves_log_probabilities_as_much_as_its_rounding(kind, step):
    """The same tokens, so that nothing but the cache differs.

    A number is off by up to `step` of the largest of its head, evenly spread, so by `step / sqrt(3)` of it on average: scores
    of order 1 and the values' means by about that, in each of two layers. Logits have a standard deviation of about 1 in
    all, of which attention makes a part. So the mean is near `step`, and the largest of 384 numbers some ten times that.
    """
    params, rows = tiny.decoder()[1], tokens_of()
    exact = np.asarray(forced("float32")(params, rows))
    gap = np.abs(np.asarray(forced(kind)(params, rows)) - exact)
    assert step / 20 < gap.mean() < 2 * step and gap.max() < 20 * step


def test_a_cache_of_8_bits_is_a_quarter_of_float32_and_a_scale_for_each_token_and_head():
    model = tiny.structure(*tiny.decoder())
    rows, length = 3, 5
    heads, width = CONFIG.num_kv_heads, CONFIG.head_dim
    layers = init_cache(model, rows, length, "int8")
    assert len(layers) == CONFIG.num_layers
    for layer in layers:
        assert layer.keys.dtype == layer.values.dtype == jnp.int8
        assert layer.keys.shape == (rows, heads, width, length)
        assert layer.values.shape == (rows, heads, length, width)
        for scale in (layer.key_scale, layer.value_scale):
            assert scale.dtype == jnp.float32 and scale.shape == (rows, heads, length)
    for kind in ("float32", "bfloat16"):
        for layer in init_cache(model, rows, length, kind):
            assert layer.keys.dtype == layer.values.dtype == kind
            assert layer.key_scale is layer.value_scale is None


def test_samples_with_a_cache_of_8_bits_are_near_the_scorers():
    """In slots that several rows pass through, whose cache is never cleared. Tokens may differ from those of another cache;
    their log-probabilities are off by what the test above allows."""
    found = sample(FULL, decoding=Decoding(slots=4, cache="int8"))
    scored = np.asarray(scorer()(tiny.decoder()[1], rollout(found))[Stat.LOGPROB])
    gap = np.abs(scored - found.logprob)
    assert 0 < gap.mean() < 2 / 254 and gap.max() < 20 / 254
