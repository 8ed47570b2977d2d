"""Sampling: one jitted loop that prefills each prompt once and decodes its G responses from it.

The forward is the scorer's (`models.decoder`), so the stored log-probabilities are what the trainer computes. The
noise of a token is a function of (seed, step, prompt id, sample, position) and of nothing else: the same seed gives
the same tokens in any batch, in any order, on any number of devices.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from rlvr_jax.models.decoder import Cache
from rlvr_jax.sharding import constrain
from rlvr_jax.stats import dense_stats, logits_of
from rlvr_jax.types import Stat, pytree


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    The policy is softmax(logits / temperature) over the *whole* vocabulary, and the stored log-probability is that
    policy's, also where `top_k` or `top_p` let only a part of it be drawn: what the scorer computes, and what a
    ratio of 1 compares with. With such a cut the samples are not quite the policy's own (`is_on_policy`).
    """

    temperature: float = 1.0
    """>= 0. At 0 the most likely token is taken, and log-probabilities are those at temperature 1."""
    top_k: int = 0
    """Draw among the k most likely tokens; 0 or less: among all."""
    top_p: float = 1.0
    """Draw from the smallest set of most likely tokens (of those `top_k` left, renormalised) with this mass; in (0, 1]."""
    max_new_tokens: int = 128
    """Response tokens at the most, the stop token included."""

    def __post_init__(self):
        if not self.temperature >= 0:
            raise ValueError(f"sampling.temperature is >= 0 (0: greedy), got {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"sampling.top_p is a probability mass in (0, 1], got {self.top_p}.")
        if self.max_new_tokens < 1:
            raise ValueError(f"sampling.max_new_tokens is 1 or more, got {self.max_new_tokens}.")

    @property
    def score_temperature(self) -> float:
        """The temperature at which log-probabilities are taken, by sampler and scorer alike."""
        return self.temperature or 1.0

    @property
    def is_on_policy(self) -> bool:
        """Whether the samples are draws of the policy whose log-probabilities are stored."""
        return self.temperature > 0 and self.top_k <= 0 and self.top_p == 1


@pytree
class Samples:
    """Sampled responses, rows of a prompt consecutive. Beyond `length` everything is 0."""

    tokens: Int[Array, "B T"]
    length: Int[Array, " B"]
    truncated: Bool[Array, " B"]
    logprob: Float[Array, "B T"]
    entropy: Float[Array, "B T"]

    @property
    def mask(self) -> Float[Array, "B T"]:
        """1 on the sampled tokens, the stop token included."""
        return (jnp.arange(self.tokens.shape[1])[None] < self.length[:, None]).astype(jnp.float32)


Sampler = Callable[..., Samples]
"""(params, prompt [P, S], prompt_length [P], prompt_id [P], first_sample [P], seed, step) -> Samples, B = P * G rows."""


def row_keys(
    seed: Int[Array, ""] | int,
    step: Int[Array, ""] | int,
    prompt_id: Int[Array, " B"],
    sample: Int[Array, " B"],
) -> Key[Array, " B"]:
    """One key for each response, a function of its identity."""
    base = jax.random.fold_in(jax.random.key(seed), step)
    return jax.vmap(lambda p, s: jax.random.fold_in(jax.random.fold_in(base, p), s))(prompt_id, sample)


def draw(
    logits: Float[Array, "B V"], keys: Key[Array, " B"], position: Int[Array, ""], sampling: Sampling
) -> Int[Array, " B"]:
    """One token for each row: the argmax of tempered logits plus Gumbel noise, among what the cuts leave."""
    if sampling.temperature == 0:
        return jnp.argmax(logits, axis=-1)
    z = keep_likely(logits / sampling.temperature, sampling.top_k, sampling.top_p)
    noise = jax.vmap(
        lambda key: jax.random.gumbel(jax.random.fold_in(key, position), z.shape[-1:], jnp.float32)
    )(keys)
    return jnp.argmax(z + constrain(noise, "batch", "vocab"), axis=-1)


def keep_likely(z: Float[Array, "B V"], top_k: int, top_p: float) -> Float[Array, "B V"]:
    """-inf outside the `top_k` most likely tokens, then outside the nucleus of mass `top_p` of the rest.

    The nucleus holds every token before which less than `top_p` has been collected, so at least one.
    Source: top-p, arXiv:1904.09751, section 3.1. Equal logits at the edge are all kept.
    """
    vocab = z.shape[-1]
    cut_k = 0 < top_k < vocab
    if not cut_k and top_p == 1:
        return z
    ordered = jax.lax.top_k(z, top_k if cut_k else vocab)[0]
    if top_p < 1:
        p = jax.nn.softmax(ordered, axis=-1)
        inside = jnp.cumsum(p, axis=-1) - p < top_p
        ordered = jnp.where(inside, ordered, jnp.inf)
    return jnp.where(z >= ordered.min(-1, keepdims=True), z, -jnp.inf)


@pytree
class _Loop:
    """What the decode loop carries: T columns of results, and where each row stands."""

    position: Int[Array, ""]
    token: Int[Array, " B"]
    done: Bool[Array, " B"]
    length: Int[Array, " B"]
    tokens: Int[Array, "B T"]
    logprob: Float[Array, "B T"]
    entropy: Float[Array, "B T"]
    cache: Cache


def make_sampler(graphdef: Any, sampling: Sampling, stop: tuple[int, ...], group_size: int) -> Sampler:
    """The pure function that samples; jit it (params and seed, step are traced, shapes are static).

    `stop` holds every id that ends a response. `first_sample` is the index of the first of a prompt's G samples: 0,
    or G times the number of times that the prompt stands earlier in the batch.
    """
    if not stop:
        raise ValueError(
            "the model names no stop token: set eos_token_id in its generation_config.json or tokenizer."
        )

    def sample(params, prompt, prompt_length, prompt_id, first_sample, seed, step) -> Samples:
        model = nnx.merge(graphdef, params)
        head = model.head()
        rows, limit = prompt.shape[0] * group_size, sampling.max_new_tokens
        repeat = lambda x: jnp.repeat(x, group_size, total_repeat_length=rows)  # noqa: E731
        index = repeat(first_sample) + jnp.arange(rows) % group_size
        keys = row_keys(seed, step, repeat(prompt_id), index)
        prefix = model.prefill(prompt[:, :-1], prompt_length - 1)
        last = jnp.take_along_axis(prompt, prompt_length[:, None] - 1, axis=1)[:, 0]

        def body(s: _Loop) -> _Loop:
            hidden, cache = model.step(s.token, prefix, s.cache, s.position)
            logits = constrain(logits_of(hidden, head, softcap=model.config.softcap), "batch", "vocab")
            token = draw(logits, keys, s.position, sampling).astype(jnp.int32)
            found = dense_stats(
                logits, token, {Stat.LOGPROB, Stat.ENTROPY}, temperature=sampling.score_temperature
            )

            def put(column: Array, value: Array) -> Array:
                return column.at[:, s.position].set(jnp.where(s.done, 0, value))

            return _Loop(
                position=s.position + 1,
                token=token,
                done=s.done | jnp.isin(token, jnp.asarray(stop)),
                length=s.length + ~s.done,
                tokens=put(s.tokens, token),
                logprob=put(s.logprob, found[Stat.LOGPROB]),
                entropy=put(s.entropy, found[Stat.ENTROPY]),
                cache=cache,
            )

        none = constrain(jnp.zeros(rows, jnp.int32), "batch")
        table = constrain(jnp.zeros((rows, limit)), "batch", None)
        start = _Loop(
            position=jnp.asarray(0),
            token=constrain(repeat(last), "batch"),
            done=none > 0,
            length=none,
            tokens=table.astype(jnp.int32),
            logprob=table,
            entropy=table,
            cache=model.init_cache(rows, limit),
        )
        # As long as a row is at work and there is room.
        end = jax.lax.while_loop(lambda s: (s.position < limit) & ~s.done.all(), body, start)
        return Samples(
            tokens=end.tokens,
            length=end.length,
            truncated=~end.done,
            logprob=end.logprob,
            entropy=end.entropy,
        )

    return sample
