"""Tokenizers: whole words, directories and GGUF files give the reference's ids, BOS once, and every EOS."""

import gzip
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from rlvr_jax.models.tokenizer import eos_ids, load_tokenizer, render, word_tokenizer

CHATS = [
    [{"role": "user", "content": "What is 17 + 25? Answer with a number."}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name 3 colours,\n\n  please…"}],
    [{"role": "user", "content": "héllo — 漢字 🙂 <b>x</b>\t12,345.60"}],
    [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Hello! What's up?"},
        {"role": "user", "content": "I'll say <|im_end|> twice <|im_end|>"},
    ],
]


def test_words_become_single_ids_after_one_bos():
    tokenizer = word_tokenizer(["wall", "path", "."])
    assert len(tokenizer) == 6
    assert render(tokenizer, "wall  path\n. wall") == [1, 3, 4, 5, 3]
    assert render(tokenizer, "<bos> path") == render(tokenizer, "path") == [1, 4]
    assert render(tokenizer, "") == [1]
    assert tokenizer.decode([3, 4, 5, 2], skip_special_tokens=True) == "wall path ."
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)


@pytest.mark.parametrize("words", [["a", "a"], ["<eos>"], ["two words"], [""]])
def test_impossible_vocabularies_are_refused(words):
    with pytest.raises(ValueError) as error:
        word_tokenizer(words)
    assert str(error.value) == (
        f"{words[-1]!r} cannot be a word of the vocabulary; words are unique, without white space, "
        "and none of <pad>, <bos>, <eos>."
    )


def test_a_word_outside_the_vocabulary_is_an_error():
    with pytest.raises(
        ValueError, match=r"^'wall door' cannot be tokenised: is every word in the vocabulary\? \("
    ):
        render(word_tokenizer(["wall"]), "wall door")


def test_a_word_tokenizer_survives_saving(tmp_path):
    tokenizer = word_tokenizer(["wall", "path"])
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert render(loaded, "path wall") == render(tokenizer, "path wall")
    assert loaded.decode([4, 3]) == "path wall"
    assert eos_ids(tmp_path, loaded) == (2,)


def test_chat_needs_a_template_and_a_prompt_needs_tokens(smollm2):
    with pytest.raises(ValueError) as error:
        render(word_tokenizer(["hi"]), [{"role": "user", "content": "hi"}])
    assert (
        str(error.value)
        == "the prompt is chat messages but the tokenizer has no chat template; use raw text."
    )
    with pytest.raises(ValueError) as error:
        render(load_tokenizer(smollm2), "")
    assert str(error.value) == "the prompt '' has no tokens; a response needs at least one to follow."


def test_a_directory_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        load_tokenizer(tmp_path)
    assert str(error.value) == (
        f"{tmp_path} has no tokenizer.json; save one there with `save_pretrained` of the model's tokenizer."
    )


@pytest.mark.parametrize(
    ("generation", "config", "want"), [(2, None, (2,)), ([5, 4], 3, (2, 3, 4, 5)), (None, [4, 2], (2, 4))]
)
def test_eos_ids_are_collected_from_every_file(tmp_path, generation, config, want):
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": config}))
    assert eos_ids(tmp_path, word_tokenizer(["a", "b", "c"])) == want


def test_a_model_that_cannot_end_is_refused():
    tokenizer = word_tokenizer(["a"])
    tokenizer.eos_token = None
    with pytest.raises(ValueError) as error:
        eos_ids(None, tokenizer)
    assert str(error.value) == (
        "neither the tokenizer nor the model's files name an EOS token; a response could never end."
    )


# ---- SmolLM2, whose reference tokenizer is built by transformers and torch


@pytest.fixture(scope="module")
def smol(smollm2):
    return load_tokenizer(smollm2)


@pytest.mark.slow
def test_smollm2_chats_and_texts_have_the_ids_of_the_reference(smollm2, smol):
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    for chat in CHATS:
        want = reference.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert render(smol, chat) == want
        text = chat[-1]["content"]
        assert render(smol, text) == reference(text)["input_ids"]
        assert smol.decode(want) == reference.decode(want)
    assert smol.chat_template == reference.chat_template


def test_smollm2_pads_with_its_eos_and_adds_no_bos(smollm2, smol):
    assert (smol.pad_token_id, smol.eos_token_id) == (2, 2)
    assert eos_ids(smollm2, smol) == (2,)
    assert smol.decode(render(smol, "Tom has 3 apples.")) == "Tom has 3 apples."
    assert render(smol, CHATS[0])[0] == smol.convert_tokens_to_ids("<|im_start|>")


def test_a_gguf_tokenizer_needs_no_torch(smollm2):
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from rlvr_jax.models.tokenizer import load_tokenizer, render\n"
        "print(render(load_tokenizer(sys.argv[1]), [{'role': 'user', 'content': 'hi'}])[-3:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(smollm2)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[520, 9531, 198]"  # assistant, newline


# ---- Other families, from their published vocabularies


def family(shared: pathlib.Path, name: str):
    """Vocabulary, merges and the reference tokenizer that transformers makes of them."""
    from transformers import GPT2Tokenizer, Qwen2Tokenizer

    def text(stem):
        packed = shared / "data" / "tokenizers" / name / f"{stem}.gz"
        return (
            gzip.decompress(packed.read_bytes()).decode()
            if packed.is_file()
            else packed.with_suffix("").read_text()
        )

    vocab = json.loads(text("vocab.json"))
    merges = [
        tuple(line.split(" "))
        for line in text("merges.txt").splitlines()
        if line and not line.startswith("#v")
    ]
    if name == "gpt2":
        return (
            vocab,
            merges,
            GPT2Tokenizer(vocab, merges, bos_token="<|endoftext|>", eos_token="<|endoftext|>"),
        )
    settings = json.loads(
        (shared / "data" / "tokenizers" / name / "tokenizer_config.qwen2.5.json").read_text()
    )
    reference = Qwen2Tokenizer(vocab, merges)
    special = [token["content"] for token in settings["added_tokens_decoder"].values()]
    reference.add_special_tokens({"additional_special_tokens": special}, replace_extra_special_tokens=False)
    reference.eos_token, reference.chat_template = settings["eos_token"], settings["chat_template"]
    return vocab, merges, reference


def write_gguf(path, reference, vocab, merges, pre, **extra):
    import gguf

    tokens = [reference.convert_ids_to_tokens(i) for i in range(len(reference))]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i in reference.all_special_ids else 1 for i in range(len(tokens))])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_eos_token_id(reference.eos_token_id)
    if reference.chat_template:
        writer.add_chat_template(reference.chat_template)
    for key, value in extra.items():
        getattr(writer, f"add_{key}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pre"), [("gpt2", "gpt-2"), ("qwen2", "qwen2")])
def test_files_of_other_families_give_the_ids_of_the_reference(shared, tmp_path, name, pre):
    vocab, merges, reference = family(shared, name)
    write_gguf(tmp_path / "model.gguf", reference, vocab, merges, pre)
    (tmp_path / "directory").mkdir()
    reference.save_pretrained(tmp_path / "directory")
    for tokenizer in (load_tokenizer(tmp_path / "model.gguf"), load_tokenizer(tmp_path / "directory")):
        for chat in CHATS:
            text = chat[-1]["content"] + " e\u0301 it's 1234567"
            assert render(tokenizer, text) == reference(text)["input_ids"]
            if reference.chat_template:
                want = reference.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)[
                    "input_ids"
                ]
                assert render(tokenizer, chat) == want


def small_reference():
    """Bytes without merges, enough to write a file with."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import GPT2Tokenizer

    vocab = {token: i for i, token in enumerate([*sorted(ByteLevel.alphabet()), "<s>", "</s>", "<|eot|>"])}
    reference = GPT2Tokenizer(vocab, [], bos_token="<s>", eos_token="</s>", unk_token=None)
    reference.add_special_tokens({"additional_special_tokens": ["<|eot|>"]})
    return vocab, reference


def test_gguf_bos_is_added_once_and_every_eos_is_found(tmp_path):
    vocab, reference = small_reference()
    path, chat = tmp_path / "model.gguf", [{"role": "user", "content": "hi"}]
    reference.chat_template = "{{ bos_token }}{{ messages[0]['content'] }}<|eot|>"
    write_gguf(
        path, reference, vocab, [], "llama-bpe", bos_token_id=vocab["<s>"], eot_token_id=vocab["<|eot|>"]
    )
    tokenizer = load_tokenizer(path)
    letters = [vocab["h"], vocab["i"]]
    assert render(tokenizer, "hi") == render(tokenizer, "<s>hi") == [vocab["<s>"], *letters]
    assert render(tokenizer, chat) == [vocab["<s>"], *letters, vocab["<|eot|>"]]
    assert eos_ids(path, tokenizer) == (vocab["</s>"], vocab["<|eot|>"])


@pytest.mark.parametrize(("pre", "want"), [("llama-bpe", [3, 3, 1]), ("qwen2", [1] * 7), ("smollm", [1] * 7)])
def test_digits_are_cut_as_the_file_says(tmp_path, pre, want):
    vocab, reference = small_reference()
    write_gguf(tmp_path / "model.gguf", reference, vocab, [], pre)
    cut = load_tokenizer(tmp_path / "model.gguf").backend_tokenizer.pre_tokenizer.pre_tokenize_str("1234567")
    assert [len(piece) for piece, _ in cut] == want


def test_unsupported_gguf_tokenizers_are_refused(tmp_path):
    vocab, reference = small_reference()
    write_gguf(tmp_path / "a.gguf", reference, vocab, [], "tekken")
    with pytest.raises(ValueError) as error:
        load_tokenizer(tmp_path / "a.gguf")
    assert str(error.value) == (
        f"{tmp_path / 'a.gguf'} splits text by 'tekken'; known are gpt-2, smollm, llama-bpe, qwen2. "
        "Use the model's Hugging Face directory."
    )
    (tmp_path / "b.gguf").write_bytes(np.arange(64, dtype=np.uint8).tobytes())
    with pytest.raises(ValueError) as error:
        load_tokenizer(tmp_path / "b.gguf")
    assert str(error.value) == (
        f"{tmp_path / 'b.gguf'} cannot be read as GGUF (it does not begin with GGUF); is the file complete?"
    )
