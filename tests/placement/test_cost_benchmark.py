"""The benchmark of the cost model: what it measures, and what it says of recorded networks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from placement_race import cost
from placement_race.networks import Measured
from test_learning import NETWORKS

from hydragnn_flow.models.cost import NetworkCost


def recorded() -> list[Measured]:
    """The networks of `steps.csv`, whose second measurement takes 2 % longer."""
    found = []
    for network in NETWORKS:
        work = network.work
        weights = round(work.parameter_bytes)
        counted = NetworkCost(
            parameters=weights // 4,
            flops=round(work.flops),
            bytes=round(work.bytes),
            launches=round(work.launches),
            peak_bytes=round(work.activation_bytes),
        )
        copies = cost.COPIES_OF_WEIGHTS * weights
        peak = network.memory * (work.activation_bytes + copies) - copies
        seconds = network.seconds
        found.append(
            Measured(network.kind, 8, 1, counted, 1.0, seconds, 1.02 * seconds, round(peak))
        )
    return found


def test_recorded_networks_meet_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "DRAWS", 10)
    lines = cost.lines_of(recorded())
    assert all(math.isfinite(line.value) for line in lines)
    assert len({line.what for line in lines}) == len(lines)
    assert [line.what for line in lines if line.met is False] == []
    assert lines[0].value == pytest.approx(2.0)


def test_what_no_model_can_know_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of times and peaks that follow from nothing the targets are missed."""
    monkeypatch.setattr(cost, "DRAWS", 4)
    networks = recorded()
    others = [networks[(31 * number) % len(networks)] for number in range(len(networks))]
    shuffled = [
        replace(network, seconds=other.seconds, again=other.again, peak_bytes=other.peak_bytes)
        for network, other in zip(networks, others, strict=True)
    ]
    missed = " ".join(line.what for line in cost.lines_of(shuffled) if line.met is False)
    assert "mean absolute error" in missed
    assert "rank correlation" in missed
    assert "predicted over measured" in missed
