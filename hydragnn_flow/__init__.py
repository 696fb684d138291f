"""Ensemble hyper-parameter optimisation of graph neural networks on materials.

The names in ``__all__`` are its public interface.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hydragnn_flow.lazy import lazily

if "HOME" not in os.environ:  # without it, ADIOS2 ends the process by a segmentation fault
    try:
        os.environ["HOME"] = str(Path.home())
    except RuntimeError:  # the system does not know the user either
        os.environ["HOME"] = os.devnull

if TYPE_CHECKING:
    from hydragnn_flow.apps import SiteExecutor, campaign_app
    from hydragnn_flow.campaign import check_paths, fit, load_campaign, load_config, run_campaign
    from hydragnn_flow.config import RunConfig
    from hydragnn_flow.data import GraphStore, write_store
    from hydragnn_flow.ensemble import Ensemble, EnsembleCalculator, UncertaintyWatch
    from hydragnn_flow.errors import CampaignStopped, InputError, StoreError, UncertaintyExceeded
    from hydragnn_flow.execution import load_site
    from hydragnn_flow.models import build_model
    from hydragnn_flow.report.figures import importance_frame
    from hydragnn_flow.report.trials_frame import segments_frame, trials_frame
    from hydragnn_flow.search import BatchedTPESampler
    from hydragnn_flow.versions import __version__ as __version__
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "BatchedTPESampler": "search",
            "CampaignStopped": "errors",
            "Ensemble": "ensemble",
            "EnsembleCalculator": "ensemble",
            "GraphStore": "data",
            "InputError": "errors",
            "RunConfig": "config",
            "SiteExecutor": "apps",
            "StoreError": "errors",
            "UncertaintyExceeded": "errors",
            "UncertaintyWatch": "ensemble",
            "build_model": "models",
            "campaign_app": "apps",
            "__version__": "versions",
            "check_paths": "campaign",
            "fit": "campaign",
            "load_campaign": "campaign",
            "load_config": "campaign",
            "load_site": "execution",
            "run_campaign": "campaign",
            "importance_frame": "report.figures",
            "segments_frame": "report.trials_frame",
            "trials_frame": "report.trials_frame",
            "write_store": "data",
        },
    )

__all__ = [
    "BatchedTPESampler",
    "CampaignStopped",
    "Ensemble",
    "EnsembleCalculator",
    "GraphStore",
    "InputError",
    "RunConfig",
    "SiteExecutor",
    "StoreError",
    "UncertaintyExceeded",
    "UncertaintyWatch",
    "build_model",
    "campaign_app",
    "check_paths",
    "fit",
    "importance_frame",
    "load_campaign",
    "load_config",
    "load_site",
    "run_campaign",
    "segments_frame",
    "trials_frame",
    "write_store",
]
