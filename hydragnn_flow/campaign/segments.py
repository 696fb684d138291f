"""Segments as the driver sees them: what to send, what to expect, what came back."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from hydragnn_flow.campaign.failures import takes_more, times_too_large
from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.network import load_network
from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.reading.plan import Budget
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import Site
from hydragnn_flow.files import patiently
from hydragnn_flow.models import build_model, network_cost
from hydragnn_flow.placement import CostModel, Estimate, Gcd, Weighing, Work, too_large
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.training.checkpoint import FILE
from hydragnn_flow.training.segment import Kind, SegmentResult, SegmentSpec

# A segment that is tried this often and never gets further is more likely cause than victim.
MOST_TRIES = 3
# A lost node or an ended batch job is no fault of the segments there, unless it never ends.
MOST_LOSSES = 10
# Keys of `Training` that say nothing of a step's work but how large its batch is, if that.
_TOLD_BY_THE_BATCH = (
    "Batching",
    "Optimizer",
    "Scheduler",
    "accumulation_steps",
    "batch_size",
    "num_epoch",
)


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
    """How often it ended badly and had got no further."""
    losses: int = 0
    """How often what it ran on was taken away, or of no use, and it had got no further."""
    ready_since: float = field(default_factory=time.monotonic)
    """When it could have run for the first time, by :func:`time.monotonic` [s]."""
    checkpoint_seen: float = field(init=False)
    """When the checkpoint was written that it begins with."""

    def __post_init__(self) -> None:
        self.checkpoint_seen = self._checkpoint_time()

    @property
    def mpnn_type(self) -> str:
        """Segments of one message-passing type share a correction of their estimates."""
        return str(self.spec.network["Architecture"]["mpnn_type"])

    @property
    def parts(self) -> int:
        """In which each rank computes its share of a step."""
        return int(self.spec.network["Training"].get("accumulation_steps", 1))

    def sent(self) -> SegmentSpec:
        """The segment as it goes out, with a claim of its own."""
        return replace(self.spec, claim=uuid.uuid4().hex)

    def again(self, end: SegmentResult) -> Task:
        """The segment once more after a bad end; getting further starts the count anew."""
        further = self._checkpoint_time() != self.checkpoint_seen
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

    def _checkpoint_time(self) -> float:
        path = self.spec.folder / FILE
        return path.stat().st_mtime if path.exists() else 0.0


@dataclass
class Context:
    """What both phases of a campaign work with."""

    config: RunConfig
    site: Site
    directory: RunDirectory
    store: GraphStore
    token: str
    view: CampaignView
    gcd: Gcd = field(init=False)
    """What each GCD has for segments."""
    costs: CostModel = field(init=False)
    history: list[SegmentResult] = field(init=False)
    """Every segment of the run that has ended."""
    _weighing: Weighing = field(default_factory=Weighing)
    _largest: int = field(init=False)
    _bundles: int = 0

    def __post_init__(self) -> None:
        self.gcd = self._gcd()
        self.costs = CostModel(self.gcd)
        self._largest = int(self.store["trainset"].n_atoms.max())
        self.history = list(self.directory.results())
        self._bundles = max((int(r.bundle[1:]) for r in self.history if r.bundle), default=0)
        self._learn()

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
        network = self.config.network_values(trial.parameters)
        epochs = until_epoch - done_epochs
        estimate = self._divide(network, epochs, width, results)
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
        """A segment for so many GCDs, in as many parts as its memory asks for.

        Those are the fewest that it is expected to fit in, and twice as many for each time that it
        did not fit all the same.

        Parameters
        ----------
        task
            The segment.
        width
            GCDs it is to have.
        results
            Of all segments before it, those of a member's trial included.
        """
        network = self.config.network_values(task.parameters)
        estimate = self._divide(network, task.epochs, width, results)
        return replace(
            task, spec=replace(task.spec, network=network), estimate=estimate, width=width
        )

    def _divide(
        self, network: dict[str, Any], epochs: int, width: int, results: Sequence[SegmentResult]
    ) -> Estimate:
        """Have a network's steps taken in as many parts as needed, and estimate that."""
        failures, training = self.config.search.failures, network["Training"]
        parts = training.get("accumulation_steps", 1)
        estimate = self._estimate(network, epochs, width)
        while too_large(estimate, self.gcd) and takes_more(failures, network, parts):
            training["accumulation_steps"] = parts = 2 * parts
            estimate = self._estimate(network, epochs, width)
        times = times_too_large(failures, results)
        if times:
            training["accumulation_steps"] = parts * 2**times
            estimate = self._estimate(network, epochs, width)
        return estimate

    def steps_per_epoch(self, network: Mapping[str, Any]) -> int:
        """Optimiser steps of an epoch."""
        sizes = self.store.manifest.splits["trainset"]
        return Budget.of(load_network(network)).least_steps(sizes.graphs, sizes.atoms, sizes.edges)

    def _estimate(self, network: Mapping[str, Any], epochs: int, width: int) -> Estimate:
        steps = self.steps_per_epoch(network)
        work = self._step_work(network, steps, width)
        mpnn_type = str(network["Architecture"]["mpnn_type"])
        return self.costs.estimate(mpnn_type, work, steps * epochs)

    def _gcd(self) -> Gcd:
        """The site's GCD, less its share of the store where both are in the node's memory.

        Raises
        ------
        InputError
            If that is less than a process needs.
        """
        node = self.site.node
        if node.device != "cpu" or self.config.data.mode != "memory":
            return node.gcd
        # What is larger than half of a node's memory lies on its disk.
        share = self.store.manifest.bytes / 2**30 / len(node.gcds)
        left = node.gcd.memory_gib - min(share, node.gcd.memory_gib / 2)
        if left <= node.gcd.process_gib:
            raise InputError(
                f"site {self.site.name}: beside its share of the store a GCD has {left:.1f} GiB, "
                f"and a process that trains takes more than {node.gcd.process_gib:g} GiB; use "
                f"fewer GCDs a node, or data.mode: random"
            )
        return replace(node.gcd, memory_gib=left)

    def bundle(self) -> str:
        """A name for the next bundle."""
        self._bundles += 1
        return f"b{self._bundles}"

    def record(self, ended: Sequence[tuple[Task, SegmentResult, bool]]) -> None:
        """Put results on disk, then learn from them; only then may they be acted on.

        Parameters
        ----------
        ended
            The segments, how they ended, and whether each had its GCDs to itself.

        Raises
        ------
        CampaignStopped
            If the run directory cannot be written to for minutes.
        """
        for task, result, _ in ended:
            result.parameters, result.planned_epochs = task.parameters, task.epochs
            result.parts = task.parts
            result.predicted_seconds = task.estimate.seconds / task.width
            result.uncorrected_seconds = task.estimate.uncorrected_seconds
        results = [result for _, result, _ in ended]
        self.write(lambda: self.directory.record(results))
        self.history += results
        for task, result, alone in ended:
            if alone and _teaches(result):
                uncorrected = task.estimate.uncorrected_seconds
                self.costs.observe(task.mpnn_type, uncorrected, result.seconds)

    def write(self, action: Callable[[], None]) -> None:
        """Change a file of the run directory; waits for a disk that is full or gone for a while.

        Raises
        ------
        CampaignStopped
            If that takes minutes.
        """
        try:
            patiently(action, self._tell_of_waiting)
        except OSError as error:
            raise CampaignStopped(
                f"{self.directory.path}: cannot be written to ({error.strerror}); cure that and "
                f"give the same command again, nothing recorded is lost"
            ) from error

    def _tell_of_waiting(self, error: OSError) -> None:
        self.view.say(
            f"{self.directory.path}: cannot be written to ({error.strerror}); waiting for it"
        )

    def _learn(self) -> None:
        together = Counter(result.bundle for result in self.history)
        for result in self.history:
            if result.uncorrected_seconds and together[result.bundle] == 1 and _teaches(result):
                network = self.config.network_values(result.parameters)
                mpnn_type = network["Architecture"]["mpnn_type"]
                self.costs.observe(mpnn_type, result.uncorrected_seconds, result.seconds)

    def _step_work(self, network: Mapping[str, Any], steps: int, width: int) -> Work:
        """What one training step of a network takes, on a batch of average size.

        An epoch has so many ``steps``. The memory is that of each of ``width`` GCDs, all else is
        the work of all together.
        """
        sizes = self.store.manifest.splits["trainset"]
        batch = {
            "atoms": -(-sizes.atoms // steps),
            "edges": -(-sizes.edges // steps),
            "graphs": -(-sizes.graphs // steps),
        }
        told_by = {k: v for k, v in network["Training"].items() if k not in _TOLD_BY_THE_BATCH}

        def count() -> Work:
            with torch.device("meta"):
                model = build_model(network, self.store)
            cost = network_cost(model, **batch, largest=self._largest)
            wide = 2 if told_by.get("precision") == "fp64" else 1
            return Work(
                flops=cost.flops * wide,
                bytes=cost.bytes * wide,
                launches=cost.launches,
                activation_bytes=cost.saved_bytes * wide,
                parameter_bytes=4 * cost.parameters * wide,
            )

        work = self._weighing.work([network["Architecture"], told_by, batch], count)
        parts = network["Training"].get("accumulation_steps", 1)
        return replace(work, activation_bytes=work.activation_bytes / (parts * width))


def _teaches(result: SegmentResult) -> bool:
    """Whether a segment's time says what such segments take: it did all of the work itself."""
    whole = result.to_epoch - result.from_epoch == result.planned_epochs and result.from_step == 0
    alone = len(result.gcds) <= 1
    return whole and alone and result.status == "ok" and result.kind == "trial"
