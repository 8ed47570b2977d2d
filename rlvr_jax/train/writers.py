"""Where a run is looked at beside its own files: TensorBoard, Weights & Biases, MLflow. One small class each."""

import contextlib
import dataclasses
import html
import importlib
import math
import os
import pathlib
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rlvr_jax.config import Logging
from rlvr_jax.train.metrics import RolloutRow


@dataclasses.dataclass(frozen=True, eq=False)
class Shown:
    """What is shown of one step: finite figures, texts and values to count in a histogram, each by name."""

    figures: Mapping[str, float | int]
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    histograms: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """One-dimensional, finite, not empty."""


SAMPLES = 4
"""Answers that are shown of a step: the first ones of different prompts."""


def shown_of(
    figures: Mapping[str, float | int], rows: Sequence[RolloutRow], texts: Mapping[str, str]
) -> Shown:
    """`figures` and `texts`, and what there is to see of a step's answers, where there are any."""
    first = {row.prompt_id: row for row in reversed(rows)}
    chosen = sorted(first.values(), key=lambda row: rows.index(row))[:SAMPLES]
    samples = {f"samples/{i}": _for_reading(row) for i, row in enumerate(chosen)}
    rewards = [row.reward for row in rows if row.reward is not None and math.isfinite(row.reward)]
    found = {"answers/reward": rewards, "answers/length": [row.length for row in rows]}
    histograms = {name: np.asarray(values, np.float64) for name, values in found.items() if values}
    return Shown(figures, {**texts, **samples}, histograms)


def _for_reading(row: RolloutRow) -> str:
    end = ", cut at the limit" if row.truncated else ""
    about = f"prompt {row.prompt_id}, reward {row.reward}, {row.reason}, {row.length} tokens{end}"
    return f"{about}\n\n{row.prompt}\n---\n{row.completion}"


@runtime_checkable
class Writer(Protocol):
    """A service that shows a run, and goes on showing it where the run goes on."""

    def write(self, step: int, shown: Shown) -> None:
        """Show a step; what the service has no place for is left out."""
        ...

    def close(self) -> None:
        """Everything is where it belongs when this returns."""
        ...


@contextlib.contextmanager
def writers(
    logging: Logging, run_dir: pathlib.Path, start_step: int, config: Mapping[str, Any]
) -> Iterator[list[Writer]]:
    """Those that a config asks for, of a run that stands at `start_step`; closed at the end. Raises as `check_services`."""
    with contextlib.ExitStack() as stack:
        found: list[Writer] = []

        def add(writer: Writer) -> None:
            found.append(writer)
            stack.callback(writer.close)

        if logging.wandb:
            add(Wandb(run_dir, logging.wandb, config))
        if logging.mlflow:
            add(Mlflow(run_dir, logging.mlflow, config))
        if logging.tensorboard:
            add(TensorBoard(run_dir / "tensorboard", start_step))
        yield found


def check_services(logging: Logging) -> None:
    """Raise ModuleNotFoundError where a package that a config asks for is missing."""
    if logging.wandb:
        import_wandb(logging.wandb)
    if logging.mlflow:
        import_mlflow(logging.mlflow)


def import_wandb(project: str) -> ModuleType:
    """The package that a project is logged with. Raises ModuleNotFoundError, with what to install, without it."""
    with _or_what_to_install(f"the wandb project {project!r}", "wandb", "leave the project empty"):
        return importlib.import_module("wandb")


def import_mlflow(experiment: str) -> ModuleType:
    """The package that an experiment is logged with, and its database. Raises ModuleNotFoundError, with what to install,
    without them."""
    with _or_what_to_install(f"the MLflow experiment {experiment!r}", "mlflow", "leave the experiment empty"):
        importlib.import_module("sqlalchemy")
        importlib.import_module("alembic")
        return importlib.import_module("mlflow")


@contextlib.contextmanager
def _or_what_to_install(what: str, package: str, instead: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"logging to {what} needs the package {error.name or package}, which is not installed: "
            f"pip install 'rlvr_jax[logging]', or {instead}."
        ) from error


class TensorBoard:
    """Events of TensorBoard. A resumed run adds a file that tells readers to forget the steps it repeats."""

    def __init__(self, log_dir: pathlib.Path, start_step: int) -> None:
        from tensorboardX import SummaryWriter

        earlier = len(list(log_dir.glob("*"))) if log_dir.exists() else 0
        self._writer = SummaryWriter(
            logdir=str(log_dir),
            purge_step=start_step if earlier else None,
            filename_suffix=f".{earlier}",  # the name is otherwise the second: a quick resume would overwrite the file
        )

    def write(self, step: int, shown: Shown) -> None:
        for name, value in shown.figures.items():
            self._writer.add_scalar(name, value, step)
        for name, text in shown.texts.items():
            self._writer.add_text(name, _as_markdown(text), step)
        for name, values in shown.histograms.items():
            self._writer.add_histogram(name, values, step, bins="auto")
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _as_markdown(text: str) -> str:
    """Indented, which Markdown leaves as it is: an answer may hold any marks, also those of a fenced block."""
    return "\n".join("    " + line for line in text.encode("utf-8", "replace").decode().splitlines())


class Wandb:
    """A Weights & Biases run that goes on when the run directory's run does. Its service ignores repeated steps.

    Raises as `import_wandb`.
    """

    def __init__(self, run_dir: pathlib.Path, project: str, config: Mapping[str, Any]) -> None:
        self._wandb = import_wandb(project)
        name = _remembered(run_dir / "wandb_run") or secrets.token_hex(8)
        (run_dir / "wandb_run").write_text(name + "\n")
        self._run = self._wandb.init(
            project=project, id=name, name=run_dir.name, dir=str(run_dir), config=dict(config), resume="allow"
        )

    def write(self, step: int, shown: Shown) -> None:
        texts = {name: self._wandb.Html(_as_html(text)) for name, text in shown.texts.items()}
        histograms = {
            name: self._wandb.Histogram(values.tolist()) for name, values in shown.histograms.items()
        }
        self._run.log({**shown.figures, **texts, **histograms}, step=step)

    def close(self) -> None:
        self._run.finish()


def _as_html(text: str) -> str:
    return f"<pre>{html.escape(text.encode('utf-8', 'replace').decode())}</pre>"


class Mlflow:
    """An MLflow run that goes on when the run directory's run does: figures, the config as parameters, texts as files.

    It is kept where MLFLOW_TRACKING_URI says, else in the database mlflow.db beside the run directory, which all runs
    there share. MLflow has no histograms. A step that a resumed run repeats is there twice, with the same figures.

    Raises as `import_mlflow`.
    """

    def __init__(self, run_dir: pathlib.Path, experiment: str, config: Mapping[str, Any]) -> None:
        mlflow = import_mlflow(experiment)
        beside = run_dir.absolute().parent
        self._metric = mlflow.entities.Metric
        self._client = mlflow.MlflowClient(
            tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{beside / 'mlflow.db'}"
        )
        self._id = _remembered(run_dir / "mlflow_run")
        if self._id:
            self._client.update_run(self._id, status="RUNNING")
            return
        known = self._client.get_experiment_by_name(experiment)
        files = None if os.environ.get("MLFLOW_TRACKING_URI") else (beside / "mlflow_files").as_uri()
        place = known.experiment_id if known else self._client.create_experiment(experiment, files)
        self._id = self._client.create_run(place, run_name=run_dir.name).info.run_id
        parameters = [mlflow.entities.Param(name, value) for name, value in _parameters(config)]
        for first in range(0, len(parameters), _AT_ONCE):
            self._client.log_batch(self._id, params=parameters[first : first + _AT_ONCE])
        # Last: a run that was killed before it begins another one.
        (run_dir / "mlflow_run").write_text(self._id + "\n")

    def write(self, step: int, shown: Shown) -> None:
        now = time.time_ns() // 1_000_000
        figures = [
            self._metric(_REFUSED.sub("_", name), float(value), now, step)
            for name, value in shown.figures.items()
        ]
        self._client.log_batch(self._id, metrics=figures)
        for name, text in shown.texts.items():
            readable = text.encode("utf-8", "replace").decode()
            self._client.log_text(self._id, readable, f"{name}/step_{step:06}.txt")

    def close(self) -> None:
        self._client.set_terminated(self._id)


_AT_ONCE = 100  # parameters that MLflow takes in one request
_LONGEST = 6000  # characters of a parameter
_REFUSED = re.compile(r"[^\w\-./ :]")
"""Characters that MLflow takes in no name; kinds of records and parts of rewards may have them."""


def _parameters(config: Mapping[str, Any], above: str = "") -> Sequence[tuple[str, str]]:
    """Dotted keys of plain data and their values as texts; lists are one value."""
    found: list[tuple[str, str]] = []
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            found += _parameters(value, f"{above}{name}.")
        else:
            found.append((f"{above}{name}", str(value)[:_LONGEST]))
    return found


def _remembered(path: pathlib.Path) -> str:
    """The name under which a service knows the run; empty where it does not yet."""
    return path.read_text().strip() if path.exists() else ""
