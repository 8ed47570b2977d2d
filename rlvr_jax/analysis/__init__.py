"""Figures about a run: pass@k with intervals, advantage collapse."""

from rlvr_jax.analysis.collapse import Collapsed, CollapseRecord, advantage_collapse_rate
from rlvr_jax.analysis.pass_at_k import bootstrap_interval, pass_at_k

__all__ = ["CollapseRecord", "Collapsed", "advantage_collapse_rate", "bootstrap_interval", "pass_at_k"]
