"""A run directory as the report reads it: plain data, nothing written, parts may be missing."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.base import validate
from hydragnn_flow.errors import InputError
from hydragnn_flow.search import TrialRecord, read_trials


@dataclass(frozen=True)
class Segment:
    """What the report shows of one line of `segments.jsonl`."""

    kind: str
    """``trial`` or ``member``."""
    number: int
    rung: int
    from_epoch: int
    to_epoch: int
    status: str
    """``ok``, or the word for what ended it."""
    reason: str
    history: tuple[tuple[int, float, float], ...]
    """(epoch, training loss, validation loss) of each epoch of the segment."""
    seconds: float
    started: float
    """Unix time [s]; 0 where the segment never began."""
    ended: float
    node: str
    gcds: tuple[str, ...]


@dataclass(frozen=True)
class RunFiles:
    """All the report needs of a run directory."""

    directory: Path
    config: RunConfig
    configuration: str
    """`run.yaml` as it is written."""
    trials: list[TrialRecord]
    segments: list[Segment]
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
    path = directory / "run.yaml"
    try:
        text = path.read_text(encoding="utf-8")
        values = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        raise InputError(
            f"{path}: cannot be read; give the directory of a run, which holds run.yaml"
        ) from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: must hold a mapping; restore it from a copy of the run")
    known = {key: value for key, value in values.items() if key in RunConfig.model_fields}
    return RunFiles(
        directory=directory,
        config=validate(RunConfig, known, path),
        configuration=text,
        trials=read_trials(directory),
        segments=read_segments(directory / "segments.jsonl"),
        ensemble=_read_ensemble(directory / "ensemble" / "ensemble.json"),
        graphs=_read_table(directory / "predictions" / "test.parquet"),
        nodes=_read_table(directory / "predictions" / "test_nodes.parquet"),
    )


def read_segments(path: Path) -> list[Segment]:
    """Read the complete lines of `segments.jsonl`; a last line without its end is left out.

    Raises
    ------
    InputError
        If a complete line is not a segment.
    """
    if not path.exists():
        return []
    whole = path.read_bytes().rpartition(b"\n")[0]
    segments = []
    for number, line in enumerate(whole.splitlines(), 1):
        if not line.strip():
            continue
        try:
            segments.append(_segment(json.loads(line)))
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"{path}: line {number} is not a segment; restore the file from a copy of the run"
            ) from None
    return segments


def _segment(values: dict[str, Any]) -> Segment:
    return Segment(
        kind=str(values["kind"]),
        number=int(values["number"]),
        rung=int(values["rung"]),
        from_epoch=int(values["from_epoch"]),
        to_epoch=int(values["to_epoch"]),
        status=str(values["status"]),
        reason=str(values.get("reason") or ""),
        history=tuple((int(e), _number(t), _number(v)) for e, t, v in values.get("history") or ()),
        seconds=float(values.get("seconds") or 0.0),
        started=float(values.get("started") or 0.0),
        ended=float(values.get("ended") or 0.0),
        node=str(values.get("node") or "?"),
        gcds=tuple(str(gcd) for gcd in values.get("gcds") or ("?",)),
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _read_ensemble(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise InputError(f"{path}: is damaged; remove it and run the campaign again to rewrite it")
    return values


def _read_table(path: Path) -> pd.DataFrame | None:
    if not path.exists():
        return None
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path}: cannot be read ({reason}); remove it and run the campaign again"
        ) from None
