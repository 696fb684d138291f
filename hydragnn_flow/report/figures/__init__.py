"""The figures of the report: pure functions from plain data to matplotlib figures."""

from hydragnn_flow.report.figures.accuracy import coverage, deviation, parity
from hydragnn_flow.report.figures.members import member_curves
from hydragnn_flow.report.figures.occupancy import gcd_occupancy
from hydragnn_flow.report.figures.search import optimisation_history, search_figures

__all__ = [
    "coverage",
    "deviation",
    "gcd_occupancy",
    "member_curves",
    "optimisation_history",
    "parity",
    "search_figures",
]
