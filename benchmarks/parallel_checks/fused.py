"""Fused members: are they what they are alone, and what does a step of all of them at once save?

Eight networks of one shape and of width 16 train on alloys, each with a seed and a learning rate of
its own. First both ways for some steps, to be compared. Then steps are timed: of all members one
after the other, and of all at once, in turns, by the CPU time of this process with one thread.
Batches are made within that time.

Launches are the operators that torch dispatches in such a step, without views and what only the
host does. They are counted as an accelerator gets them: there a kernel over edges is one launch,
where a CPU takes some edges at a time.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from results import Cell, Line, Number, Table
from torch.utils._python_dispatch import TorchDispatchMode

from hydragnn_flow.config import DataConfig, load_network
from hydragnn_flow.data import GraphStore, prepare_store
from hydragnn_flow.models.kernels import multilinear
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.fused import FusedTrainer
from hydragnn_flow.training.trainer import Trainer

CPU = torch.device("cpu")
ROW = "fused"
MEASURES = ["hydragnn_flow/models", "hydragnn_flow/training"]
MEMBERS, WIDTH = 8, 16
_TYPES = ("EGNN", "SchNet", "PAINN", "PNA", "GIN", "SAGE")
_WITHOUT_LENGTHS = ("GIN", "SAGE")
_BATCHES = (2, 16)
_CUTOFF = 4.0
_STEPS, _TURNS = 24, 5
_EQUAL, _FASTER, _FEWER = 1e-5, 2.0, 7.0
# Operators that launch nothing on an accelerator.
_ON_HOST = {"lift_fresh", "_local_scalar_dense", "_record_function_exit", "detach", "detach_"}
_ON_HOST |= {"_record_function_enter_new", "is_same_size", "record_stream"}
_VIEWS = {"view", "t", "transpose", "expand", "slice", "select", "split", "split_with_sizes"}
_VIEWS |= {"unbind", "unsqueeze", "squeeze", "alias", "_unsafe_view", "permute", "as_strided"}
_VIEWS |= {"_reshape_alias", "unsafe_split", "unsafe_chunk", "view_as_real"}


@dataclass(frozen=True)
class Shape:
    """What is trained."""

    mpnn_type: str
    is_potential: bool
    batch_size: int

    def __str__(self) -> str:
        what = "potential" if self.is_potential else "property"
        return f"{self.mpnn_type}, {what}, {self.batch_size} graphs a step"


@dataclass(frozen=True)
class Compared:
    """Eight members separately and fused."""

    shape: Shape
    loss: float
    """Largest difference of a loss of an epoch, relative to it."""
    weight: float
    """Largest difference of a weight; weights are of the order of one."""
    steps: int
    """After which they were compared."""
    separate: list[float]
    """CPU time of a step of all members [s], turn by turn."""
    fused: list[float]
    launches: tuple[int, int]
    """Separately and fused."""

    @property
    def faster(self) -> list[float]:
        """Steps for each CPU-second, fused over separate, turn by turn."""
        return [one / other for one, other in zip(self.separate, self.fused, strict=True)]


class _Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's class is untyped
    """Counts what is launched."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket._qualified_op_name.split("::")[1]
        self.counts[name] += name not in _ON_HOST | _VIEWS
        return func(*args, **(kwargs or {}))


def measured(folder: Path, *, quick: bool = False) -> Iterator[Line | Table]:
    """Compare every type; the lines are those of small batches, the table has all."""
    torch.set_num_threads(1)
    store = write_store(folder, quick)
    batches = _BATCHES[:1] if quick else _BATCHES
    rows: list[list[Cell]] = []
    for mpnn_type in _TYPES[-1:] if quick else _TYPES:
        for is_potential in (False, True)[: 1 if mpnn_type in _WITHOUT_LENGTHS else 2]:
            for size in batches:
                shape = Shape(mpnn_type, is_potential, size)
                is_first = size == batches[0]
                one = compare(shape, store, folder, (4 if quick else _STEPS) if is_first else 0)
                rows.append(_cells(one))
                if is_first:
                    yield from _lines(one)
    columns = ["", "separate, CPU-ms", "fused, CPU-ms", "faster", "launches", "fused", "fewer"]
    title = f"{MEMBERS} members of width {WIDTH}: a step of all of them"
    yield Table(columns, rows, "fused", title)


def compare(shape: Shape, store: GraphStore, folder: Path, steps: int) -> Compared:
    """Train eight members both ways for some steps, then time and count others."""
    loss, weight = differences(shape, store, folder, steps) if steps else (0.0, 0.0)
    trainer = FusedTrainer(specs_of(shape, store, folder), store, CPU)
    turn = _Turns(trainer)
    ways = (trainer.take_apart, trainer.take)
    found: tuple[list[float], list[float]] = ([], [])
    launches = []
    for take in ways:
        for _ in range(2):
            turn.seconds(take)  # warm
        launches.append(turn.launches(take))
    for _ in range(_TURNS):
        for take, times in zip(ways, found, strict=True):
            turn.seconds(take)  # which puts the weights where they are wanted
            times.append(turn.seconds(take))
    return Compared(shape, loss, weight, steps, *found, (launches[0], launches[1]))


class _Turns:
    """Steps of all members, one way or the other."""

    def __init__(self, trainer: FusedTrainer) -> None:
        self._trainer = trainer
        trainer.begin()

    def seconds(self, take: Callable[[], None]) -> float:
        """CPU time of a step [s]."""
        return self._trainer.timed_round(take)

    def launches(self, take: Callable[[], None]) -> int:
        """Operators of a step."""
        with patch.object(multilinear, "EDGES_AT_A_TIME", 10**9), _Launches() as launched:
            take()
        self._trainer.round(lambda: None)
        return int(launched.counts.total())


def differences(
    shape: Shape, store: GraphStore, folder: Path, steps: int, device: torch.device = CPU
) -> tuple[float, float]:
    """Train the members both ways; largest differences of a loss, relative to it, and a weight."""
    specs = specs_of(shape, store, folder, steps=steps)
    together = FusedTrainer(specs, store, device)
    together.run(probe=False)
    loss = weight = 0.0
    for spec, member in zip(specs, together.members, strict=True):
        alone = Trainer(spec, store, device, World())
        alone.run()
        for mine, other in zip(member.progress.history, alone.progress.history, strict=True):
            pairs = zip(mine[1:], other[1:], strict=True)
            loss = max(loss, *(abs(one - two) / abs(two) for one, two in pairs))
        state = member.model.state_dict()
        for name, tensor in alone.model.state_dict().items():
            weight = max(weight, float((state[name].double() - tensor.double()).abs().max()))
    return loss, weight


def _lines(one: Compared) -> Iterator[Line]:
    name, ratios = str(one.shape), sorted(one.faster)
    # The extremes of PNA's neighbours jump, and multiply rounding, as in any two trainings.
    exact = one.shape.mpnn_type != "PNA"
    for of, value, unit in (("losses", one.loss, "of them"), ("weights", one.weight, "")):
        what = f"{name}: {of} after {one.steps} steps, largest difference"
        yield Line(ROW, what, value, unit, at_most=_EQUAL if exact else None)
    yield Line(
        ROW,
        f"{name}: steps for each CPU-second",
        MEMBERS / median(one.fused),
        "steps/s",
        "separately",
        MEMBERS / median(one.separate),
        median(ratios),
        at_least=_FASTER,
        spread=(ratios[0], ratios[-1]),
    )
    alone, fused = one.launches
    yield Line(
        ROW,
        f"{name}: launches",
        fused,
        "",
        "separately, over fused",
        alone,
        alone / fused,
        at_least=_FEWER,
    )


def _cells(one: Compared) -> list[Cell]:
    ratios, (alone, fused) = sorted(one.faster), one.launches
    return [
        str(one.shape),
        1e3 * median(one.separate),
        1e3 * median(one.fused),
        Number(median(ratios), "", ratios[0], ratios[-1]),
        alone,
        fused,
        alone / fused,
    ]


def write_store(folder: Path, quick: bool) -> GraphStore:
    """Alloys to train on."""
    path = folder / "fused.gs"
    if path.exists():
        return GraphStore.open(path)
    values = {
        "source": {"format": "emt_alloys", "structures": 40 if quick else 240, "atoms": [8, 32]},
        "split": {"val": 0.1, "test": 0.1},
    }
    return prepare_store(DataConfig.model_validate(values), _CUTOFF, None, 0, path)


def specs_of(
    shape: Shape, store: GraphStore, folder: Path, steps: int = 10**6
) -> list[SegmentSpec]:
    """Members with learning rates of their own, for a number of steps."""
    network = _network(shape)
    found = []
    for number in range(MEMBERS):
        mine = copy.deepcopy(network)
        mine["Training"]["Optimizer"]["learning_rate"] = 5e-4 * (1 + number / MEMBERS)
        spec = SegmentSpec(
            kind="trial",
            number=number,
            rung=0,
            directory=str(folder / "fused" / str(number)),
            store=str(store.path),
            network=load_network(mine),
            until_epoch=1,
            seed=number,
            may_have_begun=False,
            budget=("steps", steps),
            trivial_errors={"energy": 1.0, "forces": 1.0},
        )
        found.append(spec)
    return found


def _network(shape: Shape) -> dict[str, Any]:
    head = {"num_headlayers": 1, "dim_headlayers": [WIDTH]}
    shared = {"num_sharedlayers": 1, "dim_sharedlayers": WIDTH}
    architecture: dict[str, Any] = {
        "mpnn_type": shape.mpnn_type,
        "hidden_dim": WIDTH,
        "num_conv_layers": 3,
        "radius": _CUTOFF,
        "activation_function": "silu",
        "output_heads": {"graph": shared | head},
    }
    if shape.is_potential:
        architecture |= {
            "enable_interatomic_potential": True,
            "energy_peratom_weight": 1.0,
            "force_weight": 1.0,
            "output_heads": {"node": head},
        }
    level = "node" if shape.is_potential else "graph"
    return {
        "Architecture": architecture,
        "Variables_of_interest": {"output_names": ["energy"], "type": [level]},
        "Training": {
            "num_epoch": 1,
            "batch_size": shape.batch_size,
            "Optimizer": {"learning_rate": 1e-3},
        },
    }
