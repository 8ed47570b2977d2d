"""How a token is drawn: the parameters, the noise of each token, and the draw itself."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from rlvr_jax.stats import Partition
from rlvr_jax.types import Stat, pytree

_BLOCKS = 256
"""Into how many parts at the most a vocabulary is cut for a draw."""


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    The policy is softmax(logits / temperature) over the *whole* vocabulary, and the stored log-probability is that
    policy's, also where `top_k`, `top_p`, `min_p` or `min_new_tokens` let only a part of it be drawn: what the scorer
    computes, and what a ratio of 1 compares with. With such a cut the samples are not quite the policy's own
    (`is_on_policy`).
    """

    temperature: float = 1.0
    """>= 0. At 0 the most likely token is taken, and log-probabilities are those at temperature 1."""
    top_k: int = 0
    """Draw among the k most likely tokens; 0 or less: among all."""
    top_p: float = 1.0
    """Draw from the smallest set of most likely tokens (of those `top_k` left, renormalised) with this mass; in (0, 1]."""
    min_p: float = 0.0
    """Draw among tokens at least this times as likely as the most likely one; in [0, 1), 0: among all. arXiv:2407.01082."""
    max_new_tokens: int = 128
    """Response tokens at the most, the stop token included."""
    min_new_tokens: int = 0
    """No stop token is drawn before a response has as many others."""
    stop: tuple[str, ...] = ()
    """Strings that end a response: the token that completes one is its last. Nothing is added to what was sampled."""
    statistics: tuple[str, ...] = ("entropy",)
    """What is computed for each token on the way, beside its log-probability: names of `Stat`."""

    def __post_init__(self):
        if not self.temperature >= 0:
            raise ValueError(f"sampling.temperature is >= 0 (0: greedy), got {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"sampling.top_p is a probability mass in (0, 1], got {self.top_p}.")
        if not 0 <= self.min_p < 1:
            raise ValueError(
                f"sampling.min_p is a share of the highest probability in [0, 1), got {self.min_p}."
            )
        if self.max_new_tokens < 1:
            raise ValueError(f"sampling.max_new_tokens is 1 or more, got {self.max_new_tokens}.")
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            raise ValueError(
                f"sampling.min_new_tokens is in 0..max_new_tokens={self.max_new_tokens}, got {self.min_new_tokens}."
            )
        if unknown := set(self.statistics) - set(Stat):
            raise ValueError(
                f"sampling.statistics holds names of {', '.join(Stat)}, got {', '.join(sorted(unknown))}."
            )
        if isinstance(self.stop, str) or not all(isinstance(s, str) and s for s in self.stop):
            raise ValueError(f"sampling.stop is a list of strings that are not empty, got {self.stop!r}.")

    @property
    def wanted(self) -> frozenset[Stat]:
        """What is computed for each token."""
        return frozenset({Stat.LOGPROB, *map(Stat, self.statistics)})

    @property
    def score_temperature(self) -> float:
        """The temperature at which log-probabilities are taken, by sampler and scorer alike."""
        return self.temperature or 1.0

    @property
    def is_on_policy(self) -> bool:
        """Whether the samples are draws of the policy whose log-probabilities are stored."""
        return self.temperature > 0 and not is_cut(self)


@pytree
class RowSampling:
    """The numbers of `Sampling` for each row."""

    temperature: Float[Any, " B"]
    top_k: Int[Any, " B"]
    top_p: Float[Any, " B"]
    min_p: Float[Any, " B"]
    max_new_tokens: Int[Any, " B"]
    min_new_tokens: Int[Any, " B"]

    @classmethod
    def of(
        cls, sampling: Sampling, rows: int, overrides: Mapping[str, np.ndarray] | None = None
    ) -> "RowSampling":
        """NumPy arrays. Raises ValueError for a name that no row can override, and for a row's value out of range."""
        overrides = dict(overrides or {})
        names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
        if unknown := set(overrides) - set(names):
            raise ValueError(f"no row overrides {', '.join(sorted(unknown))}; rows have {', '.join(names)}.")
        values = {
            n: np.broadcast_to(np.asarray(overrides[n] if n in overrides else getattr(sampling, n)), rows)
            for n in names
        }
        for row in {tuple(v[i].item() for v in values.values()) for i in range(rows)} if overrides else ():
            found = dataclasses.replace(sampling, **dict(zip(names, row, strict=True)))
            if found.max_new_tokens > sampling.max_new_tokens:
                raise ValueError(
                    f"a row's max_new_tokens={found.max_new_tokens} is more than sampling.max_new_tokens="
                    f"{sampling.max_new_tokens}, for which there is room: raise that."
                )
        whole = {"top_k", "max_new_tokens", "min_new_tokens"}
        return cls(**{n: v.astype(np.int32 if n in whole else np.float32) for n, v in values.items()})

    @property
    def score_temperature(self) -> Float[Array, " B"]:
        return jnp.where(self.temperature > 0, self.temperature, 1.0)


def is_cut(sampling: Sampling | RowSampling) -> Any:
    """Whether only a part of the vocabulary may be drawn; of rows, for each."""
    s = sampling
    return (s.top_k > 0) | (s.top_p < 1) | (s.min_p > 0) | (s.min_new_tokens > 0)


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
    logits: Float[Array, "V B"],
    keys: Key[Array, " B"],
    position: Int[Array, " B"],
    how: RowSampling,
    stop: Bool[Array, " V"],
) -> tuple[Int[Array, " B"], Partition]:
    """One token for each row, by inversion of its cumulative distribution; the most likely one at temperature 0. And the
    partition of its tempered logits, whole.

    The vocabulary is cut into blocks of equal size: one uniform number picks a block by the blocks' masses, another one a
    token of it. Two numbers of 23 bits resolve probabilities that one would round away, and no cumulative sum runs over
    the vocabulary. A number for each token (the Gumbel trick) would cost as much as the head.
    """
    z = logits / how.score_temperature[None]
    blocks = max(n for n in range(1, _BLOCKS + 1) if len(z) % n == 0)
    uniform = jax.vmap(lambda key, p: jax.random.uniform(jax.random.fold_in(key, p), (2,)))(keys, position)
    greedy, early = how.temperature == 0, position < how.min_new_tokens

    def among(z: Array, whole: Partition) -> Array:
        def mass(z: Array, least: Array) -> Array:
            return jnp.where(z >= least[None], jnp.exp(z - whole.top[None]), 0.0)

        def cut() -> tuple[Array, Array]:
            least = threshold(z, how)
            return least, mass(z, least).reshape(blocks, -1, z.shape[1]).sum(1)

        nothing = jnp.full_like(whole.top, -jnp.inf)
        least, sums = jax.lax.cond(is_cut(how).any(), cut, lambda: (nothing, whole.sums))
        block = _invert(sums.T, uniform[:, 0])
        inside = jnp.take_along_axis(z.reshape(blocks, -1, z.shape[1]), block[None, None], axis=0)[0]
        token = block * len(inside) + _invert(mass(inside, least).T, uniform[:, 1])
        best = jax.lax.cond(greedy.any(), lambda: jnp.argmax(z, 0), lambda: jnp.zeros_like(token))
        return jnp.where(greedy, best, token).astype(jnp.int32)

    def others() -> Array:
        without = jnp.where(stop[:, None], -jnp.inf, z)
        return jnp.where(early, among(without, Partition.of(without, blocks)), token)

    # A draw of its own for early rows: beside a stop token that is all but certain, the others' masses round to 0.
    whole = Partition.of(z, blocks)
    token = among(z, whole)
    return jax.lax.cond(early.any(), others, lambda: token), whole


def _invert(mass: Float[Array, "B N"], uniform: Float[Array, " B"]) -> Int[Array, " B"]:
    """The first index whose cumulative mass is above `uniform` times the whole; never one without mass."""
    # A sum in parallel may round up where nothing is added.
    up_to = jnp.where(mass > 0, jnp.cumsum(mass, axis=-1), 0.0)
    whole = up_to.max(-1, keepdims=True)
    wanted = jnp.minimum(uniform[:, None] * whole, jnp.nextafter(whole, 0.0))
    return jnp.argmax(up_to > wanted, axis=-1)


def threshold(z: Float[Array, "V B"], how: RowSampling) -> Float[Array, " B"]:
    """The lowest tempered logit that may be drawn; -inf where no cut is made.

    `top_k` first, then `top_p` of the rest: a nucleus holds every token before which less than `top_p` has been
    collected, so at least one (arXiv:1904.09751, section 3.1). `min_p` is of the whole. Equal logits at an edge are all
    kept. By bisection over the float32 numbers, 32 sums over the vocabulary where a sort would take ten times as long.
    """
    top = z.max(0)
    lowest = jnp.full_like(top, -jnp.inf)
    by_rank = (how.top_k > 0) & (how.top_k < len(z))
    by_mass = how.top_p < 1

    def ranked() -> Array:
        found = _largest(top, lambda t: (z >= t[None]).sum(0) >= how.top_k)
        return jnp.where(by_rank, found, lowest)

    least = jax.lax.cond(by_rank.any(), ranked, lambda: lowest)

    def nucleus() -> Array:
        p = jnp.where(z >= least[None], jnp.exp(z - top[None]), 0.0)
        need = how.top_p * p.sum(0)
        found = _largest(top, lambda t: jnp.where(z >= t[None], p, 0.0).sum(0) >= need)
        return jnp.where(by_mass, jnp.maximum(found, least), least)

    least = jax.lax.cond(by_mass.any(), nucleus, lambda: least)
    likely = jnp.where(how.min_p > 0, top + jnp.log(how.min_p), -jnp.inf)
    return jnp.maximum(least, jnp.minimum(likely, top))


def _largest(top: Float[Array, " B"], enough: Any) -> Float[Array, " B"]:
    """The largest t that is `enough`, which every number below it is too. At most `top`.

    float32 numbers in their order are 32-bit integers in theirs, once those of the negative ones are turned round.
    """

    def number(i: Array) -> Array:
        return jax.lax.bitcast_convert_type(jnp.where(i < 0, i ^ 0x7FFFFFFF, i), jnp.float32)

    def integer(x: Array) -> Array:
        i = jax.lax.bitcast_convert_type(x, jnp.int32)
        return jnp.where(i < 0, i ^ 0x7FFFFFFF, i)

    def halve(_: Array, span: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = span  # low is enough, high is not
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        good = enough(number(middle))
        return jnp.where(good, middle, low), jnp.where(good, high, middle)

    low = jnp.full_like(top, -jnp.inf)
    return number(jax.lax.fori_loop(0, 32, halve, (integer(low), integer(top) + 1))[0])
