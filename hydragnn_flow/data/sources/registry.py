"""Which class reads which format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.data import DataConfig
from hydragnn_flow.config.graph_sources import (
    CfgSource,
    HydragnnSource,
    LsmsSource,
    MeshSource,
    PygSource,
    VoronoiSource,
)
from hydragnn_flow.config.sources import AseSource, CsvSource, GeneratedSource, JsonSource
from hydragnn_flow.data.sources.ase_files import AseFiles
from hydragnn_flow.data.sources.base import Source
from hydragnn_flow.data.sources.cfg import CfgFiles
from hydragnn_flow.data.sources.csv_tables import CsvTables
from hydragnn_flow.data.sources.emt_alloys import EmtAlloys
from hydragnn_flow.data.sources.hydragnn import StoredGraphs
from hydragnn_flow.data.sources.json_records import JsonRecords
from hydragnn_flow.data.sources.lsms import LsmsFiles
from hydragnn_flow.data.sources.mesh import MeshFiles
from hydragnn_flow.data.sources.pyg import PygFiles
from hydragnn_flow.data.sources.voronoi import VoronoiFiles

_READERS: dict[type[Section], Callable[[Any, Path], Source]] = {
    AseSource: AseFiles,
    CsvSource: CsvTables,
    JsonSource: JsonRecords,
    LsmsSource: LsmsFiles,
    CfgSource: CfgFiles,
    PygSource: PygFiles,
    HydragnnSource: StoredGraphs,
    VoronoiSource: VoronoiFiles,
    MeshSource: MeshFiles,
}
"""Each takes its section and the directory of the data."""


def open_source(config: DataConfig, seed: int) -> Source:
    """The source a configuration names; no file is opened yet.

    Parameters
    ----------
    config
        Source, and directory of its files; without one they are relative to the working directory.
    seed
        Of the run; determines structures that are generated.

    Raises
    ------
    InputError
        Where the section asks for what cannot be.
    """
    if isinstance(config.source, GeneratedSource):
        return EmtAlloys(config.source, seed)
    folder = (config.path or Path()).absolute()
    return _READERS[type(config.source)](config.source, folder)
