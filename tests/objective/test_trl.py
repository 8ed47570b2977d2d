"""The loss of TRL's trainer on the same log-probabilities, advantages and masks: equal in value and in gradient."""

import dataclasses
import functools
import types
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.objective import preset
from rlvr_jax.objective.objective import Credit
from rlvr_jax.types import BatchSpec, Pass, Stat, Stats

SPEC = BatchSpec(groups=6, group_size=4, length=7, num_prompts=6)
B, T = SPEC.rows, SPEC.length


@dataclasses.dataclass(frozen=True)
class Theirs:
    """The settings of TRL's trainer that mean what one of our presets means."""

    loss_type: str
    low: float
    high: float
    level: str = "token"
    drift: float = 0.25
    """Nats: how far apart the policies are here, so that a good part of the ratios lies outside the clip."""


SETTINGS = {
    "grpo": Theirs("grpo", 0.2, 0.2),
    "dr_grpo": Theirs("dr_grpo", 0.2, 0.2),
    "dapo": Theirs("dapo", 0.2, 0.28),
    # TRL cuts the weight at epsilon_high itself and has no lower bound; ours is in [1 - low, 1 + high] = [0, 6].
    "cispo": Theirs("cispo", 0.2, 6.0, drift=1.5),
    "gspo": Theirs("grpo", 3e-4, 4e-4, level="sequence", drift=2e-3),
}

# Both start from the same float32 numbers; TRL goes on in float64. In float32, a difference of log-probabilities of up
# to 5 nats is off by 3e-7, its exponential and the products after it by a few times 1e-7 each. No entry of a
# gradient is a sum whose terms cancel. A loss is one, of terms whose magnitudes add up to a few units: hence its
# absolute tolerance.
GRADIENT = {"rtol": 1e-5, "atol": 1e-12}
VALUE = {"rtol": 1e-5, "atol": 1e-6}


@functools.cache
def trainer_class():
    """Imported here, since it takes some seconds."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    return GRPOTrainer


@pytest.fixture(scope="module", autouse=True)
def imported():
    """Not on the clock of whichever test comes first."""
    trainer_class()


def batch(drift):
    """(new, old, advantage, mask): ragged rows, tokens of a tool's output inside some, and anything under the padding.

    Advantages of both signs, some of them 0, as in a group whose rewards are equal.
    """
    random = np.random.default_rng(0)
    length = random.integers(1, T + 1, B)
    length[0], length[1] = 1, T
    mask = np.arange(T) < length[:, None]
    mask[::3, 2] = False
    new = -random.exponential(1.0, (B, T)) - 1e-3
    old = new + drift * random.normal(size=(B, T))
    advantage = random.normal(size=B)
    advantage[4:8] = 0
    new, old = (np.where(mask, x, -7.0) for x in (new, old))
    return tuple(np.float32(x) for x in (new, old, advantage, mask))


def theirs(setting, new, old, advantage, mask):
    """Value and gradient of the method itself, on a stand-in that has what it reads; one process, one backward pass."""
    import torch

    leaf = torch.tensor(new, dtype=torch.float64, requires_grad=True)
    trainer = types.SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (leaf, torch.zeros_like(leaf), None),
        loss_type=setting.loss_type,
        importance_sampling_level=setting.level,
        epsilon_low=setting.low,
        epsilon_high=setting.high,
        beta=0.0,
        max_completion_length=T,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        args=types.SimpleNamespace(delta=None, steps_per_generation=1),
        model=types.SimpleNamespace(training=True),
        accelerator=types.SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=True
        ),
        _metrics={"train": defaultdict(list)},
    )
    real = torch.tensor(np.arange(T) <= np.where(mask > 0, np.arange(T), 0).max(1, keepdims=True))
    ids = torch.zeros((B, T), dtype=torch.int64)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1] + 1,
        "completion_ids": ids,
        "completion_mask": real.long(),
        "tool_mask": torch.tensor(mask).long() | ~real,
        "advantages": torch.tensor(advantage, dtype=torch.float64),
        "num_items_in_batch": torch.tensor(mask).sum(),
    }
    if old is not None:
        inputs["old_per_token_logps"] = torch.tensor(old, dtype=torch.float64)
    loss = trainer_class()._compute_loss(trainer, None, inputs)
    loss.backward()
    return loss.item(), leaf.grad.numpy()


def ours(name, new, old, advantage, mask):
    """Value, gradient and share of clipped tokens of the preset; without `old`, the new policy stands in for it."""
    objective = preset(name)
    credit = Credit(
        advantage=jnp.where(mask > 0, advantage[:, None], 0.0),
        passes=jnp.asarray(mask)[:, None],
        mask=jnp.asarray(mask),
    )
    weight = objective.weights(credit, SPEC, 0)

    def loss(new):
        before = jax.lax.stop_gradient(new) if old is None else jnp.asarray(old)
        stats = Stats(values={(Pass.NEW, Stat.LOGPROB): new, (Pass.OLD, Stat.LOGPROB): before})
        return objective.loss(stats, credit, weight)

    (value, metrics), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(jnp.asarray(new))
    return float(value), np.asarray(gradient), metrics["policy/clip_fraction"].value()


@pytest.mark.parametrize("name", SETTINGS)
def test_the_only_update_of_a_batch_is_that_of_trl(name):
    new, _, advantage, mask = batch(drift=0.0)
    value, gradient, _ = ours(name, new, None, advantage, mask)
    want_value, want_gradient = theirs(SETTINGS[name], new, None, advantage, mask)
    np.testing.assert_allclose(value, want_value, **VALUE)
    np.testing.assert_allclose(gradient, want_gradient, **GRADIENT)
    learns = (mask > 0) & (advantage != 0)[:, None]
    np.testing.assert_array_equal(gradient != 0, learns)  # nothing is clipped where the policies are equal


@pytest.mark.parametrize("name", SETTINGS)
def test_a_later_update_of_a_batch_is_that_of_trl(name):
    setting = SETTINGS[name]
    new, old, advantage, mask = batch(setting.drift)
    assert_ratios_are_everywhere(setting, new, old, advantage, mask)
    value, gradient, clipped = ours(name, new, old, advantage, mask)
    want_value, want_gradient = theirs(setting, new, old, advantage, mask)
    np.testing.assert_allclose(value, want_value, **VALUE)
    np.testing.assert_allclose(gradient, want_gradient, **GRADIENT)
    assert 0 < clipped < 1


def assert_ratios_are_everywhere(setting, new, old, advantage, mask):
    """Tokens of either sign below, inside and above the bounds, none so near to a bound that rounding decides."""
    gap = np.float64(new) - old
    if setting.level == "sequence":
        gap = np.broadcast_to((gap * mask).sum(1, keepdims=True) / mask.sum(1, keepdims=True), gap.shape)
    ratio, sign = np.exp(gap[mask > 0]), np.sign(np.broadcast_to(advantage[:, None], mask.shape)[mask > 0])
    least, most = (0.0, setting.high) if setting.loss_type == "cispo" else (1 - setting.low, 1 + setting.high)
    assert np.abs(ratio - least).min() > 1e-6 and np.abs(ratio - most).min() > 1e-6
    for side in (-1, 1):
        mine = ratio[sign == side]
        assert ((mine > least) & (mine < most)).any() and (mine > most).any()
        assert (mine < least).any() or least == 0
