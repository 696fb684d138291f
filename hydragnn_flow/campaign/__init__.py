"""Campaign: the driver searches, places, runs and judges until done; then makes the ensemble.

One process decides everything and records it first, so a killed campaign continues where it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydragnn_flow.campaign.setup.start import (
    CampaignSummary,
    check_paths,
    load_campaign,
    load_config,
    prepare,
    run_campaign,
)
from hydragnn_flow.lazy import lazily

if TYPE_CHECKING:
    from hydragnn_flow.campaign.prediction import predict_on_site
    from hydragnn_flow.campaign.profiling import profile_on_site, scaling_study
    from hydragnn_flow.campaign.setup.fitting import fit
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "fit": "setup.fitting",
            "predict_on_site": "prediction",
            "profile_on_site": "profiling",
            "scaling_study": "profiling",
        },
    )

__all__ = [
    "CampaignSummary",
    "check_paths",
    "fit",
    "load_campaign",
    "load_config",
    "predict_on_site",
    "prepare",
    "profile_on_site",
    "run_campaign",
    "scaling_study",
]
