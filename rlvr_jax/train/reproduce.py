"""`rlvr-jax reproduce`: a run repeated from its directory, and where the repetition parts from it."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from rlvr_jax.config import Config
from rlvr_jax.configfile import load, to_plain
from rlvr_jax.distributed import barrier
from rlvr_jax.train.apart import Comparison, Difference, Part, compare_runs
from rlvr_jax.train.checkpoint import FOLDER
from rlvr_jax.train.logs import say
from rlvr_jax.train.loop import fit
from rlvr_jax.train.metrics import METRICS, rows_by_step
from rlvr_jax.train.rundir import CONFIG, VERSIONS, differences, saved_config, versions

COMPUTING = ("jax", "jaxlib", "flax", "optax", "numpy", "ml_dtypes", "tokenizers", "transformers", "rlvr_jax")
"""Packages whose version may change a figure, beside JAX's plugins; of the others only the number is told."""
SHOWN = 3
"""Differences of a step that are told; --json has all."""
NOT_COMPARED = ("run_dir", "steps", "checkpoint.", "logging.")
"""Keys of a config that are no reason for runs to part."""


@dataclasses.dataclass(frozen=True)
class Found:
    """What a repetition came to: `comparison` is None where it was asked to stop. `config` and `environment` are what differs
    there, both values as texts by key."""

    run: pathlib.Path
    other: pathlib.Path
    config: dict[str, tuple[str, str]]
    environment: dict[str, tuple[str, str]]
    comparison: Comparison | None


def reproduce(
    run: pathlib.Path, out: pathlib.Path | None, steps: int | None, words: Sequence[str] = ()
) -> Found:
    """Repeat the first `steps` steps of a run (None: all that it has done) in the directory `out`, or go on with that, and
    compare. `words` override fields of its config.

    Raises ValueError where `run` is no run, has fewer steps, or `out` is another run.
    """
    config, done = _config(run, words), _steps(run)
    out = out or run.with_name(f"{run.name}-reproduced")
    wanted = done if steps is None else steps
    if not 1 <= wanted <= done:
        raise ValueError(f"--steps is 1 to {done}, the steps that {run} has done; got {wanted}.")
    if out.resolve() == run.resolve():
        raise ValueError(f"--out {out} is the run itself: name a new directory.")
    config = _repeated(config, run, out, wanted)
    held = saved_config(out)
    apart = _config_gaps(held, to_plain(config)) if held else {}
    if apart:
        lines = [f"  {key}: {before} there, {now} now" for key, (before, now) in apart.items()]
        raise ValueError("\n".join([f"{out} is a run of another config:", *lines, "Name another --out."]))
    environment = environment_gaps(_seen(run), [*_seen(out), versions()])
    tell_environment(environment)
    outcome = fit(config, wanted)
    barrier()  # the first process writes, all compare
    gaps = _config_gaps(saved_config(run) or {}, to_plain(config))
    found = compare_runs(run, out, wanted) if outcome.complete else None
    return Found(run, out, gaps, environment, found)


def against(run: pathlib.Path, other: pathlib.Path, steps: int | None) -> Found:
    """Compare two runs that are there, at most their first `steps` steps. Raises ValueError where one of them is none."""
    configs = [to_plain(_config(each, ())) for each in (run, other)]
    environment = environment_gaps(_seen(run), _seen(other))
    tell_environment(environment)
    return Found(run, other, _config_gaps(*configs), environment, compare_runs(run, other, steps))


def _config(run: pathlib.Path, words: Sequence[str]) -> Config:
    if not (run / CONFIG).is_file():
        raise ValueError(f"{run} is no run (it has no {CONFIG}): name the directory of one.")
    return load(run / CONFIG, words)


def _steps(run: pathlib.Path) -> int:
    last = max((step for step, _ in rows_by_step(run / METRICS)), default=None)
    if last is None:
        raise ValueError(f"{run} has not finished a step: there is nothing to repeat.")
    return last + 1


def _repeated(config: Config, run: pathlib.Path, out: pathlib.Path, steps: int) -> Config:
    """The config of the repetition: in its own directory, shown to no service, and with the run's checkpoints kept."""
    every = config.checkpoint.every
    saved = [*range(0, steps, every), steps]
    folder = run / FOLDER
    there = {int(p.name) for p in folder.iterdir() if p.name.isdigit()} if folder.is_dir() else set()
    oldest = min(there & set(saved), default=steps)
    keep = max(config.checkpoint.keep, sum(step >= oldest for step in saved))
    return dataclasses.replace(
        config,
        run_dir=str(out),
        checkpoint=dataclasses.replace(config.checkpoint, keep=keep),
        logging=dataclasses.replace(config.logging, wandb=None, mlflow=None),
    )


def _config_gaps(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {k: v for k, v in differences(one, other).items() if not k.startswith(NOT_COMPARED)}


def _seen(run: pathlib.Path) -> list[dict[str, Any]]:
    """The environments that a run has seen."""
    path = run / VERSIONS
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def environment_gaps(
    one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]
) -> dict[str, tuple[str, str]]:
    """In what the environments of two runs differ, by dotted key; where a run has seen several, all of its values count."""
    keys: dict[str, tuple[str, str]] = {}
    for first in one:
        for second in other:
            for key, (before, now) in differences(first, second).items():
                keys.setdefault(key, (before, now))
    return keys


def environment_lines(gaps: dict[str, tuple[str, str]]) -> list[str]:
    """What differs that may change a figure, and how many other packages do."""
    telling = {
        key: values
        for key, values in gaps.items()
        if not key.startswith("packages.") or _computes(key.removeprefix("packages."))
    }
    lines = [f"{key.removeprefix('packages.')}: {a} and {b}" for key, (a, b) in telling.items()]
    rest = len(gaps) - len(telling)
    return [*lines, *([f"{rest} other packages (see {VERSIONS})"] if rest else [])]


def _computes(package: str) -> bool:
    name = package.lower().replace("-", "_")
    return name in COMPUTING or name.startswith(("jax_", "nvidia_", "libtpu"))


def tell_environment(gaps: dict[str, tuple[str, str]]) -> None:
    """A warning where versions or hardware differ: figures may part for no other reason."""
    if gaps:
        lines = "\n".join(f"  {line}" for line in environment_lines(gaps))
        say(f"warning: the two were made with other versions or hardware, so that they may part:\n{lines}")


def lines(found: Found) -> list[str]:
    """The verdict first, then what was compared, for a person."""
    comparison = found.comparison
    if comparison is None:
        return [f"stopped; the same command goes on with {found.other}"]
    first = comparison.first
    steps = len(comparison.metrics.steps)
    if first is None:
        verdict = f"{found.run} and {found.other} are bit-identical in {_count(steps, 'step')}"
    else:
        verdict = f"{found.run} and {found.other} part at step {first[0]}, in their {first[1]}"
    out = [verdict]
    out += [f"  config: {key} {a} and {b}" for key, (a, b) in found.config.items()]
    for checkpoint in comparison.parameters:
        what = (
            f"differ by {checkpoint.largest:.2g} at the most, in {checkpoint.array}"
            if checkpoint.largest
            else "identical"
        )
        out.append(f"  parameters of checkpoint {checkpoint.step} ({checkpoint.numbers:,} numbers): {what}")
    if not comparison.parameters:
        out.append("  parameters: no checkpoint that both have")
    units = {"evaluations": "evaluation", "rollouts": "answer", "metrics": "row"}
    for name, unit in units.items():
        out += _part_lines(name, unit, getattr(comparison, name))
    return out


def _part_lines(name: str, unit: str, part: Part) -> list[str]:
    if not part.steps:
        return [f"  {name}: none that both have"]
    if part.step is None:
        return [f"  {name}: {_count(part.things, unit)}, identical"]
    head = f"  {name}: from step {part.step} on, in {part.parted} of {_count(len(part.steps), 'step')}; in step {part.step}"
    rest = len(part.differences) - SHOWN
    # Of answers the first one that differs says most, of figures the one that differs most.
    ordered = part.differences if name == "rollouts" else _telling(part.differences)
    shown = [_told(each) for each in ordered[:SHOWN]]
    return [f"{head} {'; '.join(shown)}{f'; and {rest} more' if rest > 0 else ''}"]


def _telling(found: Sequence[Difference]) -> list[Difference]:
    """The largest relative differences first, then what are no numbers."""

    def size(each: Difference) -> float:
        return abs(each.by) / max(abs(each.first), abs(each.second)) if each.by else -1.0

    return sorted(found, key=size, reverse=True)


def _told(each: Difference) -> str:
    by = "" if each.by is None else f" ({each.by:+.3g})"
    return f"{each.name}: {_short(each.first)} and {_short(each.second)}{by}"


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'s' * (number != 1)}"


def as_json(found: Found) -> dict[str, Any]:
    """Plain data of the whole: `verdict` is "identical", "parted" or "stopped"."""
    comparison = found.comparison
    first = comparison.first if comparison else None
    verdict = "stopped" if comparison is None else "identical" if first is None else "parted"
    return {
        "run": str(found.run),
        "other": str(found.other),
        "verdict": verdict,
        "first": first and {"step": first[0], "in": first[1]},
        "config": found.config,
        "environment": found.environment,
        **(dataclasses.asdict(comparison) if comparison else {}),
    }
