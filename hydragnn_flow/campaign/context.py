"""Context: what both phases of a campaign work with."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hydragnn_flow.campaign.cost_files import CostFiles
from hydragnn_flow.campaign.estimator import Estimator, gcd_for_segments
from hydragnn_flow.campaign.ledger import Ledger
from hydragnn_flow.campaign.machine import Clock, WallClock
from hydragnn_flow.campaign.task import Task
from hydragnn_flow.campaign.view import View
from hydragnn_flow.config import RunConfig
from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.splits import TRAIN
from hydragnn_flow.execution import Site
from hydragnn_flow.placement import Estimate, Gcd, WorkInterpolation
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import Kind, SegmentResult, SegmentSpec
from hydragnn_flow.training.trivial import trivial_errors

# Between seeds of a trial: more than there are trials.
_SEEDS = 10_000_019
# The ledger has all of this run meanwhile.
_SECONDS_BETWEEN_COST_FILES = 300.0
_logger = logging.getLogger(__name__)


@dataclass
class Context:
    """Objects that both phases of a campaign use."""

    config: RunConfig
    site: Site
    directory: RunDirectory
    store: GraphStore
    token: str
    """Token of this driver."""
    view: View
    clock: Clock = field(default_factory=WallClock)
    cost_files: CostFiles | None = None
    """Where costs are kept for later campaigns; nowhere if not given."""
    works: WorkInterpolation = field(default_factory=WorkInterpolation)
    """The work of networks, which another campaign on the same data may have counted already."""
    ledger: Ledger = field(init=False)
    estimator: Estimator = field(init=False)
    _kept_costs: float = field(init=False, default=-math.inf)
    trivial_errors: dict[str, float] = field(init=False)
    """Units of the criterion, worked out once for all segments."""

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.directory, self.token)
        self.estimator = self.another_estimator()
        self.ledger.load(self.estimator.learn)
        for earlier in self.cost_files.read() if self.cost_files else ():
            self.estimator.costs.recall(earlier)
        manifest, name = self.store.manifest, self.config.ensemble.criterion
        self.trivial_errors = trivial_errors(self.store[TRAIN], manifest, name)

    def another_estimator(self) -> Estimator:
        """An estimator for the same campaign that has learned nothing of it."""
        gcd = gcd_for_segments(self.site, self.config, self.store)
        node = self.site.node
        return Estimator(
            self.config, self.store, gcd, node.device, len(node.gcds), works=self.works
        )

    @property
    def gcd(self) -> Gcd:
        """Speed and memory that each GCD has for segments."""
        return self.estimator.gcd

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
        begin_with: str = "",
        may_have_begun: bool = False,
        start_from: Path | None = None,
        decay: tuple[int, int] | None = None,
        repeat: int = 0,
        width: int = 1,
        results: Sequence[SegmentResult] = (),
    ) -> Task:
        """A segment of a trial or member, :meth:`sized` for ``width`` GCDs after ``results``.

        Members of one trial have different seeds by their ``repeat``.

        Raises
        ------
        InputError
            If the trial's parameters give no network.
        """
        spec = SegmentSpec(
            kind=kind,
            number=number,
            directory=str(folder),
            store=str(self.directory.store),
            network=self.config.network_with(trial.parameters),
            until_epoch=until_epoch,
            rung=rung,
            begin_with=begin_with,
            may_have_begun=may_have_begun,
            seed=self.config.seed * 100_003 + trial.number + repeat * _SEEDS,
            start_from=str(start_from) if start_from else None,
            decay=decay,
            after_epoch=done_epochs,
            bootstrap=kind == "member" and self.config.ensemble.bootstrap,
            criterion=self.config.ensemble.criterion,
            trivial_errors=self.trivial_errors,
            run_directory=str(self.directory.path),
            token=self.token,
            site_gcds=self.site.nodes * len(self.site.node.gcds),
            threads=self.site.node.cores_per_gcd,
            mode=self.config.data.mode,
            scratch=self.site.node.scratch,
        )
        epochs = until_epoch - done_epochs
        spec, estimate = self._divided(spec, epochs, width, results)
        return Task(
            spec=spec,
            estimate=estimate,
            epochs=epochs,
            parameters=trial.parameters,
            width=width,
            ready_since=self.clock.monotonic(),
        )

    def sized(self, task: Task, width: int, results: Sequence[SegmentResult]) -> Task:
        """A segment for a number of GCDs, with as many micro-batches as its memory needs.

        Parameters
        ----------
        task
            The segment.
        width
            GCDs it is to have.
        results
            Of all segments before it, those of a member's trial included.
        """
        spec = replace(task.spec, network=self.config.network_with(task.parameters))
        spec, estimate = self._divided(spec, task.epochs, width, results)
        return replace(task, spec=spec, estimate=estimate, width=width)

    def _divided(
        self, spec: SegmentSpec, epochs: int, width: int, results: Sequence[SegmentResult]
    ) -> tuple[SegmentSpec, Estimate]:
        """A segment with as many micro-batches as its memory needs, and its estimated cost."""
        network, estimate = self.estimator.divide(spec.network, epochs, width, results)
        if network is not spec.network:
            _logger.info(
                "%s %d: %d micro-batches a step, for %.3g GiB of the %.3g GiB of a GCD",
                *(spec.kind, spec.number, network.Training.accumulation_steps),
                *(estimate.memory_gib, self.gcd.memory_gib),
            )
        return replace(spec, network=network), estimate

    def record(self, results: Sequence[SegmentResult]) -> None:
        """Put results on disk, then learn from them; only then may they be acted on.

        Parameters
        ----------
        results
            Of segments that ended.

        Raises
        ------
        CampaignStopped
            If the run directory cannot be written to for minutes.
        """
        self.ledger.record(results)
        self.estimator.learn(results)
        now = self.clock.monotonic()
        if now - self._kept_costs > _SECONDS_BETWEEN_COST_FILES:
            self._kept_costs = now
            self.keep_costs()

    def keep_costs(self) -> None:
        """Write what segments took to the cost files."""
        if self.cost_files is not None:
            self.cost_files.write(self.estimator.costs.experience())
