"""The devices that a program is compiled for, which need not be here."""

import dataclasses
import importlib.util
import math
import os
from typing import Any

import jax

from rlvr_jax.plan.chips import CHIPS, Chip

TPUS = ("v5e", "v5p", "v6e")
_HOST = {"v5e": 2, "v5p": 3, "v6e": 2}
"""Axes of the torus."""


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """`devices` of a topology. `chip` is None where nothing is known of its speed. `missing` says what cannot be told of
    a program, because `devices` are processors that stand in for the real ones; empty where they are the real ones."""

    name: str
    chip: Chip | None
    devices: tuple[Any, ...]
    missing: str = ""


def open_topology(name: str) -> Target:
    """The devices of `v5p:4x4x4` (TPUs: chips along each axis of the torus), `h100:8` (GPUs) or `cpu:8`.

    TPUs need the package libtpu. Without it, and for GPUs, the devices are as many processors of this machine: XLA splits
    the program in the same way for them, but lays it out in memory in another one.

    Raises ValueError for a name that is none of these, and where JAX runs already on too few processors.
    """
    kind, _, sizes = name.partition(":")
    axes = sizes.split("x")
    known = {**CHIPS, "cpu": None}
    if kind not in known or not all(a.isdigit() and int(a) for a in axes):
        raise ValueError(
            f"--topology {name!r}: it is a chip and how many there are, as v5e:4x4, v5p:4x4x4, h100:8 or cpu:8; chips are "
            f"{', '.join(known)}."
        )
    shape = [int(a) for a in axes]
    count = math.prod(shape)
    if kind not in TPUS:
        if len(shape) > 1:
            raise ValueError(f"--topology {name!r}: {kind} has one number, as {kind}:{count}.")
        chip = known[kind]
        return Target(name, chip, _processors(count), "" if chip is None else _STAND_IN.format(chip=kind))
    if len(shape) != _HOST[kind]:
        raise ValueError(
            f"--topology {name!r}: {kind} is a torus of {_HOST[kind]} axes, as {kind}:{'x'.join(['4'] * _HOST[kind])}."
        )
    if importlib.util.find_spec("libtpu") is None:
        missing = _STAND_IN.format(chip=kind) + " Install it for exact figures: pip install 'rlvr_jax[tpu]'."
        return Target(name, CHIPS[kind], _processors(count), missing)
    return Target(name, CHIPS[kind], _tpus(name, kind, shape))


_STAND_IN = (
    "The compiler for {chip} is not here, so processors stand in for it: operations, arguments and what goes over the links "
    "are those of XLA's partitioned program, temporary memory is not known, and whether the run fits is not either."
)


def _tpus(name: str, kind: str, shape: list[int]) -> tuple[Any, ...]:
    # No TPU is used: other processes may, and nobody has to ask Google's metadata server which one this machine has.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    from jax.experimental import topologies

    how = {}
    if math.prod(shape) < 4:  # a host of fewer chips than the usual four
        how["chips_per_host_bounds"] = tuple(shape) + (1,) * (3 - len(shape))
    try:
        return tuple(topologies.get_topology_desc(name, platform="tpu", **how).devices)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(
            f"--topology {name!r}: libtpu knows no such slice ({str(error).splitlines()[0]})."
        ) from error


def _cpu_devices() -> int:
    return jax.config.jax_num_cpu_devices  # pyright: ignore[reportAttributeAccessIssue]


def _processors(count: int) -> tuple[Any, ...]:
    try:
        jax.config.update("jax_num_cpu_devices", max(count, _cpu_devices()))
    except RuntimeError:  # JAX runs already
        pass
    there = jax.devices("cpu")
    if len(there) < count:
        raise ValueError(
            f"{count} devices are needed and JAX has {len(there)} processors: set JAX_NUM_CPU_DEVICES={count}, or unset it."
        )
    return tuple(there[:count])
