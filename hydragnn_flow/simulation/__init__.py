"""Simulation: campaigns in virtual time, on GCDs that need not be there.

A simulated campaign predicts what a real one will cost, and tests changes of search or placement.
"""

from hydragnn_flow.simulation.blocks import Conditions
from hydragnn_flow.simulation.campaign import Simulated, simulate
from hydragnn_flow.simulation.plan import Configuration, Planner, misfits

__all__ = ["Conditions", "Configuration", "Planner", "Simulated", "misfits", "simulate"]
