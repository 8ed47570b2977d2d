"""What processes tell each other, seen from one of them; several real ones are in train/test_processes.py."""

import jax
import numpy as np
import pytest

from rlvr_jax import distributed
from rlvr_jax.sharding import make_mesh, row_sharding


def test_one_process_agrees_with_itself():
    assert distributed.is_first() and distributed.count() == 1 and distributed.mine(7)
    assert distributed.agreed(True) is True and distributed.agreed(False) is False
    assert distributed.exchanged({"a": 1}) == [{"a": 1}]
    assert distributed.from_first("me") == "me"
    assert distributed.merged(["a", "b", "c"], 3) == ["a", "b", "c"]
    distributed.barrier()
    with distributed.joined(None, failed=lambda error: 1):
        pass


def test_arrays_are_laid_out_and_stay_what_they_are():
    mesh = make_mesh(8)
    rows = np.arange(16, dtype=np.int32).reshape(8, 2)
    placed = distributed.put({"x": rows}, row_sharding(mesh))
    assert placed["x"].sharding == row_sharding(mesh)
    np.testing.assert_array_equal(placed["x"], rows)
    assert distributed.replicated(placed, mesh) is placed


@pytest.mark.parametrize("total", [1, 5, 6])
def test_work_is_shared_out_and_put_together_in_its_order(monkeypatch, total):
    """Three processes, one after the other; each says what it has, and reads what all of them said."""
    said = []
    monkeypatch.setattr(distributed, "count", lambda: 3)
    for me in range(3):
        monkeypatch.setattr(jax, "process_index", lambda me=me: me)
        said.append([item for item in range(total) if distributed.mine(item)])
    assert max(map(len, said)) - min(map(len, said)) <= 1
    monkeypatch.setattr(distributed, "exchanged", lambda own: said)
    assert distributed.merged(said[1], total) == list(range(total))


def test_a_lost_process_is_told_from_other_errors():
    lost = jax.errors.JaxRuntimeError(
        "INTERNAL: Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:1"
    )
    assert distributed.is_loss(lost)
    wrapped = OSError("a checkpoint could not be written")
    wrapped.__cause__ = lost
    assert distributed.is_loss(wrapped)
    assert not distributed.is_loss(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"))
    assert not distributed.is_loss(ValueError("gloo"))
