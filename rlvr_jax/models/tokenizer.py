"""Tokenizers: from a model's own files, or of whole words for a model from scratch; and prompts as token ids."""

import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from rlvr_jax.models.gguf_file import is_gguf, open_gguf
from rlvr_jax.models.gguf_tokenizer import gguf_eos_ids, gguf_tokenizer, tokenizer_class

Tokenizer: TypeAlias = Any
"""A `transformers.PreTrainedTokenizerFast`, a package that is imported where it is used."""

Prompt: TypeAlias = str | Sequence[dict[str, str]]
"""Raw text, or chat messages with `role` and `content`."""

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"


def load_tokenizer(path: str | pathlib.Path) -> Tokenizer:
    """The tokenizer in a Hugging Face directory (`tokenizer.json`) or in the metadata of a `.gguf` file.

    Raises FileNotFoundError where there is none, ValueError for a kind that is not supported.
    """
    path = pathlib.Path(path)
    if is_gguf(path):
        return gguf_tokenizer(open_gguf(path))
    if not (path / "tokenizer.json").is_file():
        raise FileNotFoundError(
            f"{path} has no tokenizer.json; save one there with `save_pretrained` of the model's tokenizer."
        )
    return tokenizer_class().from_pretrained(path, local_files_only=True)


def word_tokenizer(words: Iterable[str]) -> Tokenizer:
    """One token for each word, split at white space; ids 0, 1, 2 are <pad>, <bos>, <eos>, then the words in order.

    Text gets a <bos>. A word that is not in the vocabulary is an error when it is met.

    Raises ValueError for a word that is repeated, reserved, empty, or holds white space.
    """
    words = tuple(words)
    known = {PAD, BOS, EOS}
    for word in words:
        if word in known or word.split() != [word]:
            raise ValueError(
                f"{word!r} cannot be a word of the vocabulary; words are unique, without white space, "
                f"and none of {PAD}, {BOS}, {EOS}."
            )
        known.add(word)
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, processors

    vocab = {word: i for i, word in enumerate((PAD, BOS, EOS, *words))}
    backend = Backend(
        models.WordLevel(vocab, unk_token="<unknown>")
    )  # not in the vocabulary: unknown words raise
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, vocab[BOS])]
    )
    return tokenizer_class()(
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
    )


def eos_ids(path: str | pathlib.Path | None, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Every id that ends a response, ascending: the tokenizer's and those of the model's files (`None`: no files).

    A directory names them in generation_config.json and config.json, a GGUF file in its metadata; each may hold one
    or several. Raises ValueError where there is none at all.
    """
    found = {tokenizer.eos_token_id}
    if path is not None:
        path = pathlib.Path(path)
        found.update(gguf_eos_ids(open_gguf(path)) if is_gguf(path) else _directory_eos_ids(path))
    found.discard(None)
    if not found:
        raise ValueError(
            "neither the tokenizer nor the model's files name an EOS token; a response could never end."
        )
    return tuple(sorted(found))


def _directory_eos_ids(path: pathlib.Path) -> set[int | None]:
    found: set[int | None] = set()
    for name in ("generation_config.json", "config.json"):
        if (path / name).is_file():
            value = json.loads((path / name).read_text()).get("eos_token_id")
            found.update(value if isinstance(value, list) else [value])
    return found


def render(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """Token ids of a prompt, with exactly one BOS at the start where the model wants one.

    Messages go through the chat template, opened for the assistant's answer; the template alone decides about BOS.
    Raw text gets BOS if the tokenizer would add one, and never an EOS.

    Raises ValueError for messages without a chat template, for a prompt of no tokens, and for a word outside a
    vocabulary of whole words.
    """
    if isinstance(prompt, str):
        ids = _encode(tokenizer, prompt)
        bos = tokenizer.bos_token_id
        if bos is not None and tokenizer("")["input_ids"][:1] == [bos]:
            ids = [bos, *ids]
    else:
        if not tokenizer.chat_template:
            raise ValueError(
                "the prompt is chat messages but the tokenizer has no chat template; use raw text."
            )
        text = tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True)
        ids = _encode(tokenizer, text)
    if not ids:
        raise ValueError(f"the prompt {prompt!r} has no tokens; a response needs at least one to follow.")
    return _single_bos(ids, tokenizer.bos_token_id)


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    try:
        return tokenizer(text, add_special_tokens=False)["input_ids"]
    except Exception as error:  # the backend raises nothing more specific
        raise ValueError(
            f"{text!r} cannot be tokenised: is every word in the vocabulary? ({error})"
        ) from error


def _single_bos(ids: list[int], bos: int | None) -> list[int]:
    """Text that spells BOS itself does not start with two."""
    while bos is not None and ids[:2] == [bos, bos]:
        ids = ids[1:]
    return ids
