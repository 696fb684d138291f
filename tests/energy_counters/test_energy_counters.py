"""Counters of energy that are files, and those that the vendors' packages read."""

import itertools
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from counter_trees import PmCounters, pci, zone

from hydragnn_flow import energy_counters as kernel
from hydragnn_flow.energy_counters import (
    NodeMeter,
    amd_counter,
    cray_accelerator,
    cray_counter,
    intel_counter,
    intel_counters,
    rapl_counters,
)

DIES = [f"0000:{bus:02x}:00.0" for bus in (0xC1, 0xC6, 0xC9, 0xCE, 0xD1, 0xD6, 0xD9, 0xDE)]
"""Of a node of Frontier, in the order of the bus."""


@pytest.fixture(autouse=True)
def _kernel(tmp_path, monkeypatch):
    """Its files are those of the test."""
    monkeypatch.setenv("HOST_SYS", str(tmp_path))


def test_sockets_are_counted_their_parts_are_not_and_counters_that_begin_anew_go_on(tmp_path):
    for name in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:1", "intel-rapl-mmio:0"):
        zone(tmp_path / "class/powercap", name, 5_000_000, largest=10_000_000)
    counters = rapl_counters()
    assert [counter() for counter in counters] == [5.0, 5.0]
    for shown, used in (("9000000", 4.0), ("2000000", 7.0), ("2500000", 7.5)):
        (tmp_path / "class/powercap/intel-rapl:0/energy_uj").write_text(f"{shown}\n")
        assert [counter() for counter in counters] == [5.0 + used, 5.0]


def amd_smi(monkeypatch, used):
    """AMD SMI of a node whose dies have used so much, in another order than the bus has."""
    smi = SimpleNamespace(
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: [*used][::-1],
        amdsmi_get_gpu_device_bdf=str.upper,
        amdsmi_get_energy_count=lambda place: {
            "energy_accumulator": used[place],
            "counter_resolution": 15.3,
        },
    )
    monkeypatch.setitem(sys.modules, "amdsmi", smi)


@pytest.mark.parametrize(
    ("counted", "shares"),
    [
        ([1, 1, 1, 1], [1, 1, 1, 1]),  # MI210, MI300
        ([1, 0, 1, 0], [0.5, 0.5, 0.5, 0.5]),  # MI250X
        ([0, 1, 0, 1], [0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_each_die_of_a_package_is_charged_with_a_share(monkeypatch, counted, shares):
    used = {die: 1000 * counts for die, counts in zip(DIES, counted, strict=False)}
    amd_smi(monkeypatch, used)
    counters = [amd_counter(die[:-1]) for die in used]
    before = [counter() for counter in counters]
    for die in used:
        used[die] += 2_000_000 * (used[die] > 0)
    spent = [counter() - earlier for counter, earlier in zip(counters, before, strict=True)]
    assert spent == pytest.approx([30.6 * share for share in shares])


@pytest.mark.parametrize("counted", [[0] * 8, [1, 1, 0, 0], [1, 1, 0]])
def test_dies_that_do_not_say_who_counts_are_not_counted(monkeypatch, counted):
    amd_smi(monkeypatch, dict(zip(DIES, counted, strict=False)))
    with pytest.raises(ValueError, match="it is unknown which"):
        amd_counter(DIES[0])


def test_a_die_is_charged_with_half_of_the_accelerator_it_is_in_if_that_is_known(tmp_path):
    """On a node with the dies of four MI250X, and a graphics device for its console."""
    for address in DIES:
        pci(tmp_path, address)
    pci(tmp_path, "0000:03:00.0", "0x1a03", "0x2000")
    joules = {f"accel{n}_energy": 1000 * (n + 1) for n in range(4)}
    node = PmCounters(tmp_path, joules | {"energy": 90_000, "cpu_energy": 7_000})
    counters = [cray_accelerator(die[:-1]) for die in DIES]
    before = [counter() for counter in counters if counter]
    node.set(accel0_energy=1500, accel3_energy=4100)
    after = [counter() for counter in counters if counter]
    spent = [b - a for a, b in zip(before, after, strict=True)]
    assert spent == [250.0, 250.0, 0.0, 0.0, 0.0, 0.0, 50.0, 50.0]

    assert cray_accelerator("0000:03:00.") is None, "one device, four counters"
    assert cray_accelerator("0000:aa:00.") is None, "no such device"
    node.set(accel0_energy=0)
    assert cray_accelerator(DIES[0]) is None, "as where nothing is counted"


def test_more_accelerators_than_ten_are_in_the_order_of_their_numbers(tmp_path):
    addresses = [f"0000:{bus:02x}:00.0" for bus in range(12)]
    for address in addresses:
        pci(tmp_path, address)
    PmCounters(tmp_path, {f"accel{n}_energy": 100 + n for n in range(12)})
    counters = [cray_accelerator(address) for address in addresses]
    assert [counter() for counter in counters if counter] == [100 + n for n in range(12)]


def test_a_cray_counter_that_begins_anew_goes_on_and_one_that_stands_still_counts_nothing(
    tmp_path, monkeypatch
):
    """A trial that seems to need no energy would be taken for the best."""
    node = PmCounters(tmp_path, {"energy": 5_000})
    counter = cray_counter("energy")
    assert counter is not None and counter() == 5_000
    node.set(energy=5_200)
    assert counter() == 5_200
    node.set(energy=30)  # its controller was started again
    now = time.monotonic()
    monkeypatch.setattr(kernel.time, "monotonic", lambda: now)
    assert counter() == 5_230
    now += 0.5
    assert counter() == 5_230
    now += 5.0
    with pytest.raises(OSError, match="no longer updated"):
        counter()


@pytest.mark.parametrize("text", ["", "724 W 7810213855886 us", "many J", "12 J"])
def test_a_file_that_shows_no_joules_is_no_counter(tmp_path, text):
    node = PmCounters(tmp_path, {"energy": 1})
    (node.folder / "energy").write_text(f"{text}\n")
    assert (cray_counter("energy") is not None) == (text == "12 J")


def card(root, number, address, sensors):
    """A GPU of Intel's: files by sensor, which are numbered in any order."""
    device = root / "devices" / address
    device.mkdir(parents=True)
    folder = root / f"class/drm/card{number}"
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(device)
    (root / f"class/drm/card{number}-DP-1").mkdir()
    for position, (name, files) in enumerate(sensors.items()):
        sensor = device / f"hwmon/hwmon{9 - position}"
        sensor.mkdir(parents=True)
        (sensor / "name").write_text(f"{name}\n")
        for file, value in files.items():
            (sensor / file).write_text(f"{value}\n")
    return folder


def test_tiles_with_counters_of_their_own_are_charged_with_those(tmp_path):
    """Cards are in the order of the bus, whatever the kernel has numbered them."""
    for number, address, own in ((1, "0000:18:00.0", 0), (0, "0000:6c:00.0", 10)):
        tiles = {f"i915_gt{n}": {"energy1_input": 1_000_000 * (own + n)} for n in (1, 0)}
        card(tmp_path, number, address, {**tiles, "i915": {"energy1_input": 99_000_000}})
    counters = [intel_counter(mask) for mask in ("0", "1", "2", "3", "1.0", "0.1")]
    assert [counter() for counter in counters if counter] == [0, 1, 10, 11, 10, 1]
    assert [counter() for counter in intel_counters()] == [99, 99]
    assert intel_counter("4") is None and intel_counter("1.2") is None


def test_tiles_without_counters_are_charged_with_a_part_of_their_card(tmp_path):
    of_xe = card(tmp_path, 0, "0000:18:00.0", {"xe": {"energy2_input": 8_000_000}})
    of_i915 = card(tmp_path, 1, "0000:19:00.0", {"i915": {"energy1_input": 6_000_000}})
    for tile in (0, 1):
        (of_xe / f"device/tile{tile}").mkdir()
    (of_i915 / "gt/gt0").mkdir(parents=True)
    counters = [intel_counter(mask) for mask in ("", "1", "2")]
    assert [counter() for counter in counters if counter] == [4, 4, 6]


def test_the_counter_of_a_node_is_preferred_to_those_of_its_parts(tmp_path, monkeypatch):
    assert NodeMeter().read() is None
    socket = zone(tmp_path / "class/powercap", "intel-rapl:0", 0)
    zone(tmp_path / "class/powercap", "intel-rapl:1", 0)
    gpu = card(tmp_path, 0, "0000:18:00.0", {"xe": {"energy1_input": 0}})
    meter = NodeMeter()
    (socket / "energy_uj").write_text("3000000")
    (gpu / "device/hwmon/hwmon9/energy1_input").write_text("4000000")
    reading = meter.read()
    assert reading is not None and (reading.joules, reading.counters) == (7.0, "hwmon + RAPL")
    assert 0 <= reading.seconds < 60
    node = PmCounters(tmp_path, {"energy": 100, "accel0_energy": 50})
    meter = NodeMeter()
    node.set(energy=130, accel0_energy=75)
    reading = meter.read()
    assert reading is not None and (reading.joules, reading.counters) == (30.0, "pm_counters")
    (node.folder / "energy").unlink()
    assert meter.read() is None


def test_readings_at_the_same_time_do_not_begin_a_counter_anew(tmp_path, monkeypatch):
    """Tasks of a node end together; each reads, and the counter moves meanwhile."""
    folder = tmp_path / "cray/pm_counters"
    folder.mkdir(parents=True)
    shown = itertools.count(1_000_000)
    (folder / "freshness").write_text("1")
    (folder / "energy").write_text("1000000 J 0 us")
    meter = NodeMeter()

    def read():
        now = float(next(shown))
        time.sleep(0.001)  # others read meanwhile
        return now

    monkeypatch.setattr(meter._counters[0], "_read", read)
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda _: meter.read(), range(200))]
    assert all(one is not None and 0 <= one.joules <= 201 for one in found)
