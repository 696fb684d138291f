"""Energy of Intel GPUs, which the drivers i915 and xe show through the kernel's hwmon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydragnn_flow.energy_counters.sysfs import Counter, sysfs


@dataclass(frozen=True)
class _Card:
    """GPU with its file of microjoules, and the files of its tiles where tiles have their own."""

    energy: Path
    tiles: int
    of_tiles: Sequence[Path]


def intel_counter(mask: str, root: Path | None = None) -> Counter | None:
    """Open the counter of a GCD: its tile's, or an equal share of its GPU's.

    Parameters
    ----------
    mask
        Name of the GCD in `ZE_AFFINITY_MASK`: the number of a tile, or `card.tile`. Cards are
        numbered in the order of PCI addresses.
    root
        Directory of the kernel's files; :func:`sysfs` by default.

    Returns
    -------
    Counter or None
        None if the driver shows no energy, or there is no such tile.
    """
    cards = _cards(root or sysfs())
    number, _, part = mask.partition(",")[0].partition(".")
    tiles = [(card, tile) for card in cards for tile in range(card.tiles)]
    try:
        if part:
            card, tile = cards[int(number)], int(part)
        else:
            card, tile = tiles[int(number or 0)]
        if card.of_tiles:
            return _microjoules(card.of_tiles[tile])
        whole = _microjoules(card.energy)
    except (IndexError, OSError, ValueError):
        return None
    return lambda: whole() / card.tiles


def intel_counters(root: Path | None = None) -> list[Counter]:
    """Open a counter of each GPU of the node; empty if one cannot be read."""
    try:
        return [_microjoules(card.energy) for card in _cards(root or sysfs())]
    except (OSError, ValueError):
        return []


def _microjoules(file: Path) -> Counter:
    def joules() -> float:
        return int(file.read_text(encoding="utf-8")) / 1e6

    joules()
    return joules


def _cards(root: Path) -> list[_Card]:
    folders = [f for f in (root / "class/drm").glob("card*") if f.name[4:].isdigit()]
    found = []
    for folder in sorted(folders, key=lambda folder: (folder / "device").resolve().name):
        sensors = {
            name.read_text(encoding="utf-8").strip(): name.parent
            for name in (folder / "device/hwmon").glob("hwmon*/name")
        }
        # Counter of the whole card; for older cards xe has only that of the package.
        whole = [
            file
            for driver in ("i915", "xe")
            if driver in sensors
            for number in (1, 2)
            if (file := sensors[driver] / f"energy{number}_input").exists()
        ]
        if not whole:
            continue
        of_tiles = [
            file
            for name in sorted(name for name in sensors if name.startswith("i915_gt"))
            if (file := sensors[name] / "energy1_input").exists()
        ]
        tiles = [*(folder / "gt").glob("gt[0-9]*")] or [*(folder / "device").glob("tile[0-9]*")]
        found.append(_Card(whole[0], max(1, len(of_tiles) or len(tiles)), of_tiles))
    return found
