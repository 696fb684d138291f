"""Inspection of a directory of data for a first configuration: format, files and labels."""

from hydragnn_flow.data.looking.labels import Label
from hydragnn_flow.data.looking.look import Finding, look

__all__ = ["Finding", "Label", "look"]
