"""Energy counters that vendors' packages read: NVML of NVIDIA, AMD SMI of AMD.

The functions raise the packages' own errors, and ImportError where a package is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hydragnn_flow.energy_counters.kernel import Counter, die_of_package


def nvidia_counter(uuid: str) -> Counter:
    """Open the counter of the GPU with a UUID.

    A number would not do: under `CUDA_VISIBLE_DEVICES` torch and NVML number devices differently.
    """
    nvml = import_module("pynvml")
    nvml.nvmlInit()
    return _nvidia(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))


def nvidia_counters() -> list[Counter]:
    """Open a counter of each GPU of the node."""
    nvml = import_module("pynvml")
    nvml.nvmlInit()
    handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
    return [_nvidia(nvml, handle) for handle in handles]


def _nvidia(nvml: Any, handle: Any) -> Counter:
    def joules() -> float:
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3  # from mJ

    joules()
    return joules


def amd_counter(place: str) -> Counter:
    """Open the counter of the GPU die whose PCI address starts with ``place``.

    On an MI250X it is half of its package's counter, whatever runs on the other die: the driver
    lets one of the two dies count the energy of both, and shows 0 for the other.

    Raises
    ------
    ValueError
        If the dies do not form packages of equal size with one counting die each.
    """
    dies = _dies()
    mine = next(number for number, address in enumerate(dies) if address.startswith(place))
    counting = [number for number, counter in enumerate(dies.values()) if _counts(counter)]
    package, share = die_of_package(len(dies), len(counting), mine)
    if [number // share for number in counting] != [*range(len(counting))]:
        raise ValueError("it is unknown which die counts for which")
    counter = [*dies.values()][counting[package]]
    return lambda: counter() / share


def amd_counters() -> list[Counter]:
    """Open a counter of each package of the node."""
    return [*filter(_counts, _dies().values())]


def _dies() -> dict[str, Counter]:
    """Counters of the dies by their PCI addresses, in order."""
    smi = import_module("amdsmi")
    smi.amdsmi_init()

    def counter(handle: Any) -> Counter:
        def joules() -> float:
            count = smi.amdsmi_get_energy_count(handle)
            return float(count["energy_accumulator"]) * float(count["counter_resolution"]) / 1e6

        return joules

    handles = smi.amdsmi_get_processor_handles()
    found = {smi.amdsmi_get_gpu_device_bdf(handle).lower(): counter(handle) for handle in handles}
    return {address: found[address] for address in sorted(found)}


def _counts(counter: Counter) -> bool:
    try:
        return counter() > 0
    except Exception:  # as some versions say of a die that does not count
        return False
