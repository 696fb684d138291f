"""The driver: search -> place -> run -> judge, until done; then the ensemble."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydragnn_flow.campaign.start import CampaignSummary, check_paths, prepare, run_campaign
from hydragnn_flow.lazy import lazily

if TYPE_CHECKING:
    from hydragnn_flow.campaign.objective import run_objective
    from hydragnn_flow.campaign.prediction import predict_on_site
else:
    __getattr__, __dir__ = lazily(
        __name__, {"predict_on_site": "prediction", "run_objective": "objective"}
    )

__all__ = [
    "CampaignSummary",
    "check_paths",
    "predict_on_site",
    "prepare",
    "run_campaign",
    "run_objective",
]
