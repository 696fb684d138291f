"""Counters of energy: the kernel's files, and machines without any."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hydragnn_flow.training import energy
from hydragnn_flow.training.energy import EnergyMeter, package_counter, rapl_counters


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
        meter.poll()
    assert meter.joules() == 2500.0


def test_counters_are_read_no_more_often_than_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = _zone(tmp_path, "intel-rapl:0", 0, largest=10_000_000)
    monkeypatch.setattr(energy, "rapl_counters", lambda: rapl_counters(tmp_path))
    meter = EnergyMeter(torch.device("cpu"))
    (zone / "energy_uj").unlink()
    meter.poll()  # a step later: nothing is read


def test_a_machine_without_counters_says_so(tmp_path: Path) -> None:
    assert rapl_counters(tmp_path / "absent") == []
    (tmp_path / "intel-rapl:0").mkdir()  # as where only root may read the energy
    assert rapl_counters(tmp_path) == []
    meter = EnergyMeter(torch.device("cpu"))
    joules = meter.joules()
    assert joules is None if not rapl_counters() else joules is not None and joules >= 0


def test_work_that_shares_counters_has_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = _zone(tmp_path, "intel-rapl:0", 0)
    monkeypatch.setattr(energy, "rapl_counters", lambda: rapl_counters(tmp_path))
    parts = [0.25, 0.75]
    meters = [EnergyMeter(torch.device("cpu"), lambda k=k: parts[k]) for k in range(2)]
    (zone / "energy_uj").write_text("8000000\n")
    assert [meter.joules() for meter in meters] == [2.0, 6.0]
    parts[1] = 1.0  # the other has ended
    (zone / "energy_uj").write_text("9000000\n")
    assert meters[1].joules() == 7.0


def test_processors_do_not_tell_what_a_device_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _zone(tmp_path, "intel-rapl:0", 0)
    monkeypatch.setattr(energy, "rapl_counters", lambda: rapl_counters(tmp_path))
    assert EnergyMeter(torch.device("cpu")).joules() == 0.0
    assert EnergyMeter(torch.device("xpu")).joules() is None


@pytest.mark.parametrize(
    ("counted", "counters", "dies"),
    [
        ([True], [0], 1),
        ([True] * 4, [0, 1, 2, 3], 1),  # MI210, MI300
        ([True, False] * 4, [0, 0, 2, 2, 4, 4, 6, 6], 2),  # MI250X
        ([False, True] * 2, [1, 1, 3, 3], 2),
    ],
)
def test_dies_of_a_package_have_one_counter(
    counted: list[bool], counters: list[int], dies: int
) -> None:
    found = [package_counter(counted, die) for die in range(len(counted))]
    assert found == [(counter, dies) for counter in counters]


@pytest.mark.parametrize(
    "counted", [[False], [False] * 8, [True, True, False, False], [True, True, False]]
)
def test_dies_that_do_not_say_who_counts_are_not_counted(counted: list[bool]) -> None:
    with pytest.raises(ValueError, match="it is unknown which die"):
        package_counter(counted, 0)


def test_each_die_of_a_package_is_charged_with_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """AMD SMI as on a node of two MI250X, in another order than the bus has."""
    places = ["0000:ce:00.0", "0000:c1:00.0", "0000:c9:00.0", "0000:c6:00.0"]
    used = {"0000:c1:00.0": 1000, "0000:c6:00.0": 0, "0000:c9:00.0": 5000, "0000:ce:00.0": 0}
    smi = SimpleNamespace(
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: places,
        amdsmi_get_gpu_device_bdf=str.upper,
        amdsmi_get_energy_count=lambda place: {
            "energy_accumulator": used[place],
            "counter_resolution": 15.3,
        },
    )
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    dies = {
        bus: energy._amd(SimpleNamespace(pci_domain_id=0, pci_bus_id=bus, pci_device_id=0))
        for bus in (0xC1, 0xC6, 0xC9, 0xCE)
    }
    before = {bus: counter() for bus, counter in dies.items()}
    used["0000:c1:00.0"] += 2_000_000
    spent = {bus: counter() - before[bus] for bus, counter in dies.items()}
    assert spent == pytest.approx({0xC1: 15.3, 0xC6: 15.3, 0xC9: 0.0, 0xCE: 0.0})
