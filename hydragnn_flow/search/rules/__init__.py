"""Verdicts on trials at the rungs."""

from hydragnn_flow.search.rules.rungs import Rungs, Verdict

__all__ = ["Rungs", "Verdict"]
