"""Ensembles: selection of members, calibrated uncertainty, predictions.

A single network does not tell how wrong it is. The disagreement of several networks, calibrated on
labelled structures, gives error bars, and shows which structures are unlike the training data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydragnn_flow.ensemble.summary import FOLDER
from hydragnn_flow.lazy import lazily

if TYPE_CHECKING:
    from hydragnn_flow.ensemble.acquisition import Selection, select_structures
    from hydragnn_flow.ensemble.calculator import EnsembleCalculator, UncertaintyWatch
    from hydragnn_flow.ensemble.ensemble import Ensemble
    from hydragnn_flow.ensemble.evaluation.evaluate import evaluate, recalibrate
    from hydragnn_flow.ensemble.finish import Member, finish_ensemble
    from hydragnn_flow.ensemble.predictions.files import write_predictions
    from hydragnn_flow.ensemble.predictions.table import Predictions
    from hydragnn_flow.ensemble.summary import member_folder
    from hydragnn_flow.ensemble.uncertainty.deviation import needed_for_coverage
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "Ensemble": "ensemble",
            "EnsembleCalculator": "calculator",
            "Member": "finish",
            "Predictions": "predictions.table",
            "Selection": "acquisition",
            "UncertaintyWatch": "calculator",
            "evaluate": "evaluation.evaluate",
            "finish_ensemble": "finish",
            "member_folder": "summary",
            "needed_for_coverage": "uncertainty.deviation",
            "recalibrate": "evaluation.evaluate",
            "select_structures": "acquisition",
            "write_predictions": "predictions.files",
        },
    )

__all__ = [
    "FOLDER",
    "Ensemble",
    "EnsembleCalculator",
    "Member",
    "Predictions",
    "Selection",
    "UncertaintyWatch",
    "evaluate",
    "finish_ensemble",
    "member_folder",
    "needed_for_coverage",
    "recalibrate",
    "select_structures",
    "write_predictions",
]
