"""The driver: search -> place -> run -> judge, until done; then the ensemble."""

from hydragnn_flow.campaign.driver import CampaignSummary, prepare, run_campaign

__all__ = ["CampaignSummary", "prepare", "run_campaign"]
