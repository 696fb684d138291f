"""What the data of a run are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ase.data import chemical_symbols

from hydragnn_flow.report.text import SPLITS, number


def data_card(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The data in words: name and value of each property.

    Parameters
    ----------
    manifest
        Content of the store's `manifest.json`.
    """
    units, statistics = manifest["units"], manifest["statistics"]
    origin = manifest["provenance"]
    card = [("source", _words(origin.get("source", {})))]
    card += [(f"data set {one['name']}", _words(one)) for one in origin.get("sources", [])]
    for name, size in manifest["splits"].items():
        counts = ", ".join(f"{size[key]:,} {key}" for key in ("graphs", "atoms", "edges"))
        card.append((f"{SPLITS.get(name, name)} split", counts.replace("graphs", "structures", 1)))
    card.append(("division", _words(manifest["provenance"].get("split", {}))))
    for name, target in manifest["targets"].items():
        of = "structure" if target["level"] == "graph" else "atom"
        spread = statistics["targets"].get(name)
        told = [f"{target['unit'] or 'unit unknown'}, per {of}"]
        if target["dim"] > 1:
            told.append(f"{target['dim']} components")
        elif spread:
            mean, std = number(spread["mean"][0]), number(spread["std"][0])
            told.append(f"mean {mean}, standard deviation {std} in training")
        card.append((f"target {name}", ", ".join(told)))
    symbols = " ".join(chemical_symbols[z] for z in manifest["elements"])
    card.append(("elements", symbols))
    if manifest["cutoff"] is not None:
        reach = f"{manifest['cutoff']:g} {units.get('pos', '')}".rstrip()
        most = manifest["max_neighbours"]
        card.append(("cutoff", reach + (f", at most {most} neighbours" if most else "")))
    card.append(("neighbours", f"{statistics['avg_num_neighbors']:.1f} on average"))
    division = manifest["provenance"].get("division", {})
    if origin.get("in_place"):
        card.append(("in place", "the files above are not copied; duplicates were not looked for"))
    duplicates = {name: n for name, n in division.get("duplicates", {}).items() if n}
    card.append(("duplicates", _words(duplicates)))
    card.append(("left out", _words(division.get("left_out", {}))))
    return [(name, value) for name, value in card if value]


def _words(values: Any) -> str:
    if isinstance(values, Mapping):
        told = ((str(name), _words(value)) for name, value in values.items() if value is not None)
        return ", ".join(f"{name} {value}" for name, value in told if value)
    if isinstance(values, (list, tuple)):
        return " ".join(map(_words, values))
    return f"{values:g}" if isinstance(values, float) else str(values)
