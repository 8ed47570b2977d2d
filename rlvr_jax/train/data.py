"""The data of a run, opened to be looked at."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from rlvr_jax.config import Prompts
from rlvr_jax.configfile import load, override, parse, parse_task
from rlvr_jax.tasks.base import Task
from rlvr_jax.train.program import make_tokenizer
from rlvr_jax.train.rundir import saved_config


@dataclasses.dataclass(frozen=True, eq=False)
class Opened:
    """A task, and how its prompts are read; no tokenizer where no model is named and the task has no vocabulary."""

    task: Task
    tokenizer: Any | None
    prompts: Prompts


def open_data(what: str, overrides: Sequence[str]) -> Opened:
    """The task of a config file or of a run directory, or the one that is called so; `--field value` words are laid over
    its config. A model that is named by `model.path` gives its tokenizer.

    Raises: ValueError for what is none of these.
    """
    path = pathlib.Path(what)
    if path.is_file() or path.suffix in (".yaml", ".yml"):
        config = load(path, overrides)
    elif (saved := saved_config(path)) is not None:
        config = parse(override(saved, overrides))
    else:
        tree = override({"task": what}, overrides)
        task = parse_task(tree["task"])
        if "model" not in tree and task.vocabulary() is None:
            return Opened(task, None, Prompts())
        config = parse(tree)
    return Opened(config.task, make_tokenizer(config)[0], config.prompts)
