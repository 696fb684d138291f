"""HydraGNN's own reader, from a checkout of HydraGNN.

``import hydragnn`` needs MPI and compiled extensions that reading a file does not. Imports that the
reader does not use are replaced, the communicator is that of one process, and ADIOS2 built without
MPI is opened without it. The reader's own code runs as it is.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Batch

from peers.hydragnn_package import OneProcess, stand_in, stand_in_for_mpi

_READER = "hydragnn.utils.datasets.adiosdataset"


class HydraGNN:
    """``AdiosDataset`` and PyG's collation.

    With ``preload`` it holds the arrays in memory and makes objects of them for each batch, as
    HydraGNN's examples for large data do.

    Parameters
    ----------
    checkout
        Root of a checkout of HydraGNN.
    file
        A BP5 file in HydraGNN's layout.
    split
        Name of the split.
    """

    name = "HydraGNN, preload=True"

    def __init__(self, checkout: Path, file: Path, split: str) -> None:
        dataset = load_reader(checkout).AdiosDataset
        self._dataset = dataset(str(file), split, OneProcess(), preload=True, enable_cache=False)
        # HydraGNN adds the name of the data set to each graph, a key that no other peer has to
        # make. Without a name it does not.
        self._dataset.dataset_name = None

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """See :class:`peers.Peer`."""
        return Batch.from_data_list([self._dataset[index] for index in indices.tolist()])


def load_reader(checkout: Path) -> Any:
    """HydraGNN's module of the reader, ready for an ADIOS2 without MPI."""
    if _READER in sys.modules:
        return sys.modules[_READER]
    if not (checkout / "hydragnn" / "utils" / "datasets" / "adiosdataset.py").is_file():
        sys.exit(f"{checkout} is no checkout of HydraGNN; correct --hydragnn")
    stand_in_for_mpi()
    # Packages whose __init__ imports all of HydraGNN: found as folders, not run.
    for package in ("hydragnn", "hydragnn.utils.datasets"):
        stand_in(package, __path__=[str(checkout / package.replace(".", "/"))])
    # Used only where the reader is to choose among features, which it is not asked to.
    stand_in("hydragnn.preprocess", update_predicted_values=None, update_atom_features=None)
    reader = import_module(_READER)
    with_communicator = reader.adios2_open
    vars(reader)["adios2_open"] = lambda path, mode, _: with_communicator(path, mode)
    return reader
