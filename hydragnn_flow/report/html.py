"""HTML page of a run and model card of an ensemble, from the files in a run directory."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from hydragnn_flow.config import SearchConfig
from hydragnn_flow.config.search import direction_of
from hydragnn_flow.data.store.manifest import Manifest, kept_manifest, load_manifest, symbols
from hydragnn_flow.ensemble.summary import ensemble_folder, read_summary
from hydragnn_flow.ensemble.uncertainty.calibration import recalibration_of
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import write_text
from hydragnn_flow.plain_files import FROM_A_COPY, read_json, read_yaml
from hydragnn_flow.report import accuracy, errors, figures, gcd_time
from hydragnn_flow.report.scaling import scaling_figure, scaling_table, studies, verdicts
from hydragnn_flow.report.stage import Stage, stage_of
from hydragnn_flow.report.style import Picture, embed
from hydragnn_flow.report.tables import SIMULATED_RUN, SPLITS, number, objective_label, shown
from hydragnn_flow.report.trials_frame import (
    best_first,
    study_frame,
    trials_table,
    value_columns,
)
from hydragnn_flow.run_directory import CONFIG, RunDirectory


def model_card(run_directory: Path, name: str) -> str:
    """Return the model card of an ensemble as Markdown: data, errors, limits, members and cost.

    Parameters
    ----------
    run_directory
        Directory of a finished run.
    name
        Name of the directory that will contain the card.
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
            vars(errors) | vars(gcd_time),
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
    """Return the Jinja environment with the templates of the HTML report and the model card."""
    pages = Environment(
        loader=PackageLoader("hydragnn_flow.report"),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {
        "shown": shown,
        "number": number,
        "symbols": lambda some: " ".join(symbols(some)),
        "given": _given,
    }
    pages.globals["splits"] = SPLITS
    return pages


def _given(values: Any) -> str:
    """Return a section of a configuration as JSON, without keys that are None or empty lists."""

    def known(inner: Any) -> Any:
        if not isinstance(inner, dict):
            return inner
        return {key: known(value) for key, value in inner.items() if value not in (None, [])}

    return json.dumps(known(values), ensure_ascii=False)


@dataclass(frozen=True)
class RunFiles:
    """Content of a run directory that the HTML report shows."""

    directory: Path
    name: str
    search: SearchConfig
    rungs: tuple[int, ...]
    """Epochs at which trials are judged."""
    coverage: float | None
    """Coverage of the intervals; None without an ensemble."""
    values: dict[str, Any]
    """Content of `run.yaml`."""
    configuration: str
    """Text of `run.yaml`."""
    manifest: Manifest | None
    """Manifest of the store; None until the data are prepared."""
    stage: Stage
    """Phase of the run, and the results of its segments (jobs of training)."""
    study: optuna.Study
    """Study of the search; it has no trials before the search begins."""
    trials: pd.DataFrame
    """Trials as :func:`~hydragnn_flow.report.trials_frame.trials_frame` describes them."""
    ensemble: dict[str, Any] | None
    """Content of `ensemble/ensemble.json`; None until the ensemble is finished."""
    graphs: pd.DataFrame | None
    """Predictions of the test split's graph targets; None if there are none."""
    nodes: pd.DataFrame | None
    """Predictions of the test split's node targets; None if there are none."""


def read_run(directory: Path) -> RunFiles:
    """Read all files of a run directory that the report needs, as far as they exist.

    Raises
    ------
    InputError
        If ``directory`` is not a run directory, or a file in it cannot be read.
    """
    config = RunDirectory(directory).config()
    run, stage = RunDirectory(directory), stage_of(directory)
    study = stage.study or optuna.create_study(directions=config.search.directions)
    kept = run.ensemble / "manifest.json"
    store = load_manifest(run.store) if (run.store / "manifest.json").exists() else None
    return RunFiles(
        directory=directory,
        name=config.name,
        search=config.search,
        rungs=config.rungs,
        coverage=None if config.ensemble is None else config.ensemble.coverage,
        values=read_yaml(directory / CONFIG),
        configuration=(directory / CONFIG).read_text(encoding="utf-8"),
        manifest=kept_manifest(kept) if kept.exists() else store,
        stage=stage,
        study=study,
        trials=study_frame(study, stage.results, config.search.objectives, stage.is_driven),
        ensemble=read_summary(directory) if run.summary.exists() else None,
        graphs=_read_table(directory / "predictions" / "test.parquet"),
        nodes=_read_table(directory / "predictions" / "test_nodes.parquet"),
    )


def _read_table(path: Path) -> pd.DataFrame | None:
    try:
        return pd.read_parquet(path) if path.is_file() else None
    except (OSError, ValueError) as error:
        reason, remedy = " ".join(str(error).split()), "remove it and run the campaign again"
        raise InputError(f"{path}: cannot be read ({reason}); {remedy}") from None


def write_report(run_directory: Path) -> Path:
    """Write `report.html` from the present content of a run directory.

    Parameters
    ----------
    run_directory
        Directory of a finished run, or of one still going: the page says what is missing.

    Returns
    -------
    pathlib.Path
        Path of the page, which needs no other file and no network.

    Raises
    ------
    InputError
        If the directory is not a run directory, or a file in it is damaged.
    """
    page = render(read_run(Path(run_directory)))
    path = RunDirectory(Path(run_directory)).report
    write_text(path, page)
    return path


def render(run: RunFiles) -> str:
    """Return the HTML report of a run as text."""
    directory, summary, pages = RunDirectory(run.directory), run.ensemble, environment()
    script = pages.get_template("page.js").render()
    own = run.trials[run.trials["origin"] == ""]
    objectives = run.search.objectives
    complete = best_first(own[own["state"] == "complete"])[value_columns(objectives)[0]]
    coverage = summary["coverage"] if summary else run.coverage or 0.0
    spent, targets = run.stage.gcd_time, test_targets(run)
    columns = [c for table in (run.graphs, run.nodes) if table is not None for c in table.columns]
    classes = [str(c).removesuffix("_predicted") for c in columns if str(c).endswith("_predicted")]
    return pages.get_template("report.html.j2").render(
        vars(errors) | vars(figures) | vars(gcd_time),
        run=run,
        summary=summary,
        own=own,
        trials=trials_table(own),
        targets={target.name.removesuffix(" per atom") for target in targets}.union(classes),
        worst=accuracy.worst_structures(targets, run.graphs, run.nodes),
        spent=spent,
        pictures=pictures(run, targets, coverage, spent),
        studies=[
            (study, verdicts(study), embed(scaling_figure(study)), scaling_table(study))
            for study in studies(run.directory)
            if any(point.profile for point in study.points)
        ],
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        script=script,
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        objective=objective_label(objectives[0]),
        better="lower" if direction_of(objectives[0]) == "minimize" else "higher",
        simulated=SIMULATED_RUN if directory.simulated.exists() else "",
        best=next(iter(complete.dropna()), None),
        coverage=f"{coverage * 100:g} %",
        nodes=gcd_time.nodes_cost(run.directory),
        started_from=directory.started_from(),
        columns=[str(c).removesuffix("_mean") for c in columns if str(c).endswith("_mean")],
        classes=classes,
    )


def pictures(
    run: RunFiles, targets: list[accuracy.TargetValues], coverage: float, spent: pd.DataFrame | None
) -> dict[str, list[Picture]]:
    """Draw the figures of the HTML report for which there are data, by section of the page.

    Parameters
    ----------
    run
        Content of the run directory.
    targets
        Test values of the targets.
    coverage
        Intended coverage of the calibrated intervals.
    spent
        Table of the GCDs' use from :func:`hydragnn_flow.report.gcd_time.gcd_time`, or None.
    """
    measures = (run.ensemble or {}).get("measures") or {}
    estimates = {name: of["measures"] for name, of in measures.items()}
    chosen = {member["trial"] for member in (run.ensemble or {}).get("members", [])}
    # Where nobody asks for errors, a structure is all that they are measured on.
    segments = run.stage.results if run.search.judges_errors else []
    found: dict[str, list[Picture]] = {}
    for target in targets:
        for section, draw in (("parity", accuracy.parity), ("deviation", accuracy.deviation)):
            picture = embed(draw(target, estimates.get(target.name, {})), target.name)
            found.setdefault(section, []).append(picture)
    drawn: dict[str, Figure | None] = {
        "coverage": accuracy.coverage(targets, coverage) if targets else None,
        "history": figures.history(run.study, run.trials, chosen),
        "curves": figures.trial_curves(run.trials, segments, run.rungs),
        "gcd_time": None if spent is None else figures.gcd_time_figure(spent),
        **figures.search_figures(run.study, run.trials),
    }
    return found | {section: [embed(made)] for section, made in drawn.items() if made is not None}


def test_targets(run: RunFiles) -> list[accuracy.TargetValues]:
    """Return reference and predicted values on the test split, for each target.

    Extensive targets are divided by the number of atoms if there are node targets, whose table
    gives that number.
    """
    graphs = accuracy.targets_of(run.graphs) if run.graphs is not None else []
    if run.nodes is None:
        return graphs
    # Total energies of cells of many sizes are near the diagonal for any model.
    labels = (run.ensemble or {}).get("errors", {})
    sums = {of["target"] for label, of in labels.items() if label.endswith(" per atom")}
    n_atoms = run.nodes.groupby("graph_id").size()
    graphs = [t.per_atom(n_atoms) if t.name in sums else t for t in graphs]
    return graphs + accuracy.targets_of(run.nodes)
