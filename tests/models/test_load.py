"""Weights from safetensors and GGUF: the same numbers whatever the file, and every fault named at once."""

import dataclasses
import json
import shutil

import chex
import jax
import numpy as np
import pytest
from flax import nnx

from rlvr_jax.models.config import RopeScaling
from rlvr_jax.models.gguf_file import open_gguf
from rlvr_jax.models.gguf_weights import GgufWeights
from rlvr_jax.models.load import load, read_config
from rlvr_jax.models.safetensors_directory import INDEX, SafetensorsDirectory
from rlvr_jax.sharding import make_mesh, named

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def loaded(path, **kwargs):
    return nnx.to_pure_dict(nnx.split(load(path, **kwargs)[0])[1])


@pytest.fixture
def folder(reference, tmp_path):
    """A directory of a tied Llama model that a test may damage."""
    shutil.copytree(reference("llama", True)[1], tmp_path / "model")
    return tmp_path / "model"


def edit_weights(folder, edit):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def edit_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_every_parameter_is_the_tensor_of_the_file(reference):
    model, path = reference("qwen3", False)
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    got = loaded(path)
    np.testing.assert_array_equal(got["unembedding"], state[HEAD])
    q = state["model.layers.1.self_attn.q_proj.weight"]  # [heads * head_dim, dim]
    np.testing.assert_array_equal(got["layers"]["q"][1, :, 2, 3], q[2 * 8 + 3])
    o = state["model.layers.0.self_attn.o_proj.weight"]  # [dim, heads * head_dim]
    np.testing.assert_array_equal(got["layers"]["o"][0, 2, 3], o[:, 2 * 8 + 3])
    np.testing.assert_array_equal(got["layers"]["k_norm"][1], state["model.layers.1.self_attn.k_norm.weight"])
    assert sum(x.size for x in jax.tree.leaves(got)) == sum(x.size for x in state.values())


def test_several_files_behind_an_index_equal_one(reference, tmp_path):
    model, path = reference("qwen2", False)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    chex.assert_trees_all_equal(loaded(tmp_path), loaded(path))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_files_load_as_float32(folder, precision):
    whole = loaded(folder)
    dtype = jax.numpy.dtype(precision)
    edit_weights(folder, lambda tensors: tensors.update({k: v.astype(dtype) for k, v in tensors.items()}))
    got = loaded(folder)
    chex.assert_trees_all_equal(got, jax.tree.map(lambda x: x.astype(dtype).astype(np.float32), whole))


def test_a_tied_file_may_repeat_its_embedding_as_head(folder):
    want = loaded(folder)
    edit_weights(folder, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].copy()}))
    chex.assert_trees_all_equal(loaded(folder), want)
    edit_weights(folder, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING] + 1}))
    with pytest.raises(ValueError) as error:
        load(folder)
    assert str(error.value) == (
        f"{folder} ties its embeddings but {HEAD} differs from {EMBEDDING}; "
        "set tie_word_embeddings to false in config.json."
    )
    edit_config(folder, tie_word_embeddings=False)
    np.testing.assert_array_equal(loaded(folder)["unembedding"], want["embedding"] + 1)


def test_an_untied_model_needs_its_head(folder):
    edit_config(folder, tie_word_embeddings=False)
    with pytest.raises(ValueError) as error:
        load(folder)
    assert str(error.value) == (
        f"the tensors in {folder} do not match its configuration: missing lm_head.weight."
    )


def test_every_wrong_tensor_is_listed(folder):
    def damage(tensors):
        del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(32, np.float32)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(4, np.float32)
        tensors["model.layers.0.mlp.down_proj.weight"] = np.zeros((24, 39), np.float32)

    edit_weights(folder, damage)
    with pytest.raises(ValueError) as error:
        load(folder)
    assert str(error.value) == (
        f"the tensors in {folder} do not match its configuration: missing model.norm.weight; "
        "missing model.layers.1.mlp.up_proj.weight; unexpected model.layers.0.self_attn.q_proj.bias; "
        "model.layers.0.mlp.down_proj.weight has shape (24, 39) instead of (24, 40)."
    )


def test_a_directory_that_is_no_model_is_refused(folder, tmp_path):
    for file in folder.glob("*.safetensors"):
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(FileNotFoundError) as error:
        load(folder)
    assert str(error.value) == (
        f"{folder} has no weights: it needs model.safetensors or {INDEX} (other formats are not read)."
    )
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError) as error:
        load(folder)
    assert str(error.value) == f"{folder} has no config.json; give a Hugging Face directory or a .gguf file."
    with pytest.raises(FileNotFoundError) as error:
        load(tmp_path / "elsewhere")
    assert str(error.value) == (
        f"there is no model at {tmp_path / 'elsewhere'}; give a Hugging Face directory or a .gguf file."
    )


def test_damaged_and_quantised_files_are_refused(folder):
    edit_weights(folder, lambda tensors: tensors.update({"model.norm.weight": np.ones(24, np.int8)}))
    with pytest.raises(ValueError) as error:
        load(folder)
    assert str(error.value) == (
        f"{folder} has quantised tensors, which are not decoded: model.norm.weight (I8)."
    )
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError) as error:
        load(folder)
    assert str(error.value).startswith(f"{file} cannot be read as safetensors (")
    assert str(error.value).endswith("); is it complete?")
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is not JSON \(.*\); is the file complete\?$"):
        load(folder)


def test_every_file_that_the_index_misses_is_listed(folder):
    names = {"a": "one.safetensors", "b": "two.safetensors", "c": "model.safetensors"}
    (folder / INDEX).write_text(json.dumps({"weight_map": names}))
    with pytest.raises(FileNotFoundError) as error:
        load(folder)
    assert str(error.value) == (
        f"{folder / INDEX} lists files that are not there: one.safetensors, two.safetensors."
    )


def test_an_unsupported_model_is_refused_before_its_weights_are_opened(folder):
    (folder / "model.safetensors").unlink()
    edit_config(folder, model_type="mamba")
    with pytest.raises(
        ValueError, match=r"^model_type 'mamba' is not supported; it must be one of llama, mistral, "
    ):
        load(folder)


def test_weights_go_to_their_shards(reference):
    path = reference("qwen2", False)[1]
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    got = loaded(path, mesh=mesh)
    assert got["layers"]["q"].sharding == named(mesh, ("layers", "embed", "heads", "head_dim"))
    assert got["layers"]["q"].addressable_shards[0].data.shape == (2, 12, 2, 8)
    chex.assert_trees_all_equal(jax.device_get(got), jax.device_get(loaded(path)))


def test_a_tensor_is_read_once_and_only_in_the_parts_that_devices_keep(reference, monkeypatch):
    read, parts = SafetensorsDirectory.read, {}

    def recorded(self, name, index):
        values = read(self, name, index)
        parts.setdefault(name, []).append(values.shape)
        return values

    monkeypatch.setattr(SafetensorsDirectory, "read", recorded)
    load(reference("qwen2", False)[1], mesh=make_mesh(data=2, fsdp=2, tensor=2))
    prefix = "model.layers.1."  # 4 heads of 8, two key heads, width 24, 40 in the MLP, 48 words
    assert parts[f"{prefix}self_attn.q_proj.weight"] == [(16, 12)] * 4
    assert parts[f"{prefix}self_attn.k_proj.weight"] == [(8, 12)] * 4
    assert parts[f"{prefix}self_attn.o_proj.weight"] == [(12, 16)] * 4
    assert parts[f"{prefix}self_attn.q_proj.bias"] == [(16,)] * 2
    assert parts[f"{prefix}mlp.down_proj.weight"] == [(12, 20)] * 4
    assert parts[f"{prefix}input_layernorm.weight"] == [(24,)]
    assert parts[EMBEDDING] == parts[HEAD] == [(24, 12)] * 4


# ---- GGUF


def write_gguf(path, family, model, **extra):
    """A reference model in the layout of llama.cpp: other names, and Llama's rotary pairs side by side."""
    import gguf

    c, writer = model.config, gguf.GGUFWriter(path, family)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(c.head_dim)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    rope = c.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    writer.add_context_length(c.max_position_embeddings)
    for key, value in extra.items():
        getattr(writer, f"add_{key}")(value)
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.upper()], c.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        if name == HEAD and c.tie_word_embeddings:
            continue
        if family == "gemma3" and name.endswith("norm.weight"):
            values = values + 1
        if family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = values.shape[0] // c.head_dim
            values = np.stack(  # row 2i + j of a head is row i of its half j
                [values[h * 8 + j * 4 + i] for h in range(heads) for i in range(4) for j in range(2)]
            )
        writer.add_tensor(table.get_name(name, try_suffixes=(".weight", ".bias")), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(("family", "tied"), [("llama", True), ("qwen2", False), ("qwen3", True)])
def test_a_gguf_file_holds_the_model_of_the_directory(reference, tmp_path, family, tied):
    model, path = reference(family, tied)
    write_gguf(tmp_path / "model.gguf", family, model)
    chex.assert_trees_all_equal(loaded(tmp_path / "model.gguf"), loaded(path))
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    chex.assert_trees_all_equal(loaded(tmp_path / "model.gguf", mesh=mesh), loaded(path, mesh=mesh))
    got, want = read_config(tmp_path / "model.gguf"), read_config(path)
    assert got.norm_eps == pytest.approx(want.norm_eps, rel=1e-6)  # GGUF stores it in float32
    assert got.__dict__ | {"norm_eps": 0} == want.__dict__ | {"norm_eps": 0}


def test_a_gguf_file_of_gemma3_has_the_norms_windows_and_scales_of_the_directory(reference, tmp_path):
    import gguf

    model, path = reference("gemma3_softcap", True)
    extra = dict(rope_scaling_type=gguf.RopeScalingType.LINEAR, rope_scaling_factor=8.0)
    extra |= dict(sliding_window=4, final_logit_softcapping=2.0)
    write_gguf(tmp_path / "model.gguf", "gemma3", model, **extra)
    got, want = loaded(tmp_path / "model.gguf"), loaded(path)
    # (w + 1) - 1 of weights around 0.3 loses the digits of 1, up to |w| < 2: 2^-23
    chex.assert_trees_all_close(got, want, rtol=0, atol=1.2e-7)
    config, directory = read_config(tmp_path / "model.gguf"), read_config(path)
    assert config.rope_scaling == RopeScaling("linear", 8.0)
    # the reference's scale is no released model's: files leave it out, and it is that of the head
    assert config.attention_scale == config.head_dim**-0.5
    same = dict(norm_eps=1e-5, rope_scaling=None, attention_scale=1.0)
    assert dataclasses.replace(config, **same) == dataclasses.replace(directory, **same)


def test_the_largest_gemma3_scales_its_queries_by_the_width_per_head(tmp_path):
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "gemma3")
    for key, value in dict(block_count=62, embedding_length=5376, head_count=32, key_length=128).items():
        getattr(writer, f"add_{key}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    mapping = GgufWeights(open_gguf(tmp_path / "model.gguf")).mapping()
    assert mapping["query_pre_attn_scalar"] == 168  # as in the config.json of gemma-3-27b


def test_gguf_files_of_other_computations_are_refused(reference, tmp_path):
    import gguf

    model = reference("llama", True)[0]
    write_gguf(tmp_path / "a.gguf", "llama", model, rope_scaling_type=gguf.RopeScalingType.YARN)
    with pytest.raises(ValueError) as error:
        load(tmp_path / "a.gguf")
    assert str(error.value) == (
        "this llama model needs what the decoder does not compute: rope scaling of type 'yarn'. "
        "Choose a model without."
    )
    write_gguf(tmp_path / "b.gguf", "qwen2", model)
    with pytest.raises(ValueError, match="missing model.layers.0.self_attn.q_proj.bias; missing"):
        load(tmp_path / "b.gguf")
