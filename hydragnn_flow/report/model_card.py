"""Model card of an exported ensemble: its data, errors and limits, in Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ase.data import chemical_symbols

from hydragnn_flow.data import Manifest
from hydragnn_flow.data.store.manifest import kept_manifest
from hydragnn_flow.ensemble.calibration_file import recalibration_of
from hydragnn_flow.ensemble.summary import ensemble_folder, read_summary
from hydragnn_flow.plain_files import FROM_A_COPY, read_json, read_yaml
from hydragnn_flow.report.cost import cost_sentence, energy_sentences
from hydragnn_flow.report.measures import measures_frame
from hydragnn_flow.report.text import SPLITS, number
from hydragnn_flow.run_directory import CONFIG, RunDirectory


def model_card(run_directory: Path, name: str) -> str:
    """What a reader of an exported ensemble has to know.

    Parameters
    ----------
    run_directory
        Of a finished run.
    name
        Of the directory that the card will be in.
    """
    folder = ensemble_folder(run_directory)
    summary = read_summary(run_directory)
    manifest = kept_manifest(folder / "manifest.json")
    file = run_directory / CONFIG
    run = read_yaml(file, remedy=FROM_A_COPY) if file.exists() else {}
    networks = {
        row["member"]: read_json(folder / "members" / str(row["member"]) / "config.json")
        for row in summary["members"]
    }
    sections: Iterable[tuple[str, Iterable[str]]] = (
        ("Use", _use(name)),
        ("Targets", _targets(manifest, summary)),
        ("Training data", _data(manifest)),
        *_start(run_directory),
        ("Errors on the test split", _errors(summary)),
        ("Limits", _limits(manifest, summary)),
        ("Members", _members(folder, summary, networks)),
        ("Cost of the campaign", _cost(summary)),
        ("Versions", _versions(run)),
    )
    n = len(summary["members"])
    lines = [
        f"# {run.get('name', name)}: an ensemble of {n} networks",
        "",
        f"It predicts {_listed(summary['calibration'])} of structures, with calibrated error bars. "
        f"This directory is all it needs besides `hydragnn_flow`; `checksums.json` tells of "
        f"damage when it is loaded.",
    ]
    for title, content in sections:
        lines += ["", f"## {title}", "", *content]
    return "\n".join(lines) + "\n"


def _start(run_directory: Path) -> list[tuple[str, list[str]]]:
    """The section on the weights that training began with, where they were trained ones."""
    told = RunDirectory(run_directory).started_from()
    return (
        []
        if told is None
        else [("Weights it began with", [f"Every trial began with the weights of {told}."])]
    )


def _use(name: str) -> Iterator[str]:
    yield "```python"
    yield "from ase.io import read"
    yield "from hydragnn_flow import Ensemble"
    yield f'print(Ensemble.load("{name}").predict(read("structures.xyz", ":")).graphs)'
    yield "```"
    yield ""
    yield f"or `hydragnn-flow predict {name} structures.xyz -o predictions.csv`."


def _targets(manifest: Manifest, summary: Mapping[str, Any]) -> list[str]:
    rows = [
        (name, target.unit or "unknown", _of_each(target.level), str(target.dim))
        for name, target in manifest.targets.items()
        if name in summary["calibration"]
    ]
    return _table(("target", "unit", "of each", "components"), rows)


def _of_each(level: str) -> str:
    return "structure" if level == "graph" else "atom"


def _data(manifest: Manifest) -> Iterator[str]:
    rows = [
        (SPLITS.get(name, name), f"{size.graphs:,}", f"{size.atoms:,}")
        for name, size in manifest.splits.items()
    ]
    yield from _table(("split", "structures", "atoms"), rows)
    yield ""
    yield f"* elements: {_symbols(manifest.elements)}"
    if manifest.unseen:
        yield f"* elements in no structure of the training split: {_symbols(manifest.unseen)}"
    reach = "unknown" if manifest.cutoff is None else f"{manifest.cutoff:g} Å"
    most = manifest.max_neighbours
    yield f"* neighbours within: {reach}{f', the nearest {most}' if most else ''}"
    origin = manifest.provenance
    of_data = (("source", "source"), ("data sets", "sources"), ("division into splits", "split"))
    for words, key in of_data:
        if origin.get(key):
            yield f"* {words}: `{json.dumps(_given(origin[key]), ensure_ascii=False)}`"
    if "seed" in origin:
        yield f"* seed: {origin['seed']}"


def _given(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    return {key: _given(value) for key, value in values.items() if value is not None}


def _errors(summary: Mapping[str, Any]) -> Iterator[str]:
    measures = summary.get("measures") or {}
    if not measures:
        yield "Not recorded."
        return
    frame = measures_frame(measures)
    rows = [[str(cell) for cell in row] for row in frame.fillna("").itertuples(index=False)]
    yield from _table([str(column) for column in frame.columns], rows)
    yield ""
    yield "In brackets: 95 % intervals, from a bootstrap of structures. The test split was used"
    yield "once, for this table."


def _limits(manifest: Manifest, summary: Mapping[str, Any]) -> Iterator[str]:
    known = set(manifest.elements) - manifest.unseen
    yield (
        f"* Structures with elements other than {_symbols(known)} are not predicted. All others "
        f"are, however far they are from the training data; the column `flagged` marks those "
        f"that are unlike them, and `note` says in what."
    )
    yield (
        f"* The {number(100 * summary['coverage'])} % intervals hold for structures like those "
        f"above. For others, such as surfaces, defects, other pressures or other phases, they may "
        f"be too narrow; compare some with the reference method (`hydragnn-flow evaluate`)."
    )
    yield "* Units, and whatever energies are counted from, are those of the training data."
    yield "* Interactions that reach farther than the layers' neighbours are not described."


def _members(
    folder: Path, summary: Mapping[str, Any], networks: Mapping[int, Mapping[str, Any]]
) -> Iterator[str]:
    rows = []
    for row in summary["members"]:
        shape = networks[row["member"]]["NeuralNetwork"]["Architecture"]
        size = f"{shape.get('num_conv_layers')} × {shape.get('hidden_dim')}"
        network = (str(shape.get("mpnn_type")), size)
        rows.append((str(row["member"]), str(row["trial"]), *network, f"{row['weight']:.3f}"))
    yield from _table(("member", "trial", "type", "layers × width", "weight"), rows)
    known = summary["calibrated_on"]
    split = SPLITS.get(known["split"], known["split"])
    yield ""
    yield f"Weights and error bars were fitted on {known['structures']:,} structures: the "
    yield f"{split} split."
    if (later := recalibration_of(folder)) is not None:
        counts = later["calibrated_on"]["structures"]
        again = ", ".join(f"{name} on {count:,}" for name, count in counts.items())
        yield f"Later, error bars were fitted to other labelled structures: {again}. The errors"
        yield "above are those before."


def _cost(summary: Mapping[str, Any]) -> Iterator[str]:
    if "gcd_hours" not in summary:
        yield "Not recorded."
        return
    yield cost_sentence(summary)
    yield ""
    yield energy_sentences(summary)


def _versions(run: Mapping[str, Any]) -> list[str]:
    found = run.get("versions") or {}
    if not found:
        return ["Not recorded."]
    return _table(("package", "version"), [(name, str(told)) for name, told in found.items()])


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [titles, ["---"] * len(titles), *rows]
    return [
        f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |"
        for line in lines
    ]


def _symbols(numbers: Iterable[int]) -> str:
    known = range(len(chemical_symbols))
    return " ".join(chemical_symbols[z] if z in known else str(z) for z in sorted(numbers))


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
