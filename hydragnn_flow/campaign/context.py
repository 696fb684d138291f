"""Context: objects that search and ensemble phase of a campaign share; ledger: ended segments.

A segment is one stretch of a trial's or member's training, sent as one job.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydragnn_flow.campaign.cost_files import CostFile
from hydragnn_flow.campaign.estimator import Estimator, gcd_for_segments
from hydragnn_flow.campaign.setup.stores import graphs_judged, segment_of_run
from hydragnn_flow.campaign.task import SegmentTask
from hydragnn_flow.campaign.trackers import Trackers
from hydragnn_flow.config import NetworkConfig, RunConfig
from hydragnn_flow.config.search import PARAMETERS
from hydragnn_flow.config.sources import TRAIN, VALIDATION
from hydragnn_flow.data import GraphStore
from hydragnn_flow.ensemble import member_folder
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import DriverFile, Site
from hydragnn_flow.execution.jobs import Clock
from hydragnn_flow.files import passing, patiently
from hydragnn_flow.garbage import no_collection
from hydragnn_flow.log import View, tell
from hydragnn_flow.placement import (
    Gcd,
    WorkInterpolation,
    too_large,
    useful_widths,
)
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import (
    EpochPlan,
    Kind,
    SegmentResult,
    Sender,
    Start,
    Validation,
    trial_kwh,
)
from hydragnn_flow.training.measures.criterion import criterion_for, trivial_errors


@contextmanager
def answering(path: Path, is_disks: Callable[[OSError], object] = passing) -> Iterator[None]:
    """Context manager: turn a disk failure in its ``with`` block into `CampaignStopped`.

    The message is one sentence that names the file and the remedy.

    Parameters
    ----------
    path
        Path for the message if the error names no file.
    is_disks
        Function that returns true if an error comes from a disk that is full or unreachable. Other
        errors are raised unchanged.

    Raises
    ------
    CampaignStopped
        If a disk is full or unreachable; raised instead of its `OSError`.
    """
    try:
        yield
    except OSError as error:
        if not is_disks(error):
            raise
        raise CampaignStopped(
            f"{error.filename or path}: cannot be used ({error.strerror}); cure that and give the "
            f"same command again, nothing recorded is lost"
        ) from error


class Ledger:
    """Record of a campaign's ended segments, in the file `segments.jsonl` and partly in memory.

    A segment is one stretch of a trial's or member's training, sent as one job. A driver that works
    for days records millions of results. Of an ended trial's results it keeps in memory only those
    that ensemble members made from the trial may need.

    Parameters
    ----------
    directory
        Run directory of the campaign.
    token
        Token of this driver; writing raises an error once a newer driver is in charge.
    """

    def __init__(self, directory: RunDirectory, token: str) -> None:
        self._directory, self.token = directory, token
        self._driver = DriverFile(directory.path)
        self.trials: defaultdict[int, list[SegmentResult]] = defaultdict(list)
        """Results of the segments of each trial, in the order in which they ended."""
        self.members: list[SegmentResult] = []
        """Results of the segments of all members, in the order in which they ended."""
        self.counts_energy = False
        """True if the energy of any segment was measured."""
        self.trial_kwh = 0.0
        """Total counted energy of the segments of trials [kWh]."""

    def load(self, learn: Callable[[Sequence[SegmentResult]], None]) -> None:
        """Read the results that earlier drivers recorded in `segments.jsonl`.

        For each trial, only the results that :meth:`settle` keeps stay in memory.
        :meth:`load_whole` then restores all results of trials that have not ended.

        Parameters
        ----------
        learn
            Function called with each result, as a list of one, before details are dropped from it.

        Raises
        ------
        InputError
            If the file is damaged.
        """
        with no_collection():
            for result in self._directory.results():
                learn([result])
                self._add(result)
                if result.kind == "trial":
                    self.settle(result.number)

    def load_whole(self, trials: Collection[int]) -> list[SegmentResult]:
        """Read all results of unfinished trials from `segments.jsonl` again, with all details.

        ``trials`` are the numbers of these trials. The results are returned in the order of the
        file.
        """
        for number in trials:
            self.trials.pop(number, None)
        results = list(self._directory.results(trials)) if trials else []
        for result in results:
            self.trials[result.number].append(result)
        return results

    def settle(self, trial: int) -> None:
        """Drop results of an ended trial from memory if no ensemble member can need them.

        Three kinds of results stay, without details: the last with a validation error, the last of
        a segment that trained all its planned epochs, and those of segments that ran out of memory.
        ``trial`` is the number of the trial.
        """
        judged = whole = False
        kept = deque[SegmentResult]()
        for result in reversed(self.trials[trial]):
            is_last = (is_judged(result) and not judged) or (result.is_whole and not whole)
            if is_last or result.status == "out_of_memory":
                judged, whole = judged or is_judged(result), whole or result.is_whole
                result.drop_details()
                kept.appendleft(result)
        self.trials[trial] = list(kept)

    def record(self, results: Sequence[SegmentResult]) -> None:
        """Append results of ended segments to `segments.jsonl`; only then may the driver use them.

        Raises
        ------
        CampaignStopped
            If the run directory cannot be written for minutes.
        """
        self.write(lambda: self._directory.record(results))
        for result in results:
            self._add(result)

    def _add(self, result: SegmentResult) -> None:
        of = self.members if result.kind == "member" else self.trials[result.number]
        of.append(result)
        self.counts_energy |= result.joules is not None
        self.trial_kwh += trial_kwh([result])

    def write(self, action: Callable[[], None]) -> None:
        """Call ``action``, which changes a file of the run directory; retry while the disk fails.

        Raises
        ------
        CampaignStopped
            If the disk is full or unreachable for minutes, or a newer driver is in charge.
        """

        def act() -> None:
            self._driver.check(self.token)
            action()

        with answering(self._directory.path, bool):
            patiently(act, self._tell_of_waiting)

    def _tell_of_waiting(self, error: OSError) -> None:
        path = self._directory.path
        tell(_logger, "%s: cannot be written to (%s); waiting for it", path, error.strerror)


def is_judged(result: SegmentResult) -> bool:
    """Return True if a segment's result has a finite validation error, ``best_val_error``."""
    return result.best_val_error is not None and math.isfinite(result.best_val_error)


# Least number of optimiser steps in an epoch if each GCD has a batch of its own.
LEAST_STEPS = 8
# Cost files may lag behind: the ledger has all measurements of this run.
_SECONDS_BETWEEN_COST_FILES = 300.0
_logger = logging.getLogger(__name__)


@dataclass
class Context:
    """Objects that the search and the ensemble phase of a campaign share."""

    config: RunConfig
    site: Site
    directory: RunDirectory
    store: GraphStore
    token: str
    """Token that identifies this driver in the run directory."""
    view: View
    clock: Clock = field(default_factory=Clock)
    cost_file: CostFile | None = None
    """File that keeps measured costs for later campaigns; None to keep none."""
    trackers: Trackers = field(default_factory=Trackers)
    works: WorkInterpolation = field(default_factory=WorkInterpolation)
    """Interpolation of a training step's work between networks; campaigns on the same data may
    share it."""
    ledger: Ledger = field(init=False)
    estimator: Estimator = field(init=False)
    _kept_costs: float = field(init=False, default=-math.inf)
    # Reasons for which steps are not replayed or compiled, each told once.
    _not_replayed: set[str] = field(init=False, default_factory=set)
    validation: Validation = field(init=False)
    """Validation of each epoch, with the errors of a trivial predictor, computed once."""

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.directory, self.token)
        self.estimator = self.another_estimator()
        self.ledger.load(self.estimator.learn)
        earlier = None if self.cost_file is None else self.cost_file.read()
        if earlier is not None:
            self.estimator.costs.recall(earlier)
        manifest = self.store.manifest
        name = criterion_for(self.config.criterion, self.config.network_with({}), manifest)
        judged = self.estimator.judged
        is_part = judged < manifest.splits[VALIDATION].graphs
        self.validation = Validation(
            subset=(judged, self.config.seed) if is_part else None,
            criterion=name,
            trivial_errors=trivial_errors(self.store[TRAIN], manifest, name),
            functions=self.config.search.metrics,
        )

    def another_estimator(self, gcd: Gcd | None = None) -> Estimator:
        """Return a new estimator of segments' time and memory, which has no measurements yet.

        ``gcd`` gives the speed of a GCD and its memory for segments; by default that of the site.
        """
        config, store = self.config, self.store
        gcd = gcd or gcd_for_segments(self.site, config.data.mode, store)
        return Estimator(
            config.network_with({}),
            store,
            replace(self.site.node, gcd=gcd),
            graphs_judged(config, store.manifest),
            budget=config.divided_budget,
            sampling=config.data.sampling,
            resizes=config.resizes,
            works=self.works,
        )

    @property
    def gcd(self) -> Gcd:
        """Speed of each GCD of the site, and its memory that segments may use."""
        return self.estimator.gcd

    def parameters(self, values: Mapping[str, Any]) -> int:
        """Return the number of parameters of a trial's network.

        The number is 0 if the configuration does not ask for it, or the network is impossible.

        Parameters
        ----------
        values
            Value of each of the trial's hyper-parameters by dotted path.
        """
        search = self.config.search
        if PARAMETERS not in {*search.objectives, *search.constraints}:
            return 0
        try:
            return self.estimator.parameters(self.config.network_with(values))
        except InputError:
            return 0  # the trial fails with the reason

    def foreseen(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Return what a whole training needs of limited quantities, as far as known beforehand.

        The keys are those of `search.constraints` without `joules`. The number of parameters is
        exact. Memory [GiB] is that expected without the process. GCD-seconds are those expected
        once the cost model has measured enough for an interval within a factor of three; before,
        the low end of the interval, as guessed rates may be off by several times. With
        `EarlyStopping` they are those of one epoch. All are infinite if the network is impossible.

        Parameters
        ----------
        values
            Value of each of a trial's hyper-parameters by dotted path.
        """
        config, limits = self.config, self.config.search.constraints
        try:
            network = config.network_with(values)
            width = min(config.gcds(values) or 1, self.site.gcds)
            found: dict[str, float] = {}
            if PARAMETERS in limits:
                found[PARAMETERS] = self.estimator.parameters(network)
            if limits.keys() & {"seconds", "gcd_hours", "peak_memory_gib"}:
                epochs = 1 if network.Training.EarlyStopping else config.num_epoch
                batches = config.batches(values)
                _, cost = self.estimator.divide(network, epochs, width, (), batches)
                seconds = cost.seconds if cost.high < 3 * cost.low else cost.low
                found |= {"seconds": seconds, "gcd_hours": seconds / 3600}
                found |= {"peak_memory_gib": cost.network_gib}
        except InputError:
            return dict.fromkeys(limits, math.inf)
        return {name: found[name] for name in found.keys() & limits}

    def to_come(self, asked: int) -> int:
        """Return the number of trials that are still to be requested from the sampler.

        The number is 0 once the trials have used the energy `search.energy_kwh`.

        Parameters
        ----------
        asked
            Number of trials requested so far.
        """
        search = self.config.search
        if search.energy_kwh is not None and self.ledger.trial_kwh >= search.energy_kwh:
            return 0
        return max(0, search.trials - asked)

    def task(
        self,
        kind: Kind,
        number: int,
        trial: TrialRecord,
        *,
        rung: int,
        start: Start,
        epochs: EpochPlan,
        repeat: int = 0,
        width: int | None = 1,
    ) -> SegmentTask:
        """Make the next segment (stretch of training) of a trial, or of a member made from it.

        The task that is returned also has the predicted time and memory of the segment.

        Parameters
        ----------
        kind, number
            `trial` or `member`, and the number of the trial or index of the member.
        trial
            Record of the trial that gives the segment its hyper-parameters.
        rung
            Index of the rung at which the segment ends, from 0.
        start
            Checkpoint to start from; weights and frozen layers of `start_from` are added.
        epochs
            Epochs to train; batches, bootstrap, budget and sampling are set by the configuration.
        repeat
            Number of earlier members made from the same trial; each gets another seed.
        width
            Number of GCDs; None to let the placer choose it.

        Raises
        ------
        InputError
            If the trial's parameters give an invalid network, or one that cannot be sharded over
            ``width`` GCDs.
        """
        network = self.config.network_with(trial.parameters)
        if width is None and self.config.data.mode == "stream" and network.Training.is_sharded:
            # It keeps its width, and may not fit on a single GCD.
            asked = self.config.gcds(trial.parameters) or 1
            width = min(asked, self.site.gcds)
        if wrong := network.Training.sharding.wrong_width(width or 1):
            raise InputError(f"network: {wrong}")
        is_member = kind == "member"
        folder = member_folder(self.directory.ensemble, number)
        spec = segment_of_run(
            *(self.config, self.site, self.directory.store),
            kind=kind,
            number=number,
            rung=rung,
            directory=str(folder if is_member else self.directory.trial(number)),
            driver=Sender(
                run_directory=str(self.directory.path), token=self.token, site_gcds=self.site.gcds
            ),
            network=network,
            seed=self.config.seed * 100_003 + trial.number + repeat * 10_000_019,
            start=replace(
                start, weights=str(self.directory.weights) if self.config.start_from else ""
            ),
            epochs=replace(
                epochs,
                batches=1 if is_member else self.config.batches(trial.parameters),
                bootstrap=is_member and self.config.members.bootstrap,
            ),
            validation=self.validation,
        )
        task = SegmentTask(
            spec=spec,
            epochs=epochs.until_epoch - epochs.after_epoch,
            parameters=trial.parameters,
            trial=trial.number,
            micro_batches=spec.network.Training.accumulation_steps,
            # The plan of a streamed epoch depends on the ranks, and must not change within it.
            is_flexible=width is None and self.config.data.mode != "stream",
            is_batch_per_gcd=is_member and self.config.resources.batch_per_gcd,
            width=width or 1,
        )
        return self.sized(task)

    def sized(self, task: SegmentTask) -> SegmentTask:
        """Return a copy of a task with as few micro-batches and GCDs as its segment's memory needs.

        A micro-batch is the part of a training step that a GCD computes at once. A segment that
        does not fit on a GCD even with the most micro-batches gets more GCDs, if the placer may
        choose their number. The copy may still be too large. The time that it waits counts from
        now.
        """
        widths = self._widths(task) if task.is_flexible else [task.width]
        if task.is_batch_per_gcd:
            widths = [1]  # more GCDs do not lower the memory on each
        found = task = replace(task, ready_since=self.clock.monotonic())
        for width in widths:
            found = self._on(task, width)
            if not too_large(found.estimate, self.gcd):
                break
        micro_batches = found.spec.network.Training.accumulation_steps
        if micro_batches > task.micro_batches:
            _logger.info(
                "%s: %d micro-batches a step, for %.3g GiB of the %.3g GiB of a GCD",
                *(task, micro_batches, found.estimate.memory_gib, self.gcd.memory_gib),
            )
        return found

    def shapes(self, task: SegmentTask) -> list[SegmentTask]:
        """List copies of a segment's task for increasing numbers of GCDs, the task itself first.

        A copy is listed only if it saves at least a tenth, and at least 20 s, of the time of the
        copy before it. A task whose number of GCDs is fixed has no copies.
        """
        found = [task]
        widths = self._widths(task) if task.is_flexible else []
        for width in widths:
            if width > task.width:
                wider, before = self._on(task, width), found[-1].seconds
                saved = before - wider.seconds
                # Joining their ranks costs some seconds of what they save.
                if saved >= max(20.0, 0.1 * before):
                    found.append(wider)
        return found

    def widest(self, network: NetworkConfig) -> int:
        """Return the largest number of GCDs among which a network's training step may be divided.

        With this number each GCD has two graphs, on average, of a step of one batch. It is at most
        the number of GCDs in a batch job, and at least 1. Two ranks (processes, one per GCD) with
        one graph each take as long as one rank with both, since they wait for each other's
        gradients.
        """
        graphs = self.store.manifest.splits[TRAIN].graphs
        steps = self.estimator.steps_of_a_pass(network)
        return max(1, min(graphs // (2 * steps), self.site.gcds_of_a_block))

    def _most_batches(self, network: NetworkConfig) -> int:
        """Return the largest number of GCDs in a batch job that leaves an epoch enough steps.

        Each GCD has a batch of its own; :data:`LEAST_STEPS` steps are enough.
        """
        steps = self.estimator.steps_per_epoch(network)
        return max(1, min(steps // LEAST_STEPS, self.site.gcds_of_a_block))

    def _widths(self, task: SegmentTask) -> list[int]:
        """Return the numbers of GCDs among which the placer may choose for a segment."""
        network = task.spec.network
        most = self._most_batches(network) if task.is_batch_per_gcd else self.widest(network)
        return [
            width
            for width in useful_widths(len(self.site.node.gcds), most)
            if not network.Training.sharding.wrong_width(width)
        ]

    def _on(self, task: SegmentTask, width: int) -> SegmentTask:
        """Return a copy for ``width`` GCDs, with the micro-batches that its memory needs.

        Estimate and checksums of the copy are those that follow from all earlier segments.
        """
        network = task.spec.network.with_accumulation(task.micro_batches)
        batches = width if task.is_batch_per_gcd else task.spec.epochs.batches
        results = self._results(task)
        network, estimate = self.estimator.divide(network, task.epochs, width, results, batches)
        checksums = {r.checkpoint: r.checksum for r in results if r.checksum is not None}
        spec = replace(
            task.spec,
            network=network,
            start=replace(task.spec.start, checksums=checksums),
            epochs=replace(task.spec.epochs, batches=batches),
        )
        return replace(task, spec=spec, estimate=estimate, width=width)

    def _results(self, task: SegmentTask) -> list[SegmentResult]:
        """Return the results of earlier segments of a task's trial and, if any, of its member."""
        results = self.ledger.trials.get(task.trial, [])
        if task.spec.kind == "member":
            mine = [one for one in self.ledger.members if one.number == task.spec.number]
            return [*results, *mine]
        return results

    def record(self, results: Sequence[SegmentResult]) -> None:
        """Write results of ended segments to the ledger, and correct the estimator by them.

        The driver may act on results only after this call.

        Parameters
        ----------
        results
            Results of segments that ended.

        Raises
        ------
        CampaignStopped
            If the run directory cannot be written for minutes.
        """
        self.ledger.record(results)
        self.trackers.record(results)
        self.estimator.learn(results)
        for result in results:
            if result.passed_over:
                told = "%s %d began at epoch %d: %s"
                values = result.kind, result.number, result.from_epoch, result.passed_over
                tell(_logger, told, *values)
            if (why := result.not_replayed) and why not in self._not_replayed:
                self._not_replayed.add(why)
                told = "%s %d, and perhaps others, took steps neither replayed nor compiled: %s"
                tell(_logger, told, result.kind, result.number, why)
        now = self.clock.monotonic()
        if now - self._kept_costs > _SECONDS_BETWEEN_COST_FILES:
            self._kept_costs = now
            self.keep_costs()

    def keep_costs(self) -> None:
        """Write the measured costs of segments (time, memory, energy) to the cost files, if any."""
        if self.cost_file is not None:
            self.cost_file.write(self.estimator.costs.experience)
