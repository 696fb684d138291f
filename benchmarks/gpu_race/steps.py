"""Training steps of each network: speed, kernels, and expected time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from model_race.alloys import write_alloys
from model_race.networks import BATCH, Case, network
from model_race.sides import Ours, Side
from peers.hydragnn_model import HydraGNNModel

from gpu_race.clock import Clock, Turns, take_turns
from gpu_race.kernels import Kernels, kernels_of
from hydragnn_flow import GraphStore, InputError, build_model
from hydragnn_flow.models.cost import NetworkCost, network_cost
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


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    rounds: int
    """Turns of each side."""
    seconds: float
    """Length of a turn [s], of one step at least."""
    profiled: int = 3
    """Steps that are profiled."""
    batches: int = 4
    """Different batches, which a side takes one after the other."""


@dataclass(frozen=True)
class Row:
    """One network."""

    case: Case
    turns: Turns
    """Seconds of a step of each side there is."""
    kernels: Kernels
    peak_gib: float
    """Peak memory of the process, or of torch's allocations on the device [GiB]."""
    cost: NetworkCost
    expected_seconds: float
    """Time of a step that placement expects before anything has been measured [s]."""
    expected_gib: float
    """The peak, likewise and without a margin [GiB]."""


class Course:
    """Measures one network after the other.

    Parameters
    ----------
    folder
        For the graphs.
    device
        Where to compute.
    gcd
        Assumptions of placement about the device.
    settings
        How much to measure.
    hydragnn
        A checkout of HydraGNN, if there is one.
    say
        Told what is being done.

    Attributes
    ----------
    left_out
        What could not be measured, and why.
    """

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        gcd: Gcd,
        settings: Settings,
        hydragnn: Path | None,
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._device, self._costs = folder, device, CostModel(gcd)
        self._settings, self._hydragnn, self._say = settings, hydragnn, say
        self.left_out: list[str] = []

    def run(self, case: Case) -> Row | None:
        """Measure whichever sides there are; None where ours cannot be."""
        name = f"{case.mpnn_type}, {case.mode}"
        store, clock = self.store(case.columns), Clock(self._device)
        give_back_memory()
        forget_peak_memory(self._device)
        try:
            ours = Ours(store, case, BATCH, self._device)
            step = 2 * _once(ours, clock)
            peak = peak_memory_gib(self._device)
            sides: dict[str, Side] = {OURS: ours} | self._theirs(case, store)
            contenders = {who: self._turn(side, clock, step) for who, side in sides.items()}
            turns = take_turns(contenders, self._settings.rounds)
            # Last, since what the profiler has begun may go on.
            kernels = kernels_of(ours.step, self._settings.profiled, self._device)
        except (RuntimeError, InputError) as error:
            reason = out_of_memory(error) or next(iter(str(error).splitlines()), "")
            self.left_out.append(f"{name}: {reason}")
            return None
        cost = self._cost(case, store)
        work = Work(
            flops=cost.flops,
            bytes=cost.bytes,
            launches=cost.launches,
            activation_bytes=cost.peak_bytes,
            parameter_bytes=4 * cost.parameters,
        )
        expected = self._costs.estimate(case.mpnn_type, work, 1)
        memory = expected.uncorrected_memory_gib
        if self._device.type != "cpu":  # of which torch does not count the libraries' own
            memory -= self._costs.gcd.process_gib
        return Row(case, turns, kernels, peak, cost, expected.uncorrected_seconds, memory)

    def store(self, columns: int) -> Path:
        """Graphs with a number of node features."""
        path = self._folder / f"alloys-{columns}.gs"
        if not path.exists():
            self._say("writing graphs")
            write_alloys(path, self._settings.batches * BATCH, columns)
        return path

    def _theirs(self, case: Case, store: Path) -> dict[str, Side]:
        if self._hydragnn is None:
            return {}
        split = GraphStore.open(store)["trainset"]
        graphs = [split[index] for index in range(len(split))]
        try:
            side = HydraGNNModel(self._hydragnn, graphs, network(case), self._device)
            side.train(0)
        except Exception as error:  # CannotRun, or whatever HydraGNN objects to
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            self.left_out.append(f"HydraGNN's {case.mpnn_type}, {case.mode}: {reason}")
            return {}
        return {THEIRS: side}

    def _turn(self, side: Side, clock: Clock, step: float) -> Callable[[], float]:
        """A turn of a side; seconds of a step."""

        def turn() -> float:
            start = clock.now()
            graphs = side.train(max(self._settings.seconds, step))
            return (clock.now() - start) * BATCH / graphs

        return turn

    def _cost(self, case: Case, store: Path) -> NetworkCost:
        with GraphStore.open(store) as graphs, torch.device("meta"):
            model = build_model(network(case), graphs)
        return network_cost(model, _ATOMS * BATCH, _EDGES * BATCH, BATCH, _ATOMS)


def _once(side: Side, clock: Clock) -> float:
    """Seconds of a step that is not the first [s]."""
    side.train(0)
    start = clock.now()
    side.train(0)
    return clock.now() - start
