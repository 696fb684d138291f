"""The driver: search -> place -> run -> judge, until done; then the ensemble."""

from hydragnn_flow.campaign.start import CampaignSummary, check_paths, prepare, run_campaign

__all__ = ["CampaignSummary", "check_paths", "prepare", "run_campaign"]
