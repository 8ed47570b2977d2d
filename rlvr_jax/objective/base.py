"""What fills the slots of an objective: stages, and the abstract parts of the loss.

Two halves. Stages run once per rollout batch, without gradient, see the whole batch and may keep state. Parts of the
loss (ratio, clip, gate, regulariser) are differentiated, stateless, and may reduce over T but never over B; so shards
and micro-batches add up exactly. Between them stands the aggregate, which owns every denominator.

Everything here is a frozen dataclass: the config object *is* the stage. Equal ones hash equal (an equal objective
never retraces), and `dataclasses.asdict` is the serialisation.
"""

import abc
import dataclasses
import enum
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rlvr_jax.numerics import group_count, grouped
from rlvr_jax.types import BatchSpec, Metrics, Needs, Rollout, Rows, State, Stats


class Standing(enum.StrEnum):
    """Where the default of a stage's field comes from. A number that is only ours is never shown as a paper's."""

    PAPER = "paper"
    REPORTED = "reported"
    PROPOSAL = "our proposal"


def paper(default: Any, where: str = "") -> Any:
    """A field whose default the cited paper or its authors' code states: `low: float = paper(0.2, "section 4.1")`."""
    return _field(default, Standing.PAPER, where)


def reported(default: Any, by: str) -> Any:
    """A field whose default is the method's by the word of a third party, named in `by`."""
    return _field(default, Standing.REPORTED, by)


def proposal(default: Any, why: str) -> Any:
    """A field whose default no source of the method gives: it is ours, for the reason given."""
    return _field(default, Standing.PROPOSAL, why)


def _field(default: Any, standing: Standing, why: str) -> Any:
    return dataclasses.field(default=default, metadata={"standing": standing, "why": why})


@dataclasses.dataclass(frozen=True)
class Context:
    """What a stage may read. `reward` and `mask` are as the earlier slots left them; `stats` is what it declared."""

    rollout: Rollout
    stats: Stats
    spec: BatchSpec
    reward: Float[Array, " B"]
    mask: Float[Array, "B T"]

    @property
    def valid(self) -> Bool[Array, " B"]:
        """False for a rejected response, which has no part in the statistics of its group, whatever the mask slot does."""
        return self.rollout.valid


class Part:
    """Anything that stands in a slot of an objective. `slot` and `name` are given by `registry.register`."""

    slot: ClassVar[str] = "?"
    name: ClassVar[str] = "?"
    needs: ClassVar[Needs] = frozenset()
    note: ClassVar[str] = ""
    """Where this part does nothing with one update per batch, in a sentence: printed by `variants` and before such a run."""
    uses_uniform_groups: ClassVar[bool] = False
    """True where this part learns from groups whose responses are all right or all wrong, so that no filter may take them."""

    def check(self, spec: BatchSpec) -> None:
        """Raise ValueError where this part makes no sense for batches of this shape."""


class Stage(Part, abc.ABC):
    """A transform of the slot's value, with state that is an argument and a result."""

    def init(self, spec: BatchSpec) -> State:
        """The state before the first batch; `()` where there is none."""
        return ()

    @abc.abstractmethod
    def apply(
        self, x: Float[Array, "..."], ctx: Context, state: State
    ) -> tuple[Float[Array, "..."], State, Metrics]:
        """The slot's new value, the new state (same structure), and metrics."""


class Stateless(Stage):
    """A stage that is one pure function of its input and the context."""

    def apply(
        self, x: Float[Array, "..."], ctx: Context, state: State
    ) -> tuple[Float[Array, "..."], State, Metrics]:
        return self.transform(x, ctx), (), {}

    @abc.abstractmethod
    def transform(self, x: Float[Array, "..."], ctx: Context) -> Float[Array, "..."]:
        """The slot's new value."""


def labels(parts: Iterable[Part]) -> tuple[str, ...]:
    """Names of parts that stand in one slot; a repeated one gets a number (`focal`, `focal2`)."""
    seen: Counter[str] = Counter()
    out = []
    for part in parts:
        seen[part.name] += 1
        out.append(part.name if seen[part.name] == 1 else f"{part.name}{seen[part.name]}")
    return tuple(out)


@dataclasses.dataclass(frozen=True)
class Chain(Stage):
    """Stages in a row. State is keyed by name, so that inserting a stage shifts no checkpoint key."""

    stages: tuple[Stage, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the stages."""
        return labels(self.stages)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        return frozenset().union(*(s.needs for s in self.stages))

    def check(self, spec: BatchSpec) -> None:
        for stage in self.stages:
            stage.check(spec)

    def init(self, spec: BatchSpec) -> State:
        return {label: s.init(spec) for label, s in zip(self.labels, self.stages, strict=True)}

    def apply(
        self, x: Float[Array, "..."], ctx: Context, state: State
    ) -> tuple[Float[Array, "..."], State, Metrics]:
        if set(state) != set(self.labels):
            raise ValueError(
                f"chain state holds {sorted(state)}, its stages are {list(self.labels)}; call init on this chain first."
            )
        new, metrics = {}, {}
        for label, stage in zip(self.labels, self.stages, strict=True):
            narrow = dataclasses.replace(ctx, stats=ctx.stats.view(stage.needs, label))
            x, new[label], found = stage.apply(x, narrow, state[label])
            metrics |= {f"{label}/{k}": v for k, v in found.items()}
        return x, new, metrics


def chain(*stages: Stage) -> Chain:
    """`chain(Group(), Focal(0.5))`. An empty chain is the identity; a chain among the stages gives its own."""
    flat = (s.stages if isinstance(s, Chain) else (s,) for s in stages)
    return Chain(tuple(stage for inner in flat for stage in inner))


class GroupFilter(Stateless):
    """A mask that leaves whole groups out by how many of their responses are right.

    A run may sample other groups in the place of those (`batch.max_rounds`).
    """

    @abc.abstractmethod
    def keeps(self, right: Float[Rows, " P"], answers: Float[Rows, " P"]) -> Bool[Rows, " P"]:
        """Whether a group is trained on, `right` of whose `answers` (rejected ones not counted) are right.

        In arithmetic that NumPy and JAX arrays share: it is asked on the host as well.
        """

    def transform(self, x: Float[Array, "B T"], ctx: Context) -> Float[Array, "B T"]:
        size = ctx.spec.group_size
        right = grouped(jnp.where(ctx.valid, ctx.rollout.correct, 0.0), size).sum(1)
        keep = self.keeps(right, group_count(ctx.valid, size)[:, 0])
        return x * jnp.repeat(keep, size, total_repeat_length=x.shape[0]).astype(x.dtype)[:, None]


class Passes(Part, abc.ABC):
    """Splits the tokens of a batch over K sequential updates."""

    count: ClassVar[int] = 1

    @abc.abstractmethod
    def split(self, ctx: Context) -> Float[Array, "B K T"]:
        """Masks that sum to `ctx.mask` over K; pass 0 is taken first."""


class Aggregate(Part, abc.ABC):
    """Weights of the tokens in the loss. Every denominator of an objective lives here and nowhere else."""

    @abc.abstractmethod
    def coefficients(self, mask: Float[Array, "B T"], spec: BatchSpec) -> Float[Array, "B T"]:
        """`mask` over its denominators, for the rows of one optimiser step. An empty row counts in none of them."""


class Ratio(Part, abc.ABC):
    """How far the new policy is from the one that sampled."""

    is_ratio: ClassVar[bool] = True
    """False where `log_ratio` is a log-likelihood, which no clip of a ratio can work on."""
    by_token: ClassVar[bool] = True
    """False where a token's gain moves the whole response, so that no pass can take some of its tokens."""

    @abc.abstractmethod
    def log_ratio(self, stats: Stats, mask: Float[Array, "B T"]) -> Float[Array, "B T"]:
        """Logarithm of the ratio of each token, in nats; 0 under the padding."""


class Clip(Part, abc.ABC):
    """Turns ratio and advantage into the gain that is maximised."""

    needs_ratio: ClassVar[bool] = True
    """False where the gain makes sense for a log-likelihood as well."""

    @abc.abstractmethod
    def gain(
        self, log_ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], stats: Stats
    ) -> Float[Array, "B T"]:
        """Gain of each token."""

    @abc.abstractmethod
    def clipped(
        self, log_ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], stats: Stats
    ) -> Float[Array, "B T"]:
        """1 where the clip is in force (the metric `policy/clip_fraction`), else 0."""


class Gate(Part, abc.ABC):
    """A weight of each token from the *new* policy. The objective stops its gradient."""

    @abc.abstractmethod
    def weight(self, stats: Stats, mask: Float[Array, "B T"]) -> Float[Array, "B T"]:
        """Non-negative weight of each token."""

    def metrics(self, weight: Float[Array, "B T"], mask: Float[Array, "B T"]) -> Metrics:
        """Figures about the weights, logged under `gate/<name>/`."""
        return {}


class Regulariser(Part, abc.ABC):
    """A penalty of each token, subtracted from the gain."""

    @abc.abstractmethod
    def penalty(self, stats: Stats, mask: Float[Array, "B T"]) -> Float[Array, "B T"]:
        """Coefficient times penalty, in nats."""
