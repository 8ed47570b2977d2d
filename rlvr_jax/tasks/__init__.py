"""Tasks: records, prompts and verifiers. Importing this package registers all of them."""

from rlvr_jax.tasks import (
    arithmetic,
    bandit,
    countdown,
    gsm8k,
    instructions,
    knights_knaves,
    maths,
    maze,
    mixture,
    prompted,
    reasoning_gym,
)
from rlvr_jax.tasks.base import Reason, Task, Verdict

__all__ = [
    "Reason",
    "Task",
    "Verdict",
    "arithmetic",
    "bandit",
    "countdown",
    "gsm8k",
    "instructions",
    "knights_knaves",
    "maths",
    "maze",
    "mixture",
    "prompted",
    "reasoning_gym",
]
