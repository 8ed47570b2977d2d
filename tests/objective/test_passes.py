"""How a batch is cut into sequential updates."""

import numpy as np
from toys import SPEC, B, T, batch, context

from rlvr_jax.objective import Objective
from rlvr_jax.objective.passes import Single


def test_single_is_the_mask_in_one_pass():
    rollout, stats = batch()
    split = Single().split(context(rollout, stats))
    assert split.shape == (B, 1, T)
    np.testing.assert_array_equal(split[:, 0], rollout.mask)


def test_the_credit_of_an_objective_holds_its_passes():
    rollout, stats = batch()
    credit, _, _ = Objective().credit(rollout, stats, SPEC, Objective().init(SPEC))
    np.testing.assert_array_equal(credit.passes[:, 0], credit.mask)
