"""The decoder against itself: however the tokens are fed, the hidden states are the same."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.decoder import Decoder, Prefix, param_axes, param_shardings
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

EXACT = dict(rtol=0, atol=1e-5)
"""Float32 sums in another order; hidden states are of order 1 after the final norm, so this is some 100 ulp."""


def make(config=LLAMA, seed=0, **kwargs):
    """A decoder whose every parameter is random, biases and norms too."""
    model = Decoder(config, rngs=nnx.Rngs(seed), **kwargs)
    graphdef, params = nnx.split(model)
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    leaves = [x + 0.1 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return graphdef, jax.tree.unflatten(tree, leaves)


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


@pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3], ids=["llama", "qwen2", "qwen3"])
def test_prefilled_prompts_continue_like_one_plain_forward(config):
    graphdef, params = make(config)
    prompt, tokens, lengths = tokens_of(0, 3, 4), tokens_of(1, 3, 5), np.array([4, 0, 2], np.int32)
    got = hidden(graphdef, params, prompt, lengths, tokens)
    for row, length in enumerate(lengths):
        want = alone(graphdef, params, np.concatenate([prompt[row, :length], tokens[row]]))[length:]
        np.testing.assert_allclose(got[row], want, **EXACT)


@pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3], ids=["llama", "qwen2", "qwen3"])
def test_decoding_step_by_step_equals_the_whole_row(config):
    graphdef, params = make(config)
    prompt, tokens, lengths = tokens_of(0, 2, 4), tokens_of(1, 4, 5), np.array([4, 0], np.int32)

    @jax.jit
    def decode(params):
        model = nnx.merge(graphdef, params)
        prefix = model.prefill(jnp.asarray(prompt), jnp.asarray(lengths))

        def one(cache, t):
            out, cache = model.step(jnp.asarray(tokens)[:, t], prefix, cache, t)
            return cache, out

        return jax.lax.scan(one, model.init_cache(4, 5), jnp.arange(5))[1]

    want = hidden(graphdef, params, prompt, lengths, tokens)
    np.testing.assert_allclose(decode(params).swapaxes(0, 1), want, **EXACT)


def test_a_shared_prefix_equals_repeated_prompts():
    graphdef, params = make()
    prompt, lengths, tokens = tokens_of(0, 2, 4), np.array([3, 1], np.int32), tokens_of(1, 6, 5)
    shared = hidden(graphdef, params, prompt, lengths, tokens)
    repeated = hidden(graphdef, params, prompt.repeat(3, 0), lengths.repeat(3), tokens)
    np.testing.assert_allclose(shared, repeated, **EXACT)


def test_padding_and_longer_neighbours_are_invisible():
    graphdef, params = make()
    prompt, lengths, tokens = tokens_of(0, 3, 6), np.array([6, 1, 3], np.int32), tokens_of(1, 3, 5)
    together = hidden(graphdef, params, prompt, lengths, tokens)
    for row, length in enumerate(lengths):
        apart = hidden(
            graphdef, params, prompt[row : row + 1, :length], lengths[row : row + 1], tokens[row : row + 1]
        )
        np.testing.assert_allclose(together[row], apart[0], **EXACT)
    other = prompt.copy()
    other[1, 1:], other[2, 3:] = 7, 9
    chex.assert_trees_all_equal(hidden(graphdef, params, other, lengths, tokens), together)


def test_a_prompt_may_contain_the_padding_id():
    graphdef, params = make()
    prompt, lengths, tokens = (
        np.zeros((1, 4), np.int32),
        np.array([3], np.int32),
        np.array([[0, 5, 0]], np.int32),
    )
    got = hidden(graphdef, params, prompt, lengths, tokens)[0]
    want = alone(graphdef, params, np.array([0, 0, 0, 0, 5, 0], np.int32))[3:]
    np.testing.assert_allclose(got, want, **EXACT)


def test_rows_that_do_not_share_the_prefixes_are_refused():
    graphdef, params = make()
    with pytest.raises(ValueError) as error:
        hidden(graphdef, params, tokens_of(0, 2, 4), np.array([3, 1], np.int32), tokens_of(1, 5, 3))
    assert str(error.value) == "5 rows do not share 2 prefixes; rows must be a multiple of prefixes."


def test_unknown_remat_is_refused():
    with pytest.raises(ValueError) as error:
        Decoder(LLAMA, rngs=nnx.Rngs(0), remat="some")
    assert str(error.value) == "remat is 'some'; it must be one of none, full."


def test_recomputing_layers_changes_no_gradient():
    def gradient(remat):
        graphdef, params = make(remat=remat)
        prompt, lengths, tokens = tokens_of(0, 2, 4), np.array([4, 0], np.int32), tokens_of(1, 4, 5)
        return jax.grad(lambda p: (hidden(graphdef, p, prompt, lengths, tokens) ** 3).sum())(params)

    plain, recomputed = gradient("none"), gradient("full")
    chex.assert_tree_all_finite(plain)
    # relative, because the cubes sum to gradients of order 100; recomputing may reassociate float32 sums
    chex.assert_trees_all_close(*(nnx.to_pure_dict(g) for g in (plain, recomputed)), rtol=1e-4, atol=1e-4)


def count_equations(jaxpr):
    inner = [v for e in jaxpr.eqns for v in jax.tree.leaves(e.params, is_leaf=lambda v: hasattr(v, "eqns"))]
    inner = [getattr(v, "jaxpr", v) for v in inner]
    return len(jaxpr.eqns) + sum(count_equations(v) for v in inner if hasattr(v, "eqns"))


def test_the_program_does_not_grow_with_depth():
    def size(layers):
        graphdef, params = make(dataclasses.replace(LLAMA, num_layers=layers))
        prompt, lengths, tokens = tokens_of(0, 2, 4), np.array([4, 0], np.int32), tokens_of(1, 4, 5)

        def everything(params):
            model = nnx.merge(graphdef, params)
            prefix = model.prefill(jnp.asarray(prompt), jnp.asarray(lengths))
            step, _ = model.step(jnp.asarray(tokens)[:, 0], prefix, model.init_cache(4, 5), 0)
            return model.hidden(jnp.asarray(tokens), prefix).sum() + step.sum()

        return count_equations(jax.make_jaxpr(jax.grad(everything))(params).jaxpr)

    assert size(2) == size(8) > 100


def test_bfloat16_computes_finite_values_over_float32_parameters():
    graphdef, params = make(dtype=jnp.bfloat16)
    prompt, lengths, tokens = tokens_of(0, 2, 4), np.array([4, 0], np.int32), tokens_of(1, 4, 5)
    got = hidden(graphdef, params, prompt, lengths, tokens)
    want = hidden(*make(), prompt, lengths, tokens)
    model = nnx.merge(graphdef, params)
    assert got.dtype == model.head().dtype == model.init_cache(2, 3).keys.dtype == jnp.bfloat16
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    # bfloat16 has 8 bits: 2^-8 relative for each of some ten roundings in a row
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=0, atol=0.1)


@pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3], ids=["llama", "qwen2", "qwen3"])
def test_sharded_over_a_mesh_equals_unsharded(config):
    graphdef, params = make(config)
    prompt, lengths, tokens = tokens_of(0, 4, 4), np.array([4, 0, 2, 1], np.int32), tokens_of(1, 8, 5)

    def both(params, prompt, lengths, tokens):
        model = nnx.merge(graphdef, params)
        prefix = model.prefill(prompt, lengths)
        first, cache = model.step(tokens[:, 0], prefix, model.init_cache(8, 5), 0)
        second, _ = model.step(tokens[:, 1], prefix, cache, 1)
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


def test_a_prefix_is_a_tree_whose_rows_can_be_taken():
    graphdef, params = make()
    model = nnx.merge(graphdef, params)
    prefix = model.prefill(jnp.asarray(tokens_of(0, 2, 4)), jnp.array([3, 1]))
    chex.assert_shape(prefix.keys, (2, 2, 4, 2, 8))
    assert isinstance(jax.tree.map(lambda x: x, prefix), Prefix)
