"""What becomes of a trial at a rung."""

from hydragnn_flow.search.rules.rungs import Rungs, Verdict, make_rungs

__all__ = ["Rungs", "Verdict", "make_rungs"]
