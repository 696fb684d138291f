"""The benchmark of one network over many GCDs counts what it says that it counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import parallel
import pytest
import torch
from parallel_checks import equality, too_large, traffic
from parallel_checks.counted import Storages, held
from parallel_checks.networks import STRATEGIES, alloys, network, sharding
from parallel_checks.ranks import on_ranks
from results import Line, Table


def test_memory_is_counted_once_and_at_its_peak() -> None:
    weight = torch.zeros(1000)
    assert held([weight, weight.view(10, 100), weight[:5]]) == weight.nbytes
    with Storages([weight]) as storages:
        twice = 2 * weight
        del twice
        again = weight + 1
    assert again.nbytes == weight.nbytes
    assert storages.peak == 2 * weight.nbytes


def test_traffic_is_that_of_the_theory(tmp_path: Path) -> None:
    """Every collective of a step is seen, or the row is refused; bf16 halves it on gloo too."""
    with alloys(tmp_path) as store:
        path = str(store.path)
    ways = {
        "FULL_SHARD": network("SchNet", "potential", sharding=sharding("FULL_SHARD")),
        "bf16": network("SchNet", "property", ddp={"comm_hook": "bf16"}),
    }
    found = on_ranks(2, traffic._sent, path, [*ways.values()])
    assert found[0] == found[1]
    for section, (sent, whole) in zip(ways.values(), found[0], strict=True):
        assert sent == pytest.approx(traffic._theory(section, 2, whole), rel=0.05)
    shares = [sent / whole for sent, whole in found[0]]
    assert shares == pytest.approx([1.5, 0.5], rel=0.05)


def test_a_campaign_says_which_strategy_does_not_fit(tmp_path: Path) -> None:
    with alloys(tmp_path, 12) as store:
        said = {how: too_large.forecast(tmp_path, store, how) for how in too_large.STRATEGIES}
    assert said["NO_SHARD"].startswith("out_of_memory: needs about ")
    assert said["FULL_SHARD"] == ""


def test_the_largest_difference_is_shown() -> None:
    case: equality.Case = ("SchNet", "property")
    off = {(case, "FULL_SHARD", 2): 3e-7, (case, "FULL_SHARD", 4): 2e-5, (case, "NO_SHARD", 2): 0.0}
    none, full = equality._lines(off, (2, 4))
    assert (none.value, none.met) == (0.0, True)
    assert (full.value, full.met) == (2e-5, False)
    assert "1 types, property, 2, 4 ranks" in full.what
    (row,) = equality._table(off, [case]).rows
    assert [*row] == ["SchNet", "property", "0e+00", None, "2e-05", None]
    assert equality._off([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.1)


def test_two_ranks_have_no_groups() -> None:
    case: equality.Case = ("SchNet", "property")
    of_two, of_four = (equality._sections([case], width) for width in (2, 4))
    assert len(of_two) == len(STRATEGIES) - 1
    assert of_four.keys() - of_two.keys() == {"SchNet, property, HYBRID_SHARD"}


def test_a_line_that_was_being_written_is_trained_again(tmp_path: Path) -> None:
    file = tmp_path / "equality-2.jsonl"
    assert equality._read(file) == {}
    file.write_text('["a", [1.0, 2.0]]\n["b", [1.0')
    assert equality._read(file) == {"a": [1.0, 2.0]}
    section = equality.network("SchNet", "property")
    assert equality._trained(tmp_path, "", 2, {"a": section}, 2) == {"a": [1.0, 2.0]}
    assert file.read_text() == '["a", [1.0, 2.0]]\n'


def test_a_row_is_measured_once(tmp_path: Path) -> None:
    asked = []

    def measure() -> Iterator[Line | Table]:
        asked.append(1)
        yield Line("r", "what", 1.0, "MB", at_most=2.0)
        yield Table(["a"], [[1.5]], "name", "title")

    first, again = (parallel.kept(tmp_path / "r.json", measure) for _ in range(2))
    assert len(asked) == 1
    assert first == again
    assert isinstance(first[0], Line) and first[0].met
