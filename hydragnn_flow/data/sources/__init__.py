"""Sources of graphs: one module per format, all yielding the records of :class:`Source`.

``structures`` is the base of all formats of files. A format's file holds its section of the
configuration, which ``config.sources.FORMATS`` names, and its reader. Torch, ASE and the like are
imported inside functions, because sections are imported to check a configuration. ``arrays``,
``file_names`` and ``single`` are helpers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydragnn_flow.lazy import lazily

if TYPE_CHECKING:
    from hydragnn_flow.data.sources.base import Chunk, Labelled, ReadyGraph, Record, Source
    from hydragnn_flow.data.sources.opening import fingerprint, open_source
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "Labelled": "base",
            "Chunk": "base",
            "ReadyGraph": "base",
            "Record": "base",
            "Source": "base",
            "fingerprint": "opening",
            "open_source": "opening",
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
