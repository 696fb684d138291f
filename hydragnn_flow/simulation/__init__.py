"""Simulation: campaigns in virtual time, on GCDs that need not be there."""

from hydragnn_flow.simulation.blocks import Conditions
from hydragnn_flow.simulation.campaign import Simulated, simulate

__all__ = ["Conditions", "Simulated", "simulate"]
