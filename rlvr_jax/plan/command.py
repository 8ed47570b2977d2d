"""The options of `rlvr-jax plan`, and what it does with them."""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, Literal

DOES_NOT_FIT = 3
"""Exit status."""


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """Options of a plan."""

    topology: str
    """The slice, as v5e:4x4, v5p:4x4x4, v6e:16x16, h100:8 or cpu:8."""
    model: str | None = None
    """Shape to plan with, as Qwen/Qwen2.5-7B; without, that of model.path, by its name where the path is not here."""
    records: int = 0
    """Training prompts, for objectives that keep something of each; 0: count them, or batch.prompts where there are none."""
    parts: tuple[Literal["sample", "score", "update"], ...] = ("sample", "score", "update")
    """What is compiled."""
    search: bool = False
    """Try meshes, model.remat and batch.micro_batches, and say which are the fastest that fit."""
    tries: int = 12
    """Of the search, at the most: each is compiled."""
    json: bool = False
    """Print one line of JSON instead of tables."""


def run(config_path: pathlib.Path, options: PlanOptions, overrides: Sequence[str]) -> int:
    """Plan a config file; the exit status, `DOES_NOT_FIT` where it does not fit.

    Nothing runs, on no accelerator. Raises ValueError for what is wrong in the config or the topology.
    """
    import jax

    from rlvr_jax.configfile import load
    from rlvr_jax.plan.models import described
    from rlvr_jax.plan.planning import plan_run
    from rlvr_jax.plan.report import as_json, as_text
    from rlvr_jax.plan.search import as_text as ranking
    from rlvr_jax.plan.search import search
    from rlvr_jax.plan.topology import open_topology

    jax.config.update("jax_platforms", "cpu")
    config = load(config_path, overrides)
    config.check_training()
    target = open_topology(options.topology)
    model, records = described(config, options.model), options.records or _records(config)

    def say(words: str) -> None:
        print(words, file=sys.stderr, flush=True)

    if options.search:
        tried = search(config, model, records, target, say, tries=options.tries)
        best = next((each for each in tried if each.fits), None)
        print(json.dumps([dataclasses.asdict(each) for each in tried]) if options.json else ranking(tried))
        return 0 if best is not None else DOES_NOT_FIT
    found = plan_run(config, model, records, target, say, options.parts)
    if options.json:
        print(json.dumps(as_json(config, found, target)))
    else:
        print(as_text(config, found, target))
    return DOES_NOT_FIT if found.fits(target) is False else 0


def _records(config: Any) -> int:
    """How many training prompts the config's task has; as many as a batch where its data are not here."""
    try:
        return len(config.task.records("train"))
    except (ValueError, OSError, ModuleNotFoundError):
        return config.batch.prompts
