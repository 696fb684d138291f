"""One self-contained HTML file about a run."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from hydragnn_flow.config.search import direction_of
from hydragnn_flow.files import write_text
from hydragnn_flow.report import accuracy, cost, errors, figures, gcd_time, importance
from hydragnn_flow.report.model_card import environment
from hydragnn_flow.report.run_files import RunFiles, read_run
from hydragnn_flow.report.scaling import scaling_figure, scaling_table, studies, verdicts
from hydragnn_flow.report.stage import stage_of
from hydragnn_flow.report.style import Picture, embed
from hydragnn_flow.report.tables import SIMULATED_RUN, objective_label
from hydragnn_flow.report.trials_frame import best_first, trials_table, value_columns
from hydragnn_flow.run_directory import RunDirectory


def write_report(run_directory: Path) -> Path:
    """Write `report.html` from the present content of a run directory.

    Parameters
    ----------
    run_directory
        Directory of a finished run, or of one still going: the page says what is missing.

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
    path = RunDirectory(Path(run_directory)).report
    write_text(path, page)
    return path


def render(run: RunFiles) -> str:
    """The page as text."""
    directory, summary, pages = RunDirectory(run.directory), run.ensemble, environment()
    script = pages.get_template("page.js").render()
    own = run.trials[run.trials["origin"] == ""]
    objectives = run.search.objectives
    complete = best_first(own[own["state"] == "complete"])[value_columns(objectives)[0]]
    coverage = summary["coverage"] if summary else run.coverage or 0.0
    spent, targets = stage_of(run.directory).gcd_time, test_targets(run)
    columns = [c for table in (run.graphs, run.nodes) if table is not None for c in table.columns]
    return pages.get_template("report.html.j2").render(
        vars(errors) | vars(cost) | vars(importance) | vars(gcd_time),
        run=run,
        summary=summary,
        own=own,
        trials=trials_table(own),
        targets={target.name.removesuffix(" per atom") for target in targets},
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
        nodes=cost.nodes_cost(run.directory),
        started_from=directory.started_from(),
        columns=[str(c).removesuffix("_mean") for c in columns if str(c).endswith("_mean")],
    )


def pictures(
    run: RunFiles, targets: list[accuracy.TargetValues], coverage: float, spent: pd.DataFrame | None
) -> dict[str, list[Picture]]:
    """The figures there is data for, by section."""
    measures = (run.ensemble or {}).get("measures") or {}
    estimates = {name: of["measures"] for name, of in measures.items()}
    chosen = {member["trial"] for member in (run.ensemble or {}).get("members", [])}
    # Where nobody asks for errors, a structure is all that they are measured on.
    segments = run.segments if run.search.judges_errors else []
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
    """Targets of the test split; extensive ones per atom where the number of atoms is known."""
    names = (run.ensemble or {}).get("test", {})
    graphs = accuracy.targets_of(run.graphs, names) if run.graphs is not None else []
    if run.nodes is None:
        return graphs
    # Total energies of cells of many sizes are near the diagonal for any model.
    sums = {name for name, row in names.items() if "mae_per_atom_ensemble" in row}
    n_atoms = run.nodes.groupby("graph_id").size()
    graphs = [t.per_atom(n_atoms) if t.name in sums else t for t in graphs]
    return graphs + accuracy.targets_of(run.nodes, names)
