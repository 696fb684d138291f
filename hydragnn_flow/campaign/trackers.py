"""Trackers: learning curves of trials and members in TensorBoard, MLflow or Weights & Biases."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from hydragnn_flow.log import Running, tell
from hydragnn_flow.segment import Segment, SegmentResult

_SECONDS_TO_END = 60.0
_logger = logging.getLogger(__name__)


_Epochs = Mapping[int, Mapping[str, float]]
"""Values by number of the epoch, in its order where they are new, and by name."""


class TensorBoard:
    """Tracker that writes event files below `tensorboard` in the run directory.

    The other trackers have the same methods. A run is a trial or a member.
    """

    keeps_at_once = True
    """True if a value is kept once it is logged, False if only once its run is closed."""

    def __init__(self, directory: Path, name: str) -> None:
        from tensorboard.compat.proto import event_pb2 as events
        from torch.utils.tensorboard import SummaryWriter

        self._restart = events.Event(session_log=events.SessionLog(status=events.SessionLog.START))
        self._writer: Any = partial(SummaryWriter, max_queue=1)
        self._folder = directory / "tensorboard"

    def open(self, run: str) -> Any:
        """Begin or continue a run; return a handle of it."""
        return self._writer(str(self._folder / run))

    def log(self, handle: Any, new: _Epochs, known: _Epochs) -> None:
        """Add new values to a run, of which all that is ``known`` has the new ones too."""
        first = min(new)
        told = {epoch: known[epoch] for epoch in sorted(known) if epoch >= first}
        # TensorBoard drops the later epochs of a curve that goes back: they are written again. Its
        # reader in Python, if the one in Rust is not installed, drops them where a session starts.
        handle.file_writer.add_event(self._restart, first)
        for epoch, values in told.items():
            for name, value in values.items():
                handle.add_scalar(name, value, epoch)
        handle.flush()

    def close(self, handle: Any, parameters: Mapping[str, Any], best: float | None) -> None:
        """End a run for now, with its hyper-parameters and its smallest validation error."""
        if best is not None:
            handle.add_hparams(dict(parameters), {"best_val_error": best}, run_name=".")
        handle.close()


class MLflow:
    """Tracker that logs to MLflow: by `MLFLOW_TRACKING_URI`, or `mlflow.db` in the run directory.

    The experiment has the name of the campaign.
    """

    keeps_at_once = True

    def __init__(self, directory: Path, name: str) -> None:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric: Any = Metric
        self._directory = str(directory.absolute())  # campaigns may have the same name
        uri = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{self._directory}/mlflow.db")
        self._client = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(name)
        self._experiment = found.experiment_id if found else self._client.create_experiment(name)

    def open(self, run: str) -> Any:
        mine = f"attributes.run_name = '{run}' and tags.run_directory = '{self._directory}'"
        known = self._client.search_runs([self._experiment], mine)
        tags = {"run_directory": self._directory}
        found = known[0] if known else self._client.create_run(self._experiment, None, tags, run)
        return found.info.run_id

    def log(self, handle: Any, new: _Epochs, known: _Epochs) -> None:
        now = round(1000 * time.time())
        for epoch, values in new.items():
            told = [self._metric(name, value, now, epoch) for name, value in values.items()]
            self._client.log_batch(handle, told)  # one transaction

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

    keeps_at_once = False  # its process writes every 20 s

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
            resume="allow",  # or a trial that is continued would replace what was there
            settings=wandb.Settings(silent=True, console="off"),
        )
        # Campaigns may have the same name.
        self._id = f"{zlib.crc32(bytes(directory.absolute())):08x}-{name}"

    def open(self, run: str) -> Any:
        handle = self._begin(name=run, id=f"{self._id}-{run}")
        handle.define_metric("*", step_metric="epoch")
        return handle

    def log(self, handle: Any, new: _Epochs, known: _Epochs) -> None:
        for epoch, values in new.items():
            handle.log({"epoch": epoch, **values})

    def close(self, handle: Any, parameters: Mapping[str, Any], best: float | None) -> None:
        handle.config.update(dict(parameters))
        if best is not None:
            handle.summary["best_val_error"] = best
        handle.finish()


_Tracker = TensorBoard | MLflow | WandB
_KNOWN: dict[str, type[_Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


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
    ensemble
        Suffix of the names of members' runs, another one for another ensemble of the campaign.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        directory: Path = Path(),
        name: str = "",
        ensemble: str = "",
    ) -> None:
        self._todo = SimpleQueue[Callable[[], None] | None]()
        self._trackers: dict[str, _Tracker] = {}
        # By names of tracker and run.
        self._handles: dict[tuple[str, str], Any] = {}
        self._logged = defaultdict[tuple[str, str], dict[int, dict[str, float]]](dict)
        self._unsure = defaultdict[tuple[str, str], list[list[Any]]](list)
        self._told: dict[str, int] = {}
        self._known, self._suffix = directory / "trackers.jsonl", {"member": ensemble}
        self._thread = threading.Thread(target=self._serve, daemon=True, name="trackers")
        self._begin = partial(self._each, names, partial(self._start, directory, name))
        if names:
            self._thread.start()

    def running(self, segments: Iterable[Running]) -> None:
        """Log the last epoch of running segments (jobs of training), if it is known."""
        for one in segments if self._thread.is_alive() else ():
            run = self._run(one)
            # Once: this is called twice a second, and the queue of a slow tracker would grow.
            if one.last_epoch is not None and self._told.get(run) != one.last_epoch.number:
                number, loss, error, _ = one.last_epoch
                self._told[run] = number
                values = {"train_loss": loss, "val_error": error}
                self._todo.put(partial(self._log, run, {number: values}))

    def record(self, results: Iterable[SegmentResult]) -> None:
        """Log the other epochs of segments that have ended, and what they were."""
        for result in results if self._thread.is_alive() else ():
            run = self._run(result)
            names = "train_loss", "val_loss", "val_error"
            epochs = {
                int(line[0]): dict(zip(names, line[1:], strict=True)) for line in result.history
            }
            self._todo.put(partial(self._log, run, epochs))
            ending = partial(self._end, run, dict(result.parameters), result.best_val_error)
            self._todo.put(ending)

    def close(self) -> None:
        """Let the trackers write what they have got; wait for it at most a minute."""
        if self._thread.is_alive():
            self._todo.put(None)
            self._thread.join(_SECONDS_TO_END)
            if self._thread.is_alive():
                tell(_logger, "trackers lack the last %d values and ends", self._todo.qsize())

    def _run(self, segment: Segment | Running) -> str:
        return f"{segment.kind}-{segment.number}{self._suffix.get(segment.kind, '')}"

    def _serve(self) -> None:
        task = self._todo.get()
        if task is not None:  # a run that fails before its first epoch leaves no files
            self._recall()
            self._begin()
        while task is not None:
            task()
            task = self._todo.get()
        for name, run in [*self._handles]:
            if name in self._trackers:
                self._each([name], partial(self._end_of, run, {}, None))
        if "wandb" in self._trackers and os.environ.get("WANDB_MODE", "offline") == "offline":
            told = "to send the curves to Weights & Biases: cd %s && wandb sync"
            tell(_logger, told, self._known.parent)

    def _start(self, directory: Path, campaign: str, name: str) -> None:
        self._trackers[name] = _KNOWN[name](directory, campaign)

    def _log(self, run: str, epochs: _Epochs) -> None:
        self._each([*self._trackers], lambda name: self._log_to(name, run, epochs))

    def _log_to(self, name: str, run: str, epochs: _Epochs) -> None:
        known, tracker = self._logged[name, run], self._trackers[name]
        # A running segment tells no validation loss; its result adds that.
        new = {
            epoch: more
            for epoch, values in epochs.items()
            if (more := {k: v for k, v in values.items() if k not in known.get(epoch, ())})
        }
        if not new:
            return
        for epoch, values in new.items():
            known[epoch] = known.get(epoch, {}) | values
        tracker.log(self._handle(name, run), new, known)
        self._unsure[name, run] += [[name, run, *line] for line in new.items()]
        if tracker.keeps_at_once:
            self._write(name, run)

    def _handle(self, name: str, run: str) -> Any:
        if (name, run) not in self._handles:
            self._handles[name, run] = self._trackers[name].open(run)
        return self._handles[name, run]

    def _write(self, name: str, run: str) -> None:
        """Write what a tracker has kept of a run, so that no later driver tells it again."""
        lines = self._unsure.pop((name, run), [])
        with suppress(OSError), self._known.open("a", encoding="utf-8") as file:
            file.writelines(f"\n{json.dumps(line)}" for line in lines)  # apart from half a line

    def _recall(self) -> None:
        """Read what trackers have got: segments that a driver left repeat some of their epochs."""
        with suppress(OSError), self._known.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with suppress(ValueError, TypeError):  # an empty line, or half a one
                    name, run, epoch, values = json.loads(line)
                    self._logged[name, run].setdefault(epoch, {}).update(values)

    def _end(self, run: str, parameters: Mapping[str, Any], best: float | None) -> None:
        self._each([*self._trackers], partial(self._end_of, run, parameters, best))

    def _end_of(
        self, run: str, parameters: Mapping[str, Any], best: float | None, name: str
    ) -> None:
        self._trackers[name].close(self._handle(name, run), parameters, best)
        del self._handles[name, run]
        self._write(name, run)

    def _each(self, names: Sequence[str], action: Callable[[str], None]) -> None:
        for name in names:
            try:
                action(name)
            except Exception as error:
                self._trackers.pop(name, None)
                told = str(error).partition("\n")[0] or type(error).__name__
                tell(_logger, "tracker %s gets nothing more: %s", name, told)
