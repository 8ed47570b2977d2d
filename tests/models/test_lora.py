"""Adapters: nothing at the start, what `peft` computes afterwards, and merged the same."""

import dataclasses
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.decoder import Decoder, param_axes, param_shardings
from rlvr_jax.models.decoding import decode as decode_one
from rlvr_jax.models.decoding import decode_weights, init_cache, shared_prompts
from rlvr_jax.models.export import ADAPTER, export
from rlvr_jax.models.layout import layer_layout
from rlvr_jax.models.load import load
from rlvr_jax.models.lora import TARGETS, Lora, joined, split_trained
from rlvr_jax.models.tokenizer import word_tokenizer
from rlvr_jax.sharding import make_mesh, named, row_sharding
from rlvr_jax.stats import logits_of

# peft asks transformers by the older of two names
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

LORA = Lora(rank=3, alpha=6.0)
CLOSE = dict(rtol=0, atol=1e-4)
"""Two implementations in float32: some 50 sums in a row, each to 1e-7 of values of order 10."""

WORDS = word_tokenizer(f"w{i}" for i in range(45))
IDS = np.random.default_rng(0).integers(0, 48, (4, 9), dtype=np.int32)


def adapted(folder, lora=LORA, seed=0, std=0.3, **settings):
    """(graphdef, trained, frozen, config): a model's weights with random adapters; `std` of B, 0 as at a start."""
    base, config = load(folder)
    abstract = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), lora=lora, **settings))
    graphdef, params = nnx.split(abstract)
    random = np.random.default_rng(seed)

    def draw(path, leaf):
        scale = std if "lora_b" in jax.tree_util.keystr(path) else 0.3
        return jnp.asarray(scale * random.standard_normal(leaf.shape), leaf.dtype)

    trained = jax.tree.map_with_path(draw, split_trained(params, lora)[0])
    return graphdef, trained, nnx.split(base)[1], config


@jax.jit(static_argnums=0)
def logits(graphdef, params, tokens=IDS):
    """Of whole rows, of which the first token is in a prefix."""
    model, tokens = nnx.merge(graphdef, params), jnp.asarray(tokens)
    prefix = model.prefill(tokens[:, :1], jnp.ones(len(tokens), jnp.int32))
    return logits_of(model.hidden(tokens[:, 1:], prefix), model.head(), softcap=model.config.softcap)


def torch_logits(model):
    import torch

    with torch.no_grad():
        return model(torch.tensor(IDS, dtype=torch.long)).logits[:, 1:].numpy()


def with_peft(model, lora=LORA):
    """A copy of the model of transformers with adapters of peft."""
    import copy

    import peft

    modules = {"o": "o_proj", **{n: f"{n}_proj" for n in ("q", "k", "v", "gate", "up", "down")}}
    settings = peft.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=[modules[n] for n in lora.targets]
    )
    return peft.get_peft_model(copy.deepcopy(model), settings).eval()


def theirs(name, layer, part):
    block = "mlp" if name in ("gate", "up", "down") else "self_attn"
    return f"base_model.model.model.layers.{layer}.{block}.{name}_proj.lora_{part}.default.weight"


def stored(trained, name, layer, part):
    """A [rank, inputs] and B [outputs, rank], written from the shapes of the paper and not with the code under test."""
    value = np.asarray(trained["layers"][f"{name}_lora_{part.lower()}"][...][layer])
    return value.reshape(-1, LORA.rank).T if part == "A" else value.reshape(LORA.rank, -1).T


VARIANTS = [("llama", True), ("qwen2", False), ("gemma3", True)]


# ---- the forward ---------------------------------------------------------------------------------------------------


def test_an_adapter_whose_b_is_zero_is_the_base_to_the_bit(reference):
    _, folder = reference("gemma3", True)
    graphdef, trained, frozen, _ = adapted(folder, std=0)
    base, params = nnx.split(load(folder)[0])
    with jax.disable_jit():  # operation by operation: a compiler may add up what is fused in another order
        got, want = logits(graphdef, joined(trained, frozen)), logits(base, params)
    np.testing.assert_array_equal(got, want)


def test_a_fresh_adapter_has_a_random_a_and_a_zero_b():
    config = ModelConfig(
        vocab_size=48, num_layers=4, dim=96, num_heads=4, num_kv_heads=2, head_dim=24, mlp_dim=160
    )
    params = nnx.split(jax.jit(lambda: nnx.split(Decoder(config, rngs=nnx.Rngs(0), lora=Lora()))[1])())
    layers = nnx.to_pure_dict(params[1] if isinstance(params, tuple) else params)["layers"]
    for name in TARGETS:
        fan_in = 160 if name == "down" else 96
        # 4 x 96 x 16 draws: 1 % in one deviation
        assert np.std(layers[f"{name}_lora_a"]) == pytest.approx(fan_in**-0.5, rel=0.05), name
        assert not layers[f"{name}_lora_b"].any(), name


@pytest.mark.parametrize("variant, tied", VARIANTS)
def test_logits_and_gradients_of_adapters_are_those_of_peft(reference, variant, tied):
    import torch

    model, folder = reference(variant, tied)
    graphdef, trained, frozen, _ = adapted(folder)
    model = with_peft(model)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in LORA.targets:
            for layer in range(2):
                for part in "AB":
                    value = np.ascontiguousarray(stored(trained, name, layer, part))
                    parameters[theirs(name, layer, part)].copy_(torch.from_numpy(value))
    np.testing.assert_allclose(logits(graphdef, joined(trained, frozen)), torch_logits(model), **CLOSE)

    target = np.random.default_rng(1).standard_normal((4, 8, 48)).astype(np.float32)
    out = model(torch.tensor(IDS, dtype=torch.long)).logits[:, 1:]
    (out.log_softmax(-1) * torch.from_numpy(target)).mean().backward()

    @jax.grad
    def gradient(trained):
        return (jax.nn.log_softmax(logits(graphdef, joined(trained, frozen))) * target).mean()

    got = gradient(trained)
    assert len(jax.tree.leaves(got)) == 2 * len(TARGETS)
    for name in LORA.targets:
        for layer in range(2):
            for part in "AB":
                want = parameters[theirs(name, layer, part)].grad.numpy()
                error = np.linalg.norm(stored(got, name, layer, part) - want)
                assert error < 1e-3 * np.linalg.norm(want), (name, layer, part)
    assert all(p.grad is None for n, p in parameters.items() if "lora" not in n)


def test_decoding_a_token_at_a_time_and_recomputing_layers_change_nothing(reference):
    _, folder = reference("qwen2", False)
    graphdef, trained, frozen, _ = adapted(folder)
    params = joined(trained, frozen)

    @jax.jit
    def decode(params):
        model = nnx.merge(graphdef, params)
        prompts = shared_prompts(model, model.prefill(jnp.asarray(IDS[:, :1]), jnp.ones(4, jnp.int32)))
        weights, cache, out = decode_weights(model), init_cache(model, 4, 3), []
        for i in range(3):
            tokens, at = jnp.asarray(IDS[:, 1 + i]), jnp.full(4, i)
            hidden, cache = decode_one(model, weights, tokens, prompts, cache, at)
            out.append(logits_of(hidden, model.head()))
        return jnp.stack(out, axis=1)

    want = logits(graphdef, params)
    np.testing.assert_allclose(
        decode(params), want[:, :3], rtol=0, atol=1e-5
    )  # the same sums in another order
    loss = lambda g: lambda t: (logits(g, joined(t, frozen)) ** 2).mean()  # noqa: E731
    again = adapted(folder, remat="full")[0]
    plain, recomputed = (jax.grad(loss(g))(trained) for g in (graphdef, again))
    chex.assert_trees_all_close(plain, recomputed, rtol=1e-4, atol=1e-5)


def test_sharded_over_a_mesh_equals_unsharded(reference, capfd):
    _, folder = reference("llama", False)
    graphdef, trained, frozen, _ = adapted(folder)
    params = joined(trained, frozen)
    want = logits(graphdef, params)
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    with jax.set_mesh(mesh):
        spread = jax.device_put(params, param_shardings(params, mesh))
        got = logits(graphdef, spread, jax.device_put(IDS, row_sharding(mesh)))
    assert spread["layers"]["o_lora_a"].sharding == named(mesh, (None, "heads", None, None))
    assert spread["layers"]["q_lora_b"].sharding == named(mesh, (None, None, "heads", None))
    axes = nnx.to_pure_dict(param_axes(params))["layers"]
    assert axes["down_lora_a"] == ("layers", "mlp", None) and axes["down_lora_b"] == ("layers", None, "embed")
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)
    assert "full rematerialization" not in capfd.readouterr().err


# ---- what is trained -----------------------------------------------------------------------------------------------


def test_trained_and_frozen_are_adapters_and_the_rest(reference):
    graphdef, trained, frozen, _ = adapted(reference()[1], Lora(rank=2, targets=("q", "down")))
    found = split_trained(joined(trained, frozen), LORA)
    chex.assert_trees_all_equal(found, (trained, frozen))
    names = {"q_lora_a", "q_lora_b", "down_lora_a", "down_lora_b"}
    assert set(nnx.to_pure_dict(found[0])["layers"]) == names
    assert not names & set(nnx.to_pure_dict(found[1])["layers"])
    assert joined(*split_trained(frozen, None)) is frozen


def weight_gradients(function, *arguments, shapes):
    """How many products in a function's jaxpr, scans and all, have a result in one of these shapes."""

    def count(jaxpr):
        found = 0
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                found += sum(tuple(sorted(v.aval.shape)) in shapes for v in equation.outvars)
            for value in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns")):
                inner = getattr(value, "jaxpr", value)
                found += count(inner) if hasattr(inner, "eqns") else 0
        return found

    return count(jax.make_jaxpr(function)(*arguments).jaxpr)


def test_no_product_in_the_gradient_has_the_shape_of_a_frozen_matrix(reference):
    """Rows are 4 x 8 = 32 and 4 x 1, so that no activation has such a shape. With all weights trained there are seven."""
    graphdef, trained, frozen, _ = adapted(reference()[1])
    shapes = {(24, 32), (16, 24), (24, 40)}  # q and o, k and v, gate and up and down

    def loss(trained, frozen):
        return (logits.__wrapped__(graphdef, joined(trained, frozen), IDS[:, :8]) ** 2).mean()

    assert weight_gradients(jax.grad(loss, 0), trained, frozen, shapes=shapes) == 0
    assert weight_gradients(jax.grad(loss, 1), trained, frozen, shapes=shapes) >= 7


# ---- out of here ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant, tied", VARIANTS)
def test_the_merged_export_has_the_logits_of_the_adapter_and_not_the_base(reference, tmp_path, variant, tied):
    from transformers import AutoModelForCausalLM

    model, folder = reference(variant, tied)
    graphdef, trained, frozen, config = adapted(folder)
    params = joined(trained, frozen)
    export(params, config, WORDS, tmp_path / "out", lora=LORA, source=folder)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    want = logits(graphdef, params)
    np.testing.assert_allclose(torch_logits(merged), want, **CLOSE)
    assert np.abs(torch_logits(model) - want).max() > 0.1
    assert {n for n, _ in merged.named_parameters()} == {n for n, _ in model.named_parameters()}
    again = load(tmp_path / "out")
    assert again[1] == config
    np.testing.assert_allclose(logits(*nnx.split(again[0])), want, **CLOSE)


@pytest.mark.parametrize("targets", [TARGETS, ("v", "o")])
def test_peft_loads_the_adapter_onto_the_model_it_was_trained_on(reference, tmp_path, targets):
    import copy

    import peft

    model, folder = reference("qwen2", True)
    lora = Lora(rank=3, alpha=6.0, targets=targets)
    graphdef, trained, frozen, config = adapted(folder, lora)
    params = joined(trained, frozen)
    export(params, config, WORDS, tmp_path / "out", lora=lora, source=folder)
    found = peft.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path / "out" / ADAPTER).eval()
    assert sum("lora" in n for n, _ in found.named_parameters()) == 2 * 2 * len(targets)
    np.testing.assert_allclose(torch_logits(found), logits(graphdef, params), **CLOSE)
    with found.disable_adapter():
        np.testing.assert_array_equal(torch_logits(found), torch_logits(model))
    settings = json.loads((tmp_path / "out" / ADAPTER / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(folder)


# ---- what it asks for ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"rank": 0}, "model.lora.rank is 1 or more, got 0; leave model.lora out to train all weights."),
        ({"alpha": 0.0}, "model.lora.alpha is positive, got 0.0."),
        (
            {"targets": ("q", "gates")},
            "model.lora.targets has 'gates', which is no matrix of a layer. Did you mean 'gate'? "
            "Known: q, k, v, o, gate, up, down.",
        ),
        ({"targets": ()}, "model.lora.targets=[]: name at least one matrix, and each only once."),
        (
            {"targets": ("q", "v", "q")},
            "model.lora.targets=['q', 'v', 'q']: name at least one matrix, and each only once.",
        ),
    ],
)
def test_a_wrong_description_is_one_sentence(fields, message):
    with pytest.raises(ValueError) as error:
        Lora(**fields)
    assert str(error.value) == message


def test_every_matrix_of_a_layer_can_be_a_target():
    config = ModelConfig(
        vocab_size=9, num_layers=1, dim=8, num_heads=2, num_kv_heads=1, head_dim=4, mlp_dim=8
    )
    for family in (config, dataclasses.replace(config, attention_bias=True, qk_norm=True, post_norms=True)):
        assert TARGETS == tuple(name for name, leaf in layer_layout(family).items() if leaf.inputs)
