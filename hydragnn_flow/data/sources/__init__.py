"""Where graphs come from: one module per format, all giving the records of :class:`Source`.

``structures`` is what the formats of labelled structures share (``ase_files``, ``csv_tables``,
``json_records``); ``graph_files`` what those share whose files hold a graph each (``pyg``,
``voronoi``, ``mesh``, and with ``raw`` between ``lsms`` and ``cfg``). ``emt_alloys`` and
``hydragnn`` stand alone. All are registered in ``registry``; the other modules are their pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydragnn_flow.lazy import lazily

if TYPE_CHECKING:
    from hydragnn_flow.data.sources.base import Labelled, Part, ReadyGraph, Record, Source
    from hydragnn_flow.data.sources.files import Role
    from hydragnn_flow.data.sources.identity import fingerprint
    from hydragnn_flow.data.sources.registry import open_source
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "Labelled": "base",
            "Part": "base",
            "ReadyGraph": "base",
            "Record": "base",
            "Role": "files",
            "Source": "base",
            "fingerprint": "identity",
            "open_source": "registry",
        },
    )

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
