"""Denominators: against loops, and the faults that loss scales of other trainers had."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import SPEC, B, T, batch, soil, take

from rlvr_jax import registry
from rlvr_jax.objective import Credit, Objective
from rlvr_jax.objective.aggregates import FixedLength, PromptTokenMean, SequenceMean, TokenMean
from rlvr_jax.sharding import make_mesh, microbatches, row_sharding
from rlvr_jax.types import BatchSpec, Pass, Stat, Stats

D, V = 8, 12
ALL = registry.names("aggregate")
every_aggregate = pytest.mark.parametrize("name", ALL)
BIG = BatchSpec(groups=8, group_size=4, length=6, num_prompts=8)
PARAMS = tuple(
    jnp.asarray(np.random.default_rng(i).normal(size=s), jnp.float32) for i, s in enumerate([(V, D), (V, D)])
)


def slow(name, mask, group_size, length):
    """Coefficients by loops over the definitions."""
    out = np.zeros(mask.shape)
    rows = [i for i in range(len(mask)) if sum(mask[i]) > 0]
    prompts = {i // group_size for i in rows}
    for i in rows:
        members = range(i // group_size * group_size, (i // group_size + 1) * group_size)
        for t in range(mask.shape[1]):
            if mask[i, t]:
                out[i, t] = (
                    1
                    / {
                        "sequence_mean": sum(mask[i]) * len(rows),
                        "sequence_sum": sum(mask[i]),
                        "token_mean": sum(sum(row) for row in mask),
                        "prompt_token_mean": sum(sum(mask[j]) for j in members) * len(prompts),
                        "fixed_length": length * len(rows),
                    }[name]
                )
    return out


def ragged(spec=BIG):
    """Lengths from 1 to T, but 4 rows in a row that are empty: on 8 devices, one holds nothing but padding."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, spec.length + 1, spec.rows)
    lengths[8:12] = [1, 0, 0, 0]
    lengths[20] = 0
    return np.arange(spec.length) < lengths[:, None]


@functools.partial(jax.jit, static_argnums=0)
def gradient(micro, params, rollout, weight, credit):
    """Loss and gradient of one optimiser step, over micro-batches, of a model that looks at one token.

    The loss is a plain sum, whatever the aggregate: all of it is in `weight`.
    """

    def loss(params, x):
        rollout, weight, credit = x
        embedding, head = params
        every = jax.nn.log_softmax(embedding[rollout.tokens] @ head.T)
        found = jnp.take_along_axis(every, rollout.tokens[..., None], -1)[..., 0]
        old = {(Pass.OLD, Stat.LOGPROB): jnp.full_like(found, -2.0), (Pass.NEW, Stat.LOGPROB): found}
        return Objective().loss(Stats(values=old), credit, weight)[0]

    parts = jax.lax.map(
        lambda x: jax.value_and_grad(loss)(params, x), microbatches((rollout, weight, credit), micro, 4)
    )
    return jax.tree.map(lambda x: x.sum(0), parts)


@functools.partial(jax.jit, static_argnums=2)
def credit_of(rollout, stats, spec):
    return Objective().credit(rollout, stats, spec, Objective().init(spec))[0]


@functools.partial(jax.jit, static_argnums=(0, 2))
def coefficients(part, mask, spec=SPEC):
    return part.coefficients(jnp.asarray(mask, jnp.float32), spec)


def step(name, mask, *, micro=1, sharding=None, spec=BIG, rows=None):
    rollout, stats = batch(spec=spec, mask=mask)
    credit = credit_of(rollout, stats, spec)
    if rows is not None:
        rollout, credit = take((rollout, credit), rows)
    weight = coefficients(registry.build("aggregate", name), credit.mask, spec)
    given = (rollout, weight, credit)
    if sharding is not None:
        given = jax.device_put(given, sharding)
    return gradient(micro, PARAMS, *given)


def close(a, b):
    """Sums of 190 float32 terms in another order: a few ulp (6e-8) of the largest gradient, which is up to 1 for means
    and of the order of 10 for a sum over responses."""
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6 * max(1, np.abs(y).max())), a, b
    )


@every_aggregate
def test_matches_a_loop(name):
    mask = np.asarray(batch()[0].mask)
    got = coefficients(registry.build("aggregate", name), mask)
    np.testing.assert_allclose(got, slow(name, mask, SPEC.group_size, SPEC.length), rtol=1e-6)


@every_aggregate
def test_a_masked_row_is_in_no_denominator(name):
    """Coefficients of the others are exactly those of the batch without it. (A group of another size for one row: so a whole
    group for `prompt_token_mean`; its denominators are checked by row in the loop.)"""
    part = registry.build("aggregate", name)
    gone = [4, 5, 6, 7] if name == "prompt_token_mean" else [5]
    kept = [i for i in range(B) if i not in gone]
    mask = np.array(batch()[0].mask)
    without = coefficients(part, mask[kept])
    mask[gone] = 0
    masked = np.asarray(coefficients(part, mask))
    np.testing.assert_array_equal(masked[kept], without)
    assert not masked[gone].any()
    np.testing.assert_allclose(without, slow(name, mask, SPEC.group_size, SPEC.length)[kept], rtol=1e-6)


@every_aggregate
def test_the_gradient_of_a_masked_row_is_that_of_the_batch_without_it(name):
    """Thirty tokens in the denominator over twenty-five in the numerator made losses 17 % too small elsewhere."""
    mask = np.array(ragged())
    mask[16:] = 0
    close(step(name, mask), step(name, mask, rows=np.arange(16)))


def test_three_definitions_by_hand():
    """Rows of 4, 1 and 1 tokens, one group: a token weighs 1/12 or 1/3 by rows, 1/6 by tokens, 1/15 for length 5."""
    mask = np.arange(5) < np.array([4, 1, 1])[:, None]
    spec = BatchSpec(groups=1, group_size=3, length=5, num_prompts=1)
    first = lambda part: np.asarray(coefficients(part, mask, spec))[:, 0]  # noqa: E731
    np.testing.assert_allclose(first(SequenceMean()), [1 / 12, 1 / 3, 1 / 3], rtol=1e-6)
    np.testing.assert_allclose(first(TokenMean()), [1 / 6] * 3, rtol=1e-6)
    np.testing.assert_allclose(first(PromptTokenMean()), [1 / 6] * 3, rtol=1e-6)
    np.testing.assert_allclose(first(FixedLength()), [1 / 15] * 3, rtol=1e-6)
    np.testing.assert_allclose(first(FixedLength(3000)), [1 / 9000] * 3, rtol=1e-6)


def test_token_mean_and_prompt_token_mean_differ_by_the_known_factor():
    """Two prompts with 3 and 9 tokens: 1/12 for every token, against 1/(2 * 3) and 1/(2 * 9)."""
    mask = np.arange(5) < np.array([1, 2, 4, 5])[:, None]
    spec = BatchSpec(groups=2, group_size=2, length=5, num_prompts=2)
    by_prompt, by_token = (np.asarray(coefficients(p, mask, spec)) for p in (PromptTokenMean(), TokenMean()))
    np.testing.assert_allclose(by_prompt[:, 0] / by_token[:, 0], [2.0, 2.0, 2 / 3, 2 / 3], rtol=1e-6)


@every_aggregate
def test_nothing_to_train_is_a_loss_of_zero_with_zero_gradients(name):
    """0/0 anywhere on the way, under jit or in the backward, stops this test; so does what lies under the padding."""
    rollout, stats = soil(*batch(spec=BIG, mask=np.zeros((BIG.rows, BIG.length))), 3.0)
    with jax.debug_nans(True):
        credit = credit_of(rollout, stats, BIG)
        loss, grads = gradient(
            1, PARAMS, rollout, coefficients(registry.build("aggregate", name), credit.mask, BIG), credit
        )
    assert loss == 0
    for leaf in jax.tree.leaves(grads):
        assert not np.any(leaf)


@every_aggregate
@pytest.mark.parametrize("micro", [2, 4, 8])
def test_micro_batches_add_up(name, micro):
    """Whatever their lengths: no mean of means, and no division by the number of micro-batches."""
    close(step(name, ragged(), micro=micro), step(name, ragged()))


@every_aggregate
@pytest.mark.parametrize("micro", [1, 2])
def test_shards_add_up(name, micro):
    rows = row_sharding(make_mesh())  # 8 devices with 4 rows each; the third holds one token
    close(step(name, ragged(), micro=micro, sharding=rows), step(name, ragged()))


@every_aggregate
def test_the_denominator_is_that_of_the_optimiser_step(name):
    """Half of the generated batch is one step: its gradient does not depend on the other half."""
    mask = np.array(ragged())
    half = np.arange(16)
    alone = step(name, mask, rows=half)
    mask[16:] = 1
    close(step(name, mask, rows=half), alone)


def test_coefficients_of_a_full_batch_sum_to_one():
    """But for the sum over responses, which grows with their number."""
    for name in ALL:
        full = coefficients(registry.build("aggregate", name), np.ones((B, T)))
        np.testing.assert_allclose(np.sum(full), B if name == "sequence_sum" else 1.0, rtol=1e-5)


def test_passes_share_the_denominators_of_the_whole_step():
    """A pass over some of the tokens is divided by all of them: two passes add to one step."""
    rollout, _ = batch()
    first = rollout.mask.at[:, ::2].set(0.0)
    passes = jnp.stack([first, rollout.mask - first], 1)
    credit = Credit(advantage=rollout.mask, passes=passes, mask=rollout.mask)
    for name in ALL:
        part = registry.build("aggregate", name)
        both = sum(Objective(aggregate=part).weights(credit, SPEC, k) for k in (0, 1))
        np.testing.assert_array_equal(both, part.coefficients(rollout.mask, SPEC))


def test_errors():
    text = "fixed_length divides by a number of tokens >= 1 (0: the budget), got -1."
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        FixedLength(-1)
