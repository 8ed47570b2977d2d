"""Matrix products at the precision that a policy's gradient needs, on the fast path of each backend.

float32 means float32: a GPU or TPU would multiply in less by default. bfloat16 operands are multiplied exactly and
summed in float32, and only the result is rounded. That is what GPUs and TPUs do anyway; on a CPU it has to be asked
for, and is 1.3 to 1.9 times as fast there as float32, which a product whose result is declared bfloat16 does not even reach
(`bench/products.py`). The two products of the gradient are of the same kind: their cotangent is rounded to bfloat16
first, where autodiff would multiply float32 by bfloat16.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def precision_of(dtype: Any) -> jax.lax.Precision:
    """Of a product of two arrays of that type."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else jax.lax.Precision.DEFAULT


def product(x: Float[Array, "M K"], w: Float[Array, "K N"]) -> Float[Array, "M N"]:
    """x @ w in float32, from operands of one type, float32 or bfloat16."""
    if x.dtype == jnp.float32:
        return jnp.matmul(x, w, precision=precision_of(x.dtype))
    return _narrow(x, w)


@jax.custom_vjp
def _narrow(x: Array, w: Array) -> Array:
    return jnp.matmul(x, w, preferred_element_type=jnp.float32)


def _forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
    return _narrow(x, w), (x, w)


def _backward(kept: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, w = kept
    g = g.astype(x.dtype)
    return _narrow(g, w.T).astype(x.dtype), _narrow(x.T, g).astype(w.dtype)


_narrow.defvjp(_forward, _backward)
