"""The decoder against itself: however the tokens are fed, the hidden states are the same."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rlvr_jax.models import decoding
from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.decoder import Decoder, Prefix, param_axes, param_shardings
from rlvr_jax.models.decoding import decode as decode_one
from rlvr_jax.models.decoding import decode_weights, init_cache, shared_prompts
from rlvr_jax.models.positions import Owners
from rlvr_jax.sharding import make_mesh, named, row_sharding

LLAMA = ModelConfig(
    vocab_size=40,
    num_layers=2,
    dim=16,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    mlp_dim=24,
    tied_embeddings=True,
)
QWEN2 = dataclasses.replace(LLAMA, attention_bias=True, tied_embeddings=False)
QWEN3 = dataclasses.replace(LLAMA, qk_norm=True)
WINDOWED = dataclasses.replace(LLAMA, windows=(3, 0))

EXACT = dict(rtol=0, atol=1e-5)
"""Float32 sums in another order; hidden states are of order 1 after the final norm, so this is some 100 ulp."""


def make(config=LLAMA, seed=0, **kwargs):
    """A decoder whose every parameter is random, biases and norms too; nothing of it is compiled."""
    abstract = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), **kwargs))
    graphdef, params = nnx.split(abstract)
    random = np.random.default_rng(seed)

    def fill(path, leaf):
        value = 0.3 * random.standard_normal(leaf.shape, np.float32)
        return jnp.asarray(value + ("norm" in jax.tree_util.keystr(path)), leaf.dtype)

    return graphdef, jax.tree.map_with_path(fill, params)


@jax.jit(static_argnums=0)
def hidden(graphdef, params, prompt, length, tokens):
    model = nnx.merge(graphdef, params)
    return model.hidden(tokens, model.prefill(prompt, length))


def tokens_of(seed, *shape, vocab=40):
    return np.random.default_rng(seed).integers(0, vocab, shape, dtype=np.int32)


def alone(graphdef, params, row):
    """One plain forward over one row without any prefix (causal, so what follows the row is of no consequence)."""
    nothing, tokens = jnp.zeros((1, 0), jnp.int32), np.zeros((1, 12), np.int32)
    tokens[0, : len(row)] = row
    return hidden(graphdef, params, nothing, jnp.zeros(1, jnp.int32), tokens)[0, : len(row)]


PROMPT, LENGTH, TOKENS = tokens_of(0, 2, 4), np.array([4, 1], np.int32), tokens_of(1, 6, 5)
"""Two prompts, one of them padded, with three rows each. One shape in most tests, so that it compiles once."""


@pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3], ids=["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("lengths", [(4, 0), (3, 1)])
def test_prefilled_prompts_continue_like_one_plain_forward(config, lengths):
    graphdef, params = make(config)
    got = hidden(graphdef, params, PROMPT, np.array(lengths, np.int32), TOKENS)
    for row in range(6):
        length = lengths[row // 3]
        want = alone(graphdef, params, np.concatenate([PROMPT[row // 3, :length], TOKENS[row]]))[length:]
        np.testing.assert_allclose(got[row], want, **EXACT)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3], ids=["llama", "qwen2", "qwen3"])
def test_decoding_step_by_step_equals_the_whole_row(config, platform, monkeypatch):
    """With the layers written out, as on a CPU, and scanned, as elsewhere."""
    monkeypatch.setattr(decoding, "platform_in_use", lambda: platform)
    graphdef, params = make(config)
    tokens = jnp.asarray(TOKENS)

    @jax.jit
    def decode(params, length):
        model = nnx.merge(graphdef, params)
        weights = decode_weights(model)
        prompts = shared_prompts(model, model.prefill(jnp.asarray(PROMPT), length))

        def one(cache, t):
            out, cache = decode_one(model, weights, tokens[:, t], prompts, cache, jnp.full(6, t))
            return cache, out

        return jax.lax.scan(one, init_cache(model, 6, 5), jnp.arange(5))[1]

    for lengths in ([4, 0], [3, 1]):
        got = decode(params, jnp.array(lengths, jnp.int32)).swapaxes(0, 1)
        want = hidden(graphdef, params, PROMPT, np.array(lengths, np.int32), TOKENS)
        np.testing.assert_allclose(got, want, **EXACT)


def test_a_shared_prefix_equals_repeated_prompts():
    graphdef, params = make()
    shared = hidden(graphdef, params, PROMPT, LENGTH, TOKENS)
    repeated = hidden(graphdef, params, PROMPT.repeat(3, 0), LENGTH.repeat(3), TOKENS)
    np.testing.assert_allclose(shared, repeated, **EXACT)


@pytest.mark.parametrize("config", [LLAMA, WINDOWED], ids=["llama", "windows"])
@pytest.mark.parametrize("shards", [1, 2])
def test_packed_rows_continue_the_prompts_that_they_name(config, shards):
    """A text in the middle of a row, behind a prompt of its shard, is the text behind that prompt alone."""
    graphdef, params = make(config)
    length, index = np.array([4, 1, 0, 3], np.int32), np.array([1, 0, 1, 1, 0, 1])
    prompt, segments = tokens_of(3, 4, 4), np.array([[1, 1, 2, 2, 2], [4, 4, 4, 4, 0]] * 3)
    owner = np.array([1, 0, 1, 3, 2, 3]) if shards == 2 else index

    @jax.jit
    def packed(params, prompt, length, tokens):
        model = nnx.merge(graphdef, params)
        owners = Owners(index=jnp.asarray(index), shards=shards)
        return model.hidden(
            tokens, model.prefill(prompt, length), segments=jnp.asarray(segments), owners=owners
        )

    with jax.set_mesh(make_mesh(2, 2, 2)):
        got = packed(params, prompt, length, TOKENS)
    for row, texts in enumerate([[(0, 2), (2, 5)], [(0, 4)]] * 3):
        before = prompt[owner[row], : length[owner[row]]]
        for start, end in texts:
            want = alone(graphdef, params, np.concatenate([before, TOKENS[row, start:end]]))
            np.testing.assert_allclose(got[row, start:end], want[len(before) :], **EXACT)


def test_padding_and_longer_neighbours_are_invisible():
    graphdef, params = make()
    together = hidden(graphdef, params, PROMPT, LENGTH, TOKENS)
    apart = hidden(graphdef, params, PROMPT[1:, :1], LENGTH[1:], TOKENS[3:])
    np.testing.assert_allclose(together[3:], apart, **EXACT)
    other = PROMPT.copy()
    other[1, 1:] = 7
    chex.assert_trees_all_equal(hidden(graphdef, params, other, LENGTH, TOKENS), together)


def test_a_prompt_may_contain_the_padding_id():
    graphdef, params = make()
    prompt, tokens = np.zeros((2, 4), np.int32), TOKENS.copy()
    tokens[3, ::2] = 0
    got = hidden(graphdef, params, prompt, np.array([3, 2], np.int32), tokens)[3]
    want = alone(graphdef, params, np.array([0, 0, *tokens[3]], np.int32))[2:]
    np.testing.assert_allclose(got, want, **EXACT)


def test_rows_that_do_not_share_the_prefixes_are_refused():
    graphdef, params = make()
    with pytest.raises(ValueError) as error:
        hidden(graphdef, params, PROMPT, LENGTH, TOKENS[:5])
    assert str(error.value) == "5 rows do not share 2 prefixes; rows must be a multiple of prefixes."


def test_a_new_decoder_starts_at_the_usual_scale():
    config = dataclasses.replace(LLAMA, vocab_size=300, dim=48, attention_bias=True, tied_embeddings=False)

    @jax.jit
    def start():
        return nnx.split(Decoder(config, rngs=nnx.Rngs(0)))[1]

    params = nnx.to_pure_dict(start())
    layers = params["layers"]
    # some 1000 draws or more of each: 2 % in one deviation
    for name in ("q", "k", "v", "gate", "up"):
        assert np.std(layers[name]) == pytest.approx(48**-0.5, rel=0.1)
    assert np.std(layers["o"]) == pytest.approx((4 * 8) ** -0.5, rel=0.1)
    assert np.std(layers["down"]) == pytest.approx(24**-0.5, rel=0.1)
    for name in ("embedding", "unembedding"):
        assert np.std(params[name]) == pytest.approx(0.02, rel=0.05)
    assert not np.array_equal(params["embedding"], params["unembedding"])
    assert not np.array_equal(layers["k"], layers["v"])
    assert all(
        (scale == 1).all() for scale in (layers["mlp_norm"], layers["attention_norm"], params["final_norm"])
    )
    assert not any(layers[name].any() for name in ("q_bias", "k_bias", "v_bias"))


def count_equations(jaxpr):
    inner = [v for e in jaxpr.eqns for v in jax.tree.leaves(e.params, is_leaf=lambda v: hasattr(v, "eqns"))]
    inner = [getattr(v, "jaxpr", v) for v in inner]
    return len(jaxpr.eqns) + sum(count_equations(v) for v in inner if hasattr(v, "eqns"))


def test_the_program_does_not_grow_with_depth():
    def size(layers):
        graphdef, params = make(dataclasses.replace(LLAMA, num_layers=layers))

        def everything(params):
            model = nnx.merge(graphdef, params)
            prefix = model.prefill(jnp.asarray(PROMPT), jnp.asarray(LENGTH))
            return model.hidden(jnp.asarray(TOKENS), prefix).sum()

        return count_equations(jax.make_jaxpr(jax.grad(everything))(params).jaxpr)

    assert size(2) == size(8) > 100


def test_bfloat16_computes_finite_values_over_float32_parameters():
    graphdef, params = make(dtype=jnp.bfloat16)
    got = hidden(graphdef, params, PROMPT, LENGTH, TOKENS)
    want = hidden(*make(), PROMPT, LENGTH, TOKENS)
    model = nnx.merge(graphdef, params)
    assert got.dtype == model.head().dtype == jnp.bfloat16
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    # bfloat16 has 8 bits: 2^-8 relative for each of some ten roundings in a row
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=0, atol=0.1)


@pytest.mark.parametrize("config", [QWEN2, QWEN3], ids=["qwen2", "qwen3"])
def test_sharded_over_a_mesh_equals_unsharded(config, capfd):
    graphdef, params = make(config)
    prompt, lengths, tokens = tokens_of(0, 4, 4), np.array([4, 0, 2, 1], np.int32), tokens_of(1, 8, 5)

    def both(params, prompt, lengths, tokens):
        model = nnx.merge(graphdef, params)
        prefix = model.prefill(prompt, lengths)
        weights, shared = decode_weights(model), shared_prompts(model, prefix)
        at = jnp.zeros(8, jnp.int32)
        first, cache = decode_one(model, weights, tokens[:, 0], shared, init_cache(model, 8, 5), at)
        second, _ = decode_one(model, weights, tokens[:, 1], shared, cache, at + 1)
        return model.hidden(tokens, prefix), first, second

    want = jax.jit(both)(params, prompt, lengths, tokens)
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    layout = param_shardings(params, mesh)
    with jax.set_mesh(mesh):
        spread = jax.device_put(params, layout)
        rows = jax.device_put((prompt, lengths, tokens), row_sharding(mesh))
        got = jax.jit(both)(spread, *rows)
    assert spread["layers"]["q"].sharding == named(mesh, (None, "embed", "heads", None))
    chex.assert_trees_all_close(got, want, **EXACT)
    assert "full rematerialization" not in capfd.readouterr().err  # XLA's word for gathering what is sharded


def test_parameters_carry_their_logical_axes():
    _, params = make(QWEN2)
    axes = nnx.to_pure_dict(param_axes(params))
    assert axes["layers"]["o"] == ("layers", "heads", "head_dim", "embed")
    assert axes["embedding"] == axes["unembedding"] == ("vocab", "embed")
    for name, value in nnx.to_pure_dict(params)["layers"].items():
        assert len(axes["layers"][name]) == value.ndim


def test_parameters_survive_a_plain_dictionary():
    graphdef, params = make()
    _, other = make(seed=5)
    nnx.replace_by_pure_dict(other, jax.tree.map(np.asarray, nnx.to_pure_dict(params)))
    row = tokens_of(0, 6)
    chex.assert_trees_all_equal(alone(graphdef, other, row), alone(graphdef, params, row))


def test_the_head_is_the_embedding_only_when_tied():
    tied, untied = nnx.merge(*make(LLAMA)), nnx.merge(*make(QWEN2))
    chex.assert_trees_all_equal(tied.head(), tied.embedding[...])
    chex.assert_trees_all_equal(untied.head(), untied.unembedding[...])
    assert "unembedding" not in nnx.to_pure_dict(nnx.split(tied)[1])


def test_a_prefix_is_a_tree():
    graphdef, params = make()
    prefix = jax.eval_shape(
        lambda p: nnx.merge(graphdef, p).prefill(jnp.asarray(PROMPT), jnp.asarray(LENGTH)), params
    )
    assert [x.shape for x in jax.tree.leaves(prefix)] == [(2, 2, 4, 2, 8), (2, 2, 4, 2, 8), (2,)]
    assert isinstance(jax.tree.map(lambda x: x, prefix), Prefix)
