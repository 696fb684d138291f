"""One self-contained HTML file about a run."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from pathlib import Path

import numpy as np
import pandas as pd
from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from hydragnn_flow.ensemble.summary import ENSEMBLE
from hydragnn_flow.files import write_text
from hydragnn_flow.report import figures, tables
from hydragnn_flow.report.errors import explained, with_interval
from hydragnn_flow.report.measures import measures_frame
from hydragnn_flow.report.run_files import RunFiles, read_run
from hydragnn_flow.report.style import PIXELS_PER_INCH
from hydragnn_flow.report.target_values import TargetValues, targets_of
from hydragnn_flow.report.text import cell, number, objective_label
from hydragnn_flow.report.trials_frame import value_columns

REPORT = "report.html"
MPNN_TYPE = "Architecture.mpnn_type"
# Number of drawn elements above which a picture of pixels is smaller and opens faster.
_MOST_SVG_ELEMENTS = 2000
_MOST_TABLE_ROWS = 500


@dataclass(frozen=True)
class Picture:
    """A figure as the page embeds it."""

    source: str
    """``data:`` address."""
    width: int
    """Width in CSS pixels."""
    text: str
    """Description of the picture, for readers who cannot see it."""


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
    types = mpnn_types(run)
    trial_types = {number: name for (kind, number), name in types.items() if kind == "trial"}
    members = {member["trial"] for member in (run.ensemble or {}).get("members", ())}
    targets = test_targets(run)
    objective = run.config.search.objectives[0]
    coverage = run.ensemble["coverage"] if run.ensemble else run.config.ensemble.coverage
    pictures: dict[str, Picture] = {}
    own = _own(run)
    if len(own):
        drawn = figures.optimisation_history(own, trial_types, members)
        text = f"Every trial's {objective_label(objective)} against its number"
        pictures["history"] = embed(drawn, text)
    found = figures.search_figures(run.study, run.trials, run.segments, run.config.rungs)
    pictures |= {name: embed(drawn, text) for name, (drawn, text) in found.items()}
    if run.segments:
        drawn = figures.gcd_occupancy(run.segments, types)
        pictures["occupancy"] = embed(drawn, "Bars of the segments each GCD ran over time")
    if targets:
        drawn = figures.coverage(targets, coverage)
        pictures["coverage"] = embed(drawn, "Observed against expected coverage of intervals")
    measures = (run.ensemble or {}).get("measures")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = resources.files("hydragnn_flow.report").joinpath("template.html.j2")
    return environment.from_string(template.read_text(encoding="utf-8")).render(
        name=run.config.name,
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        objective=objective_label(objective),
        missing=missing(run, targets),
        facts=facts(run),
        coverage=f"{coverage * 100:g} %",
        accuracy=as_text(tables.errors_frame(run.ensemble)) if run.ensemble else None,
        explained=explained(run.ensemble) if run.ensemble else [],
        measures=as_text(measures_frame(measures)) if measures else None,
        members=as_text(tables.members_table(run.ensemble)) if run.ensemble else None,
        parities=[embed(figures.parity(t), f"Predicted against true {t.name}") for t in targets],
        pictures=pictures,
        trials=as_text(tables.trials_table(own)),
        cost=cost(run),
        configuration=run.configuration,
    )


def mpnn_types(run: RunFiles) -> dict[tuple[str, int], str]:
    """Message-passing type by (``trial`` or ``member``, number)."""
    fixed = str(run.config.network_with({}).Architecture.mpnn_type)
    searched = run.trials[MPNN_TYPE] if MPNN_TYPE in run.trials else [None] * len(run.trials)
    types = {
        ("trial", trial): str(name or fixed)
        for trial, name in zip(run.trials["trial"], searched, strict=True)
    }
    for member in (run.ensemble or {}).get("members", ()):
        types["member", member["member"]] = types.get(("trial", member["trial"]), fixed)
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
    sentences = []
    if states.empty:
        sentences.append("The search has not begun: there is no trial yet.")
    elif ended < planned and run.ensemble is None:
        sentences.append(f"The search is still going: {ended} of {planned} trials have ended.")
    if not run.segments:
        sentences.append("No segment has finished, so there are no curves and no timeline.")
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
        for name, target in run.ensemble["errors"].items():
            value = f"{with_interval(target['mae'][ENSEMBLE])} {target['unit']}"
            found.append((f"ensemble MAE, {name}", value))
    return found


def cost(run: RunFiles) -> str:
    """Segments and time of the run, in one sentence; empty before the first segment ended."""
    if not run.segments:
        return ""
    kinds = [segment.kind for segment in run.segments]
    told = f"{kinds.count('trial')} segments of trials and {kinds.count('member')} of members"
    if run.ensemble is not None:
        wall, cpu = (number(run.ensemble[k]) for k in ("wall_seconds", "cpu_seconds"))
        return f"{told}; {wall} s wall in all and {cpu} s CPU in these segments."
    return f"{told} so far."


def _own(run: RunFiles) -> pd.DataFrame:
    """The trials that the run's search has asked for itself."""
    return run.trials[run.trials["origin"] == ""]


def embed(figure: Figure, text: str) -> Picture:
    """A figure as a ``data:`` address: SVG, or PNG where it holds very many elements."""
    file = io.BytesIO()
    kind, name = "svg+xml", "svg"
    if elements(figure) > _MOST_SVG_ELEMENTS:
        kind = name = "png"
    figure.savefig(file, format=name, dpi=2 * PIXELS_PER_INCH)
    data = base64.b64encode(file.getvalue()).decode("ascii")
    width = round(figure.get_figwidth() * PIXELS_PER_INCH)
    return Picture(f"data:image/{kind};base64,{data}", width, text)


def elements(figure: Figure) -> int:
    """How many marks and line pieces a figure draws, roughly."""
    count = 0
    for axes in figure.axes:
        count += len(axes.texts) + len(axes.patches) + len(axes.lines)
        for collection in axes.collections:
            count += max(len(collection.get_paths()), np.shape(collection.get_offsets())[0])
    return count


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
