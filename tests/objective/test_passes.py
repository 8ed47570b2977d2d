"""How a batch is cut into sequential updates."""

import math
import re

import numpy as np
import pytest
from toys import SPEC, B, T, batch, context

from rlvr_jax.objective import Objective
from rlvr_jax.objective.passes import ByProbability, Single
from rlvr_jax.objective.ratios import GspoToken, Sequence
from rlvr_jax.types import Pass, Stat


def test_single_is_the_mask_in_one_pass():
    rollout, stats = batch()
    split = Single().split(context(rollout, stats))
    assert split.shape == (B, 1, T)
    np.testing.assert_array_equal(split[:, 0], rollout.mask)


def test_the_credit_of_an_objective_holds_its_passes():
    rollout, stats = batch()
    credit, _, _ = Objective().credit(rollout, stats, SPEC, Objective().init(SPEC))
    np.testing.assert_array_equal(credit.passes[:, 0], credit.mask)


@pytest.mark.parametrize("eta", [0.1, 0.4, 0.5, 0.9])
def test_by_probability_matches_a_loop(eta):
    rollout, stats = batch()
    split = ByProbability(eta).split(context(rollout, stats))
    assert split.shape == (B, 2, T) and ByProbability.count == 2
    logprob = np.asarray(stats.get(Pass.OLD, Stat.LOGPROB), float)
    for i in range(B):
        for t in range(T):
            unlikely = math.exp(logprob[i, t]) <= eta
            expected = [unlikely, not unlikely] if rollout.mask[i, t] else [0, 0]
            np.testing.assert_array_equal(split[i, :, t], expected)


def test_the_passes_of_lopti_share_the_denominators_of_all_tokens():
    """A_it 1[pi_old <= eta] over all the tokens, and not over those of the pass."""
    rollout, stats = batch()
    two, one = Objective(passes=ByProbability()), Objective()
    credit, _, _ = two.credit(rollout, stats, SPEC, two.init(SPEC))
    plain, _, _ = one.credit(rollout, stats, SPEC, one.init(SPEC))
    both = [np.asarray(two.weights(credit, SPEC, k)) for k in (0, 1)]
    np.testing.assert_array_equal(both[0] + both[1], one.weights(plain, SPEC, 0))
    assert both[0].any() and both[1].any() and not (both[0] * both[1]).any()


@pytest.mark.parametrize("eta", [0.0, 1.0, float("nan")])
def test_errors(eta):
    with pytest.raises(
        ValueError, match=f"^{re.escape(f'by_probability eta is a probability in (0, 1), got {eta}.')}$"
    ):
        ByProbability(eta)


def test_passes_over_tokens_that_move_together_are_refused():
    text = (
        "passes 'by_probability' takes the tokens of a response apart, and ratio 'sequence' moves all of them with each: "
        "use it with ratio 'gspo_token'."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        Objective(passes=ByProbability(), ratio=Sequence())
    assert Objective(passes=ByProbability(), ratio=GspoToken())
