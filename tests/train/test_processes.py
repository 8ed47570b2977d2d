"""Several processes on one mesh are the run of one process, to the bit; and none waits for one that is gone.

All of them reduce with gloo, the one process of eight devices too, which sums in one order wherever the devices are.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
import yaml

from rlvr_jax import distributed
from rlvr_jax.configfile import parse
from rlvr_jax.distributed import LOST
from rlvr_jax.train.batches import check_processes
from rlvr_jax.train.checkpoint import Checkpoints
from rlvr_jax.train.metrics import METRICS, ROLLOUTS, read_rows, without_times
from rlvr_jax.train.program import assemble

pytestmark = pytest.mark.slow

STEPS, DEVICES = 8, 8
TREE = {
    "steps": STEPS,
    "task": {"name": "maze", "size": 5, "test_size": 1},
    "model": {"scratch": {"num_layers": 1, "dim": 16, "num_heads": 2, "num_kv_heads": 2, "mlp_dim": 16}},
    # The entropy bonus moves the parameters in every step, whatever the rewards are.
    "objective": {"preset": "grpo", "regularisers": [{"name": "entropy", "coef": 0.1}]},
    "sampling": {"max_new_tokens": 6},
    "prompts": {"max_tokens": 64},
    "batch": {"prompts": 8, "group_size": 2},
    "mesh": {"data": 4, "fsdp": 2},
    "optimizer": {"learning_rate": 1e-3},
    "checkpoint": {"every": 4, "keep": 20},
    "evaluation": {"prompts": 1, "samples": 2, "k": [1]},
}
PROGRAM = "import sys; from rlvr_jax.cli import main; sys.exit(main(sys.argv[1:]))"


class Processes:
    """`rlvr-jax train` in so many processes, which share eight devices."""

    def __init__(self, folder: pathlib.Path, count: int, *words: str):
        folder.mkdir(exist_ok=True)
        (folder / "config.yaml").write_text(yaml.safe_dump({**TREE, "run_dir": str(folder / "run")}))
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(DEVICES // count),
        }
        self.run = folder / "run"
        self._said = [folder / f"said.{count}.{i}" for i in range(count)]
        self.each = []
        for i, said in enumerate(self._said):
            command = [sys.executable, "-c", PROGRAM, "train", str(folder / "config.yaml"), *words]
            command += ["--coordinator", address, "--processes", str(count), "--process", str(i)]
            with said.open("w") as out:
                self.each.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.each:
            process.kill()
            process.wait()

    def said(self, i: int) -> str:
        return self._said[i].read_text()

    def wait_for_steps(self, steps: int) -> None:
        """Until metrics.jsonl has that many lines."""
        deadline = time.monotonic() + 400
        while not (self.run / METRICS).exists() or len(read_rows(self.run / METRICS)) < steps:
            assert all(process.poll() is None for process in self.each), [
                *map(self.said, range(len(self.each)))
            ]
            assert time.monotonic() < deadline, "the run did not get that far"
            time.sleep(0.01)

    def ended(self) -> list[int]:
        """Exit statuses, once all have ended."""
        return [process.wait(timeout=400) for process in self.each]


def final(run: pathlib.Path) -> tuple:
    """State and data of the last checkpoint."""
    config = parse({**TREE, "run_dir": str(run)})
    like = assemble(config, num_prompts=len(config.task.records("train"))).abstract
    with Checkpoints(run / "checkpoints", keep=20) as checkpoints:
        assert checkpoints.latest() == STEPS
        return checkpoints.restore(like)


def test_two_processes_stopped_by_one_and_four_that_go_on_are_one_process(tmp_path):
    with Processes(tmp_path / "one", 1) as one:
        assert one.ended() == [0], one.said(0)
    with Processes(tmp_path / "many", 2) as two:
        two.wait_for_steps(1)
        two.each[1].send_signal(signal.SIGTERM)
        assert two.ended() == [143, 143], two.said(0)
        assert "the same command goes on from there" in two.said(0)
        assert "stopped after" not in two.said(1), "one of them speaks"
        done = len(read_rows(two.run / METRICS))
        assert 0 < done < STEPS
        assert (two.run / "checkpoints" / str(done)).is_dir()
    with Processes(tmp_path / "many", 4) as four:
        assert four.ended() == [0] * 4, [*map(four.said, range(4))]

    figures = [[without_times(row) for row in read_rows(x.run / METRICS)] for x in (one, four)]
    assert figures[0] == figures[1]
    assert [row["step"] for row in figures[0]] == list(range(STEPS))
    assert all(row["optimizer/grad_norm"] > 0 for row in figures[0])
    for name in (ROLLOUTS, "evaluations.jsonl"):
        assert (one.run / name).read_bytes() == (four.run / name).read_bytes()
    (state, data), (other, other_data) = final(one.run), final(four.run)
    assert data == other_data
    jax.tree.map(np.testing.assert_array_equal, state, other)


def test_a_process_that_is_killed_ends_the_other_one_with_a_message(tmp_path):
    with Processes(tmp_path / "killed", 2, "--steps", "1000000", "--evaluation.prompts", "0") as two:
        two.wait_for_steps(1)
        two.each[1].kill()
        killed = time.monotonic()
        assert two.each[0].wait(timeout=60) in (LOST, -signal.SIGABRT)
        assert time.monotonic() - killed < 40
        said = two.said(0)
        # Ours, or JAX's where the sign of life was missed first.
        assert "process 0 of 2 lost another one" in said or "another task died" in said


def test_what_several_processes_cannot_do_is_refused_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr(distributed, "count", lambda: 2)
    corrected = {"preset": "grpo", "token_weight": [{"name": "sampler_correction"}]}
    check_processes(parse(TREE))
    with pytest.raises(
        ValueError, match="batch.ahead=1 on 2 processes: two threads begin their programs in another order"
    ):
        check_processes(parse(TREE | {"objective": corrected, "batch": {"ahead": 1}}))


def test_who_finds_nobody_says_so(tmp_path):
    program = (
        "from rlvr_jax.cluster import Cluster; from rlvr_jax.distributed import joined\n"
        "with joined(Cluster('localhost:9', 2, 1), print, patience=1): pass"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == LOST
    assert done.stderr.splitlines()[-1] == (
        "rlvr-jax: process 1 of 2 did not meet the others at the coordinator localhost:9, which is process 0, within 1 "
        "seconds: start all of them, with one address that every host can reach."
    )
