"""Simulation: campaigns in virtual time, on GCDs that need not be there.

They tell what a campaign will cost, and test changes of search or placement, without a machine.
"""

from hydragnn_flow.simulation.blocks import Conditions
from hydragnn_flow.simulation.campaign import Simulated, simulate
from hydragnn_flow.simulation.plan import Configuration, Planner, misfits

__all__ = ["Conditions", "Configuration", "Planner", "Simulated", "misfits", "simulate"]
