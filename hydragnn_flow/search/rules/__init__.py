"""Verdicts on trials at the rungs."""

from hydragnn_flow.search.rules.rungs import Rungs, Verdict, make_rungs

__all__ = ["Rungs", "Verdict", "make_rungs"]
