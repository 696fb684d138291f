"""One self-contained HTML file about a run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined

from hydragnn_flow.config.search import direction_of
from hydragnn_flow.ensemble.summary import ENSEMBLE
from hydragnn_flow.files import write_text
from hydragnn_flow.report import figures, tables
from hydragnn_flow.report.cost import cost_of, energy_sentences, nodes_cost
from hydragnn_flow.report.data_card import data_card
from hydragnn_flow.report.errors import best_single, changed, ends, explained, made_of, short_name
from hydragnn_flow.report.failures import failures_table
from hydragnn_flow.report.forecast_errors import forecast_errors
from hydragnn_flow.report.gcd_time import GcdTime
from hydragnn_flow.report.gcd_time_tables import gcd_time_table, shapes_table
from hydragnn_flow.report.gcd_time_words import advice
from hydragnn_flow.report.measures import measures_frame
from hydragnn_flow.report.pictures import Picture, embed
from hydragnn_flow.report.run_files import RunFiles, read_run
from hydragnn_flow.report.scaling import scaling_table, studies, verdicts
from hydragnn_flow.report.stage import stage_of
from hydragnn_flow.report.target_values import TargetValues, targets_of
from hydragnn_flow.report.text import SIMULATED_RUN, cell, number, objective_label
from hydragnn_flow.report.trials_frame import value_columns
from hydragnn_flow.report.worst import flagged_sentence, worst_structures
from hydragnn_flow.run_directory import SIMULATED, RunDirectory

REPORT = "report.html"
_TEMPLATE, _STYLE, _SCRIPT = "template.html.j2", "page.css", "page.js"
MPNN_TYPE = "Architecture.mpnn_type"
_MOST_TABLE_ROWS = 500


@dataclass(frozen=True)
class Cells:
    """A table as text."""

    columns: list[str]
    numeric: list[bool]
    """Whether a column holds numbers, which are set flush right."""
    rows: list[list[str]]
    left_out: int


def write_report(run_directory: Path) -> Path:
    """Write `report.html` from the present content of a run directory.

    Parameters
    ----------
    run_directory
        Of a finished run, or of one still going: the page says what is missing.

    Returns
    -------
    pathlib.Path
        The page. It needs no other file and no network.

    Raises
    ------
    InputError
        If the directory is no run directory or holds a damaged file.
    """
    page = render(read_run(Path(run_directory)))
    path = Path(run_directory) / REPORT
    write_text(path, page)
    return path


def render(run: RunFiles) -> str:
    """The page as text."""
    targets = test_targets(run)
    objective = run.config.search.objectives[0]
    asked = run.config.ensemble.coverage if run.config.ensemble else 0.0
    coverage = run.ensemble["coverage"] if run.ensemble else asked
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style, script, template = (_resource(name) for name in (_STYLE, _SCRIPT, _TEMPLATE))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    found = run.ensemble
    n_atoms = None if run.nodes is None else run.nodes.groupby("graph_id").size()
    measures = (found or {}).get("measures")
    spent = stage_of(run.directory).gcd_time
    return environment.from_string(template).render(
        name=run.config.name,
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        style=style,
        script=script,
        script_digest=digest,
        objective=objective_label(objective),
        better="lower" if direction_of(objective) == "minimize" else "higher",
        missing=missing(run, targets),
        facts=facts(run),
        coverage=f"{coverage * 100:g} %",
        accuracy=as_text(tables.errors_frame(found)) if found else None,
        data_sets=_data_sets(found),
        explained=explained(found) if found else [],
        made_of=made_of(found) if found else [],
        measures=as_text(measures_frame(measures)) if measures else None,
        members=as_text(tables.members_table(found)) if found else None,
        worst=as_text(worst_structures(targets, run.graphs, n_atoms)),
        pictures=pictures(run, targets, coverage, spent),
        flagged=flagged_sentence(run.graphs),
        trials=as_text(tables.trials_table(_own(run))),
        failures=as_text(failures_table(run.segments)),
        cost=as_text(tables.cost_table(run.segments)) if run.segments else None,
        energy=energy_sentences({**cost_of(run.segments), **nodes_cost(run.directory)}),
        gcd_time=as_text(gcd_time_table(spent)) if spent else None,
        shapes=as_text(shapes_table(run.segments)),
        studies=scaling_studies(run.directory),
        advice=advice(spent) if spent else "",
        wall=f"{found['wall_seconds']:,.0f} s" if found else "",
        data=data_card(run.manifest) if run.manifest else [],
        started_from=RunDirectory(run.directory).started_from(),
        commands=run.commands,
        versions=run.versions,
        directory=str(run.directory.resolve()),
        columns=_columns(run),
        configuration=run.configuration,
    )


def _data_sets(summary: Mapping[str, Any] | None) -> Cells | None:
    table = None if summary is None else tables.data_sets_frame(summary)
    return None if table is None else as_text(table)


def pictures(
    run: RunFiles, targets: list[TargetValues], coverage: float, spent: GcdTime | None
) -> dict[str, list[Picture]]:
    """The figures there is data for, by section."""
    types = mpnn_types(run)
    trial_types = {number: name for (kind, number), name in types.items() if kind == "trial"}
    members = (run.ensemble or {}).get("members", [])
    measures = (run.ensemble or {}).get("measures", {})
    estimates = {name: of["measures"] for name, of in measures.items()}
    found: dict[str, list[Picture]] = {}
    for section, draw, text in (
        ("parity", figures.parity, "Predicted against true"),
        ("deviation", figures.deviation, "Absolute error against predicted deviation of"),
    ):
        for target in targets:
            drawn, marks = draw(target, estimates.get(target.name))
            found.setdefault(section, []).append(embed(drawn, f"{text} {target.name}", marks))
    if targets:
        drawn = figures.coverage(targets, coverage, estimates)
        found["coverage"] = [embed(drawn, "Observed against expected coverage of intervals")]
    own = _own(run)
    if len(own):
        chosen = {member["trial"] for member in members}
        drawn, marks = figures.optimisation_history(own, trial_types, chosen)
        label = objective_label(run.config.search.objectives[0])
        found["history"] = [embed(drawn, f"Every trial's {label} against its number", marks)]
    # Where nobody asks for errors, a structure is all that they are measured on.
    segments = run.segments if run.config.search.judges_errors else []
    search = figures.search_figures(run.study, run.trials, segments, run.config.rungs)
    found |= {name: [embed(drawn, text)] for name, (drawn, text) in search.items()}
    if (curves := figures.member_curves(run.segments, members)) is not None:
        found["members"] = [embed(curves, "Validation loss of the members against the epoch")]
    if run.segments:
        drawn = figures.gcd_occupancy(run.segments, types)
        found["occupancy"] = [embed(drawn, "Bars of the segments each GCD ran over time")]
    if spent:
        drawn = figures.gcd_time_figure(spent)
        found["gcd_time"] = [embed(drawn, "GCDs over time by what they did, or why nothing")]
    if errors := forecast_errors(run.segments):
        drawn, marks = figures.forecast_figure(errors)
        text = "Actual against predicted time of each segment"
        found["forecasts"] = [embed(drawn, text, marks)]
    return found


def scaling_studies(directory: Path) -> list[tuple[str, list[str], Picture, Cells]]:
    """What each is of, what it says, its picture and its table."""
    found = []
    for study in studies(directory):
        if not any(point.profile for point in study.points):
            continue
        network = "the configuration" if study.trial is None else f"trial {study.trial}"
        about = f"The network of {network} on {study.site}."
        picture = embed(figures.scaling_figure(study), f"Scaling of the network of {network}")
        found.append((about, verdicts(study), picture, as_text(scaling_table(study))))
    return found


def mpnn_types(run: RunFiles) -> dict[tuple[str, int], str]:
    """Message-passing type by (``trial`` or ``member``, number)."""
    base = run.config.network_with({})
    searched = run.trials[MPNN_TYPE] if MPNN_TYPE in run.trials else [None] * len(run.trials)
    types = {
        ("trial", trial): base.kind_of(str(name)) if name else base.kind
        for trial, name in zip(run.trials["trial"], searched, strict=True)
    }
    for member in (run.ensemble or {}).get("members", ()):
        types["member", member["member"]] = types.get(("trial", member["trial"]), base.kind)
    return types


def test_targets(run: RunFiles) -> list[TargetValues]:
    """Targets of the test split; extensive ones per atom where the number of atoms is known."""
    names = (run.ensemble or {}).get("test", {})
    graphs = targets_of(run.graphs, names) if run.graphs is not None else []
    nodes = targets_of(run.nodes, names) if run.nodes is not None else []
    sums = {name for name, row in names.items() if "mae_per_atom_ensemble" in row}
    if run.nodes is not None:
        # Total energies of cells of many sizes are near the diagonal for any model.
        n_atoms = run.nodes.groupby("graph_id").size()
        graphs = [t.per_atom(n_atoms) if t.name in sums else t for t in graphs]
    return graphs + nodes


def missing(run: RunFiles, targets: list[TargetValues]) -> list[str]:
    """Sentences about results that the run has not produced yet."""
    planned = run.config.search.trials
    states = _own(run)["state"]
    ended = (~states.isin(["running", "waiting"])).sum()
    sentences = [SIMULATED_RUN] if (run.directory / SIMULATED).exists() else []
    if states.empty:
        sentences.append("The search has not begun: there is no trial yet.")
    elif ended < planned and run.ensemble is None:
        sentences.append(f"The search is still going: {ended} of {planned} trials have ended.")
    if not run.segments:
        sentences.append("No segment has finished, so there are no curves and no timeline.")
    if run.config.ensemble is None:
        return sentences
    if run.ensemble is None:
        sentences.append("The ensemble is not finished: its accuracy on the test split follows.")
    if not targets:
        sentences.append("There are no predictions of the test split with reference values yet.")
    elif run.ensemble is not None:
        shown = {target.name.removesuffix(" per atom") for target in targets}
        sentences += [
            f"The prediction tables hold no target {name!r}, which ensemble.json names."
            for name in run.ensemble["test"]
            if name not in shown
        ]
    return sentences


def facts(run: RunFiles) -> list[tuple[str, str]]:
    """The few numbers at the top of the page."""
    own = _own(run)
    counts = own["state"].value_counts()
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    found = [("trials" + (f": {states}" if states else ""), f"{len(own)}")]
    objectives = run.config.search.objectives
    best = tables.best_first(own[own["state"] == "complete"])[value_columns(objectives)[0]]
    if best.notna().any():
        label = f"best {objective_label(objectives[0])} of a complete trial"
        found.append((label, number(best.iloc[0])))
    if run.ensemble is not None:
        single = best_single(run.ensemble)
        for name, target in run.ensemble["errors"].items():
            mae = target["mae"][ENSEMBLE]
            label = f"ensemble MAE, {name}{ends(mae['lo'], mae['hi'])}"
            if against := changed(target["change"][single]):
                label += f"; {against} % against {short_name(single)}"
            found.append((label, f"{number(mae['value'])} {target['unit']}"))
    return found


def _own(run: RunFiles) -> pd.DataFrame:
    return run.trials[run.trials["origin"] == ""]


def as_text(table: pd.DataFrame) -> Cells:
    """A table with its numbers written for people; very long ones are cut."""
    shown = table.head(_MOST_TABLE_ROWS)
    columns = [str(column) for column in shown.columns]
    rows = [
        [cell(value) for value in row]
        for row in shown.astype(object).itertuples(index=False, name=None)
    ]
    numeric = [pd.api.types.is_numeric_dtype(table[column]) for column in table.columns]
    return Cells(columns, numeric, rows, len(table) - len(shown))


def _columns(run: RunFiles) -> list[str]:
    frames = [frame for frame in (run.graphs, run.nodes) if frame is not None]
    return [
        str(column).removesuffix("_mean")
        for frame in frames
        for column in frame.columns
        if str(column).endswith("_mean")
    ]


def _resource(name: str) -> str:
    return resources.files("hydragnn_flow.report").joinpath(name).read_text(encoding="utf-8")
