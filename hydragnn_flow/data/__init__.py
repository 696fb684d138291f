"""Material graphs: from sources through neighbour lists to an ADIOS2 store and to batches.

Graphs are built and divided once per campaign, and stored in HydraGNN's layout with checksums, so
that every trial on every node reads the same verified data, whatever the format of the source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydragnn_flow.lazy import lazily

if TYPE_CHECKING:
    from hydragnn_flow.data.graphs import atoms_to_graph, batch_graphs
    from hydragnn_flow.data.preparing import prepare_store, run_task
    from hydragnn_flow.data.reading.graph_store import GraphStore
    from hydragnn_flow.data.reading.inspection import check_store, store_summary
    from hydragnn_flow.data.reading.split import GraphSplit
    from hydragnn_flow.data.store.manifest import Manifest, Target
    from hydragnn_flow.data.writer import write_store
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "GraphSplit": "reading.split",
            "GraphStore": "reading.graph_store",
            "Manifest": "store.manifest",
            "Target": "store.manifest",
            "atoms_to_graph": "graphs",
            "batch_graphs": "graphs",
            "check_store": "reading.inspection",
            "prepare_store": "preparing",
            "run_task": "preparing",
            "store_summary": "reading.inspection",
            "write_store": "writer",
        },
    )

__all__ = [
    "GraphSplit",
    "GraphStore",
    "Manifest",
    "Target",
    "atoms_to_graph",
    "batch_graphs",
    "check_store",
    "prepare_store",
    "run_task",
    "store_summary",
    "write_store",
]
