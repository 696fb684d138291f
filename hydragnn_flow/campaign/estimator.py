"""Estimates of a campaign's segments: time, memory, and micro-batches that fit on a GCD."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from hydragnn_flow.campaign.setup.engine_probe import EngineProbe
from hydragnn_flow.campaign.task import fewest_micro_batches, takes_more
from hydragnn_flow.config import NetworkConfig
from hydragnn_flow.config.data import Mode
from hydragnn_flow.config.network import EngineNetwork
from hydragnn_flow.config.sources import TRAIN
from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import Node, Site
from hydragnn_flow.models import HydraModel, Model, build_model, network_cost
from hydragnn_flow.models.geometry import any_finite
from hydragnn_flow.models.heads import parameters_of_heads
from hydragnn_flow.placement import (
    CostModel,
    Estimate,
    Gcd,
    Sizes,
    Taken,
    Work,
    WorkInterpolation,
    too_large,
)
from hydragnn_flow.segment import Sampling, SegmentResult
from hydragnn_flow.training.parallel import division_of
from hydragnn_flow.training.plan.batching import Budget
from hydragnn_flow.training.plan.sampling import drawn_size

# Largest ratio of needed to counted memory; above it, something else took the memory.
_MOST_OVER_COUNTED = 4.0
# Keys of `Training` that affect the work of a step at most by the size of its batch.
_TOLD_BY_THE_BATCH = {
    "Batching",
    "Optimizer",
    "Scheduler",
    "accumulation_steps",
    "batch_size",
    "ddp",
    "num_epoch",
    "sharding",
    "task_parallel",
}


class Estimator:
    """Predictor of the time and memory of segments, from their networks and earlier measurements.

    Parameters
    ----------
    base
        Network of the run.
    store
        Store with the training split.
    node
        Node of the site, whose GCD has the memory for segments that :func:`gcd_for_segments` says.
        The kind of its device decides how memory is measured.
    judged
        Number of validation graphs that judge each epoch.
    budget
        Unit and amount of `search.budget`; None if an epoch is a pass through the training split.
    sampling
        Value of `data.sampling`: how often training draws graphs of each data set.
    resizes
        True if a segment that lacks memory continues with more micro-batches, `RunConfig.resizes`.
    works
        Interpolation of the work of training steps; None for a new one.
    """

    def __init__(
        self,
        base: NetworkConfig,
        store: GraphStore,
        node: Node,
        judged: int,
        *,
        budget: tuple[str, float] | None,
        sampling: Sampling,
        resizes: bool,
        works: WorkInterpolation | None = None,
    ) -> None:
        self.gcd = node.gcd
        self.costs = CostModel(node.gcd, len(node.gcds))
        """Cost model of the GCDs, which learns from measured segments."""
        self.judged = judged
        # Last segment of each trial and member, by kind and number.
        self._last: dict[tuple[str, int], Taken] = {}
        self._base, self._store, self._device = base, store, node.device
        self._budget, self._sampling, self._resizes = budget, sampling, resizes
        self._train = drawn_size(store.manifest, sampling)
        self._works = works or WorkInterpolation()
        self._probe = EngineProbe(store.path)
        self._parameters: dict[str, int] = {}
        self._counted: tuple[tuple[Any, ...], Work] | None = None
        train = store[TRAIN]
        self._largest_graph = int(train.n_atoms.max())
        self._sizes = {
            name: Sizes.of(sizes)
            for name, sizes in (("atoms", train.n_atoms), ("edges", train.n_edges))
            if sizes.any()
        }

    def divide(
        self,
        network: NetworkConfig,
        epochs: int,
        width: int,
        results: Sequence[SegmentResult],
        batches: int = 1,
    ) -> tuple[NetworkConfig, Estimate]:
        """Choose the number of micro-batches in a training step so that the step fits on a GCD.

        A micro-batch is the part of a step that a GCD computes at once. The number is the smallest
        with which a step is expected to fit, and at least twice a number with which a step did not
        fit.

        Parameters
        ----------
        network
            Network with the hyper-parameters of the trial.
        epochs, width
            Number of epochs to train, and number of GCDs.
        results
            Results of all earlier segments of the trial, and of its member.
        batches
            Number of batches in a training step.

        Returns
        -------
        network, estimate
            The network with its `accumulation_steps` set, and the predicted cost of the segment.
        """
        own = self._own(results)

        def estimated() -> Estimate:
            return self._estimate(network, epochs, width, own, batches)

        estimate = estimated()
        steps = network.Training.accumulation_steps
        while too_large(estimate, self.gcd) and takes_more(self._resizes, network, steps, batches):
            steps *= 2
            network = network.with_accumulation(steps)
            estimate = estimated()
        fewest = fewest_micro_batches(self._resizes, results, width, batches)
        if steps < fewest:
            network = network.with_accumulation(fewest)
            estimate = estimated()
        return network, estimate

    def steps_of_a_pass(self, network: NetworkConfig, batches: int = 1) -> int:
        """Return the number of training steps in one pass through the training split.

        ``batches`` is the number of batches in a step.
        """
        sizes = self._train
        return Budget.of(network, batches).least_steps(sizes.graphs, sizes.atoms, sizes.edges)

    def graphs_per_step(self, network: NetworkConfig, batches: int = 1) -> float:
        """Return the mean number of graphs in a training step of ``batches`` batches."""
        return self._train.graphs / self.steps_of_a_pass(network, batches)

    def steps_per_epoch(self, network: NetworkConfig, batches: int = 1) -> int:
        """Return the number of training steps in an epoch, with ``batches`` batches in a step.

        An epoch is a pass through the training split, or a fraction of `search.budget`.
        """
        return self._steps(network, 1, batches)

    def learn(self, results: Sequence[SegmentResult]) -> None:
        """Correct later predictions of time and memory by the results of ended segments."""
        for result in results:
            kind = self._kind(result)
            if result.status == "out_of_memory" and result.together == 1.0:
                # It needed more than there was; how much more is unknown.
                there = self.gcd.memory_gib - self.costs.process_gib
                ratio = self._over_counted(result, there)
                if ratio < _MOST_OVER_COUNTED:
                    self.costs.observe_memory(kind, ratio)
            if self._device == "cpu" and result.is_whole:
                self.costs.observe_process(result.peak_memory_gib)
            taken = self._taken(result)
            # Ordinary steps are estimated. Where some segments compile theirs, these are faster.
            some = self._device == "cpu" and self._base.Training.compile == "auto"
            if taken is None or (some and result.replayed):
                continue
            if taken.memory is not None:
                self.costs.observe_memory(kind, taken.memory)
            name = result.kind, result.number
            self.costs.observe(kind, taken, self._last.pop(name, None))
            self._last[name] = taken
            # Only the trials that ended last may go on.
            if len(self._last) > 4096:
                del self._last[next(iter(self._last))]

    def _kind(self, result: SegmentResult) -> str:
        varied = result.parameters.get("Architecture.mpnn_type")
        return self._base.kind if varied is None else self._base.kind_of(str(varied))

    def _own(self, results: Sequence[SegmentResult]) -> Taken | None:
        """Return the measured cost of a trial's last segment that was not cut short, if any."""
        found = map(self._taken, reversed(results))
        return next((taken for taken in found if taken is not None), None)

    def _taken(self, result: SegmentResult) -> Taken | None:
        """Return the measured cost of a segment; None if it was cut short or not measured."""
        if not result.is_whole or not result.step_work:
            return None
        epochs = result.to_epoch - result.from_epoch
        taken = Taken(
            work=Work(*result.step_work),
            steps=result.steps,
            step_seconds=result.step_seconds,
            seconds=result.seconds,
            epochs=epochs,
            evaluated=self._evaluated_by(result) if epochs else 0.0,
            memory=self._memory_ratio(result),
            together=result.together,
            width=max(1, len(result.gcds)),
            joules=result.joules,
        )
        return taken if taken.is_sound else None

    def _evaluated_by(self, result: SegmentResult) -> float:
        """Return the ratio of graphs validated after an epoch to graphs in a step, in a segment."""
        if self._budget is not None and result.graphs_per_step:
            return self.judged / result.graphs_per_step
        return self._evaluated(result.steps / (result.to_epoch - result.from_epoch))

    def _evaluated(self, steps: float) -> float:
        """Return the ratio of graphs validated after an epoch to graphs in a step.

        ``steps`` is the number of steps in a pass through the training split.
        """
        return steps * self.judged / self._train.graphs

    def _memory_ratio(self, result: SegmentResult) -> float | None:
        """Return the ratio of measured to counted memory of a segment, without the process.

        The result is None if something other than the network takes most of the memory.
        """
        process = self.costs.process_gib
        # Torch does not count the memory of an accelerator's libraries.
        measured = result.peak_memory_gib - (process if self._device == "cpu" else 0.0)
        ratio = self._over_counted(result, measured)
        # A larger ratio is not the network's: a process that has imported other packages is larger,
        # and the small count of a small network would scale that up for large ones.
        return ratio if measured > process and 0 < ratio < _MOST_OVER_COUNTED else None

    def _over_counted(self, result: SegmentResult, gib: float) -> float:
        """Return the ratio of ``gib`` to a segment's counted memory; 0 if that is unknown.

        Both are without the memory of the process.
        """
        counted = (result.uncorrected_memory_gib or 0.0) - self.gcd.process_gib
        return gib / counted if counted > 0 else 0.0

    def _estimate(
        self, network: NetworkConfig, epochs: int, width: int, own: Taken | None, batches: int
    ) -> Estimate:
        """Return the predicted cost of some epochs.

        Parameters
        ----------
        network
            Network of the segment, with its number of micro-batches.
        epochs, width
            Number of epochs to train, and number of GCDs.
        own
            Measured cost of the trial's last segment; None if there is none.
        batches
            Number of batches in a training step.
        """
        steps = self.steps_of_a_pass(network, batches)
        work = self._step_work(network, steps)
        micro_batches = width * network.Training.accumulation_steps
        larger = self._largest_batch(Budget.of(network, batches), steps, width, micro_batches)
        work = replace(
            self._in_parts(work, network, width),
            # Every micro-batch launches all operations again.
            launches=work.launches * network.Training.accumulation_steps,
            activation_bytes=work.activation_bytes * larger / micro_batches,
        )

        return self.costs.estimate(
            *(network.kind, work, self._steps(network, epochs, batches), width, own),
            epochs=epochs,
            evaluated=self._evaluated(steps),
        )

    def _steps(self, network: NetworkConfig, epochs: int, batches: int) -> int:
        """Return the number of steps in ``epochs`` epochs."""
        if self._budget is None:
            return epochs * self.steps_of_a_pass(network, batches)
        unit, size = self._budget
        wanted = size * epochs / self._base.Training.num_epoch
        if unit == "samples":
            wanted /= self.graphs_per_step(network, batches)
        return max(1, math.ceil(wanted))

    def _largest_batch(self, budget: Budget, steps: int, width: int, micro_batches: int) -> float:
        """Return the ratio of the largest to the mean size of a micro-batch, at least 1.

        GCDs share a step evenly, so its parts differ as steps do, or are a single large graph.

        Parameters
        ----------
        budget
            Limits of a batch, and the number of batches in a step.
        steps
            Number of steps in a pass through the training split.
        width, micro_batches
            Number of GCDs, and of micro-batches in a step over all of them.
        """
        limits = budget.of_a_step
        totals = self._train
        larger = 1.0
        for name, sizes in self._sizes.items():
            graphs = totals.graphs / (steps * micro_batches)
            alone = min(sizes.largest_batch(graphs), sizes.largest / sizes.mean / max(graphs, 1.0))
            most = max(sizes.largest_batch(graphs * width), alone)
            if name in limits:
                most = min(most, limits[name] * steps / (sizes.mean * totals.graphs))
            larger = max(larger, most)
        return larger

    def _step_work(self, network: NetworkConfig, steps: int) -> Work:
        """Count the work of a training step of a network on a batch of average size.

        ``steps`` is the number of steps in a pass through the training split.
        """
        training = network.Training
        of = network.Architecture, training.precision, training.conv_checkpointing, steps
        # One network is estimated on several numbers of GCDs in turn.
        if self._counted is None or self._counted[0][0] is not of[0] or self._counted[0] != of:
            self._counted = of, self._another_step_work(network, steps)
        return self._counted[1]

    def parameters(self, network: NetworkConfig) -> int:
        """Return the number of parameters of a network, those of frozen layers included."""
        values = network.Architecture.model_dump_json()
        if values not in self._parameters:
            if isinstance(network, EngineNetwork):
                found = self._probe.cost(network, atoms=8, edges=16, graphs=2).parameters
            else:
                with torch.device("meta"):
                    model = build_model(network, self._store)
                found = sum(weight.numel() for weight in model.parameters())
            self._parameters[values] = found
        return self._parameters[values]

    def _in_parts(self, work: Work, network: NetworkConfig, width: int) -> Work:
        division = division_of(
            *(network, self._store.manifest, self._store[TRAIN], self._sampling),
            width,
        )
        if division is None:
            return _in_parts(work, network, width)
        # The GCD with most heads counts, as if all exchanged the gradient of as many.
        most = max(map(len, division.branches)) / network.branches
        held = work.parameter_bytes - (1 - most) * work.head_bytes
        return replace(work, parameter_bytes=held)

    def _is_finite(self, model: Model) -> bool:
        assert isinstance(model, HydraModel)
        # Other models do not use the answer, which requires reading graphs.
        return not model.encoder.inputs.space or any_finite(self._store[TRAIN])

    def _another_step_work(self, network: NetworkConfig, steps: int) -> Work:
        sizes = self._train
        batch = {
            "atoms": -(-sizes.atoms // steps),
            "edges": -(-sizes.edges // steps),
            "graphs": -(-sizes.graphs // steps),
        }
        training = network.Training
        wide = 2 if training.precision == "fp64" else 1
        muon = training.Optimizer.type == "Muon"

        def count() -> Work:
            heads = 0
            if isinstance(network, EngineNetwork):
                cost = self._probe.cost(network, **batch)
            else:
                with torch.device("meta"):
                    model = build_model(network, self._store)
                heads = parameters_of_heads(model)
                cost = network_cost(
                    model,
                    **batch,
                    largest=self._largest_graph,
                    finite=self._is_finite(model),
                    muon=muon,
                )
            return Work(
                flops=cost.flops * wide,
                bytes=cost.bytes * wide,
                launches=cost.launches,
                update_flops=cost.update_flops * wide,
                activation_bytes=cost.peak_bytes * wide,
                parameter_bytes=4 * cost.parameters * wide,
                head_bytes=4 * heads * wide,
            )

        # Defaults are included, so that a network with an explicit one is of the same family.
        architecture = network.Architecture.model_dump(mode="json")
        told_by = training.model_dump(mode="json", exclude=_TOLD_BY_THE_BATCH)
        return self._works.work([architecture, told_by, muon, batch], count)


def _in_parts(work: Work, network: NetworkConfig, width: int) -> Work:
    """Return the work of a step, divided among ``width`` GCDs as `Training.sharding` asks."""
    sharding = network.Training.sharding
    parts = sharding.replica(width)
    if parts == 1:
        return work
    # Parameters and gradients held at a time: all of a potential's; of another network those of a
    # layer, of the next one, and those outside the layers.
    units = getattr(network.Architecture, "num_conv_layers", 1) + 1
    is_whole = network.Architecture.enable_interatomic_potential or not sharding.reshards
    at_a_time = 1.0 if is_whole else min(1.0, 3 / units)
    # Between micro-batches gradients are not sharded.
    gradients = 1.0 if network.Training.accumulation_steps > 1 else at_a_time
    gathered = work.parameter_bytes * (at_a_time + gradients)
    gathers = 2 if sharding.reshards else 1
    return replace(work, parts=parts, gathers=gathers, gathered_bytes=gathered)


def gcd_for_segments(site: Site, mode: Mode, store: GraphStore) -> Gcd:
    """Return the speed of a site's GCD, and its memory apart from its share of the store.

    The share is subtracted only on CPUs with `data.mode` = ``memory``, where the store lies in the
    memory of the node.

    Raises
    ------
    InputError
        If the remaining memory is less than a process needs.
    """
    node = site.node
    if node.device != "cpu" or mode != "memory":
        return node.gcd
    # A store larger than half of a node's memory is on its disk.
    stored = store.manifest.bytes / 2**30 / len(node.gcds)
    left = node.gcd.memory_gib - min(stored, node.gcd.memory_gib / 2)
    if left <= node.gcd.process_gib:
        raise InputError(
            f"site {site.name}: beside the store a GCD has {left:.1f} GiB, and a "
            f"process that trains takes more than {node.gcd.process_gib:g} GiB; use fewer GCDs a "
            f"node, or data.mode: random"
        )
    return replace(node.gcd, memory_gib=left)
