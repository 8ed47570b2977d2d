"""The heart: pure functions for rewards, advantages, weights, ratios, clips and aggregation, and how they compose."""

from rlvr_jax.objective.base import Stage as Stage
from rlvr_jax.objective.base import Stateless as Stateless
from rlvr_jax.objective.base import chain as chain
from rlvr_jax.objective.objective import Credit as Credit
from rlvr_jax.objective.objective import Objective as Objective
from rlvr_jax.objective.presets import preset as preset
