"""Matrix products at the precision that a policy's gradient needs, on the fast path of each backend.

float32 means float32: a GPU or TPU would multiply in less by default. bfloat16 operands are multiplied exactly and
summed in float32, and only the result is rounded. That is what GPUs and TPUs do anyway; on a CPU it has to be asked
for, and is 1.3 to 1.9 times as fast there as float32, which a product whose result is declared bfloat16 does not even reach
(`bench/products.py`). The two products of the gradient are of the same kind: their cotangent is rounded to bfloat16
first, where autodiff would multiply float32 by bfloat16.

Decoding multiplies few rows by each matrix, and a CPU does that 1.3 times as fast the other way round (`Turned`).
"""

import dataclasses
import functools
import math
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


@functools.partial(jax.tree_util.register_dataclass, data_fields=["value"], meta_fields=["outputs"])
@dataclasses.dataclass(frozen=True)
class Turned:
    """A matrix stored with its outputs first, for products with few rows on a CPU."""

    value: Any
    outputs: tuple[int, ...]
    """The axes that N is made of."""

    @classmethod
    def of(cls, w: Float[Array, "..."], inputs: int) -> "Turned":
        """Of a weight whose first `inputs` axes are contracted."""
        flat = w.reshape(math.prod(w.shape[:inputs]), -1)
        return cls(value=flat.T, outputs=w.shape[inputs:])


def turned_product(x: Float[Array, "M K"], w: Turned) -> Float[Array, "M N"]:
    """x @ w in float32, computed as (w^T x^T)^T, which the barrier keeps the compiler from turning back. Has no gradient."""
    precision = precision_of(x.dtype)
    dimensions = (((1,), (1,)), ((), ()))
    out = jax.lax.dot_general(w.value, x, dimensions, precision, preferred_element_type=jnp.float32)
    return jax.lax.optimization_barrier(out).T


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
