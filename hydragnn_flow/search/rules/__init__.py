"""Verdicts on trials at the rungs.

Most of a search would be spent on poor trials if they were not stopped early.
"""

from hydragnn_flow.search.rules.rungs import Rungs, Verdict

__all__ = ["Rungs", "Verdict"]
