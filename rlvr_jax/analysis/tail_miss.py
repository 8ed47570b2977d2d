"""How often a group of N answers teaches something and yet holds none of the rare right ones.

Of a prompt, `mu` is the policy's mass of right answers and `tau` that of the rare ones among them, both shares in (0, 1).
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def active_probability(mu: Float[Array, "..."] | float, group_size: int) -> Float[Array, "..."]:
    """1 - mu^N - (1 - mu)^N: that a group has right and wrong answers, without which its advantages are 0.

    Reference: F-GRPO, arXiv:2602.06717, section 3.
    """
    return 1 - _power(jnp.asarray(mu), group_size) - _power(1 - jnp.asarray(mu), group_size)


def tail_miss_probability(
    mu: Float[Array, "..."] | float, tau: Float[Array, "..."] | float, group_size: int
) -> Float[Array, "..."]:
    """(1 - tau)^N - (mu - tau)^N - (1 - mu)^N: that a group is mixed and has none of the rare right answers, 0 < tau < mu.

    It goes up in N while groups become mixed and down again once they hold what is rare.

    Reference: F-GRPO, arXiv:2602.06717, lemma 3.1.
    """
    mu, tau = jnp.asarray(mu), jnp.asarray(tau)
    return jnp.exp(group_size * jnp.log1p(-tau)) - _power(mu - tau, group_size) - _power(1 - mu, group_size)


def _power(x: Array, n: int) -> Array:
    """x^n for large n, and its gradient."""
    return jnp.exp(n * jnp.log(x))
