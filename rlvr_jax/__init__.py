"""Reinforcement learning with verifiable rewards, in JAX: what one composes and trains with from Python.

    config = load_config("configs/quickstart.yaml", ["--steps", "20"])
    fit(dataclasses.replace(config, objective=preset("f_dapo")))

Names are imported when they are first used: `import rlvr_jax` costs nothing, and stages can be written and composed
without the packages that only training needs.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvr_jax.config import Config as Config
    from rlvr_jax.configfile import load as load_config  # noqa: F401  (a name that says what is loaded)
    from rlvr_jax.objective.base import Aggregate as Aggregate
    from rlvr_jax.objective.base import Clip as Clip
    from rlvr_jax.objective.base import Context as Context
    from rlvr_jax.objective.base import Gate as Gate
    from rlvr_jax.objective.base import GroupFilter as GroupFilter
    from rlvr_jax.objective.base import Passes as Passes
    from rlvr_jax.objective.base import Ratio as Ratio
    from rlvr_jax.objective.base import Regulariser as Regulariser
    from rlvr_jax.objective.base import Stage as Stage
    from rlvr_jax.objective.base import Stateless as Stateless
    from rlvr_jax.objective.base import chain as chain
    from rlvr_jax.objective.base import paper as paper
    from rlvr_jax.objective.base import proposal as proposal
    from rlvr_jax.objective.base import reported as reported
    from rlvr_jax.objective.objective import Objective as Objective
    from rlvr_jax.objective.presets import preset as preset
    from rlvr_jax.registry import build as build
    from rlvr_jax.registry import register as register
    from rlvr_jax.tasks.base import Task as Task
    from rlvr_jax.train.loop import Outcome as Outcome
    from rlvr_jax.train.loop import fit as fit
    from rlvr_jax.types import BatchSpec as BatchSpec
    from rlvr_jax.types import Mean as Mean
    from rlvr_jax.types import Pass as Pass
    from rlvr_jax.types import Stat as Stat
    from rlvr_jax.types import Stats as Stats
    from rlvr_jax.types import needs as needs

_HOME = {
    "config": ("Config",),
    "configfile": ("load_config",),
    "objective.base": (
        *("Aggregate", "Clip", "Context", "Gate", "GroupFilter", "Passes", "Ratio", "Regulariser"),
        *("Stage", "Stateless"),
        *("chain", "paper", "proposal", "reported"),
    ),
    "objective.objective": ("Objective",),
    "objective.presets": ("preset",),
    "registry": ("build", "register"),
    "tasks.base": ("Task",),
    "train.loop": ("Outcome", "fit"),
    "types": ("BatchSpec", "Mean", "Pass", "Stat", "Stats", "needs"),
}
"""Module -> what is public of it: the same as above, where type checkers and editors look."""

_MODULES = {name: f"rlvr_jax.{module}" for module, names in _HOME.items() for name in names}
_OTHER_NAMES = {"load_config": "load"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'rlvr_jax' has no attribute {name!r}")
    found = getattr(importlib.import_module(_MODULES[name]), _OTHER_NAMES.get(name, name))
    globals()[name] = found  # the next use does not come here
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
