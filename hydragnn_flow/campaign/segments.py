"""Segments as the driver sees them: what to send, what to expect, what came back."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydragnn_flow.campaign.foresight import Foresight, gcd_for_segments
from hydragnn_flow.config import RunConfig
from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import CampaignStopped
from hydragnn_flow.execution import Site, check_driver
from hydragnn_flow.files import modified, patiently
from hydragnn_flow.placement import Estimate, Gcd
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import Forecast, Kind, SegmentResult, SegmentSpec
from hydragnn_flow.training.checkpoint import FILE

# A segment that is tried this often and never gets further is more likely cause than victim.
MOST_TRIES = 3
# A lost node or an ended batch job is no fault of the segments there, unless it never ends.
MOST_LOSSES = 10


@dataclass
class Task:
    """A segment to run, and what is expected of it."""

    spec: SegmentSpec
    estimate: Estimate
    epochs: int
    """Epochs it is expected to train."""
    parameters: dict[str, Any]
    """Of the trial."""
    width: int = 1
    """GCDs, and so ranks, it is to have."""
    tries: int = 0
    """Number of failures without progress."""
    losses: int = 0
    """Number of times that its node or batch job was lost, or of no use, without progress."""
    ready_since: float = field(default_factory=time.monotonic)
    """When it could have run for the first time, by :func:`time.monotonic` [s]."""
    checkpoint_seen: float = field(init=False)
    """When the checkpoint was written that it begins with."""

    def __post_init__(self) -> None:
        self.checkpoint_seen = checkpoint_time(self.spec.folder)

    def forecast(self, bundle: str) -> Forecast:
        """What is planned and expected of it, sent with a bundle."""
        estimate = self.estimate
        return Forecast(
            bundle=bundle,
            parameters=self.parameters,
            parts=self.spec.network.Training.accumulation_steps,
            planned_epochs=self.epochs,
            predicted_seconds=estimate.seconds / self.width,
            uncorrected_seconds=estimate.uncorrected_seconds,
            predicted_memory_gib=estimate.memory_gib,
            uncorrected_memory_gib=estimate.uncorrected_memory_gib,
        )

    def sent(self) -> SegmentSpec:
        """The segment as it goes out, with a claim of its own."""
        return replace(self.spec, claim=uuid.uuid4().hex)

    def again(self, end: SegmentResult) -> Task:
        """The segment once more after a bad end; getting further starts the count anew."""
        further = checkpoint_time(self.spec.folder) != self.checkpoint_seen
        tries, losses = (0, 0) if further else (self.tries, self.losses)
        if end.status in ("lost", "refused", "interrupted"):
            return replace(self, tries=tries, losses=losses + 1)
        return replace(self, tries=tries + 1, losses=losses)

    @property
    def is_repeated(self) -> bool:
        """Whether it has been sent before and came back unfinished."""
        return self.tries + self.losses > 0

    @property
    def is_hopeless(self) -> bool:
        """Whether it has had its chances."""
        return self.tries >= MOST_TRIES or self.losses >= MOST_LOSSES


@dataclass
class Context:
    """State that both phases of a campaign share."""

    config: RunConfig
    site: Site
    directory: RunDirectory
    store: GraphStore
    token: str
    view: CampaignView
    foresight: Foresight = field(init=False)
    history: list[SegmentResult] = field(init=False)
    """Every segment of the run that has ended."""
    _bundles: int = 0

    def __post_init__(self) -> None:
        gcd = gcd_for_segments(self.site, self.config, self.store)
        self.foresight = Foresight(self.config, self.store, gcd, self.site.node.device)
        self.history = list(self.directory.results())
        self._bundles = max((int(r.bundle[1:]) for r in self.history if r.bundle), default=0)
        self.foresight.learn(self.history)

    @property
    def gcd(self) -> Gcd:
        """Speed and memory that each GCD has for segments."""
        return self.foresight.gcd

    def task(
        self,
        kind: Kind,
        number: int,
        folder: Path,
        trial: TrialRecord,
        *,
        rung: int,
        until_epoch: int,
        done_epochs: int,
        start_from: Path | None = None,
        decay: tuple[int, int] | None = None,
        width: int = 1,
        results: Sequence[SegmentResult] = (),
    ) -> Task:
        """A segment of a trial or member, :meth:`sized` for ``width`` GCDs after ``results``."""
        checked = self.config.network_with(trial.parameters)
        epochs = until_epoch - done_epochs
        network, estimate = self.foresight.divide(checked, epochs, width, results)
        spec = SegmentSpec(
            kind=kind,
            number=number,
            directory=str(folder),
            store=str(self.directory.store),
            network=network,
            until_epoch=until_epoch,
            rung=rung,
            seed=self.config.seed * 100_003 + trial.number,
            start_from=str(start_from) if start_from else None,
            decay=decay,
            after_epoch=done_epochs,
            run_directory=str(self.directory.path),
            token=self.token,
            threads=self.site.node.cores_per_gcd,
            mode=self.config.data.mode,
            scratch=self.site.node.scratch,
        )
        return Task(spec, estimate, epochs, trial.parameters, width)

    def sized(self, task: Task, width: int, results: Sequence[SegmentResult]) -> Task:
        """A segment for a number of GCDs, in as many parts as its memory needs.

        Parameters
        ----------
        task
            The segment.
        width
            GCDs it is to have.
        results
            Of all segments before it, those of a member's trial included.
        """
        network = self.config.network_with(task.parameters)
        network, estimate = self.foresight.divide(network, task.epochs, width, results)
        return replace(
            task, spec=replace(task.spec, network=network), estimate=estimate, width=width
        )

    def bundle(self) -> str:
        """A name for the next bundle."""
        self._bundles += 1
        return f"b{self._bundles}"

    def record(self, results: Sequence[SegmentResult]) -> None:
        """Put results on disk, then learn from them; only then may they be acted on.

        Parameters
        ----------
        results
            Of segments that ended, those of a bundle all together.

        Raises
        ------
        CampaignStopped
            If the run directory cannot be written to for minutes.
        """
        self.write(lambda: self.directory.record(results))
        self.history += results
        self.foresight.learn(results)

    def write(self, action: Callable[[], None]) -> None:
        """Change a file of the run directory; waits for a disk that is full or gone for a while.

        Raises
        ------
        CampaignStopped
            If that takes minutes, or a newer driver is in charge.
        """

        def act() -> None:
            check_driver(self.directory.path, self.token)
            action()

        try:
            patiently(act, self._tell_of_waiting)
        except OSError as error:
            raise CampaignStopped(
                f"{self.directory.path}: cannot be written to ({error.strerror}); cure that and "
                f"give the same command again, nothing recorded is lost"
            ) from error

    def _tell_of_waiting(self, error: OSError) -> None:
        self.view.say(
            f"{self.directory.path}: cannot be written to ({error.strerror}); waiting for it"
        )


def checkpoint_time(folder: Path) -> float:
    """When the checkpoint in a folder was written [s], as Unix time; 0 where there is none.

    Waits for a disk that is gone for a while.
    """
    return patiently(lambda: modified(folder / FILE))
