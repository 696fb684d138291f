"""Traffic: what does each rank send in a step, by strategy?

Each collective of a step is counted as a ring sends it: a sum over n ranks 2 (n - 1) / n of what is
summed, a gathering or a scattered sum half of that. Beside it is what the cost model counts, which
plans by it. Groups count their collectives too; a step in which one was overlooked is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results import Cell, Line, Number, Table

from hydragnn_flow.config import load_network
from hydragnn_flow.config.network import Sharding
from hydragnn_flow.data import GraphStore
from hydragnn_flow.placement import Work
from hydragnn_flow.training.distributed import World
from parallel_checks.counted import Traffic
from parallel_checks.networks import STRATEGIES, Kind, alloys, losses, network, sharding, trainer
from parallel_checks.ranks import on_ranks

ROW = "traffic"
MEASURES = [
    "benchmarks/parallel_checks/counted.py",
    "benchmarks/parallel_checks/networks.py",
    "benchmarks/parallel_checks/traffic.py",
    "hydragnn_flow/placement/cost_model.py",
    "hydragnn_flow/training",
]
WIDTHS = (4, 8)
_NETWORKS: tuple[tuple[str, Kind], ...] = (("EGNN", "property"), ("PAINN", "potential"))
_WIDTH, _LAYERS, _STEPS = 128, 3, 2
_WITHIN = 5.0
_COMPRESSED = "NO_SHARD, bf16"


def measured(folder: Path, *, quick: bool = False) -> Iterator[Line | Table]:
    """A line for each strategy, network and number of ranks; and the table."""
    widths = (2,) if quick else WIDTHS
    with alloys(folder) as store:
        path = str(store.path)
    rows: list[list[Cell]] = []
    for ranks in widths:
        sections = _sections(ranks)
        for (case, how), (sent, whole) in zip(
            sections, on_ranks(ranks, _sent, path, [*sections.values()])[0], strict=True
        ):
            of = " ".join(case)
            theory = _theory(sections[case, how], ranks, whole)
            rows.append([ranks, of, how, Number(sent / 1e6, "MB"), theory / 1e6, sent / whole])
            off = 100 * abs(sent / theory - 1)
            what = f"{how}, {of}, {ranks} ranks: bytes of a step beside theory"
            yield Line(ROW, what, off, "% off", at_most=_WITHIN)
    columns = ["ranks", "network", "strategy", "sent", "theory", "of the parameters"]
    yield Table(columns, rows, "traffic", "What a rank sends in a step")


def _sections(ranks: int) -> dict[tuple[tuple[str, Kind], str], dict[str, Any]]:
    ways: dict[str, dict[str, Any]] = {
        how: {"sharding": sharding(how)} for how in STRATEGIES if ranks > 2 or how != "HYBRID_SHARD"
    }
    ways[_COMPRESSED] = {"ddp": {"comm_hook": "bf16"}}
    return {
        (case, how): network(*case, width=_WIDTH, layers=_LAYERS, **keys)
        for case in _NETWORKS
        for how, keys in ways.items()
    }


def _theory(section: dict[str, Any], ranks: int, parameter_bytes: float) -> float:
    training = load_network(section).Training
    division = training.sharding or Sharding()
    gathers = 0 if not division.is_sharded else 1 if division.reshards is False else 2
    compressed = training.ddp is not None and training.ddp.comm_hook == "bf16"
    work = Work(
        flops=0.0,
        bytes=0.0,
        launches=0.0,
        activation_bytes=0.0,
        parameter_bytes=parameter_bytes / (2 if compressed else 1),
        parts=division.replica(ranks),
        gathers=gathers,
    )
    return work.exchanged_bytes(ranks)


def _sent(world: World, store: str, sections: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Bytes sent in a step, and those of the parameters, by network."""
    data, found = GraphStore.open(store), []
    for section in sections:
        one = trainer(section, f"{store}-none", data, world)
        whole = sum(weight.numel() * weight.element_size() for weight in one.parallel.weights)
        [*losses(one, 2)]  # DDP arranges its buckets anew in the second
        with Traffic() as traffic:
            [*losses(one, _STEPS)]
        found.append((traffic.bytes / _STEPS, float(whole)))
    return found
