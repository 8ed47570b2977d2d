"""Pytrees and small vocabularies that every module shares.

Axes, everywhere: B responses (groups of G consecutive rows), P prompts (B = P * G), T response tokens, S prompt
tokens, D model width, V vocabulary, K passes. B is axis 0 of every leaf, so one `tree.map` slices, shards and
micro-batches anything.
"""

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Rows: TypeAlias = Any
"""Of NumPy where rows are collected, of JAX where they are trained on; shape and dtype are checked all the same."""

State: TypeAlias = Any
"""A pytree of arrays; `()` for a stage without state."""

Metrics: TypeAlias = Mapping[str, "Mean"]

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def pytree(cls: type[T]) -> type[T]:
    """Make a class a frozen, keyword-only dataclass whose fields are pytree children.

    A field declared with `static()` is part of the tree's structure instead. Unflattening does not go through
    `__init__`: JAX rebuilds nodes around stacked arrays, shapes and `None`, while a construction in our own code
    should have its shapes checked.
    """
    cls = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    dynamic = tuple(f.name for f in fields if not f.metadata.get("static"))
    fixed = tuple(f.name for f in fields if f.metadata.get("static"))

    def flatten(node):
        children = [(jax.tree_util.GetAttrKey(n), getattr(node, n)) for n in dynamic]
        return children, tuple(getattr(node, n) for n in fixed)

    def unflatten(statics, children):
        node = object.__new__(cls)
        for name, child in (*zip(dynamic, children, strict=True), *zip(fixed, statics, strict=True)):
            object.__setattr__(node, name, child)
        return node

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls


def static(**kwargs) -> Any:
    """A `pytree` field that belongs to the structure (hashable, never traced)."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


class Stat(enum.StrEnum):
    """A quantity of one token that is a reduction over the vocabulary (see `stats.token_stats`)."""

    LOGPROB = "logprob"
    LOGIT = "logit"
    ENTROPY = "entropy"
    SELF_CERTAINTY = "self_certainty"
    COLLISION = "collision"


class Pass(enum.StrEnum):
    """Which forward pass a statistic comes from."""

    SAMPLER = "sampler"
    OLD = "old"
    REF = "ref"
    NEW = "new"


Needs: TypeAlias = frozenset[tuple[Pass, Stat]]


def needs(**by_pass: str | Iterable[str]) -> Needs:
    """Declare what a stage reads: `needs(new=Stat.LOGPROB, old=(Stat.LOGPROB, Stat.ENTROPY))`.

    Raises ValueError for a pass or a statistic that does not exist.
    """
    return frozenset(
        (Pass(name), Stat(stat))
        for name, stats in by_pass.items()
        for stat in ([stats] if isinstance(stats, str) else stats)  # a Stat is a string too
    )


class UndeclaredStatError(KeyError):
    """A stage read a statistic that it did not declare."""

    def __str__(self) -> str:  # KeyError would print the repr, quotes and all
        return self.args[0]


@pytree
class Stats:
    """Token statistics of several passes, restricted to what `reader` declared."""

    values: dict[tuple[Pass, Stat], Float[Array, "B T"]]
    reader: str = static(default="nobody")

    def get(self, which: Pass, stat: Stat) -> Float[Array, "B T"]:
        if (which, stat) not in self.values:
            have = ", ".join(sorted(f"{p}.{s}" for p, s in self.values)) or "nothing"
            raise UndeclaredStatError(
                f"{self.reader} read {which}.{stat} without declaring it: add it to `needs` (it declares {have})."
            )
        return self.values[which, stat]

    def view(self, declared: Needs, reader: str) -> "Stats":
        """The part that `reader` declared."""
        return Stats(values={k: v for k, v in self.values.items() if k in declared}, reader=reader)

    def merge(self, values: Mapping[tuple[Pass, Stat], Array]) -> "Stats":
        return Stats(values={**self.values, **values}, reader=self.reader)


@pytree
class Mean:
    """A mean that can still be merged: the sum and its denominator. Means of means are never taken."""

    total: Any
    count: Any

    @classmethod
    def of(cls, values: Array, mask: Array | None = None) -> "Mean":
        """Over all entries, or over those where `mask` is non-zero. An entry outside the mask may be anything."""
        if mask is None:
            return cls(total=values.sum(), count=jnp.asarray(values.size, jnp.float32))
        return cls(total=jnp.where(mask > 0, values * mask, 0).sum(), count=mask.sum())

    def merge(self, other: "Mean") -> "Mean":
        return Mean(total=self.total + other.total, count=self.count + other.count)

    def value(self) -> float:
        """`nan` where there was nothing to average."""
        count = float(self.count)
        return float(self.total) / count if count else float("nan")


@pytree
class Rollout:
    """Sampled responses of a batch; groups are consecutive rows.

    `prompt` is padded on the right, `prompt_length` says how much of it is real. `tokens` holds the sampled ids, the
    stop token included. `mask` is 1 on the tokens that were sampled by the policy (those that are trained) and comes
    from lengths, never from comparing ids with a padding id. `reward` is what the verifier gave, `correct` its yes or
    no (0 or 1), `prompt_id` the identity of the prompt in its data set, `truncated` whether the response hit the
    length limit without a stop token. NumPy arrays where it is collected, JAX arrays where it is trained on.
    """

    prompt: Int[Rows, "B S"]
    prompt_length: Int[Rows, " B"]
    tokens: Int[Rows, "B T"]
    length: Int[Rows, " B"]
    mask: Float[Rows, "B T"]
    reward: Float[Rows, " B"]
    correct: Float[Rows, " B"]
    prompt_id: Int[Rows, " B"]
    truncated: Bool[Rows, " B"]

    @property
    def valid(self) -> Bool[Rows, " B"]:
        """False for a response that was rejected where it was collected: no token of it is trained."""
        return (self.mask > 0).any(1)


@dataclasses.dataclass(frozen=True)
class BatchSpec:
    """Everything static about a batch: P groups of G rows, T tokens, and the size of the prompt set.

    `num_prompts` bounds `prompt_id`, for stages that keep state for each prompt.
    """

    groups: int
    group_size: int
    length: int
    num_prompts: int

    @property
    def rows(self) -> int:
        return self.groups * self.group_size
