"""The figures of the report: pure functions from plain data to matplotlib figures."""

from hydragnn_flow.report.figures.accuracy import coverage, deviation, parity
from hydragnn_flow.report.figures.members import member_curves
from hydragnn_flow.report.figures.occupancy import gcd_occupancy
from hydragnn_flow.report.figures.scaling import scaling_figure
from hydragnn_flow.report.figures.search import optimisation_history, search_figures
from hydragnn_flow.report.figures.utilisation import forecast_figure, gcd_time_figure

__all__ = [
    "coverage",
    "deviation",
    "forecast_figure",
    "gcd_occupancy",
    "gcd_time_figure",
    "member_curves",
    "optimisation_history",
    "parity",
    "scaling_figure",
    "search_figures",
]
