"""Sources of graphs: one module per format, all yielding the records of :class:`Source`.

``structures`` is common to the formats of labelled structures (``ase_files``, ``csv_tables``,
``json_records``); ``graph_files`` to those with one graph per file (``pyg``, ``voronoi``, ``mesh``,
and through ``raw`` ``lsms`` and ``cfg``). ``emt_alloys`` and ``hydragnn`` stand alone. A format's
file holds its section of the configuration, which ``config.sources.FORMATS`` names, and its reader.
Torch, ASE and the like are imported inside functions, because sections are imported to check a
configuration. The other modules are helpers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydragnn_flow.lazy import lazily

if TYPE_CHECKING:
    from hydragnn_flow.data.sources.base import Chunk, Labelled, ReadyGraph, Record, Source
    from hydragnn_flow.data.sources.inputs import fingerprint, open_source
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "Labelled": "base",
            "Chunk": "base",
            "ReadyGraph": "base",
            "Record": "base",
            "Source": "base",
            "fingerprint": "inputs",
            "open_source": "inputs",
        },
    )

__all__ = [
    "Chunk",
    "Labelled",
    "ReadyGraph",
    "Record",
    "Source",
    "fingerprint",
    "open_source",
]
