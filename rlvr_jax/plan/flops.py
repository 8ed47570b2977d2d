"""Operations of matrix products in a program, from its jaxpr, where the lengths of loops are written down.

XLA's own count (`cost_analysis`) has the body of a loop once, and nothing of a kernel. What is no product counts for nothing:
that is how a model's FLOPs are counted, and what a matrix unit is busy with.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.extend import core

Known = dict[Any, np.ndarray]
"""Variables whose values are constants of the program."""


def flops(traced: core.ClosedJaxpr, *, turns: int = 1) -> float:
    """Multiplications and additions of all products, over all devices, each loop body as often as it runs.

    A loop that ends by a condition is said to run `turns` times; of branches the longest one is taken. A Pallas kernel
    whose mask is known (splash attention) counts for the blocks that it visits.
    """
    return _Counter(turns).total(traced.jaxpr, dict(zip(traced.jaxpr.constvars, traced.consts, strict=True)))


def kernel_flops(traced: core.ClosedJaxpr, *, turns: int = 1) -> float:
    """The part of `flops` that is inside Pallas kernels, on one device."""
    known = dict(zip(traced.jaxpr.constvars, traced.consts, strict=True))
    return _Counter(turns, products=False, one_device=True).total(traced.jaxpr, known)


def dot_flops(left: tuple[int, ...], contracted: tuple[int, ...], out: tuple[int, ...]) -> float:
    """2 m k n of a product with this left operand, its contracted axes, and this result."""
    return 2.0 * math.prod(out) * math.prod(left[axis] for axis in contracted)


class _Counter:
    def __init__(self, turns: int, products: bool = True, one_device: bool = False):
        self._turns, self._products, self._one_device = turns, products, one_device

    def total(self, jaxpr: core.Jaxpr, known: Known) -> float:
        return float(sum(self._equation(equation, known) for equation in jaxpr.eqns))

    def _equation(self, e: Any, known: Known) -> float:
        name = e.primitive.name
        if name == "dot_general":
            return self._dot(e) if self._products else 0.0
        if name == "conv_general_dilated":
            raise ValueError("a convolution is not counted: no model of this package has one.")
        if name == "pallas_call":
            return self._kernel(e, known)
        if name == "cond":
            return max(self._call(branch, e.invars[1:], known) for branch in e.params["branches"])
        if name == "while":
            return self._turns * self._while(e, known)
        inner = [p for p in _jaxprs(e.params)]
        if not inner:
            return 0.0
        times = e.params["length"] if name == "scan" else 1
        if name == "shard_map" and not self._one_device:
            times = math.prod(e.params["mesh"].shape[axis] for axis in e.params["newly_manual_axes"])
        return times * sum(self._call(each, e.invars, known) for each in inner)

    def _call(self, inner: Any, arguments: Any, known: Known) -> float:
        """Of a jaxpr that is given these variables; constants among them are known inside too."""
        jaxpr, consts = (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, [])
        inside: Known = dict(zip(jaxpr.constvars, consts, strict=True)) if consts else {}
        if len(jaxpr.invars) == len(arguments):
            for there, here in zip(jaxpr.invars, arguments, strict=True):
                value = getattr(here, "val", None) if isinstance(here, core.Literal) else known.get(here)
                if isinstance(value, np.ndarray):
                    inside[there] = value
        return self.total(jaxpr, inside)

    def _while(self, e: Any, known: Known) -> float:
        skipped = e.params["cond_nconsts"]
        return self._call(e.params["body_jaxpr"], e.invars[skipped:], known)

    def _dot(self, e: Any) -> float:
        (contracted, _), _ = e.params["dimension_numbers"]
        return dot_flops(e.invars[0].aval.shape, contracted, e.outvars[0].aval.shape)

    def _kernel(self, e: Any, known: Known) -> float:
        """Its body at each place of its grid; of splash attention, at those whose block of the mask is not empty.

        The mask of splash's blocks is its second argument, of small integers, [heads or 1, ...].
        """
        grid = math.prod(e.params["grid_mapping"].grid)
        body = _Counter(self._turns).total(e.params["jaxpr"], {})
        mask = known.get(e.invars[1]) if len(e.invars) > 1 else None
        visited = 1.0 if mask is None or mask.dtype.kind != "i" else np.count_nonzero(mask) / mask.size
        return grid * body * visited


def _jaxprs(params: Mapping[str, Any]) -> list[Any]:
    """Of a call: what it runs, and not what its derivatives would."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if key in params:
            return [params[key]]
    return []
