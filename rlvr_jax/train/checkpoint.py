"""Checkpoints: the whole state in one atomic Orbax step, written while training goes on."""

import contextlib
import pathlib
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from rlvr_jax.config import Config
from rlvr_jax.train.rundir import require_space

FOLDER = "checkpoints"
"""Of a run directory."""
ARRAYS = "arrays"
"""Item of a step that holds the arrays of the host, where there are any."""
BEHIND = "behind"
"""Item of a step that holds older parameters, where the next batch is sampled with such."""


def was_started(run_dir: pathlib.Path) -> bool:
    """Whether a run directory holds a complete checkpoint: work that another config would spoil."""
    folder = run_dir / FOLDER
    return folder.is_dir() and any(p.name.isdigit() for p in folder.iterdir())


class Checkpoints:
    """Save and restore `(state, data)`: a pytree of arrays, and the JSON-able state of the data stream.

    A step is written to a temporary name and renamed when complete, so a crash or a full disk leaves the last
    complete one in place; older ones are deleted only after a newer one is whole. Leaves are stored under their
    paths, and restored with the shardings of the tree that asks for them, whatever mesh they were saved on.
    """

    def __init__(self, directory: pathlib.Path, keep: int):
        self.directory = directory.resolve()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            create=True,
            enable_async_checkpointing=True,
            # Two of these save at once, and a step has the same number in both.
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                barrier_sync_key_prefix=self.directory.name
            ),
        )
        self._manager = ocp.CheckpointManager(self.directory, options=options)

    @classmethod
    def of(cls, config: Config) -> "Checkpoints":
        """Those of a run."""
        return cls(pathlib.Path(config.run_dir) / FOLDER, config.checkpoint.keep)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._manager.close()

    def latest(self) -> int | None:
        """The newest complete step, or None."""
        return self._manager.latest_step()

    def save(
        self,
        step: int,
        state: Any,
        data: dict[str, Any],
        arrays: Mapping[str, np.ndarray] | None = None,
        behind: Any = None,
    ) -> None:
        """Start writing; returns once the arrays are copied. `arrays` are of the host, of any shape; `behind` is another tree
        of parameters.

        Raises OSError where the disk is too full, or where the save before this one failed.
        """
        self.wait()
        if self.latest() == step:
            return
        leaves, arrays, older = _by_path(state), arrays or {}, _by_path(behind)
        size = sum(x.size * x.dtype.itemsize for x in (*leaves.values(), *arrays.values(), *older.values()))
        require_space(self.directory, size)
        items = {"state": ocp.args.StandardSave(leaves), "data": ocp.args.JsonSave(data)}
        if arrays:
            items[ARRAYS] = ocp.args.StandardSave(dict(arrays))
        if older:
            items[BEHIND] = ocp.args.StandardSave(older)
        with self._failing_clearly():
            self._manager.save(step, args=ocp.args.Composite(**items))

    def restore(self, like: Any, step: int | None = None) -> tuple[Any, dict[str, Any]]:
        """The state of `step` (default: newest) in the structure, dtypes and shardings of `like`."""
        step = self._existing(step)
        args = ocp.args.Composite(
            state=ocp.args.StandardRestore(_abstracts(like)), data=ocp.args.JsonRestore()
        )
        found = self._manager.restore(step, args=args)
        return _in_structure(like, found["state"]), found["data"]

    def behind(self, like: Any) -> Any:
        """The older parameters that the newest step was saved with; None where there are none."""
        step = self.latest()
        if step is None or BEHIND not in self._manager.item_metadata(step):
            return None
        args = ocp.args.Composite(**{BEHIND: ocp.args.StandardRestore(_abstracts(like))})
        return _in_structure(like, self._manager.restore(step, args=args)[BEHIND])

    def restore_params(self, like: Any, step: int | None = None) -> Any:
        """The trained parameters of `step` (default: newest) and nothing of the optimiser; `like` is as for `restore`."""
        step, like = self._existing(step), {"params": like}
        abstract = _abstracts(like)
        args = ocp.args.PyTreeRestore(
            abstract, ocp.checkpoint_utils.construct_restore_args(abstract), partial_restore=True
        )
        # a manager reads an item in one way only
        with ocp.CheckpointManager(self.directory) as manager:
            found = manager.restore(step, args=ocp.args.Composite(state=args))["state"]
        return _in_structure(like, found)["params"]

    def _existing(self, step: int | None) -> int:
        """That step, or the newest. Raises FileNotFoundError where there is none."""
        steps = sorted(self._manager.all_steps())
        if not steps:
            raise FileNotFoundError(f"no complete checkpoint in {self.directory}.")
        if step is not None and step not in steps:
            raise FileNotFoundError(
                f"no checkpoint of step {step} in {self.directory}: there are those of {', '.join(map(str, steps))}."
            )
        return steps[-1] if step is None else step

    def arrays(self, step: int | None = None) -> dict[str, np.ndarray]:
        """The host arrays that were saved beside the state of `step` (default: newest); empty where there are none."""
        step = self.latest() if step is None else step
        if step is None or ARRAYS not in self._manager.item_metadata(step):
            return {}
        return self._manager.restore(step, args=ocp.args.Composite(**{ARRAYS: ocp.args.StandardRestore()}))[
            ARRAYS
        ]

    def wait(self) -> None:
        """Until the last save is whole. Raises OSError where it failed."""
        with self._failing_clearly():
            self._manager.wait_until_finished()

    @contextlib.contextmanager
    def _failing_clearly(self) -> Iterator[None]:
        """What the layers below raise when a file cannot be written is of many kinds; here it becomes one."""
        try:
            yield
        except Exception as error:
            why = " ".join(str(error).split())[:300]
            raise OSError(
                f"a checkpoint could not be written in {self.directory} ({why}): the previous checkpoint stays; free "
                "space there, and the same command goes on from it."
            ) from error

    def reference(self, like: Any, params: Any) -> Any:
        """The parameters that the run started from: `params` at the first call of a run, the same ever after.

        A copy, so that donating the policy's buffers leaves it alone.
        """
        kept = Checkpoints(self.directory.parent / "reference", keep=1)
        with kept:
            if kept.latest() is None:
                kept.save(0, params, {})
                kept.wait()
                return jax.tree.map(jnp.copy, params)
            return kept.restore(like)[0]


def _by_path(tree: Any) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _in_structure(like: Any, by_path: Mapping[str, Any]) -> Any:
    return jax.tree.unflatten(jax.tree.structure(like), [by_path[path] for path in _by_path(like)])


def _abstracts(like: Any) -> dict[str, Any]:
    return {path: _abstract(x) for path, x in _by_path(like).items()}


def _abstract(x: Any) -> Any:
    if isinstance(x, jax.ShapeDtypeStruct):
        return x
    return jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=x.sharding)
