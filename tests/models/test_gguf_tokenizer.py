"""SentencePiece vocabularies in GGUF files: the pieces of a greedy reference, and the ids that transformers gives."""

import random
import struct

import gguf
import pytest

from rlvr_jax.models.tokenizer import eos_ids, load_tokenizer, render

TEXTS = [
    "The capital of France is Paris. It lies on the river Seine, doesn't it?",
    "def add(a, b):\n    return a + b\n\n\nfor i in range(10):\n\tprint(i, add(i, i * i))  # ten lines\n",
    "Es war einmal ein König, der hatte drei Söhne; naïve façade, œuvre, žluťoučký kůň.",
    "東京は日本の首都です。北京是中国的首都。서울은 대한민국의 수도입니다. กรุงเทพ",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم नमस्ते दुनिया १२३",
    "🙂👩‍👩‍👧‍👦🇩🇪 emoji, e\u0301 combining, \u200b zero width, \ufffd \x00 \x7f",
    "12,345.60 + 7*8 = 12401.6; 3.14e-10 1234567890 x_1^2",
    "  leading", "trailing  ", "two  spaces   three    four", " ", "  ", "\n", "\n\n\n", "\t\t", "a\r\nb", "a \n b",
    "<b>bold</b> <table><tr><td>1</td></tr></table> <unused7> <start_of_turn>user\nhi<end_of_turn>",
    "\u2581a \u2581\u2581 b", "https://example.org/a?b=c&d=%20#e", "x" * 50 + "=" * 40, "",
]  # fmt: skip


# ---- a small vocabulary, and greedy merging written from the paper

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
LETTERS = "abcde\u2581"


def small_vocabulary(generator):
    """Specials, bytes, added pieces, and every single letter and some pairs of pairs under random scores."""
    pieces = set(LETTERS)
    while len(pieces) < 40:
        pieces.add("".join(generator.choices(LETTERS, k=generator.randint(2, 4))))
    scored = sorted(pieces)
    generator.shuffle(scored)
    rows = [
        ("<unk>", UNKNOWN, 0.0),
        ("<s>", CONTROL, 0.0),
        ("</s>", CONTROL, 0.0),
        ("<end_of_turn>", CONTROL, 0.0),
    ]
    rows += [("<tool>", USER_DEFINED, -1000.0)]
    rows += [(f"<0x{byte:02X}>", BYTE, 0.0) for byte in range(256)]
    return rows + [(piece, NORMAL, -float(rank)) for rank, piece in enumerate(scored)]


def write_tokenizer(path, rows, **extra):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([piece for piece, _, _ in rows])
    writer.add_token_types([kind for _, kind, _ in rows])
    writer.add_token_scores([score for _, _, score in rows])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for key, value in extra.items():
        getattr(writer, f"add_{key}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def greedy(text, rows):
    """Ids by merging, again and again, the neighbours that make the piece of the highest score; the rest as bytes."""
    ids = {piece: i for i, (piece, _, _) in enumerate(rows)}
    scores = {piece: score for piece, kind, score in rows if kind == NORMAL}
    parts = list(text.replace(" ", "\u2581"))
    while True:
        found = [(scores[a + b], -i) for i, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in scores]  # noqa: B905
        if not found:
            break
        at = -max(found)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    out = []
    for part in parts:
        out += [ids[part]] if part in ids else [ids[f"<0x{byte:02X}>"] for byte in part.encode()]
    return out


@pytest.mark.parametrize("prefix", [True, False])
def test_text_is_cut_into_the_pieces_of_greedy_merging(tmp_path, prefix):
    generator = random.Random(0)
    for round in range(5):
        rows, path = small_vocabulary(generator), tmp_path / f"{round}.gguf"
        write_tokenizer(path, rows, add_space_prefix=prefix)
        tokenizer = load_tokenizer(path)
        for _ in range(40):
            text = "".join(generator.choices("abcde zü🙂", k=generator.randint(1, 20)))
            want = greedy(" " + text if prefix and text[0] != " " else text, rows)
            assert tokenizer(text)["input_ids"] == [1, *want]
            got = tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)
            assert got == (text[1:] if prefix and text[0] == " " else text)


def test_specials_are_whole_bos_comes_once_and_every_end_is_found(tmp_path):
    rows = small_vocabulary(random.Random(1))
    write_tokenizer(tmp_path / "a.gguf", rows, add_space_prefix=False)
    tokenizer, ids = load_tokenizer(tmp_path / "a.gguf"), {piece: i for i, (piece, _, _) in enumerate(rows)}
    assert render(tokenizer, "<tool></s>") == render(tokenizer, "<s><tool></s>") == [1, ids["<tool>"], 2]
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0]['content'] }}<end_of_turn>"
    chat = [{"role": "user", "content": "<tool>"}]
    assert render(tokenizer, chat) == [1, ids["<tool>"], ids["<end_of_turn>"]]
    # the file names </s> alone, and a turn ends elsewhere
    assert eos_ids(tmp_path / "a.gguf", tokenizer) == (2, ids["<end_of_turn>"])
    assert (tokenizer.unk_token_id, tokenizer.pad_token_id) == (0, None)
    write_tokenizer(tmp_path / "b.gguf", rows, add_bos_token=False)
    assert 1 not in render(load_tokenizer(tmp_path / "b.gguf"), "<tool>")


def test_a_piece_of_an_unknown_kind_of_tokenizer_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "t5")
    writer.add_tokenizer_model("t5")
    writer.add_token_list(["a"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError) as error:
        load_tokenizer(tmp_path / "a.gguf")
    assert str(error.value) == (
        f"{tmp_path / 'a.gguf'} holds a tokenizer of kind 't5'; byte-level BPE ('gpt2') and SentencePiece's "
        "('llama') are read from GGUF. Use the model's Hugging Face directory."
    )


# ---- real vocabularies, whose reference is what transformers builds from the same file

GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
"""The form of Gemma's turns; the file is of the model before its training for chats and has none."""

CHATS = [
    [{"role": "user", "content": "What is 17 + 25?  Answer with a number. "}],
    [
        {"role": "user", "content": "hi 🙂"},
        {"role": "assistant", "content": "Hello!\n\nWhat's up?"},
        {"role": "user", "content": "Say <end_of_turn> twice"},
    ],
]


def reference_tokenizer(path):
    from transformers.integrations.gguf.gguf_tokenizer_mapping import (
        convert_gguf_tokenizer,
        get_gguf_tokenizer,
    )

    architecture, tokenizer, _ = get_gguf_tokenizer(str(path))
    return convert_gguf_tokenizer(architecture, tokenizer)[0]


@pytest.mark.slow
def test_gemma3_texts_and_chats_have_the_ids_of_transformers(gemma3):
    ours, reference = load_tokenizer(gemma3), reference_tokenizer(gemma3)
    bos, eos, end_of_turn = 2, 1, 106
    for text in TEXTS:
        want = reference.encode(text, add_special_tokens=False).ids
        assert render(ours, text) == [bos, *want]
        assert ours.decode(want) == reference.decode(want, skip_special_tokens=False)
    ours.chat_template = GEMMA_TEMPLATE
    for chat in CHATS:
        text = ours.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert text.startswith("<bos><start_of_turn>user\n") and text.endswith("<start_of_turn>model\n")
        got = render(ours, chat)
        assert got == reference.encode(text, add_special_tokens=False).ids
        assert got.count(bos) == 1 and got.count(end_of_turn) >= len(chat)
    assert eos_ids(gemma3, ours) == (eos, end_of_turn)
    assert (ours.pad_token_id, ours.bos_token_id, ours.eos_token_id) == (0, bos, eos)


def sentencepiece_rows(path):
    """Piece, kind and score of each entry of a SentencePiece model file (a protocol buffer)."""
    data, at, rows = path.read_bytes(), 0, []

    def varint(data, at):
        value = shift = 0
        while True:
            byte, at = data[at], at + 1
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value, at

    while at < len(data):
        tag, at = varint(data, at)
        assert tag & 7 == 2  # every field of a model is a message
        length, at = varint(data, at)
        if tag >> 3 == 1:
            entry, place, row = data[at : at + length], 0, {3: NORMAL}
            while place < length:
                tag, place = varint(entry, place)
                if tag & 7 == 5:
                    row[tag >> 3], place = struct.unpack_from("<f", entry, place)[0], place + 4
                else:
                    value, place = varint(entry, place)
                    if tag & 7 == 2:
                        value, place = entry[place : place + value].decode(), place + value
                    row[tag >> 3] = value
            rows.append((row[1], row[3], row[2]))
        at += length
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"])
def test_mistral_texts_have_the_ids_of_transformers(shared, tmp_path, name):
    rows = sentencepiece_rows(shared / "data" / "tokenizers" / "mistral" / name)
    assert len(rows) in (32000, 32768)
    write_tokenizer(tmp_path / "model.gguf", rows)
    ours, reference = load_tokenizer(tmp_path / "model.gguf"), reference_tokenizer(tmp_path / "model.gguf")
    for text in TEXTS:
        want = reference.encode(text, add_special_tokens=False).ids
        assert render(ours, text) == [1, *want]
        assert ours.decode(want) == reference.decode(want, skip_special_tokens=False)
