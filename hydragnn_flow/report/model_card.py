"""Model card of an exported ensemble: its data, errors and limits, in Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ase.data import chemical_symbols
from jinja2 import Environment, PackageLoader, StrictUndefined

from hydragnn_flow.data.store.manifest import kept_manifest
from hydragnn_flow.ensemble.calibration_file import recalibration_of
from hydragnn_flow.ensemble.summary import ensemble_folder, read_summary
from hydragnn_flow.plain_files import FROM_A_COPY, read_json, read_yaml
from hydragnn_flow.report import cost, errors
from hydragnn_flow.report.tables import SPLITS, number, shown
from hydragnn_flow.run_directory import CONFIG, RunDirectory


def model_card(run_directory: Path, name: str) -> str:
    """Write the model card of an ensemble: data, errors, limits, members and cost.

    Parameters
    ----------
    run_directory
        Directory of a finished run.
    name
        Name of the directory that will hold the card.
    """
    folder = ensemble_folder(run_directory)
    summary = read_summary(run_directory)
    manifest = kept_manifest(folder / "manifest.json")
    file = run_directory / CONFIG
    run = read_yaml(file, remedy=FROM_A_COPY) if file.exists() else {}
    members = [str(row["member"]) for row in summary["members"]]
    card = (
        environment()
        .get_template("model_card.md.j2")
        .render(
            vars(errors) | vars(cost),
            name=name,
            run=run,
            summary=summary,
            manifest=manifest,
            networks={int(k): read_json(folder / "members" / k / "config.json") for k in members},
            known=set(manifest.elements) - manifest.unseen,
            started_from=RunDirectory(run_directory).started_from(),
            later=recalibration_of(folder),
        )
    )
    return re.sub(r"\n{3,}", "\n\n", card).strip() + "\n"


def environment() -> Environment:
    """Templates of the page and the model card, with the same tables, numbers and words."""
    pages = Environment(
        loader=PackageLoader("hydragnn_flow.report"),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {"shown": shown, "number": number, "symbols": _symbols, "given": _given}
    pages.globals["splits"] = SPLITS
    return pages


def _symbols(numbers: Iterable[int]) -> str:
    """Elements by their atomic numbers, as symbols in order."""
    known = range(len(chemical_symbols))
    return " ".join(chemical_symbols[z] if z in known else str(z) for z in sorted(numbers))


def _given(values: Any) -> str:
    """Section of a configuration as JSON, without the keys that it left out."""

    def known(inner: Any) -> Any:
        if not isinstance(inner, dict):
            return inner
        return {key: known(value) for key, value in inner.items() if value is not None}

    return json.dumps(known(values), ensure_ascii=False)
