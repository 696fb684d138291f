"""HydraGNN's own reader, from a checkout of HydraGNN.

``import hydragnn`` needs MPI and compiled extensions that reading a file does not. What the reader
imports without using it gets a stand-in, the communicator is that of one process, and ADIOS2 built
without MPI is opened without it. The reader's own code runs as it is.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Batch

_READER = "hydragnn.utils.datasets.adiosdataset"


class HydraGNN:
    """``AdiosDataset`` and PyG's collation.

    Parameters
    ----------
    checkout
        Root of a checkout of HydraGNN.
    file
        A BP5 file in HydraGNN's layout.
    split
        Name of the split.
    preload
        Keep everything in memory (HydraGNN's fastest way), or read each graph from disk.
    """

    def __init__(self, checkout: Path, file: Path, split: str, preload: bool) -> None:
        self.name = "HydraGNN, preload=True" if preload else "HydraGNN from disk"
        reader = load_reader(checkout)
        self._dataset = reader.AdiosDataset(str(file), split, _OneProcess(), preload=preload)
        # HydraGNN adds the name of the data set to each graph, a key that no other peer has to
        # make. Without a name it does not.
        self._dataset.dataset_name = None

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """See :class:`peers.Peer`."""
        return Batch.from_data_list([self._dataset[index] for index in indices.tolist()])


class _OneProcess:
    """What an MPI communicator of one process answers."""

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 1

    def bcast(self, value: Any, root: int = 0) -> Any:
        return value


def load_reader(checkout: Path) -> Any:
    """HydraGNN's module of the reader, ready for an ADIOS2 without MPI."""
    if _READER in sys.modules:
        return sys.modules[_READER]
    if not (checkout / "hydragnn" / "utils" / "datasets" / "adiosdataset.py").is_file():
        sys.exit(f"{checkout} is no checkout of HydraGNN; correct --hydragnn")
    one = _OneProcess()
    _stand_in("mpi4py", MPI=_stand_in("mpi4py.MPI", COMM_WORLD=one, COMM_SELF=one))
    # Packages whose __init__ imports all of HydraGNN: found as folders, not run.
    for package in ("hydragnn", "hydragnn.utils.datasets"):
        _stand_in(package, __path__=[str(checkout / package.replace(".", "/"))])
    # Used only where the reader is to choose among features, which it is not asked to.
    _stand_in("hydragnn.preprocess", update_predicted_values=None, update_atom_features=None)
    reader = import_module(_READER)
    with_communicator = reader.adios2_open
    vars(reader)["adios2_open"] = lambda path, mode, _: with_communicator(path, mode)
    return reader


def _stand_in(name: str, **contents: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module
    return module
