"""How much host memory loading takes beside the parameters themselves."""

import json
import os
import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.families import to_huggingface
from rlvr_jax.models.names import stored_shapes

LAYERS, DIM, MLP = 5, 2048, 8192
TENSOR = 4 * DIM * MLP
"""Bytes of one layer's largest tensor, 67 MB; as stored it is half."""

PROGRAM = """
import sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
from flax import nnx
from rlvr_jax.models.load import load
from rlvr_jax.sharding import make_mesh

def status(key):
    line = next(line for line in open("/proc/self/status") if line.startswith(key + ":"))
    return int(line.split()[1]) * 1024

mesh = make_mesh(fsdp=4, tensor=2, data=1) if sys.argv[3] == "mesh" else None
load(sys.argv[1], mesh=mesh)
before = status("VmRSS")
model = jax.block_until_ready(nnx.split(load(sys.argv[2], mesh=mesh)[0])[1])
placed = sum(shard.data.nbytes for x in jax.tree.leaves(model) for shard in x.addressable_shards)
print(placed, status("VmHWM") - before - placed)
"""


def write_model(folder, **sizes):
    config = ModelConfig(vocab_size=512, num_heads=8, num_kv_heads=4, head_dim=32, **sizes)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(to_huggingface(config)))
    from safetensors.numpy import save_file

    generator = np.random.default_rng(0)
    tensors = {
        name: generator.standard_normal(shape, dtype=np.float32).astype(ml_dtypes.bfloat16)
        for name, shape in stored_shapes(config).items()
    }
    save_file(tensors, folder / "model.safetensors")
    return (folder / "model.safetensors").stat().st_size


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="needs Linux's accounts of memory")
@pytest.mark.parametrize("devices", ["one", "mesh"])
def test_loading_holds_one_tensor_beside_the_parameters(tmp_path, devices):
    """The process's own peak. It counts the mapped file too, whose pages the kernel takes back when it needs them.

    A tensor is there as stored on the host, in half the bytes, as stored on the device, in as many, and transposed in
    float32: two TENSOR, and 32 MB for what is compiled. All layers of the parameter would be LAYERS.
    """
    write_model(tmp_path / "small", num_layers=2, dim=64, mlp_dim=128)
    mapped = write_model(tmp_path / "big", num_layers=LAYERS, dim=DIM, mlp_dim=MLP)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "small"), str(tmp_path / "big"), devices]
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    placed, beside = map(int, done.stdout.split())
    assert placed > LAYERS * 3 * TENSOR
    print(
        f"{devices}: {placed / 1e6:.0f} MB placed, {(beside - mapped) / 1e6:.0f} MB beside them and the file"
    )
    assert beside - mapped < 2 * TENSOR + 32e6
