"""The figures of the report: pure functions from plain data to matplotlib figures."""

from hydragnn_flow.report.figures.accuracy import coverage, parity
from hydragnn_flow.report.figures.occupancy import gcd_occupancy
from hydragnn_flow.report.figures.search import optimisation_history, search_figures

__all__ = ["coverage", "gcd_occupancy", "optimisation_history", "parity", "search_figures"]
