"""Plans of micro-batches: every row once, in room that is there; and what the device makes of them."""

import dataclasses

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from rlvr_jax.objective import Credit, Objective, preset
from rlvr_jax.objective.regularisers import KL
from rlvr_jax.sharding import make_mesh, row_sharding
from rlvr_jax.train.packing import Packer, Plan


@st.composite
def batches(draw):
    """A packer, lengths, who is live, the width of a prompt."""
    group, shards = draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 4]))
    packer = Packer(
        groups=draw(st.integers(1, 3)) * draw(st.sampled_from([1, shards])),
        group_size=group,
        length=draw(st.integers(1, 9)),
        micro_batches=draw(st.integers(1, 4)),
        shards=shards,
        texts=draw(st.sampled_from([1, 2, 100])),
    )
    count = packer.groups * group
    rows = lambda of: np.array(draw(st.lists(of, min_size=count, max_size=count)))  # noqa: E731
    return packer, rows(st.integers(1, packer.length)), rows(st.booleans()), draw(st.integers(1, 9))


@hypothesis.settings(derandomize=True, deadline=None, database=None, max_examples=300)
@hypothesis.given(batches())
def test_each_live_row_lies_once_in_a_row_of_its_own_prompt_and_nothing_overlaps(case):
    packer, length, live, prompt = case
    plan = packer.plan(length, live, prompt)
    most, ways, rows = plan.owner.shape
    each = len(length) // ways
    assert plan.count <= most
    seen, used = [], np.zeros((most, ways, rows * packer.length), int)
    texts = np.zeros((most, ways, rows), int)
    for i, way, place in np.argwhere(plan.rows >= 0):
        row, start = plan.rows[i, way, place], plan.start[i, way, place]
        n, packed = length[way * each + row], start // packer.length
        assert packed == (start + n - 1) // packer.length  # not over the end of a packed row
        prompts = plan.prompts[i, way, plan.owner[i, way, packed]]
        assert prompts // packer.group_size == row // packer.group_size
        used[i, way, start : start + n] += 1
        texts[i, way, packed] += 1
        seen.append(way * each + row)
        assert i < plan.count
    assert used.max(initial=0) <= 1 and texts.max(initial=0) <= packer.texts
    assert sorted(seen) == np.flatnonzero(live).tolist()


def test_a_micro_batch_has_no_more_tokens_than_an_unpacked_one_and_the_plan_the_fewest():
    packer = Packer(groups=16, group_size=8, length=100, micro_batches=4)
    shapes = list(packer.shapes(prompt=100))
    assert shapes == [(4, 32), (8, 28), (16, 20)]  # 3,600 tokens each
    short, long = np.full(128, 20), np.full(128, 100)
    assert packer.all_rows(long, 100).owner.shape[-1] == 32
    plan = packer.all_rows(short, 100)  # five answers a row, so two rows to a prompt
    assert (plan.owner.shape[-1], plan.prompts.shape[-1], int(plan.count)) == (28, 8, 2)
    assert packer.plan(short, np.arange(128) < 8, 100).count == 1
    assert packer.plan(short, np.zeros(128, bool), 100).count == 0


def test_the_same_lengths_in_a_row_of_one_text_each_are_not_packed():
    plan = Packer(groups=2, group_size=4, length=10, texts=1).all_rows(np.full(8, 3), 5)
    assert plan.alone and (plan.start[0, 0] == 10 * np.arange(8)).all()


@pytest.mark.parametrize("mesh", [None, (2, 2, 2)])
def test_what_is_packed_comes_back(mesh):
    """On a mesh each shard packs its own rows: nothing but its blocks of the arrays is needed, and no collective."""
    packer = Packer(groups=8, group_size=3, length=7, micro_batches=2, shards=4 if mesh else 1)
    random = np.random.default_rng(0)
    length, x = random.integers(1, 8, 24), random.integers(1, 99, (24, 7)).astype(np.float32)
    plan = packer.plan(length, random.random(24) < 0.7, 4)

    def there_and_back(x: jax.Array, length: jax.Array, plan: Plan) -> tuple[jax.Array, jax.Array]:
        def body(i, carry):
            out, total = carry
            part = plan.part(i)
            mine, size = part.responses((x, length))
            packed = part.packed(mine, size)
            return part.put_back(out, part.unpacked(packed, size)), total + packed.sum()

        return jax.lax.fori_loop(0, plan.count, body, (jnp.zeros_like(x), 0.0))

    want = np.zeros_like(x)
    for i, way, place in np.argwhere(plan.rows >= 0):
        row = way * 24 // packer.shards + plan.rows[i, way, place]
        want[row, : length[row]] = x[row, : length[row]]
    if mesh:
        mesh = make_mesh(*mesh)
        with jax.set_mesh(mesh):
            placed = jax.device_put((x, length), row_sharding(mesh))
            compiled = jax.jit(there_and_back, out_shardings=(row_sharding(mesh), None)).lower(*placed, plan)
            text = compiled.compile().as_text()
            out, total = compiled.compile()(*placed, plan)
        assert "all-gather" not in text and "all-to-all" not in text and "collective-permute" not in text
    else:
        out, total = jax.jit(there_and_back)(x, length, plan)
    np.testing.assert_array_equal(out, want)
    assert total == want.sum()


# ---- which rows are live -----------------------------------------------------------------------------------------


def credit():
    """Rows: with credit, without, masked where it has some, with credit that no pass has."""
    ones = jnp.ones((4, 3))
    advantage = ones * jnp.array([[-0.5], [0.0], [1.0], [1.0]])
    mask = ones * jnp.array([[1.0], [1.0], [0.0], [1.0]])
    passes = jnp.stack([ones, ones * 0], 1) * jnp.array([1.0, 1.0, 1.0, 0.0])[:, None, None]
    return Credit(advantage=advantage, passes=passes, mask=mask)


def test_rows_with_credit_are_live_and_under_a_regulariser_all_that_are_not_masked():
    assert np.asarray(preset("grpo").live(credit())).tolist() == [True, False, False, False]
    held = dataclasses.replace(preset("grpo"), regularisers=(KL(0.1),))
    assert np.asarray(held.live(credit())).tolist() == [True, True, False, True]
    assert np.asarray(Objective().live(credit())).any()
