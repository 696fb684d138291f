"""Where graphs come from: one module per format, all giving the records of :class:`Source`.

``structures`` is what the formats of labelled structures share (``ase_files``, ``csv_tables``,
``json_records``); ``graph_files`` what those share whose files hold a graph each (``pyg``,
``voronoi``, ``mesh``, and with ``raw`` between ``lsms`` and ``cfg``). ``emt_alloys`` and
``hydragnn`` stand alone. All are registered in ``registry``; the other modules are their pieces.
"""

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
