"""The tokenizer in a GGUF file's metadata, byte-level BPE or SentencePiece's, built with `tokenizers` alone."""

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

_SPACE = "\u2581"

_ENDS_OF_TURNS = ("<end_of_turn>", "<|im_end|>", "<|eot_id|>")
"""Control tokens that end a turn, whether the file says so or not: many name the end of a text alone."""


def tokenizer_class() -> Any:
    """`transformers.PreTrainedTokenizerFast`, imported without its advice to install torch, which nothing here needs."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast


def gguf_tokenizer(file: GgufFile) -> Any:
    """A `PreTrainedTokenizerFast` with the file's vocabulary, merges, special tokens and chat template.

    Raises ValueError for another kind of tokenizer than byte-level BPE and SentencePiece's BPE, and for an unknown
    way of splitting text.
    """
    tokens = file.get("tokenizer.ggml.tokens")
    names = {
        f"{ours}_token": tokens[file.get(f"tokenizer.ggml.{theirs}_token_id")]
        for ours, theirs in {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}.items()
        if file.get(f"tokenizer.ggml.{theirs}_token_id") is not None
    }
    kind = file.get("tokenizer.ggml.model")
    if kind == "gpt2":
        backend, adds_bos = _byte_level(file, tokens)
    elif kind == "llama":
        backend, adds_bos = _sentencepiece(file, tokens, names.get("unk_token")), True
    else:
        raise ValueError(
            f"{file.path} holds a tokenizer of kind {kind!r}; byte-level BPE ('gpt2') and SentencePiece's ('llama') "
            "are read from GGUF. Use the model's Hugging Face directory."
        )
    _add_special_tokens(backend, file, tokens)
    bos = names.get("bos_token")
    if bos is not None and file.get("tokenizer.ggml.add_bos_token", adds_bos):
        from tokenizers import processors

        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokens.index(bos))]
        )
    tokenizer = tokenizer_class()(tokenizer_object=backend, clean_up_tokenization_spaces=False, **names)
    tokenizer.chat_template = file.get("tokenizer.chat_template")
    return tokenizer


def gguf_eos_ids(file: GgufFile) -> set[int | None]:
    """Ids that end a sequence, a turn or a message."""
    tokens, kinds = file.get("tokenizer.ggml.tokens", ()), file.get("tokenizer.ggml.token_type", ())
    turns = [i for i, kind in enumerate(kinds) if kind == _CONTROL and tokens[i] in _ENDS_OF_TURNS]
    return {*turns, *(file.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))}


def _byte_level(file: GgufFile, tokens: list[str]) -> tuple[Any, bool]:
    """The backend, and whether its texts start with BOS where the file does not say."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pre = file.get("tokenizer.ggml.pre", "gpt-2")
    if pre not in SPLITTINGS:
        raise ValueError(
            f"{file.path} splits text by {pre!r}; known are {', '.join(SPLITTINGS)}. "
            "Use the model's Hugging Face directory."
        )
    splitting, vocab = SPLITTINGS[pre], {token: i for i, token in enumerate(tokens)}
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
    return backend, splitting.adds_bos


def _sentencepiece(file: GgufFile, tokens: list[str], unknown: str | None) -> Any:
    """Spaces are written `\u2581`, and what is in no piece falls back to its bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # the file spells pieces of spaces alone with spaces
    tokens = [_SPACE * len(token) if token.strip(" ") == "" else token for token in tokens]
    vocab = {token: i for i, token in enumerate(tokens)}
    backend = Tokenizer(
        models.BPE(vocab, _merges(file, vocab), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = file.get("tokenizer.ggml.add_space_prefix", True)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        _SPACE, prepend_scheme="first" if prefix else "never", split=False
    )
    spelling: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(spelling + [decoders.Strip(" ", left=1)] * prefix)
    return backend


def _merges(file: GgufFile, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two others, the best piece first.

    SentencePiece merges the pair whose piece has the highest score (arXiv:1808.06226, section 3.1). Pieces that the
    file's author added are never cut, whatever their score, so they come before all others.
    """
    kinds, scores = file.get("tokenizer.ggml.token_type"), file.get("tokenizer.ggml.scores")
    order = sorted(vocab.items(), key=lambda item: (kinds[item[1]] != _USER_DEFINED, -scores[item[1]]))
    return [
        (piece[:cut], piece[cut:])
        for piece, _ in order
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in vocab and piece[cut:] in vocab
    ]


def _add_special_tokens(backend: Any, file: GgufFile, tokens: list[str]) -> None:
    from tokenizers import AddedToken

    kinds, known = file.get("tokenizer.ggml.token_type", []), backend.get_vocab()
    added = {
        kind: [
            AddedToken(t, normalized=False)
            for t, k in zip(tokens, kinds, strict=False)
            if k == kind and t in known
        ]
        for kind in (_CONTROL, _USER_DEFINED)
    }
    backend.add_special_tokens(added[_CONTROL])
    backend.add_tokens(added[_USER_DEFINED])
