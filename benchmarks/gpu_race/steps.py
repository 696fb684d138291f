"""Training steps of each network on a device: speed, kernels, and expected time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from model_race.alloys import write_alloys
from model_race.networks import BATCH, Case, network
from model_race.sides import Ours, Side
from peers.hydragnn_model import HydraGNNModel
from torch.profiler import ProfilerActivity, profile
from turns import Turns, take_turns

from hydragnn_flow import GraphStore, InputError, build_model
from hydragnn_flow.models.cost import _VIEWS, NetworkCost, network_cost
from hydragnn_flow.placement import Gcd
from hydragnn_flow.placement.cost_model import CostModel, Work
from hydragnn_flow.training.memory import (
    forget_peak_memory,
    give_back_memory,
    out_of_memory,
    peak_memory_gib,
)

OURS, THEIRS = "ours", "HydraGNN"
_ATOMS, _EDGES = 32, 640  # of a graph of model_race.alloys
_ACTIVITIES = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}


@dataclass(frozen=True)
class Kernels:
    """Kernels of one step, on average."""

    launches: float
    """Kernels and copies; on a CPU torch's innermost operations."""
    seconds: float
    """Time in kernels and copies [s]."""


@dataclass(frozen=True)
class Row:
    """One network."""

    case: Case
    turns: Turns
    """Seconds of a step of each side there is."""
    kernels: Kernels
    peak_gib: float
    """Peak memory of the process, or of torch's allocations on the device [GiB]."""
    expected_seconds: float
    """Time of a step that placement expects before anything has been measured [s]."""


@dataclass(frozen=True)
class Course:
    """Measures one network after the other."""

    folder: Path
    device: torch.device
    gcd: Gcd
    """Assumptions of placement about the device."""
    rounds: int
    """Turns of each side."""
    seconds: float
    """Length of a turn [s], of one step at least."""
    batches: int
    """Different batches, which a side takes one after the other."""
    hydragnn: Path | None
    left_out: list[str]
    """Names of what could not be measured, and why."""

    def run(self, case: Case) -> Row | None:
        """Measure whichever sides there are; None where ours cannot be."""
        store = write_alloys(self.folder, self.batches * BATCH, case)
        give_back_memory()
        forget_peak_memory(self.device)
        try:
            ours = Ours(store, case, BATCH, self.device)
            for _ in range(2):
                step = seconds_of(lambda: ours.train(0), self.device)
            peak = peak_memory_gib(self.device)
            sides: dict[str, Side] = {OURS: ours} | self._theirs(case, store)
            contenders = {who: self._turn(side, 2 * step) for who, side in sides.items()}
            turns = take_turns(contenders, self.rounds)
            # Last, since what the profiler has begun may go on.
            kernels = kernels_of(ours.step, self.batches, self.device)
        except (RuntimeError, InputError) as error:
            reason = out_of_memory(error) or next(iter(str(error).splitlines()), "")
            self.left_out.append(f"{case.name}: {reason}")
            return None
        if (recorded := ours.trainer.recorded) is not None and recorded.reason:
            self.left_out.append(f"{case.name}, replayed: {recorded.reason}")
        costs, cost = CostModel(self.gcd), self._cost(case, store)
        work = Work(
            flops=cost.flops,
            bytes=cost.bytes,
            launches=cost.launches,
            activation_bytes=cost.peak_bytes,
            parameter_bytes=4 * cost.parameters,
        )
        expected = costs.estimate(case.mpnn_type, work, 1)
        return Row(case, turns, kernels, peak, expected.uncorrected_seconds)

    def _theirs(self, case: Case, store: Path) -> dict[str, Side]:
        if self.hydragnn is None:
            return {}
        split = GraphStore.open(store)["trainset"]
        graphs = [split[index] for index in range(len(split))]
        try:
            side = HydraGNNModel(self.hydragnn, graphs, network(case), self.device)
            side.train(0)
        except Exception as error:  # CannotRun, or whatever HydraGNN objects to
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            self.left_out.append(f"HydraGNN's {case.name}: {reason}")
            return {}
        return {THEIRS: side}

    def _turn(self, side: Side, step: float) -> Callable[[], float]:
        """A turn of a side; seconds of a step."""
        graphs = [0]

        def work() -> None:
            graphs[0] = side.train(max(self.seconds, step))

        return lambda: seconds_of(work, self.device) * BATCH / graphs[0]

    def _cost(self, case: Case, store: Path) -> NetworkCost:
        with GraphStore.open(store) as graphs, torch.device("meta"):
            model = build_model(network(case), graphs)
        return network_cost(model, _ATOMS * BATCH, _EDGES * BATCH, BATCH, _ATOMS)


def now(device: torch.device) -> float:
    """Seconds of a device: by the wall once it has done its work, of a CPU those it spent [s]."""
    if device.type == "cpu":
        return time.process_time()
    torch.get_device_module(device).synchronize(device)
    return time.perf_counter()


def seconds_of(work: Callable[[], object], device: torch.device, at_least: float = 0.0) -> float:
    """Seconds that some work takes, of as many times as fill so many seconds [s]."""
    times, once = 1, 0.0
    while True:
        start = now(device)
        for _ in range(times):
            work()
        once = (now(device) - start) / times
        if once * times >= at_least:
            return once
        times = max(2 * times, int(at_least / max(once, 1e-9)))


def kernels_of(step: Callable[[], object], steps: int, device: torch.device) -> Kernels:
    """Profile some steps."""
    activities = [ProfilerActivity.CPU]
    if device.type in _ACTIVITIES:
        activities.append(_ACTIVITIES[device.type])
    with profile(activities=activities) as found:
        for _ in range(steps):
            step()
        now(device)
    timed = [_seconds(event, device) for event in found.events() or []]
    seconds = [one for one in timed if one is not None]
    return Kernels(len(seconds) / steps, sum(seconds) / steps)


def _seconds(event: Any, device: torch.device) -> float | None:
    """Time of a kernel [s]; None for other events."""
    if device.type == "cpu":
        library, _, name = event.name.partition("::")
        moves_data = library == "aten" and name not in _VIEWS and not event.cpu_children
        return 1e-6 * float(event.self_cpu_time_total) if moves_data else None
    # What the host has marked is shown on the device as well.
    is_mark = getattr(event, "is_user_annotation", False) or "#" in event.name
    if is_mark or event.device_type.name == "CPU":
        return None
    return 1e-6 * float(event.time_range.elapsed_us())
