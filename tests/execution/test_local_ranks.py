"""Segments whose process does not answer before the batch job ends; energy that several share."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from segment_cases import make_spec
from trainer_cases import NODE

from hydragnn_flow.data import GraphStore
from hydragnn_flow.execution import RankGroup, run_rank_groups
from hydragnn_flow.execution.options import Device
from hydragnn_flow.execution.workers import worker
from hydragnn_flow.execution.workers.gang import abort_reason
from hydragnn_flow.execution.workers.local_ranks import SECONDS_TO_ANSWER

# Of a process that has yet to import torch; nothing answers so soon.
SECONDS = SECONDS_TO_ANSWER + 0.2


pytestmark = pytest.mark.usefixtures("own_trainers")


@pytest.mark.parametrize("gcds", [(0,), pytest.param((0, 1), marks=pytest.mark.slow)])
def test_a_segment_whose_time_is_up_before_it_begins_is_not_charged(
    tmp_path: Path, alloy_store: GraphStore, gcds: tuple[int, ...]
) -> None:
    spec = make_spec(tmp_path / "t", alloy_store, 1, deadline=time.time() + SECONDS)
    (result,) = run_rank_groups(NODE, [RankGroup(spec, gcds)])
    assert time.time() < spec.deadline
    assert result.status == "interrupted"
    assert result.reason.startswith("its time was up")
    (again,) = run_rank_groups(NODE, [RankGroup(replace(spec, deadline=None), gcds)])
    assert again.status == "ok"


def test_the_other_parts_of_a_gang_are_told(tmp_path: Path, alloy_store: GraphStore) -> None:
    """Their batch job may have more time, and they would take the broken connection for a loss."""
    spec = make_spec(tmp_path / "t", alloy_store, 1, attempt="1", deadline=time.time() + SECONDS)
    (group,) = run_rank_groups(NODE, [RankGroup(spec, (0,), first_rank=0, world=2)])
    assert group.status == "interrupted"
    assert abort_reason(spec) == group.reason


@pytest.mark.parametrize(
    ("device", "groups", "shares"),
    [
        # The sockets' counters see both slots of the node.
        ("cpu", [(0,)], [0.5]),
        ("cpu", [(0, 1)], [0.5, 0.5]),
        ("cuda", [(0,)], [1.0]),
        ("cuda", [(0, 1)], [1.0, 1.0]),
        ("hip", [(1,), (1,), (0,), (1,)], [1 / 3, 1 / 3, 1.0, 1 / 3]),
    ],
)
def test_what_sees_several_is_shared_out(
    device: Device,
    groups: list[tuple[int, ...]],
    shares: list[float],
    tmp_path: Path,
    alloy_store: GraphStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The joules of a segment are those of its ranks."""

    class Counting:
        """A trainer process whose GCD uses 12 J while it has anything to do."""

        def call(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
            asked.append(request["energy_fraction"])
            return {"status": "ok", "joules": 12 * request["energy_fraction"]}

    asked: list[float] = []
    monkeypatch.setattr(worker, "trainer_for", lambda *place: Counting())
    spec = make_spec(tmp_path / "t", alloy_store, 1)
    results = run_rank_groups(
        replace(NODE, device=device), [RankGroup(spec, gcds) for gcds in groups]
    )
    assert sorted(asked) == sorted(shares)
    expected = [12 * sum(shares[:2])] if len(groups[0]) > 1 else [12 * share for share in shares]
    assert [result.joules for result in results] == pytest.approx(expected)
