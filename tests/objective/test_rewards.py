"""Shaped rewards against loops over the papers' equations."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import T, batch, context

from rlvr_jax.objective.rewards import Overlong, overlong_penalty
from rlvr_jax.types import BatchSpec


def slow_overlong(length, max_length, buffer):
    """DAPO, eq. 13, as the paper writes it."""
    if length <= max_length - buffer:
        return 0.0
    if length <= max_length:
        return ((max_length - buffer) - length) / buffer
    return -1.0


@pytest.mark.parametrize("max_length, buffer", [(20, 4), (7, 7), (5, 1), (20480, 4096)])
@pytest.mark.parametrize(
    "wrap", [lambda f: f, lambda f: jax.jit(f, static_argnums=(1, 2))], ids=["eager", "jit"]
)
def test_overlong_matches_the_paper(wrap, max_length, buffer):
    lengths = np.unique(np.linspace(0, max_length + 5, 40).astype(int))
    got = wrap(overlong_penalty)(jnp.asarray(lengths, jnp.float32), max_length, buffer)
    np.testing.assert_allclose(got, [slow_overlong(n, max_length, buffer) for n in lengths], rtol=1e-6)


def test_by_hand_with_the_settings_of_the_paper():
    """20480 and 4096: free up to 16384 tokens, half punished at 18432."""
    lengths = jnp.asarray([16384.0, 17408.0, 18432.0, 20480.0, 30000.0])
    np.testing.assert_array_equal(overlong_penalty(lengths, 20480, 4096), [0.0, -0.25, -0.5, -1.0, -1.0])


def test_the_stage_counts_sampled_tokens():
    """Tokens outside the mask (a tool's output) are not the policy's: a row of T tokens of which one is masked has T - 1."""
    rollout, stats = batch(mask=np.ones((12, T)), reward=1.0)
    rollout = dataclasses.replace(rollout, mask=rollout.mask.at[0, 2].set(0.0))
    got = Overlong(max_length=T, buffer=2, factor=0.5).transform(rollout.reward, context(rollout, stats))
    np.testing.assert_allclose(got, [1 - 0.5 * 0.5] + [1 - 0.5 * 1.0] * 11)


def test_a_zero_factor_is_the_identity():
    rollout, stats = batch()
    got = Overlong(max_length=2, buffer=1, factor=0.0).transform(rollout.reward, context(rollout, stats))
    np.testing.assert_array_equal(got, rollout.reward)


def test_no_buffer_means_a_fifth_of_the_length():
    spec = BatchSpec(groups=3, group_size=4, length=20, num_prompts=9)
    rollout, stats = batch(spec=spec)
    got = Overlong().transform(rollout.reward, context(rollout, stats, spec))
    lengths = np.asarray(rollout.mask).sum(1)
    assert ((lengths > 16) & (lengths < 20)).any()
    want = np.asarray(rollout.reward) + [slow_overlong(n, 20, 4) for n in lengths]
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_no_length_means_that_of_the_run():
    rollout, stats = batch(mask=np.ones((12, T)), reward=1.0)
    given, run = (
        stage.transform(rollout.reward, context(rollout, stats))
        for stage in (Overlong(max_length=T, buffer=2), Overlong(buffer=2))
    )
    np.testing.assert_array_equal(given, run)


@pytest.mark.parametrize(
    "fields, text",
    [
        (
            {"max_length": 10, "buffer": -1},
            "overlong max_length (0: the run's limit) and buffer (0: a fifth of it) are numbers of tokens, got "
            "max_length=10, buffer=-1.",
        ),
        ({"factor": -1.0}, "overlong factor scales a punishment and is >= 0, got -1.0."),
    ],
)
def test_errors(fields, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        Overlong(**fields)


def test_a_buffer_beyond_the_length_is_an_error_of_the_run():
    text = (
        f"overlong buffer=6 is longer than the {T} tokens at which its punishment is complete: set a smaller "
        "buffer (DAPO: a fifth of the length)."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        Overlong(buffer=6).check(BatchSpec(groups=3, group_size=4, length=T, num_prompts=9))
