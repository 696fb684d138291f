"""Selection of members, uncertainty, predictions."""

from hydragnn_flow.ensemble.ensemble import FOLDER, SUMMARY, Ensemble, member_folder
from hydragnn_flow.ensemble.finish import Member, finish_ensemble
from hydragnn_flow.ensemble.selection import select_top
from hydragnn_flow.ensemble.tables import Predictions
from hydragnn_flow.ensemble.uncertainty import needed_for_level

__all__ = [
    "FOLDER",
    "SUMMARY",
    "Ensemble",
    "Member",
    "Predictions",
    "finish_ensemble",
    "member_folder",
    "needed_for_level",
    "select_top",
]
