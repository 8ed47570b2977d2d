"""What `rlvr-jax bench` does with its options."""

from collections.abc import Callable
from typing import Any

from rich.console import Group

from rlvr_jax.rollout.bench.process import Say
from rlvr_jax.rollout.bench.workload import SamplerBench
from rlvr_jax.train.bench.workload import StepBench, UpdateBench

NAMES = {SamplerBench: "sampler", UpdateBench: "update", StepBench: "step"}


def measured(options: SamplerBench | UpdateBench | StepBench, say: Say) -> tuple[dict[str, Any], Group]:
    """What was found, and the same as tables. Raises what the measurement does."""
    measure, report = _functions(options)
    found = measure(options, say)
    return found, report(found)


def _functions(options: Any) -> tuple[Callable, Callable]:
    from rlvr_jax.rollout.bench import measure, report
    from rlvr_jax.train.bench import report as reports
    from rlvr_jax.train.bench import step, update

    return {
        SamplerBench: (measure.measure, report.report),
        UpdateBench: (update.measure, reports.update_report),
        StepBench: (step.measure, reports.step_report),
    }[type(options)]
