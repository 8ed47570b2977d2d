"""A checkpoint of one mesh is restored on another, and the model that comes back is the same."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny
from flax import nnx

from rlvr_jax.models.decoder import param_shardings
from rlvr_jax.sharding import make_mesh
from rlvr_jax.train.checkpoint import Checkpoints

CONFIG = dataclasses.replace(tiny.CONFIG, vocab_size=64, dim=32, tied_embeddings=False)
"""Every axis that is split has a multiple of 8 entries, so that fsdp=8 really splits the parameters."""


def placed(params, mesh):
    """Shapes, dtypes and where a mesh wants each parameter."""
    shardings = param_shardings(params, mesh)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), params, shardings)


def logits(params):
    prompt, length, _, _ = tiny.prompts(count=2)
    tokens = np.arange(2 * tiny.T, dtype=np.int32).reshape(2, tiny.T)

    @jax.jit
    def run(params):
        model = nnx.merge(tiny.decoder(CONFIG)[0], params)
        prefix = model.prefill(jax.numpy.asarray(prompt), jax.numpy.asarray(length))
        return model.hidden(jax.numpy.asarray(tokens), prefix) @ model.head().T

    return np.asarray(run(params))


@pytest.mark.parametrize("shape", [(2, 1, 2), (1, 4, 1), (1, 1, 1)], ids=str)
def test_parameters_saved_with_fsdp_8_give_the_same_logits_elsewhere(tmp_path, shape):
    params = tiny.decoder(CONFIG)[1]
    eight = jax.device_put(params, param_shardings(params, make_mesh(1, 8, 1)))
    assert len({str(s.index) for s in jax.tree.leaves(eight)[0].addressable_shards}) > 1
    with Checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(1, eight, {})
        checkpoints.wait()
        mesh = make_mesh(*shape, devices=jax.devices()[: int(np.prod(shape))])
        like = placed(params, mesh)
        restored, _ = checkpoints.restore(like)
    for got, wanted, original in zip(*map(jax.tree.leaves, (restored, like, params)), strict=True):
        assert got.sharding == wanted.sharding
        np.testing.assert_array_equal(got, original)
    # Hidden states agree to 1e-5 across meshes (test_decoder.py); a logit adds 32 of them with weights of order 0.3, which
    # makes sqrt(32) * 0.3 * 1e-5 = 1.7e-5 of it.
    np.testing.assert_allclose(logits(restored), logits(params), rtol=0, atol=2e-5)
