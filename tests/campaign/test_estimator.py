"""What the driver expects of segments, and what it learns from those that ended."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaign_cases import CONFIG
from rich.console import Console

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.estimator import Estimator
from hydragnn_flow.campaign.task import Task
from hydragnn_flow.config import RunConfig, load_network
from hydragnn_flow.data import GraphStore
from hydragnn_flow.execution import Node, Site
from hydragnn_flow.placement import Gcd
from hydragnn_flow.placement.cost_model import MARGINS
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import Place, SegmentResult, TrainingOutcome

GCD = Gcd(64.0, 1e10, 1e10, 1e-5, 0.5, 4)
SITE = Site("fake", 1, Node(("0", "1"), GCD, 1, "cuda"), lambda directory: None)
SCHNET = {"Architecture.mpnn_type": "SchNet", "Training.batch_size": 4}
EGNN = {"Architecture.mpnn_type": "EGNN", "Training.batch_size": 4}

Start = Callable[[], Context]


@pytest.fixture
def start(tmp_path: Path, store: GraphStore) -> Start:
    """The context of a driver; called again, that of the next."""

    def begin() -> Context:
        config = RunConfig.model_validate(CONFIG)
        directory = RunDirectory(tmp_path / "run")
        directory.record_start(config)
        return Context(config, SITE, directory, store, "t", CampaignView(Console(quiet=True)))

    return begin


def task(context: Context, number: int, parameters: dict[str, Any], **changes: Any) -> Task:
    trial = TrialRecord(number, "running", parameters, None)
    folder = context.directory.trial(number)
    rung = {"rung": 0, "until_epoch": 2, "done_epochs": 0}
    return context.task("trial", number, folder, trial, **{**rung, **changes})


def ended(task: Task, slower: float, together: float = 1.0, **changes: Any) -> SegmentResult:
    """A segment whose steps took so many times as long as its network says, and a quarter more."""
    training = slower * task.estimate.uncorrected_seconds / task.width
    outcome = TrainingOutcome(
        status="ok",
        from_epoch=task.spec.after_epoch,
        to_epoch=task.spec.until_epoch,
        steps=10,
        step_seconds=training / 10,
        seconds=1.25 * training,
    )
    result = SegmentResult.of(task.spec, outcome, Place(gcds=["0"] * task.width))
    return replace(result.expected(task.forecast(together)), **changes)


def ratio(context: Context, parameters: dict[str, Any]) -> float:
    """How much longer than its network alone says a new trial is expected to take."""
    estimate = task(context, 99, parameters).estimate
    return estimate.seconds / estimate.uncorrected_seconds


def test_every_whole_segment_teaches(start: Start) -> None:
    """Packed ones and gangs too; and the next driver knows what the last one learned."""
    context = start()
    assert ratio(context, SCHNET) == ratio(context, EGNN) == 1.0
    packed = [ended(task(context, n, SCHNET), 3.0, 2.0) for n in range(2)]
    gang = ended(task(context, 2, SCHNET, width=2), 3.0)
    context.record([*packed, gang])
    learned = ratio(context, SCHNET)
    assert learned == pytest.approx(3.0 * 1.25, rel=0.3)
    assert ratio(context, EGNN) == pytest.approx(learned, rel=0.05)
    again = start()
    assert ratio(again, SCHNET) == pytest.approx(learned)
    assert ratio(again, EGNN) == pytest.approx(ratio(context, EGNN))


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "diverged"},
        {"to_epoch": 1},  # early stopping, or its time was up
        {"from_step": 3},
        {"step_seconds": 0.0, "seconds": 0.0},
    ],
)
def test_what_did_not_do_all_of_its_work_teaches_nothing(
    start: Start, changes: dict[str, Any]
) -> None:
    context = start()
    context.record([ended(task(context, 0, SCHNET), 3.0, **changes)])
    assert ratio(context, SCHNET) == 1.0


def test_lines_without_steps_teach_by_all_of_their_time(start: Start) -> None:
    context = start()
    context.record([ended(task(context, 0, SCHNET), 3.0, steps=0, step_seconds=0.0)])
    assert ratio(context, SCHNET) == pytest.approx(3.75)


def test_a_trials_own_steps_rule_its_next_segment(start: Start) -> None:
    context = start()
    for n in range(8):
        context.record([ended(task(context, n, SCHNET), 3.0)])
    own = ended(task(context, 8, SCHNET), 12.0)
    context.record([own])
    following = {"rung": 1, "until_epoch": 6, "done_epochs": 2}
    estimate = task(context, 8, SCHNET, **following).estimate
    assert estimate.seconds == pytest.approx(12.0 * 1.25 * estimate.uncorrected_seconds)
    other = task(context, 9, SCHNET, **following).estimate
    assert other.seconds == pytest.approx(3.0 * 1.25 * other.uncorrected_seconds, rel=0.3)


def test_a_trial_that_shared_a_gcd_is_not_expected_to_be_slow_alone(start: Start) -> None:
    """Three together take half as long again each; the next driver knows that they were three."""
    context = start()
    for n in range(0, 24, 4):
        packed = [ended(task(context, n + k, SCHNET), 4.5, 3.0) for k in range(3)]
        context.record(packed)
        alone = ended(task(context, n + 3, SCHNET), 3.0)
        context.record([alone])
    shared = packed[0]
    following = {"rung": 1, "until_epoch": 6, "done_epochs": 2}
    for driver in (context, start()):
        after = [task(driver, 8, SCHNET, **following) for own in (shared, alone)]
        seconds = [then.estimate.seconds for then in after]
        assert seconds[0] == pytest.approx(seconds[1], rel=0.12), "not 1.5 times"


def test_memory_is_corrected_by_the_measured_peak(start: Start) -> None:
    """Of an accelerator torch counts what it has allocated, not what its libraries take."""
    context = start()
    first = task(context, 0, SCHNET).estimate
    net = first.uncorrected_memory_gib - GCD.process_gib
    assert first.memory_gib == pytest.approx(GCD.process_gib + MARGINS[0] * net)
    large = replace(first, uncorrected_memory_gib=GCD.process_gib + 2.0)  # as of a large network
    begun = replace(task(context, 0, SCHNET), estimate=large)
    known = ended(begun, 1.0, peak_memory_gib=6.0)
    context.record([known])
    assert known.predicted_memory_gib == first.memory_gib
    for parameters, margin in ((SCHNET, MARGINS[1]), (EGNN, MARGINS[0])):
        estimate = task(context, 1, parameters).estimate
        net = estimate.uncorrected_memory_gib - GCD.process_gib
        assert estimate.memory_gib == pytest.approx(GCD.process_gib + 3.0 * margin * net)
    again = task(start(), 1, SCHNET).estimate
    assert again.memory_gib == task(context, 1, SCHNET).estimate.memory_gib
    own = task(context, 0, SCHNET, rung=1).estimate
    net = own.uncorrected_memory_gib - GCD.process_gib
    assert own.memory_gib == pytest.approx(GCD.process_gib + 3.0 * MARGINS[2] * net)


def test_peaks_that_are_mostly_the_process_teach_nothing(start: Start) -> None:
    context = start()
    before = task(context, 1, SCHNET).estimate.memory_gib
    context.record([ended(task(context, 0, SCHNET), 1.0, peak_memory_gib=0.01)])
    assert task(context, 1, SCHNET).estimate.memory_gib == before


def test_on_a_cpu_the_peak_has_the_process_in_it(start: Start, store: GraphStore) -> None:
    context = start()
    context.estimator = Estimator(context.config, store, GCD, "cpu")
    large = replace(task(context, 0, SCHNET).estimate, uncorrected_memory_gib=2.5)
    begun = replace(task(context, 0, SCHNET), estimate=large)
    context.record([ended(begun, 1.0, peak_memory_gib=GCD.process_gib + 6.0)])
    estimate = task(context, 1, SCHNET).estimate
    net = estimate.uncorrected_memory_gib - GCD.process_gib
    assert estimate.memory_gib == pytest.approx(GCD.process_gib + 3.0 * MARGINS[1] * net)


def activations(context: Context, steps: int = 1, width: int = 1, **training: Any) -> float:
    """Counted for one GCD [GiB], weights left out."""
    network = copy.deepcopy(context.config.network)
    network["Training"] |= {"batch_size": 16, "accumulation_steps": steps, **training}
    _, estimate = context.estimator.divide(load_network(network), 1, width, ())
    weights = 6 * 4 * 1.0e3 / 2**30  # some thousand numbers
    return estimate.uncorrected_memory_gib - GCD.process_gib - weights


def test_memory_is_for_the_largest_batch(start: Start, store: GraphStore) -> None:
    """Of few graphs it is further above the mean one; a single graph may be the largest."""
    context = start()
    per_graph = {n: activations(context, batch_size=n) / n for n in (1, 4, 16)}
    assert per_graph[1] > per_graph[4] > per_graph[16]
    sizes = store["trainset"].n_edges
    # In micro-batches, or on several GCDs, no less than the largest of them takes.
    whole = activations(context)
    assert whole / 4 < activations(context, steps=4) < whole / 4 * sizes.max() / sizes.mean()
    assert activations(context, width=4) == pytest.approx(activations(context, steps=4))


def test_a_limit_of_a_batch_is_not_exceeded(start: Start, store: GraphStore) -> None:
    context, train = start(), store["trainset"]
    sizes = {"max_nodes": train.n_atoms, "max_edges": train.n_edges}
    limits = {key: int(4 * values.mean()) for key, values in sizes.items()}
    steps = max(-(-int(values.sum()) // limits[key]) for key, values in sizes.items())
    network = copy.deepcopy(context.config.network)
    network["Training"] |= {"Batching": {"mode": "node_budget", **limits}}
    estimator, checked = context.estimator, load_network(network)
    limited = estimator.divide(checked, 1, 1, ())[1].uncorrected_memory_gib
    mean = estimator._step_work(checked, steps)
    net = (limited - GCD.process_gib) * 2**30 - 6 * mean.parameter_bytes
    full = max(steps * limits[key] / values.sum() for key, values in sizes.items())
    assert net == pytest.approx(full * mean.activation_bytes)
    assert full < 1.2 < estimator._sizes["atoms"].largest_batch(4)


def test_layers_that_are_computed_again_need_less(start: Start) -> None:
    context = start()
    assert activations(context, conv_checkpointing=True) < 0.95 * activations(context)


def test_sizes_that_do_not_vary_need_no_more(start: Start, store: GraphStore) -> None:
    estimator = start().estimator
    sizes = estimator._sizes["atoms"]
    even = replace(sizes, deviation=0.0, skewness=0.0)
    assert even.largest_batch(4) == 1.0 < sizes.largest_batch(4)
    assert np.isfinite(sizes.skewness)
