"""Counters of energy: the kernel's files, and machines without any."""

from __future__ import annotations

from pathlib import Path

import torch

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


def test_a_machine_without_counters_says_so(tmp_path: Path) -> None:
    assert rapl_counters(tmp_path / "absent") == []
    (tmp_path / "intel-rapl:0").mkdir()  # as where only root may read the energy
    assert rapl_counters(tmp_path) == []
    meter = EnergyMeter(torch.device("cpu"))
    joules = meter.joules()
    assert (joules is not None and joules >= 0) if meter.available else joules is None
