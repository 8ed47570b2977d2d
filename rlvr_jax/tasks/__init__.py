"""Tasks: records, prompts and verifiers. Importing this package registers all of them."""

from rlvr_jax.tasks import (
    arithmetic,
    bandit,
    code,
    countdown,
    gsm8k,
    instructions,
    knights_knaves,
    maths,
    maze,
    mixture,
    multiple_choice,
    programs,
    prompted,
    question_answering,
    reasoning_gym,
    rewards,
)
from rlvr_jax.tasks.base import Reason, Task, Verdict

__all__ = [
    "Reason",
    "Task",
    "Verdict",
    "arithmetic",
    "bandit",
    "code",
    "countdown",
    "gsm8k",
    "instructions",
    "knights_knaves",
    "maths",
    "maze",
    "mixture",
    "multiple_choice",
    "programs",
    "prompted",
    "question_answering",
    "reasoning_gym",
    "rewards",
]
