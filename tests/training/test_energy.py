"""Counters of energy: the kernel's files, and machines without any."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hydragnn_flow.training import energy
from hydragnn_flow.training.energy import EnergyMeter, rapl_counters


def _zone(root: Path, name: str, energy: int, largest: int = 1_000_000_000) -> Path:
    zone = root / name
    zone.mkdir()
    (zone / "energy_uj").write_text(f"{energy}\n")
    (zone / "max_energy_range_uj").write_text(f"{largest}\n")
    return zone


def test_sockets_are_counted_and_their_parts_are_not(tmp_path: Path) -> None:
    for name in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:1", "intel-rapl-mmio:0"):
        _zone(tmp_path, name, 5_000_000)
    assert [counter() for counter in rapl_counters(tmp_path)] == [5.0, 5.0]


def test_a_counter_that_begins_anew_goes_on(tmp_path: Path) -> None:
    zone = _zone(tmp_path, "intel-rapl:0", 9_000_000, largest=10_000_000)
    (counter,) = rapl_counters(tmp_path)
    before = counter()
    (zone / "energy_uj").write_text("2000000\n")
    assert counter() - before == 3.0
    (zone / "energy_uj").write_text("2500000\n")
    assert counter() - before == 3.5


def test_a_counter_is_read_before_it_begins_anew_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket of 250 W goes through the 262 J of this counter in a second."""
    zone = _zone(tmp_path, "intel-rapl:0", 0, largest=262_000_000)
    monkeypatch.setattr(energy, "rapl_counters", lambda: rapl_counters(tmp_path))
    monkeypatch.setattr(energy, "_SECONDS_BETWEEN_READINGS", 0.0)
    meter = EnergyMeter(torch.device("cpu"))
    for second in range(1, 11):
        (zone / "energy_uj").write_text(str(250_000_000 * second % 262_000_000))
        assert meter.poll() is False
    assert meter.joules() == 2500.0


def test_counters_are_read_no_more_often_than_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = _zone(tmp_path, "intel-rapl:0", 0, largest=10_000_000)
    monkeypatch.setattr(energy, "rapl_counters", lambda: rapl_counters(tmp_path))
    meter = EnergyMeter(torch.device("cpu"))
    (zone / "energy_uj").unlink()
    assert meter.poll() is False  # a step later: nothing is read


def test_a_machine_without_counters_says_so(tmp_path: Path) -> None:
    assert rapl_counters(tmp_path / "absent") == []
    (tmp_path / "intel-rapl:0").mkdir()  # as where only root may read the energy
    assert rapl_counters(tmp_path) == []
    meter = EnergyMeter(torch.device("cpu"))
    joules = meter.joules()
    assert (joules is not None and joules >= 0) if meter.available else joules is None
