"""A policy of one token: which right answers survive policy gradients, by the number of samples.

The set-up is that of F-GRPO's simulation (arXiv:2602.06717, appendix J) and BroRL's (arXiv:2510.01180): 128,000 actions of which
10,000 are right; one of these, the anchor, starts likelier than the others.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key


@dataclasses.dataclass(frozen=True)
class Categorical:
    """The simulation. Its actions are the anchor, the other right ones, and the wrong ones, in this order.

    Deviations: the paper names a learning rate and no optimiser. Plain gradient ascent at that rate moves nothing, and Adam on
    the probabilities themselves loses all but the anchor at any number of samples. Adam on their logarithms, which is the
    gradient that GRPO has, shows what the paper shows; so that is our reading.
    """

    actions: int = 128_000
    right: int = 10_000
    anchor_logit: float = 5.0
    right_logit: float = 3.0
    steps: int = 1000
    learning_rate: float = 1e-2

    def start(self) -> Float[Array, " A"]:
        """Logits before the first step; those of wrong actions are 0."""
        z = jnp.zeros(self.actions).at[: self.right].set(self.right_logit)
        return z.at[0].set(self.anchor_logit)

    def run(self, samples: int, gamma: float, seed: int) -> "Course":
        """All steps with `samples` answers in each, under the focal weight (1 - mu)^gamma."""
        return _run(self, samples, jnp.float32(gamma), jax.random.key(seed))


class Course(NamedTuple):
    """Before each step: the mass of right answers; the part of it that the step's samples do not hold; and what is retained,

        M_ret(t) = 1 - sum_{a right} max(0, pi_0(a) - pi_t(a)) / sum_{a right} pi_0(a)    (arXiv:2602.06717, eq. 26)

    `end` is the mass and what is retained after the last.
    """

    right: Float[Array, " T"]
    unsampled: Float[Array, " T"]
    retained: Float[Array, " T"]
    end: Float[Array, "2"]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _run(setup: Categorical, samples: int, gamma: Float[Array, ""], key: Key[Array, ""]) -> Course:
    z = setup.start()
    before = jax.nn.softmax(z)[: setup.right]
    adam = optax.adam(setup.learning_rate)

    def masses(p: Array) -> tuple[Array, Array]:
        right = p[: setup.right]
        return right.sum(), 1 - jnp.maximum(0.0, before - right).sum() / before.sum()

    def step(carry: tuple, key: Array) -> tuple[tuple, tuple]:
        z, state = carry
        p = jax.nn.softmax(z)
        counts = draw(key, p, samples)
        mu = counts[: setup.right].sum() / samples
        # rewards are 1 and -1; their mean is 2 mu - 1, and the sum of what is left of them is 0
        reward = jnp.where(jnp.arange(setup.actions) < setup.right, 2 * (1 - mu), -2 * mu)
        gradient = (1 - mu) ** gamma * counts * reward / samples
        change, state = adam.update(-gradient, state)
        right, retained = masses(p)
        unsampled = jnp.where(counts[: setup.right] == 0, p[: setup.right], 0.0).sum()
        return (z + change, state), (right, unsampled, retained)

    (z, _), course = jax.lax.scan(step, (z, adam.init(z)), jax.random.split(key, setup.steps))
    return Course(*course, end=jnp.stack(masses(jax.nn.softmax(z))))


def draw(key: Key[Array, ""], p: Float[Array, " A"], samples: int) -> Float[Array, " A"]:
    """How often each action is drawn: by where uniform numbers fall among the sums of p."""
    edges = jnp.cumsum(p)
    where = jnp.searchsorted(edges, jax.random.uniform(key, (samples,)) * edges[-1], side="right")
    return jnp.zeros_like(p).at[jnp.minimum(where, len(p) - 1)].add(1.0)


class MassChange(NamedTuple):
    """First order in the learning rate: of the mass of right actions, and of the part of it that was not sampled."""

    right: Float[Array, ""]
    unsampled: Float[Array, ""]


def mass_change(
    p: Float[Array, " A"],
    is_right: Bool[Array, " A"],
    counts: Int[Array, " A"] | Float[Array, " A"],
    *,
    right: float = 1.0,
    wrong: float = -1.0,
    rate: float,
) -> MassChange:
    """What dz_i = (rate / N) p_i (R_i - S) does to masses, with R_i the reward of a sampled action and 0 of another, and S the sum
    of p_i R_i:

        dQ   = (rate / N) [(R_c - S) (1 - Q) A_2 + (S - R_w) Q B_2 + S (Q U_wrong - (1 - Q) U_right)]
        dQ_u = (rate / N) [-S U_right - Q_u ((R_c - S) A_2 + (R_w - S) B_2 - S (U_right + U_wrong))]

    Q is the mass of right actions and Q_u that of those not sampled; A_2 and B_2 are sums of p^2 over sampled right and wrong
    ones, U over those not sampled.

    Reference: F-GRPO, arXiv:2602.06717, eq. 17 (BroRL, arXiv:2510.01180, theorem 1) and eq. 10.
    """
    sampled, n = counts > 0, counts.sum()

    def of(which: Array, power: int) -> Array:
        return jnp.where(which, p**power, 0.0).sum()

    mass, unsampled = of(is_right, 1), of(is_right & ~sampled, 1)
    a, b = of(is_right & sampled, 2), of(~is_right & sampled, 2)
    u_right, u_wrong = of(is_right & ~sampled, 2), of(~is_right & ~sampled, 2)
    s = right * of(is_right & sampled, 1) + wrong * of(~is_right & sampled, 1)
    first = (
        (right - s) * (1 - mass) * a + (s - wrong) * mass * b + s * (mass * u_wrong - (1 - mass) * u_right)
    )
    rest = (right - s) * a + (wrong - s) * b - s * (u_right + u_wrong)
    return MassChange(right=rate / n * first, unsampled=rate / n * (-s * u_right - unsampled * rest))
