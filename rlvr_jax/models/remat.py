"""What of each layer is kept for the backward pass, which computes the rest again.

XLA has no bfloat16 on a CPU: to write one layer's part of what a scan keeps, it converts all of that, of all layers, to
float32 and back. So there a bfloat16 array is kept as its bits, the residual stream goes from layer to layer in float32
(exactly: it is rounded in between), and what costs less to compute again than to keep is computed again even where
everything is to be kept.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from rlvr_jax.products import platform_in_use

ENTRY, PRODUCT, OPERAND = "layer_entry", "product", "operand"
"""The residual stream before a layer; what its products with weights give; what else its products read."""

_policies = jax.checkpoint_policies
REMAT: Mapping[str, Callable | None] = {
    "none": None,
    "dots": _policies.save_only_these_names(PRODUCT),
    "full": _policies.nothing_saveable,
    "offload": _policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[ENTRY],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}
"""Everything; the products with its weights; the residual stream at its entry; the same in the memory of the host. Each needs
less memory than the one before."""


Body = Callable[[Array, Any], tuple[Array, Any]]


def kept_by(remat: str, body: Body, dtype: Any) -> Body:
    """The body of a scan over layers, which takes the residual stream and a layer's weights, and keeps what `remat` says.

    On a CPU the residual stream of a bfloat16 model goes in and out in float32: see `stream`.
    """
    policy = REMAT[remat]
    if _as_bits(dtype):
        policy = policy or _policies.save_only_these_names(PRODUCT, OPERAND)
        inner, body = body, lambda x, layer: _widened(*inner(x.astype(dtype), layer))
    # a scan already keeps the two computations apart
    return body if policy is None else jax.checkpoint(body, policy=policy, prevent_cse=False)


def stream(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """The residual stream as it enters a scan over layers."""
    return x.astype(jnp.float32) if _as_bits(x.dtype) else x


def _widened(x: Array, emitted: Any) -> tuple[Array, Any]:
    return stream(x), emitted


def _as_bits(dtype: Any) -> bool:
    return dtype == jnp.bfloat16 and platform_in_use() == "cpu"


def _named(x: Array, name: str) -> Array:
    if not _as_bits(x.dtype):
        return checkpoint_name(x, name)
    bits = checkpoint_name(jax.lax.bitcast_convert_type(x, jnp.uint16), name)
    return jax.lax.bitcast_convert_type(bits, x.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def keep(x: Array, name: str) -> Array:
    """x, under a name that the policies of `REMAT` know."""
    return _named(x, name)


@keep.defjvp
def _(name: str, x: tuple[Array], tangent: tuple[Array]) -> tuple[Array, Array]:
    return _named(*x, name), *tangent
