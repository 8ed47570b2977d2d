"""What is written is what `transformers` computes with: same parameters, same logits, same tokens; whole or not at all."""

import json
import tracemalloc

import chex
import jax
import numpy as np
import pytest
from flax import nnx
from references import VARIANTS

from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.decoder import Decoder, param_shardings
from rlvr_jax.models.export import export, shards, size_in_bytes
from rlvr_jax.models.load import load
from rlvr_jax.models.tokenizer import eos_ids, load_tokenizer, render, word_tokenizer
from rlvr_jax.sharding import make_mesh

WORDS = word_tokenizer(f"w{i}" for i in range(45))
"""As many tokens as the reference models have."""

TIED = [("llama", True), ("llama", False), ("qwen2", True), ("qwen2", False), ("gemma3", True)]
EVERY = dict.fromkeys(TIED + [(variant, False) for variant in VARIANTS if not variant.startswith("gemma")])


def written(folder, path, **settings):
    """Load a directory and export it again."""
    decoder, config = load(folder)
    export(nnx.split(decoder)[1], config, WORDS, path, **settings)
    return path


def transformer(path):
    """As a user loads it, with the dtype of its files."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype="auto").eval()


def logits(model):
    import torch

    ids = np.random.default_rng(0).integers(0, 48, (2, 11))
    with torch.no_grad():
        return model(torch.tensor(ids)).logits.float().numpy()


def state(model):
    return {name: value.float().numpy() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("variant, tied", [*EVERY, ("gemma3_softcap", True)])
def test_transformers_computes_the_same_logits_to_the_bit(reference, tmp_path, variant, tied):
    """The same parameters and the same configuration in the same library: nothing is left that could round."""
    model, folder = reference(variant, tied)
    found = transformer(written(folder, tmp_path / "out"))
    assert type(found) is type(model)
    chex.assert_trees_all_equal(state(found), state(model))
    np.testing.assert_array_equal(logits(found), logits(model))


@pytest.mark.parametrize("variant, tied", TIED)
def test_bfloat16_is_every_parameter_rounded_once(reference, tmp_path, variant, tied):
    import copy

    import torch

    model, folder = reference(variant, tied)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(tmp_path / "theirs")
    model = transformer(tmp_path / "theirs")
    found = transformer(written(folder, tmp_path / "out", dtype="bfloat16"))
    assert found.dtype == torch.bfloat16
    chex.assert_trees_all_equal(state(found), state(model))
    np.testing.assert_array_equal(logits(found), logits(model))


@pytest.mark.parametrize("variant, tied", TIED)
def test_what_is_loaded_again_is_bit_identical(reference, tmp_path, variant, tied):
    _, folder = reference(variant, tied)
    want, config = load(folder)
    got, again = load(written(folder, tmp_path / "out"))
    assert again == config
    chex.assert_trees_all_equal(nnx.state(got), nnx.state(want))
    rounded = jax.tree.map(lambda x: x.astype(jax.numpy.bfloat16).astype(np.float32), nnx.state(want))
    got, _ = load(written(folder, tmp_path / "half", dtype="bfloat16"))
    chex.assert_trees_all_equal(nnx.state(got), rounded)


@pytest.mark.parametrize("variant, tied", TIED)
def test_the_tensors_have_the_names_and_shapes_that_transformers_writes(reference, tmp_path, variant, tied):
    """A tied model has no head, an untied one has both ends."""
    from safetensors.numpy import load_file

    _, folder = reference(variant, tied)
    want = load_file(folder / "model.safetensors")
    got = load_file(written(folder, tmp_path / "out") / "model.safetensors")
    assert {n: (x.shape, x.dtype) for n, x in got.items()} == {n: (x.shape, x.dtype) for n, x in want.items()}
    assert ("lm_head.weight" in got) is not tied


def test_several_files_behind_an_index_are_the_same_model(reference, tmp_path):
    model, folder = reference("qwen2", False)
    out = written(folder, tmp_path / "out", max_shard_bytes=10_000)
    files = sorted(p.name for p in out.glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors" and len(files) > 3
    assert all(p.stat().st_size < 12_000 for p in out.glob("*.safetensors"))  # 10 kB and the header
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * sum(p.numel() for p in model.parameters())
    assert set(index["weight_map"].values()) == set(files)
    np.testing.assert_array_equal(logits(transformer(out)), logits(model))


def test_parameters_on_a_mesh_are_written_as_those_on_one_device(reference, tmp_path):
    _, folder = reference("qwen3", False)
    decoder, config = load(folder)
    params = nnx.split(decoder)[1]
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    for name, placed in (
        ("one", params),
        ("mesh", jax.device_put(params, param_shardings(params, mesh))),
    ):
        export(placed, config, WORDS, tmp_path / name)
    one, other = (tmp_path / name / "model.safetensors" for name in ("one", "mesh"))
    assert one.read_bytes() == other.read_bytes()


def test_the_host_holds_the_tensors_of_one_file_at_a_time(tmp_path):
    """Not the model of 8 MB: a file of 0.6 MB, which is there twice while it is written, and some names."""
    sizes = {"num_layers": 8, "dim": 128, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "mlp_dim": 512}
    config = ModelConfig(vocab_size=48, **sizes)
    params = nnx.split(Decoder(config, rngs=nnx.Rngs(0)))[1]
    total = sum(x.nbytes for x in jax.tree.leaves(params))

    def peak(path, limit):
        export(params, config, WORDS, tmp_path / f"{path} before", max_shard_bytes=limit)  # imports, compiles
        tracemalloc.start()
        export(params, config, WORDS, tmp_path / path, max_shard_bytes=limit)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert total > 7_500_000
    assert peak("parts", 600_000) < 1_500_000
    assert peak("whole", 10**9) > total  # what is measured is what it says


# ---- the files beside the weights ----------------------------------------------------------------------------------


def test_the_tokenizer_of_a_scratch_model_and_its_ids_are_loaded_by_name(reference, tmp_path):
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    out = written(reference()[1], tmp_path / "out", eos=(2, 7))
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer("w3 w44")["input_ids"] == WORDS("w3 w44")["input_ids"] == [1, 6, 47]
    assert tokenizer.decode([6, 47]) == "w3 w44"
    for found in (AutoConfig.from_pretrained(out), GenerationConfig.from_pretrained(out)):
        assert (found.bos_token_id, found.eos_token_id, found.pad_token_id) == (1, [2, 7], 0)
    assert eos_ids(out, load_tokenizer(out)) == (2, 7)
    # the name that transformers 4 and other programs know
    settings = json.loads((out / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_the_files_of_the_directory_that_a_model_came_from_are_taken_over(reference, tmp_path):
    _, folder = reference()
    source = tmp_path / "source"
    written(folder, source)
    (source / "chat_template.jinja").write_text("{{ messages[0].content }} w1")
    generation = {"temperature": 0.7, "top_p": 0.8, "do_sample": True, "eos_token_id": [2, 9]}
    (source / "generation_config.json").write_text(json.dumps(generation))
    settings = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(
        json.dumps({**settings, "tokenizer_class": "Qwen2TokenizerFast"})
    )
    tokenizer = load_tokenizer(source)
    decoder, config = load(source)
    out = tmp_path / "out"
    params = nnx.split(decoder)[1]
    export(params, config, tokenizer, out, eos=eos_ids(source, tokenizer), source=source)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    assert json.loads((out / "generation_config.json").read_text()) == {
        **generation,
        "bos_token_id": 1,
        "pad_token_id": 0,
    }
    assert render(load_tokenizer(out), [{"role": "user", "content": "w2"}]) == [5, 4]


# ---- whole or not at all -------------------------------------------------------------------------------------------


def test_a_directory_that_holds_something_is_refused_and_left_alone(reference, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("x")
    with pytest.raises(ValueError) as error:
        written(reference()[1], out)
    assert str(error.value) == f"{out} exists and is not empty: name a new directory for the model."
    assert [p.name for p in tmp_path.rglob("*")] == ["out", "mine"]
    (out / "mine").unlink()
    written(reference()[1], out)  # an empty one will do
    assert (out / "model.safetensors").is_file()


def test_what_cannot_be_finished_leaves_nothing(reference, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(type(WORDS), "save_pretrained", full)
    with pytest.raises(OSError, match="no space left"):
        written(reference()[1], tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_files_are_filled_in_order_and_never_beyond_their_limit_but_for_one_tensor():
    random = np.random.default_rng(0)
    for _ in range(50):
        sizes = {f"t{i}": int(n) for i, n in enumerate(random.integers(1, 30, 12))}
        limit = int(random.integers(5, 60))
        parts = shards(sizes, limit)
        assert [name for part in parts for name in part] == list(sizes)
        held = [sum(sizes[name] for name in part) for part in parts]
        assert all(n <= limit or len(part) == 1 for n, part in zip(held, parts, strict=True))
        following = [sizes[part[0]] for part in parts[1:]]
        assert all(n + more > limit for n, more in zip(held, following, strict=False))  # none too early


def test_sizes_are_read_with_their_units():
    found = [size_in_bytes(text) for text in ("5GB", "200 MB", "1.5kb", "12", "1TB")]
    assert found == [5 * 10**9, 2 * 10**8, 1500, 12, 10**12]
    for wrong in ("5 potatoes", "", "-1GB", "0MB"):
        with pytest.raises(ValueError) as error:
            size_in_bytes(wrong)
        assert str(error.value) == (
            f"{wrong!r} is no size of a file: give a number with KB, MB or GB, such as 5GB."
        )


# ---- a real model --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_smollm2_from_gguf_is_a_directory_with_the_same_tokens_and_weights(smollm2, tmp_path):
    from transformers import AutoTokenizer

    decoder, config = load(smollm2)
    tokenizer = load_tokenizer(smollm2)
    eos = eos_ids(smollm2, tokenizer)
    params = nnx.split(decoder)[1]
    export(params, config, tokenizer, tmp_path / "out", eos=eos, source=smollm2, max_shard_bytes=10**8)
    again, found = load(tmp_path / "out")
    assert found == config
    chex.assert_trees_all_equal(nnx.split(again)[1], params)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    chat = [{"role": "user", "content": "What is 12 + 30? Antworte auf Deutsch: é, 漢字."}]
    text = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert theirs(text, add_special_tokens=False)["input_ids"] == render(tokenizer, chat)
    assert eos_ids(tmp_path / "out", load_tokenizer(tmp_path / "out")) == eos
    model = transformer(tmp_path / "out")
    want = {name: np.asarray(x) for name, x in nnx.to_pure_dict(params).items() if name != "layers"}
    got = model.state_dict()
    np.testing.assert_array_equal(got["model.embed_tokens.weight"].numpy(), want["embedding"])
    np.testing.assert_array_equal(got["lm_head.weight"].numpy(), want["embedding"])
