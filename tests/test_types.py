"""Pytrees whose construction is checked and whose rebuilding is not, and the statistics that a reader declared."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from rlvr_jax.types import (
    BatchSpec,
    Mean,
    Pass,
    Rollout,
    Stat,
    Stats,
    UndeclaredStatError,
    needs,
    pytree,
    static,
)


@pytree
class Box:
    """Two arrays and a name."""

    left: Float[Array, " N"]
    right: Float[Array, " N"]
    label: str = static(default="plain")


def rollout(rows=4, length=3, **changes):
    fields = {
        "prompt": jnp.ones((rows, 2), jnp.int32),
        "prompt_length": jnp.full(rows, 2),
        "tokens": jnp.zeros((rows, length), jnp.int32),
        "length": jnp.full(rows, length),
        "mask": jnp.ones((rows, length)),
        "reward": jnp.zeros(rows),
        "correct": jnp.zeros(rows),
        "prompt_id": jnp.zeros(rows, jnp.int32),
        "truncated": jnp.zeros(rows, bool),
    }
    return Rollout(**{**fields, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"mask": jnp.ones((4, 2))},
        {"reward": jnp.zeros(5)},
        {"tokens": jnp.zeros((4, 3))},
        {"truncated": jnp.zeros(4)},
    ],
    ids=["length", "rows", "dtype", "bool"],
)
def test_shapes_and_types_are_checked_at_construction(changes):
    with pytest.raises(Exception, match="(?i)type-check error"):
        rollout(**changes)
    with pytest.raises(Exception, match="(?i)type-check error"):
        dataclasses.replace(rollout(), **changes)


def test_rebuilding_by_jax_is_not_checked():
    """JAX puts stacked arrays, shapes, None and tracers where arrays were."""
    tree = rollout()
    assert jax.tree.map(lambda x: None, tree).mask is None
    assert jax.tree.map(lambda x: x.shape, tree).mask == (4, 3)
    assert jax.tree.map(lambda *x: jnp.stack(x), tree, tree).mask.shape == (2, 4, 3)
    assert jax.eval_shape(lambda r: r, tree).tokens.shape == (4, 3)
    assert jax.vmap(lambda r: r.reward + 1)(jax.tree.map(lambda x: x[None], tree)).shape == (1, 4)
    assert len(jax.tree.leaves(tree)) == len(dataclasses.fields(Rollout))


def test_axis_zero_of_every_leaf_is_the_row():
    half = jax.tree.map(lambda x: x[:2], rollout())
    assert {x.shape[0] for x in jax.tree.leaves(half)} == {2}


def test_a_static_field_is_structure():
    one, two = (
        Box(left=jnp.ones(2), right=jnp.ones(2)),
        Box(left=jnp.ones(2), right=jnp.ones(2), label="other"),
    )
    assert len(jax.tree.leaves(one)) == 2
    assert jax.tree.structure(one) != jax.tree.structure(two)
    assert jax.tree.map(lambda x: x + 1, two).label == "other"
    traced = []
    run = jax.jit(lambda box: traced.append(box.label) or box.left)
    for box in (one, two, one):
        run(box)
    assert traced == ["plain", "other"]
    with pytest.raises(ValueError, match="Mismatch custom node data|static|structure"):
        jax.tree.map(jnp.add, one, two)


def test_fields_are_frozen_and_named_in_key_paths():
    box = Box(left=jnp.ones(2), right=jnp.ones(2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        box.left = jnp.zeros(2)
    with pytest.raises(TypeError):
        Box(jnp.ones(2), jnp.ones(2))  # keyword-only: two fields of one type are not told apart by place
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(box)]
    assert paths == [".left", ".right"]


def test_needs_take_one_statistic_or_several():
    declared = needs(new=Stat.LOGPROB, old=(Stat.LOGPROB, Stat.ENTROPY))
    assert declared == {(Pass.NEW, Stat.LOGPROB), (Pass.OLD, Stat.LOGPROB), (Pass.OLD, Stat.ENTROPY)}
    assert needs() == frozenset()
    assert needs(old="entropy") == needs(
        old=Stat.ENTROPY
    )  # a Stat is a string; its letters are no statistics
    with pytest.raises(ValueError, match=re.escape("'older' is not a valid Pass")):
        needs(older=Stat.LOGPROB)
    with pytest.raises(ValueError, match=re.escape("'entropie' is not a valid Stat")):
        needs(old="entropie")


def stats():
    keys = [(Pass.OLD, Stat.LOGPROB), (Pass.OLD, Stat.ENTROPY), (Pass.NEW, Stat.LOGPROB)]
    return Stats(values={k: jnp.full((2, 3), float(i)) for i, k in enumerate(keys)})


def test_a_reader_sees_what_it_declared():
    view = stats().view(needs(old=Stat.ENTROPY), "probability")
    assert view.get(Pass.OLD, Stat.ENTROPY)[0, 0] == 1
    text = "probability read old.logprob without declaring it: add it to `needs` (it declares old.entropy)."
    with pytest.raises(UndeclaredStatError, match=f"^{re.escape(text)}$"):
        view.get(Pass.OLD, Stat.LOGPROB)
    text = "nobody read new.logprob without declaring it: add it to `needs` (it declares nothing)."
    with pytest.raises(UndeclaredStatError, match=f"^{re.escape(text)}$"):
        Stats(values={}).get(Pass.NEW, Stat.LOGPROB)


def test_merging_statistics_keeps_the_others_and_goes_through_jit():
    merged = jax.jit(lambda s: s.merge({(Pass.REF, Stat.LOGPROB): s.get(Pass.OLD, Stat.LOGPROB) + 5}))(
        stats()
    )
    assert merged.get(Pass.REF, Stat.LOGPROB)[0, 0] == 5 and merged.get(Pass.NEW, Stat.LOGPROB)[0, 0] == 2


def test_statistics_of_one_shape_only():
    with pytest.raises(Exception, match="(?i)type-check error"):
        stats().merge({(Pass.REF, Stat.LOGPROB): jnp.zeros(3)}).view(needs(ref=Stat.LOGPROB), "x").get(
            Pass.REF, Stat.LOGPROB
        )


def test_means_merge_as_sums_with_denominators():
    """Of 1, 2, 3 and of 10: the mean of all is 4, the mean of the means would be 6."""
    many, one = Mean.of(jnp.asarray([1.0, 2.0, 3.0])), Mean.of(jnp.asarray([10.0]))
    assert many.merge(one).value() == 4.0
    assert np.isnan(Mean(total=0.0, count=0.0).value())


def test_a_masked_mean_ignores_what_lies_outside():
    values, mask = jnp.asarray([[1.0, np.nan], [3.0, np.inf]]), jnp.asarray([[1.0, 0.0], [1.0, 0.0]])
    assert Mean.of(values, mask).value() == 2.0
    assert np.isnan(Mean.of(values, jnp.zeros((2, 2))).value())


def test_rows_of_a_batch():
    assert BatchSpec(groups=3, group_size=4, length=5, num_prompts=9).rows == 12
    assert hash(BatchSpec(3, 4, 5, 9)) == hash(BatchSpec(3, 4, 5, 9))
