"""Matrix products at the precision that a policy's gradient needs, on the fast path of each backend.

float32 means float32: a GPU or TPU would multiply in less by default. bfloat16 operands are multiplied exactly and
summed in float32, and only the result is rounded. That is what GPUs and TPUs do anyway; on a CPU it has to be asked
for, and is 1.3 to 1.9 times as fast there as float32, which a product whose result is declared bfloat16 does not even reach
(`bench/products.py`). The two products of the gradient are of the same kind: their cotangent is rounded to bfloat16
first, where autodiff would multiply float32 by bfloat16.

A CPU takes twice as long where an operand has to be read against the order in which it lies (`contract`). Decoding multiplies
few rows by each matrix, and a CPU does that 1.3 times as fast the other way round (`Turned`).
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float


def precision_of(dtype: Any) -> jax.lax.Precision:
    """Of a product of two arrays of that type."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else jax.lax.Precision.DEFAULT


def platform_in_use() -> str:
    """`tpu`, `gpu` or `cpu`: of the mesh, which may be one of devices that this machine has not, else JAX's default."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device is not None else jax.default_backend()


def _devices_in_use() -> int:
    mesh = jax.sharding.get_abstract_mesh()
    return jax.device_count() if mesh.empty else mesh.size


def contract(
    x: Float[Array, "*N a b"], x_axis: int, w: Float[Array, "*N c d"], w_axis: int
) -> Float[Array, "*N m n"]:
    """The sum over one of the last two axes of each (-1 or -2), in float32: x w for -1 and -2, x w^T for -1 and -1.

    On a CPU what has its rows contracted (x_axis = -2) is written out transposed first, which takes a tenth of what the
    product gains by it. Not where there are several devices: the compiler gathers what is to be written out in one order.
    """
    batch = tuple(range(x.ndim - 2))
    if x_axis == -2 and platform_in_use() == "cpu" and _devices_in_use() == 1:
        lying = with_layout_constraint(x.mT, Layout((*batch, x.ndim - 2, x.ndim - 1)))
        x, x_axis = jax.lax.optimization_barrier(lying), -1
    dimensions = (((x.ndim + x_axis,), (w.ndim + w_axis,)), (batch, batch))
    return jax.lax.dot_general(x, w, dimensions, precision_of(x.dtype), preferred_element_type=jnp.float32)


@jax.custom_vjp
def product(x: Float[Array, "M K"], w: Float[Array, "K N"]) -> Float[Array, "M N"]:
    """x w in float32, from operands of one type, float32 or bfloat16."""
    return contract(x, -1, w, -2)


Kept = tuple[Array | None, Array | None]
"""Operands of a product, each where the other one has a gradient: that of a frozen matrix is never computed."""


def _kept(x: Any, w: Any) -> Kept:
    return (x.value if w.perturbed else None), (w.value if x.perturbed else None)


def _backward(kept: Kept, g: Array) -> Kept:
    x, w = kept
    into_x = None if w is None else contract(g.astype(w.dtype), -1, w, -1).astype(w.dtype)
    into_w = None if x is None else contract(x, -2, g.astype(x.dtype), -2).astype(x.dtype)
    return into_x, into_w


product.defvjp(lambda x, w: (product(x.value, w.value), _kept(x, w)), _backward, symbolic_zeros=True)


@jax.custom_vjp
def product_by_rows(x: Float[Array, "M K"], w: Float[Array, "N K"]) -> Float[Array, "M N"]:
    """x w^T, likewise: for a matrix whose outputs lie first."""
    return contract(x, -1, w, -1)


def _backward_by_rows(kept: Kept, g: Array) -> Kept:
    x, w = kept
    into_x = None if w is None else contract(g.astype(w.dtype), -1, w, -2).astype(w.dtype)
    into_w = None if x is None else contract(g.astype(x.dtype), -2, x, -2).astype(x.dtype)
    return into_x, into_w


product_by_rows.defvjp(
    lambda x, w: (product_by_rows(x.value, w.value), _kept(x, w)), _backward_by_rows, symbolic_zeros=True
)


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
