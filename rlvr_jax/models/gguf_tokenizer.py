"""The byte-level BPE tokenizer in a GGUF file's metadata, built with `tokenizers` alone."""

import dataclasses
import os
from typing import Any

from rlvr_jax.models.gguf_file import GgufFile

_BEFORE_DIGITS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_AFTER_DIGITS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclasses.dataclass(frozen=True)
class Splitting:
    """How text is cut before BPE: a regular expression ("": GPT-2's), digits apart or not, NFC or not."""

    pattern: str = ""
    digits_apart: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


SPLITTINGS = {
    "gpt-2": Splitting(),
    "smollm": Splitting(digits_apart=True),
    "llama-bpe": Splitting(_BEFORE_DIGITS + r"\p{N}{1,3}" + _AFTER_DIGITS, ignore_merges=True, adds_bos=True),
    "qwen2": Splitting(_BEFORE_DIGITS + r"\p{N}" + _AFTER_DIGITS, nfc=True),
}
"""Values of `tokenizer.ggml.pre` that are supported."""

_CONTROL, _USER_DEFINED = 3, 4


def tokenizer_class() -> Any:
    """`transformers.PreTrainedTokenizerFast`, imported without its advice to install torch, which nothing here needs."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast


def gguf_tokenizer(file: GgufFile) -> Any:
    """A `PreTrainedTokenizerFast` with the file's vocabulary, merges, special tokens and chat template.

    Raises ValueError for another kind of tokenizer than byte-level BPE, and for an unknown way of splitting text.
    """
    kind, pre = file.get("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2":
        raise ValueError(
            f"{file.path} holds a tokenizer of kind {kind!r}; only byte-level BPE ('gpt2') is read from GGUF. "
            "Use the model's Hugging Face directory."
        )
    if pre not in SPLITTINGS:
        raise ValueError(
            f"{file.path} splits text by {pre!r}; known are {', '.join(SPLITTINGS)}. "
            "Use the model's Hugging Face directory."
        )

    tokens = file.get("tokenizer.ggml.tokens")
    names = {
        f"{ours}_token": tokens[file.get(f"tokenizer.ggml.{theirs}_token_id")]
        for ours, theirs in {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}.items()
        if file.get(f"tokenizer.ggml.{theirs}_token_id") is not None
    }
    backend = _backend(file, tokens, SPLITTINGS[pre], names.get("bos_token"))
    tokenizer = tokenizer_class()(tokenizer_object=backend, clean_up_tokenization_spaces=False, **names)
    tokenizer.chat_template = file.get("tokenizer.chat_template")
    return tokenizer


def gguf_eos_ids(file: GgufFile) -> set[int | None]:
    """Ids that end a sequence, a turn or a message."""
    return {file.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")}


def _backend(file: GgufFile, tokens: list[str], splitting: Splitting, bos: str | None) -> Any:
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )

    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ", 1)) for merge in file.get("tokenizer.ggml.merges", [])]
    backend = Tokenizer(models.BPE(vocab, merges, ignore_merges=splitting.ignore_merges))
    if splitting.nfc:
        backend.normalizer = normalizers.NFC()
    cuts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if splitting.digits_apart else []
    if splitting.pattern:
        cuts.append(pre_tokenizers.Split(Regex(splitting.pattern), "isolated"))
    cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splitting.pattern))
    backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    backend.decoder = decoders.ByteLevel()
    if bos is not None and file.get("tokenizer.ggml.add_bos_token", splitting.adds_bos):
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, vocab[bos])]
        )
    kinds = file.get("tokenizer.ggml.token_type", [])
    backend.add_special_tokens(
        [AddedToken(t, normalized=False) for t, k in zip(tokens, kinds, strict=False) if k == _CONTROL]
    )
    backend.add_tokens(
        [AddedToken(t, normalized=False) for t, k in zip(tokens, kinds, strict=False) if k == _USER_DEFINED]
    )
    return backend
