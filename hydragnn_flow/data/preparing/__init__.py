"""Sources -> graphs -> splits -> store, by many processes at once, and resumable."""

from hydragnn_flow.data.preparing.prepare import prepare_store
from hydragnn_flow.data.preparing.tasks import run_task
from hydragnn_flow.data.preparing.workers import Progress, Workers

__all__ = ["Progress", "Workers", "prepare_store", "run_task"]
