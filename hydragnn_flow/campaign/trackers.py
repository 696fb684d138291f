"""Trackers: learning curves of trials and members in TensorBoard, MLflow or Weights & Biases."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from hydragnn_flow.log import Running, tell
from hydragnn_flow.segment import SegmentResult

_SECONDS_TO_END = 60.0
_logger = logging.getLogger(__name__)


class _Tracker(Protocol):
    """Interface of a tracker; a run is a trial or a member."""

    def open(self, run: str) -> Any:
        """Begin or continue a run; return a handle of it."""

    def log(self, handle: Any, epoch: int, values: Mapping[str, float]) -> None:
        """Add values of an epoch to a run."""

    def close(self, handle: Any, parameters: Mapping[str, Any], best: float | None) -> None:
        """End a run for now, with its hyper-parameters and its smallest validation error."""


class TensorBoard:
    """Tracker that writes event files below `tensorboard` in the run directory."""

    def __init__(self, directory: Path, name: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = partial(SummaryWriter, max_queue=1)
        self._folder = directory / "tensorboard"

    def open(self, run: str) -> Any:
        return self._writer(str(self._folder / run))

    def log(self, handle: Any, epoch: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            handle.add_scalar(name, value, epoch)
        handle.flush()

    def close(self, handle: Any, parameters: Mapping[str, Any], best: float | None) -> None:
        if best is not None:
            handle.add_hparams(dict(parameters), {"best_val_error": best}, run_name=".")
        handle.close()


class MLflow:
    """Tracker that logs to MLflow: by `MLFLOW_TRACKING_URI`, or `mlflow.db` in the run directory.

    The experiment has the name of the campaign.
    """

    def __init__(self, directory: Path, name: str) -> None:
        from mlflow.tracking import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{directory.absolute()}/mlflow.db")
        self._client = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(name)
        self._experiment = found.experiment_id if found else self._client.create_experiment(name)

    def open(self, run: str) -> Any:
        known = self._client.search_runs([self._experiment], f"attributes.run_name = '{run}'")
        found = known[0] if known else self._client.create_run(self._experiment, run_name=run)
        return found.info.run_id

    def log(self, handle: Any, epoch: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(handle, name, value, step=epoch)

    def close(self, handle: Any, parameters: Mapping[str, Any], best: float | None) -> None:
        for name, value in parameters.items():
            self._client.log_param(handle, name, value)
        if best is not None:
            self._client.log_metric(handle, "best_val_error", best)
        self._client.set_terminated(handle)


class WandB:
    """Tracker that logs to Weights & Biases, offline unless `WANDB_MODE` says otherwise.

    `wandb sync` sends what lies below `wandb` in the run directory. Runs are grouped by campaign.
    """

    def __init__(self, directory: Path, name: str) -> None:
        import wandb

        begin: Any = wandb.init
        self._begin = partial(
            begin,
            project="hydragnn_flow",
            group=name,
            dir=str(directory),
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._name = name

    def open(self, run: str) -> Any:
        handle = self._begin(name=run, id=f"{self._name}-{run}")
        handle.define_metric("*", step_metric="epoch")
        return handle

    def log(self, handle: Any, epoch: int, values: Mapping[str, float]) -> None:
        handle.log({"epoch": epoch, **values})

    def close(self, handle: Any, parameters: Mapping[str, Any], best: float | None) -> None:
        handle.config.update(dict(parameters))
        if best is not None:
            handle.summary["best_val_error"] = best
        handle.finish()


_KNOWN: Mapping[str, Callable[[Path, str], _Tracker]]
_KNOWN = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


class Trackers:
    """Trackers of a campaign, which get the epochs of running and ended segments.

    A thread of their own feeds them, so that the driver never waits for one. A tracker that raises
    an error gets nothing more; the user is told.

    Parameters
    ----------
    names
        Names of the trackers: ``tensorboard``, ``mlflow``, ``wandb``.
    directory
        Run directory.
    name
        Name of the campaign.
    """

    def __init__(self, names: Sequence[str] = (), directory: Path = Path(), name: str = "") -> None:
        self._todo = SimpleQueue[Callable[[], None] | None]()
        self._trackers: dict[str, _Tracker] = {}
        self._handles: dict[tuple[str, str], Any] = {}
        self._logged: dict[str, set[int]] = {}
        self._thread = threading.Thread(target=self._serve, daemon=True, name="trackers")
        if names:
            self._thread.start()
        for one in names:
            self._todo.put(partial(self._each, [one], partial(self._begin, directory, name)))

    def running(self, segments: Iterable[Running]) -> None:
        """Log the last epoch of running segments (jobs of training), if it is known."""
        for one in segments if self._thread.is_alive() else ():
            if one.last_epoch is not None:
                number, loss, error, _ = one.last_epoch
                values = {"train_loss": loss, "val_error": error}
                self._todo.put(partial(self._log, f"{one.kind}-{one.number}", number, values))

    def record(self, results: Iterable[SegmentResult]) -> None:
        """Log the other epochs of segments that have ended, and what they were."""
        for result in results if self._thread.is_alive() else ():
            run = f"{result.kind}-{result.number}"
            for epoch, train, loss, error in result.history:
                values = {"train_loss": train, "val_loss": loss, "val_error": error}
                self._todo.put(partial(self._log, run, int(epoch), values))
            ending = partial(self._end, run, dict(result.parameters), result.best_val_error)
            self._todo.put(ending)

    def close(self) -> None:
        """Let the trackers write what they have got; wait for it at most a minute."""
        if self._thread.is_alive():
            self._todo.put(None)
            self._thread.join(_SECONDS_TO_END)

    def _serve(self) -> None:
        while (task := self._todo.get()) is not None:
            task()
        for name, run in [*self._handles]:
            with suppress(Exception):
                self._trackers[name].close(self._handles[name, run], {}, None)

    def _begin(self, directory: Path, campaign: str, name: str) -> None:
        self._trackers[name] = _KNOWN[name](directory, campaign)

    def _log(self, run: str, epoch: int, values: Mapping[str, float]) -> None:
        logged = self._logged.setdefault(run, set())
        if epoch not in logged:
            logged.add(epoch)
            self._each([*self._trackers], lambda name: self._log_to(name, run, epoch, values))

    def _log_to(self, name: str, run: str, epoch: int, values: Mapping[str, float]) -> None:
        if (name, run) not in self._handles:
            self._handles[name, run] = self._trackers[name].open(run)
        self._trackers[name].log(self._handles[name, run], epoch, values)

    def _end(self, run: str, parameters: Mapping[str, Any], best: float | None) -> None:
        def end(name: str) -> None:
            if (name, run) in self._handles:
                self._trackers[name].close(self._handles.pop((name, run)), parameters, best)

        self._each([*self._trackers], end)

    def _each(self, names: Sequence[str], action: Callable[[str], None]) -> None:
        for name in names:
            try:
                action(name)
            except Exception as error:
                self._trackers.pop(name, None)
                tell(_logger, "tracker %s gets nothing more: %s", name, error)
