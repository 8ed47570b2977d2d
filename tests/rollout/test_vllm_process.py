"""What the process with vLLM reports of its weights."""

import zlib

import ml_dtypes
import numpy as np

from rlvr_jax.rollout.vllm_process import fingerprint, held


def test_a_fingerprint_sees_every_bit_and_no_type():
    values = np.random.default_rng(0).standard_normal((5, 3)).astype(ml_dtypes.bfloat16)
    wide = values.astype(np.float32)
    checksum, total = fingerprint(values)
    assert checksum == f"{zlib.crc32(b''.join(x.tobytes() for x in wide.ravel())):08x}"
    assert total == sum(float(x) for x in wide.ravel())
    assert fingerprint(wide) == fingerprint(wide.T.copy().T) == (checksum, total)
    wide[4, 2] = np.nextafter(wide[4, 2], np.float32(9))
    assert fingerprint(wide)[0] != checksum


class Parameters:
    """A model as vLLM has one: q, k and v in one matrix, an embedding with padding."""

    packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}

    def named_parameters(self, remove_duplicate):
        assert not remove_duplicate  # a tied head has to be seen
        yield "a.0.qkv_proj.weight", np.arange(16).reshape(8, 2)
        yield "a.0.o_proj.weight", np.arange(4).reshape(2, 2)
        yield "embed.weight", np.arange(12).reshape(6, 2)


def test_fused_and_padded_parameters_are_found_by_a_checkpoints_names():
    shapes = {
        "a.0.q_proj.weight": (4, 2),
        "a.0.k_proj.weight": (2, 2),
        "a.0.v_proj.weight": (2, 2),
        "a.0.o_proj.weight": (2, 2),
        "embed.weight": (5, 2),
        "head.weight": (5, 2),
    }
    found = held(Parameters(), shapes)
    assert found.pop("head.weight") is None
    first = {name: (x[0, 0], x.shape) for name, x in found.items()}
    assert first == {
        "a.0.q_proj.weight": (0, (4, 2)),
        "a.0.k_proj.weight": (8, (2, 2)),
        "a.0.v_proj.weight": (12, (2, 2)),
        "a.0.o_proj.weight": (0, (2, 2)),
        "embed.weight": (0, (5, 2)),
    }
