"""Preparation of a store from sources: resumable tasks for many processes."""

from hydragnn_flow.data.preparing.prepare import prepare_store
from hydragnn_flow.data.preparing.running import Progress, Workers
from hydragnn_flow.data.preparing.tasks import run_task

__all__ = ["Progress", "Workers", "prepare_store", "run_task"]
