"""The energy of a segment: of its counters, and its part of them."""

import sys
from types import SimpleNamespace

import pytest
import torch
from counter_trees import PmCounters, pci, zone
from training_cases import CPU

from hydragnn_flow.training import monitor as energy
from hydragnn_flow.training.monitor import EnergyMeter


def test_a_counter_is_read_before_it_begins_anew_twice(tmp_path, monkeypatch):
    """A socket of 250 W goes through the 262 J of this counter in a second."""
    monkeypatch.setenv("HOST_SYS", str(tmp_path))
    socket = zone(tmp_path / "class/powercap", "intel-rapl:0", 0, largest=262_000_000)
    monkeypatch.setattr(energy, "_SECONDS_BETWEEN_READINGS", 0.0)
    meter = EnergyMeter(CPU)
    for second in range(1, 11):
        (socket / "energy_uj").write_text(str(250_000_000 * second % 262_000_000))
        meter.poll()
    assert meter.joules() == 2500.0


def test_counters_are_read_no_more_often_than_needed(monkeypatch):
    now, read = 0.0, []

    def counter():
        read.append(now)
        return now

    monkeypatch.setattr(energy, "rapl_counters", lambda: [counter])
    monkeypatch.setattr(energy, "time", SimpleNamespace(monotonic=lambda: now))
    meter = EnergyMeter(CPU)
    while now < 35:
        now += 0.5  # a step later
        meter.poll()
    assert read == [0.0, 10.5, 21.0, 31.5]
    assert meter.joules() == 35.0


def test_a_machine_without_counters_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("HOST_SYS", str(tmp_path))
    (tmp_path / "class/powercap/intel-rapl:0").mkdir(parents=True)  # only root may read the energy
    assert EnergyMeter(CPU).joules() is None
    (tmp_path / "class/powercap/intel-rapl:0").rmdir()
    zone(tmp_path / "class/powercap", "intel-rapl:0", 0)
    assert EnergyMeter(CPU).joules() == 0.0
    assert EnergyMeter(torch.device("xpu")).joules() is None, "processors do not tell of a device"


def test_work_that_shares_counters_has_its_part(tmp_path, monkeypatch):
    monkeypatch.setenv("HOST_SYS", str(tmp_path))
    socket = zone(tmp_path / "class/powercap", "intel-rapl:0", 0)
    parts = [0.25, 0.75]
    meters = [EnergyMeter(CPU, lambda k=k: parts[k]) for k in range(2)]
    (socket / "energy_uj").write_text("8000000\n")
    assert [meter.joules() for meter in meters] == [2.0, 6.0]
    parts[1] = 1.0  # the other has ended
    (socket / "energy_uj").write_text("9000000\n")
    assert meters[1].joules() == 7.0


def test_cray_counts_where_the_sockets_do_not_say(tmp_path, monkeypatch):
    monkeypatch.setenv("HOST_SYS", str(tmp_path))
    node = PmCounters(tmp_path, {"cpu_energy": 100, "energy": 900})
    meter = EnergyMeter(CPU, lambda: 0.5)
    node.set(cpu_energy=140, energy=1000)
    assert meter.joules() == 20.0
    zone(tmp_path / "class/powercap", "intel-rapl:0", 0)
    assert EnergyMeter(CPU).joules() == 0.0
    node.set(cpu_energy=200)
    assert EnergyMeter(CPU).joules() == 0.0, "of both, the sockets' own"


def test_energy_of_which_a_part_was_not_counted_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setenv("HOST_SYS", str(tmp_path))
    node = PmCounters(tmp_path, {"cpu_energy": 100})
    meter = EnergyMeter(CPU)
    node.set(cpu_energy=140)
    assert meter.joules() == 40.0
    (node.folder / "cpu_energy").unlink()
    assert meter.joules() is None
    node.set(cpu_energy=150)
    assert meter.joules() is None


@pytest.mark.parametrize("hip", ["6.4", None])
def test_cray_counts_devices_whose_package_is_not_installed(tmp_path, monkeypatch, hip):
    """As on a node of Frontier without AMD SMI, or of Perlmutter without NVML."""
    monkeypatch.setenv("HOST_SYS", str(tmp_path))
    for name in ("amdsmi", "pynvml"):
        monkeypatch.setitem(sys.modules, name, None)  # whose import fails
    for bus in (0xC1, 0xC6):
        pci(tmp_path, f"0000:{bus:02x}:00.0")
    node = PmCounters(tmp_path, {"accel0_energy": 100})
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xC6, pci_device_id=0, uuid="x")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "hip", hip)
    meter = EnergyMeter(torch.device("cuda", 0))
    node.set(accel0_energy=300)
    assert meter.joules() == 100.0


def test_how_much_of_the_time_a_gpu_computes_is_sampled(monkeypatch):
    """Stood in for: torch's sample of the device, since none is here."""
    monkeypatch.setattr(energy, "_counters", lambda device: ("", []))
    monkeypatch.setattr(energy, "_SECONDS_BETWEEN_READINGS", -1.0)
    samples = iter([60, 80])
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: next(samples))
    meter = EnergyMeter(torch.device("cuda"))
    assert meter.active is None
    for _ in range(3):  # the third sample fails
        meter.poll()
    assert meter.active == pytest.approx(0.7)
