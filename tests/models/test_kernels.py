"""The kernels of TPU and GPU against the plain reference, in float32 on a CPU: Pallas's interpreter, and XLA for cuDNN."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attentions import SCALE, arrays, places, value_and_gradients
from flax import nnx

from rlvr_jax.models.attention import plain
from rlvr_jax.models.config import ModelConfig
from rlvr_jax.models.decoder import Decoder
from rlvr_jax.models.kernels import cudnn, over_shards, over_windows
from rlvr_jax.models.splash import RowsBehindPrefix, splash
from rlvr_jax.sharding import make_mesh

CLOSE = dict(rtol=0, atol=6e-5)
"""Float32 sums of up to 300 terms, partial sums of order 16 (an ulp there is 1e-6), in another order: 300 roundings in
random directions come to 2e-5, and this is three times as much. A key too many or too few shows at 1e-2."""

CASES = {
    "no prefix": (dict(prompts=2, group=1, prefix=0, length=20, width=64), [0, 0], 0),
    "ragged": (dict(prompts=3, group=2, prefix=6, length=20, heads=4, kv_heads=2, width=64), [6, 0, 3], 0),
    "window": (dict(prompts=3, group=2, prefix=30, length=20, heads=4, kv_heads=2, width=64), [30, 0, 11], 9),
    "blocks": (dict(prompts=1, group=2, prefix=140, length=150, width=128), [133], 145),
}
PACKED = [[0] * 5 + [1] * 12 + [2] * 4, [7] * 21]


def against_plain(kernel, rows, lengths, window, segments=None):
    """Value and all gradients."""
    where = places(lengths, rows, segments)

    def reference(q, prefix_k, prefix_v, k, v):
        prefix_mask, mask = where.seen(jnp.asarray(window))
        return plain(q, prefix_k, prefix_v, prefix_mask, k, v, mask, SCALE)

    def ours(q, prefix_k, prefix_v, k, v):
        rest = where.length, where.segments
        return kernel(q, prefix_k, prefix_v, k, v, *rest, window=window, scale=SCALE)

    names = ("value", "q", "prefix_k", "prefix_v", "k", "v")
    got, want = value_and_gradients(ours, rows), value_and_gradients(reference, rows)
    for name, one, other in zip(names, got, want, strict=True):
        np.testing.assert_allclose(one, other, err_msg=name, **CLOSE)


ON_XLA = functools.partial(cudnn, implementation="xla")
INTERPRETED = functools.partial(splash, interpret=True)


@pytest.mark.parametrize("case", CASES)
def test_cudnn_is_asked_for_what_plain_computes(case):
    sizes, lengths, window = CASES[case]
    against_plain(ON_XLA, arrays(**sizes), lengths, window)


@pytest.mark.parametrize("window, prefix", [(0, 0), (6, 0), (0, 7), (6, 7)])
def test_cudnn_is_asked_for_what_plain_computes_on_packed_rows(window, prefix):
    lengths = [prefix, min(prefix, 3)]
    against_plain(ON_XLA, arrays(prompts=2, group=1, prefix=prefix, length=21), lengths, window, PACKED)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_splash_is_plain(case):
    sizes, lengths, window = CASES[case]
    against_plain(INTERPRETED, arrays(**sizes), lengths, window)


@pytest.mark.slow
@pytest.mark.parametrize("window, prefix, width", [(6, 0, 128), (0, 7, 64)])
def test_splash_is_plain_on_packed_rows(window, prefix, width):
    rows = arrays(prompts=2, group=1, prefix=prefix, length=21, heads=4, kv_heads=2, width=width)
    against_plain(INTERPRETED, rows, [prefix, min(prefix, 3)], window, PACKED)


@pytest.mark.parametrize("prefix, window", [(0, 0), (8, 0), (8, 5), (8, 30)])
@pytest.mark.parametrize("block", [(4, 4), (4, 8)])
def test_the_mask_of_rows_behind_a_prefix_is_its_definition(prefix, window, block):
    group, size = 3, 16
    mask = RowsBehindPrefix(group, prefix, size, window)
    want = np.zeros(mask.shape, bool)
    for query in range(group * size):
        row, t = divmod(query, size)
        for key in range(prefix + group * size):
            own_row, u = divmod(key - prefix, size)
            behind = t + prefix - key if key < prefix else t - u if own_row == row else -1
            want[query, key] = 0 <= behind < (window or np.inf)
    got = np.zeros_like(want)
    for i in range(0, want.shape[0], block[0]):
        for j in range(0, want.shape[1], block[1]):
            part = slice(i, i + block[0]), slice(j, j + block[1])
            got[part] = mask[part]
    np.testing.assert_array_equal(got, want)


def test_each_layer_runs_the_kernel_of_its_own_window():
    rows, lengths = arrays(prompts=2, group=2, prefix=6, length=8), [6, 3]
    where = places(lengths, rows)

    @jax.jit
    def both(window):
        kernel = functools.partial(ON_XLA, scale=SCALE)
        got = over_windows(kernel, *rows, where.length, None, window=window, windows=(4, 0, 4, 7))
        prefix_mask, mask = where.seen(window)
        return got, plain(*rows[:3], prefix_mask, *rows[3:], mask, SCALE)

    for window in (0, 4, 7):
        np.testing.assert_allclose(*both(jnp.asarray(window)), **CLOSE)


@pytest.mark.parametrize("mesh", [(2, 2, 2), (4, 1, 1, 2)], ids=str)
@pytest.mark.parametrize("prompts", [1, 4])
def test_on_a_mesh_each_device_runs_the_kernel_on_its_rows_and_heads(prompts, mesh):
    """Rows in 4 parts and heads in 2: fewer prompts and key heads than parts, and as many prompts. Or devices that have the
    same rows."""
    rows = arrays(prompts=prompts, group=8 // prompts, prefix=6, length=8, heads=4, kv_heads=1)
    lengths = jnp.asarray([6, 0, 3, 1][:prompts], jnp.int32)
    kernel = functools.partial(ON_XLA, scale=SCALE)

    def call(*rows):
        return over_shards(kernel, *rows, lengths, None, window=4)

    want = value_and_gradients(call, rows)
    with jax.set_mesh(make_mesh(*mesh)):
        got = value_and_gradients(call, rows)
    assert len(got[0].sharding.device_set) == 8
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler: pip install libtpu"
)
@pytest.mark.parametrize("windows", [(), (0, 40)])
def test_the_decoder_compiles_for_a_tpu_with_its_kernel(windows):
    """On any machine: forward and both kernels of the gradient, for each size of window."""
    from jax.experimental import topologies

    devices = topologies.get_topology_desc("v5e:2x2", platform="tpu").devices
    sizes = dict(vocab_size=256, num_layers=2, dim=256, mlp_dim=512, windows=windows)
    config = ModelConfig(**sizes, num_heads=4, num_kv_heads=2, head_dim=64)
    abstract = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), dtype=jnp.bfloat16))
    graphdef, params = nnx.split(abstract)

    def loss(params, prompt, length, tokens):
        model = nnx.merge(graphdef, params)
        hidden = model.hidden(tokens, model.prefill(prompt, length))
        return hidden.astype(jnp.float32).sum()

    shapes = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((2, 100), (2,), (8, 130))]
    with jax.set_mesh(make_mesh(data=2, tensor=2, devices=devices)):
        compiled = jax.jit(jax.grad(loss)).lower(params, *shapes).compile()
    text = compiled.as_text()
    for kernel in ("splash_mha_fwd", "splash_mha_dq", "splash_mha_dkv"):
        assert kernel in text
