"""What of HydraGNN's own campaigns runs here: files, large budgets, its networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from results import Cell, Line, Result, Run, Table, missed, table_of
from results.code import commit_of

from campaign_checks import epoch_planning, hydragnn_engine, hydragnn_files

MEASURES = [
    "benchmarks/campaign_checks",
    "benchmarks/peers",
    "hydragnn_flow/config",
    "hydragnn_flow/models",
    "hydragnn_flow/training",
]
PARTS = ("planning", "files", "engine")
_SECONDS, _MEBIBYTES = 1.0, 100.0


def measured(
    checkout: Path,
    folder: Path,
    *,
    only: Sequence[str] = (),
    quick: bool = False,
) -> Result:
    """Measure and check everything, or some parts.

    Parameters
    ----------
    checkout
        Root of a checkout of HydraGNN.
    folder
        For the run directory of the campaign with HydraGNN's networks.
    only
        Some of ``PARTS``.
    quick
        Steps and trials enough to see that it runs.
    """
    packages = ["optuna", "parsl", "torch", "torch-geometric"]
    run = Run("taken_over", MEASURES, packages, quick=quick)
    lines: list[Line] = []
    tables: list[Table] = []
    parts: dict[str, Callable[[], Iterator[Line | Table]]] = {
        "planning": _planning,
        "files": lambda: _files(checkout),
        "engine": lambda: _engine(checkout, folder, quick),
    }
    for name, part in parts.items():
        if not only or name in only:
            for found in part():
                if isinstance(found, Line):
                    lines.append(found)
                else:
                    tables.append(found)
    measured_tables = [table_of(lines, "targets"), *tables] if lines else tables
    return run.end(
        measured_tables, remarks=[missed(lines)], peers={"HydraGNN": commit_of(checkout)}
    )


def _planning() -> Iterator[Line]:
    for one in epoch_planning.measured():
        what = f"10⁷ graphs, 64 ranks, {one.what}"
        yield Line("planning", f"{what}: of a rank", one.seconds, "CPU-s", at_most=_SECONDS)
        yield Line("planning", f"{what}: memory", one.mebibytes, "MiB", at_most=_MEBIBYTES)


def _files(checkout: Path) -> Iterator[Line | Table]:
    found = list(hydragnn_files.check_files(checkout))
    counts = Counter(one.outcome for one in found)
    explained = sum(one.outcome != "fails" for one in found)
    yield Line(
        "files",
        "HydraGNN's configurations that train a step, or are refused with the reason",
        100 * explained / len(found),
        "%",
        at_least=100,
    )
    rows: list[list[Cell]] = [[outcome, number] for outcome, number in counts.most_common()]
    yield Table(["a configuration of HydraGNN's repository", "files"], rows, "files")
    others: list[list[Cell]] = [
        [one.file, one.reason or f"with {', '.join(one.additions)}"]
        for one in found
        if one.reason or one.additions
    ]
    yield Table(["file", "is refused because, or trains with"], others, "files-apart")


def _engine(checkout: Path, folder: Path, quick: bool) -> Iterator[Line | Table]:
    campaign = hydragnn_engine.measured(checkout, folder, trials=3 if quick else 12)
    ours = sum(one.seconds for one in campaign.trials)
    script = sum(one.script_seconds for one in campaign.trials)
    yield Line(
        "engine",
        f"HydraGNN's networks: training of {len(campaign.trials)} trials",
        ours,
        "CPU-s",
        "HydraGNN's own script",
        script,
        ours / script,
    )
    rows: list[list[Cell]] = [
        [one.number, one.mpnn_type, one.epochs, one.seconds, one.script_seconds]
        for one in campaign.trials
    ]
    columns = ["trial", "type", "epochs", "here, CPU-s", "HydraGNN's script, CPU-s"]
    title = f"A whole campaign of HydraGNN's networks: {campaign.members} members at its end"
    yield Table(columns, rows, "engine", title)
