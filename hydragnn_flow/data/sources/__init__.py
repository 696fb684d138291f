"""Where graphs come from: one module per format, all giving the records of :class:`Source`."""

from hydragnn_flow.data.sources.base import Labelled, Part, ReadyGraph, Record, Role, Source
from hydragnn_flow.data.sources.identity import fingerprint
from hydragnn_flow.data.sources.registry import open_source

__all__ = [
    "Labelled",
    "Part",
    "ReadyGraph",
    "Record",
    "Role",
    "Source",
    "fingerprint",
    "open_source",
]
