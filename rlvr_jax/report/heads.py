"""What a run was and what it came to, in a few words."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlvr_jax.objective.presets import PRESETS, to_config
from rlvr_jax.report.runs import Band, RunData
from rlvr_jax.train.rundir import differences

NEAR = 3
"""Fields in which an objective differs from a preset at the most that it is named after."""


@dataclasses.dataclass(frozen=True)
class Gain:
    """Held-out pass@k at the first and the last evaluation, with 95 % intervals; shares of 1."""

    k: str
    before: Mapping[str, float]
    after: Mapping[str, float]

    @property
    def difference(self) -> float:
        return self.after["value"] - self.before["value"]


@dataclasses.dataclass(frozen=True)
class Head:
    """Of one run; `facts` are (name, value)."""

    name: str
    colour: int
    facts: tuple[tuple[str, str], ...]
    gains: tuple[Gain, ...]


def head(run: RunData, band: Band) -> Head:
    """The first lines of a report."""
    config = run.config
    rows, batch = run.metrics, config["batch"]
    total = config["steps"]
    seconds = sum(row.get("time/step") or 0.0 for row in rows)
    facts = {
        "task": task_name(config["task"]),
        "model": model_name(config["model"]),
        "objective": objective_name(config["objective"]),
        "seed": str(config["seed"]),
        "steps": f"{len(rows)}" + ("" if len(rows) == total else f" of {total}"),
        "batch": f"{batch['prompts']} prompts × {batch['group_size']} answers",
        "training reward": _ends(run),
        "time": f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h",
        "where": where(run.versions),
    }
    return Head(run.name, band.colour, tuple((k, v) for k, v in facts.items() if v), _gains(run))


def _gains(run: RunData) -> tuple[Gain, ...]:
    if not run.evaluations:
        return ()
    before, after = (run.evaluations[f(run.evaluations)]["pass_at_k"] for f in (min, max))
    return tuple(Gain(k, before[k], after[k]) for k in sorted(before, key=int) if k in after)


def _ends(run: RunData) -> str:
    _, values = run.series("reward/mean")
    if not len(values):
        return ""
    tenth = max(1, len(values) // 10)
    return f"{np.mean(values[:tenth]):.3f} → {np.mean(values[-tenth:]):.3f} (first and last tenth)"


def task_name(task: Mapping[str, Any]) -> str:
    """maze (size 9)"""
    size = f" (size {task['size']})" if isinstance(task.get("size"), int) else ""
    return f"{task['name']}{size}"


def model_name(model: Mapping[str, Any]) -> str:
    """The last part of its path, or its shape."""
    lora = " with adapters" if model.get("lora") else ""
    if model.get("path"):
        return str(model["path"]).rstrip("/").rsplit("/", 1)[-1] + lora
    scratch = model["scratch"]
    return f"from scratch: {scratch['num_layers']} layers, width {scratch['dim']}{lora}"


def objective_name(plain: Mapping[str, Any]) -> str:
    """The preset that it is or is near to, with what is otherwise; else its advantage and clip."""
    apart = {name: differences(to_config(preset), plain) for name, preset in PRESETS.items()}
    name = min(apart, key=lambda n: len(apart[n]))
    if len(apart[name]) > NEAR:
        stages = [part["name"] for part in plain["advantage"]]
        return f"own: {' + '.join(stages)}, clip {plain['clip']['name']}"
    changes = ", ".join(f"{key}={now}" for key, (_, now) in apart[name].items())
    return f"{name} with {changes}" if changes else name


def where(versions: Mapping[str, Any]) -> str:
    """The devices and the version of JAX."""
    if not versions:
        return ""
    devices, jax = versions["devices"], versions["packages"].get("jax", "?")
    return f"{devices['count']} × {devices['kind']}, jax {jax}"
