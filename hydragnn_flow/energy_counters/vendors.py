"""Energy counters that vendors' packages read: NVML of NVIDIA, AMD SMI of AMD.

The functions raise the packages' own errors, and ImportError where a package is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from hydragnn_flow.energy_counters.sysfs import Counter


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

    On an MI250X it is half of its package's counter, whatever runs on the other die.
    """
    smi = import_module("amdsmi")
    smi.amdsmi_init()
    places = _places(smi)
    mine = next(number for number, each in enumerate(places) if each.startswith(place))
    counter, dies = package_counter([*map(_counts(smi), places.values())], mine)
    package = _amd(smi, [*places.values()][counter])
    return lambda: package() / dies


def amd_counters() -> list[Counter]:
    """Open a counter of each package of the node."""
    smi = import_module("amdsmi")
    smi.amdsmi_init()
    return [_amd(smi, handle) for handle in filter(_counts(smi), _places(smi).values())]


def _places(smi: Any) -> dict[str, Any]:
    """Handles of the dies by their PCI addresses, in order."""
    handles = {
        smi.amdsmi_get_gpu_device_bdf(h).lower(): h for h in smi.amdsmi_get_processor_handles()
    }
    return dict(sorted(handles.items()))


def _amd(smi: Any, handle: Any) -> Counter:
    def joules() -> float:
        count = smi.amdsmi_get_energy_count(handle)
        return float(count["energy_accumulator"]) * float(count["counter_resolution"]) / 1e6

    return joules


def _counts(smi: Any) -> Callable[[Any], bool]:

    def counts(handle: Any) -> bool:
        try:
            return _amd(smi, handle)() > 0
        except Exception:  # as some versions say of a die that does not count
            return False

    return counts


def package_counter(counted: Sequence[bool], die: int) -> tuple[int, int]:
    """Find the die that counts the energy of a die's package, and the package's number of dies.

    On an MI250X the driver lets one of the two dies count the energy of both, and shows 0 for the
    other.

    Parameters
    ----------
    counted
        True for each die of the node that counts energy, in the order of PCI addresses.
    die
        Position of the die on the node.

    Raises
    ------
    ValueError
        If the dies do not form packages of equal size with one counting die each.
    """
    dies, rest = divmod(len(counted), sum(counted) or 1)
    first = die - die % dies
    package = counted[first : first + dies]
    if rest or sum(package) != 1:
        raise ValueError("it is unknown which die counts for which")
    return first + package.index(True), dies
