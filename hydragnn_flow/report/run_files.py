"""A run directory as the report reads it: plain data, nothing written, files may be missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pandas as pd

from hydragnn_flow.config import SearchConfig
from hydragnn_flow.ensemble.summary import read_summary
from hydragnn_flow.errors import InputError
from hydragnn_flow.plain_files import read_json, read_yaml
from hydragnn_flow.report.trials_frame import find_study, study_frame
from hydragnn_flow.run_directory import COMMANDS, CONFIG, RunDirectory
from hydragnn_flow.segment import SegmentResult


@dataclass(frozen=True)
class RunFiles:
    """Content of a run directory that the report needs."""

    directory: Path
    name: str
    search: SearchConfig
    rungs: tuple[int, ...]
    """Epochs at which trials are judged."""
    coverage: float | None
    """Coverage of the intervals; None without an ensemble."""
    configuration: str
    """`run.yaml` as it is written."""
    commands: list[str]
    """Command lines of its drivers."""
    versions: dict[str, str]
    """Versions of the packages that matter, by name."""
    manifest: dict[str, Any] | None
    """Manifest of the store; None until the data are prepared."""
    study: optuna.Study
    """Study of the search; it has no trials before the search begins."""
    trials: pd.DataFrame
    """Trials as :func:`~hydragnn_flow.report.trials_frame.trials_frame` describes them."""
    segments: list[SegmentResult]
    ensemble: dict[str, Any] | None
    """`ensemble/ensemble.json`; None until the ensemble is finished."""
    graphs: pd.DataFrame | None
    """Predictions of the test split's graph targets."""
    nodes: pd.DataFrame | None
    """Predictions of the test split's node targets."""


def read_run(directory: Path) -> RunFiles:
    """Read what a run directory holds so far.

    Raises
    ------
    InputError
        If it is no run directory, or a complete file in it cannot be read.
    """
    config = RunDirectory(directory).config()
    values = read_yaml(directory / CONFIG)
    run, segments = RunDirectory(directory), list(RunDirectory(directory).results())
    study = find_study(directory) or optuna.create_study(directions=config.search.directions)
    kept = (run.ensemble / "manifest.json", run.store / "manifest.json")
    return RunFiles(
        directory=directory,
        name=config.name,
        search=config.search,
        rungs=config.rungs,
        coverage=None if config.ensemble is None else config.ensemble.coverage,
        configuration=(directory / CONFIG).read_text(encoding="utf-8"),
        commands=[str(command) for command in values.get(COMMANDS) or []],
        versions={str(k): str(v) for k, v in (values.get("versions") or {}).items()},
        manifest=next((read_json(file) for file in kept if file.exists()), None),
        study=study,
        trials=study_frame(study, segments, config.search.objectives),
        segments=segments,
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
