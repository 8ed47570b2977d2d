"""Figures about a run: pass@k with intervals, advantage collapse."""

from rlvr_jax.analysis.collapse import advantage_collapse_rate
from rlvr_jax.analysis.pass_at_k import bootstrap_interval, pass_at_k

__all__ = ["advantage_collapse_rate", "bootstrap_interval", "pass_at_k"]
