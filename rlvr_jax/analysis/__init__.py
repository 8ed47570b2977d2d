"""Figures about a run: pass@k and majority@k with intervals, diversity of answers, advantage collapse."""

from rlvr_jax.analysis.bootstrap import bootstrap_interval, swap_p_value
from rlvr_jax.analysis.collapse import Collapsed, CollapseRecord, advantage_collapse_rate
from rlvr_jax.analysis.diversity import bernoulli_variance, distinct_n, self_bleu
from rlvr_jax.analysis.majority import majority_at_k
from rlvr_jax.analysis.pass_at_k import pass_at_k

__all__ = [
    "CollapseRecord",
    "Collapsed",
    "advantage_collapse_rate",
    "bernoulli_variance",
    "bootstrap_interval",
    "distinct_n",
    "majority_at_k",
    "pass_at_k",
    "self_bleu",
    "swap_p_value",
]
