"""Preparation of a store from sources: resumable tasks for many processes."""

from hydragnn_flow.data.preparing.prepare import prepare_store
from hydragnn_flow.data.preparing.tasks import Progress, Workers, run_task

__all__ = ["Progress", "Workers", "prepare_store", "run_task"]
