"""How much the answers to one prompt differ: distinct n-grams, Self-BLEU, and the variance of sampled tokens."""

import functools
from collections.abc import Hashable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def distinct_n(token_lists: Sequence[Sequence[Hashable]], n: int) -> float:
    """Different n-grams over all n-grams of the answers to one prompt, pooled; in (0, 1], high where they differ.

    It falls as answers become longer or more, so compare equal numbers of them. Not a number where no answer has n tokens.

    Raises: ValueError for n below 1.
    Source: Li et al., arXiv:1510.03055, over the answers of a prompt as in ReCo, whose tokenisation we do not know: ours
    are the model's tokens without special ones.
    """
    if n < 1:
        raise ValueError(f"distinct_n counts runs of n tokens: n is 1 or more, got {n}.")
    grams = [tuple(tokens[i : i + n]) for tokens in token_lists for i in range(len(tokens) - n + 1)]
    return len(set(grams)) / len(grams) if grams else float("nan")


def self_bleu(token_lists: Sequence[Sequence[int]]) -> float:
    """The mean BLEU-4 of each answer to one prompt against all others as references; in [0, 1], high where they are alike.

    Tokens are the words. Zero counts are smoothed to 0.1, and an answer of fewer than 4 tokens is scored by the n-grams
    that it has. Empty answers are left out; not a number where fewer than two are left.

    Source: Zhu et al., arXiv:1802.01886; BLEU is sacrebleu's. ReCo does not say its settings: these are ours.
    """
    from sacrebleu.metrics.bleu import BLEU

    texts = [" ".join(map(str, tokens)) for tokens in token_lists if len(tokens)]
    if len(texts) < 2:
        return float("nan")
    bleu = BLEU(tokenize="none", smooth_method="floor", smooth_value=0.1, effective_order=True)
    scores = [bleu.sentence_score(text, texts[:i] + texts[i + 1 :]).score for i, text in enumerate(texts)]
    return float(np.mean(scores)) / 100


def bernoulli_variance(
    logprob: Float[Array, "B T"] | Float[np.ndarray, "B T"],
    mask: Float[Array, "B T"] | Float[np.ndarray, "B T"],
    segments: int = 3,
) -> Float[Array, " segments"]:
    """p (1 - p) of the sampled tokens by position: the mean inside each segment of a response, then over responses.

    The t-th of n sampled tokens (those under `mask`) stands in segment floor(segments t / n). A response without a token
    in a segment does not count there; not a number where none has one. In [0, 1/4].

    Raises: ValueError for fewer than 1 segment.
    Source: ReCo reports it for the early and the middle part of responses; thirds are ours.
    """
    if segments < 1:
        raise ValueError(f"bernoulli_variance cuts a response into 1 segment or more, got {segments}.")
    inside = jnp.asarray(mask) > 0
    p = jnp.exp(jnp.where(inside, logprob, 0.0))
    place = jnp.cumsum(inside, axis=1) - 1
    segment = segments * place // jnp.maximum(inside.sum(1, keepdims=True), 1)
    member = inside[..., None] & (segment[..., None] == jnp.arange(segments)[None, None])  # [B, T, segments]
    count = member.sum(1)
    mean = jnp.where(member, (p * (1 - p))[..., None], 0.0).sum(1) / jnp.maximum(count, 1)
    return jnp.where(count > 0, mean, 0.0).sum(0) / (count > 0).sum(0)


@functools.partial(jax.jit, static_argnames="segments")
def variance_by_response(
    logprob: Float[Array, "B T"], mask: Float[Array, "B T"], segments: int = 3
) -> Float[Array, "B segments"]:
    """`bernoulli_variance` of each response; not a number in segments without a token."""
    alone = lambda row, inside: bernoulli_variance(row[None], inside[None], segments)  # noqa: E731
    return jax.vmap(alone)(logprob, mask)
