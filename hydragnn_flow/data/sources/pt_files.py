"""Files of PyG graphs, opened without running code from them."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.separate import separate
from torch_geometric.data.storage import GlobalStorage

from hydragnn_flow.errors import InputError

# Classes in a pickled Data object.
_PARTS_OF_DATA = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]


def load_graphs(path: Path) -> Sequence[Data]:
    """Open a file with one graph, a list of graphs, or an InMemoryDataset's content.

    Raises
    ------
    InputError
        If it cannot be read or holds anything else. Classes that could run code are not loaded; the
        message names them.
    """
    with torch.serialization.safe_globals(_PARTS_OF_DATA), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's of files that are refused below
        try:
            # Mapped if possible, so that reading a range of a large file reads only that range.
            content: Any = torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
        except Exception as error:  # torch may raise any exception
            raise InputError(f"{path} {_why_refused(path, error)}") from None
    if isinstance(content, Data):
        return [content]
    if isinstance(content, list) and content and all(type(one) is Data for one in content):
        return content
    if isinstance(content, tuple) and len(content) in (2, 3):
        data, slices = content[:2]
        data = Data.from_dict(data) if isinstance(data, dict) else data
        if isinstance(data, Data) and slices is None:
            return [data]
        if isinstance(data, Data) and isinstance(slices, dict) and slices:
            return _Collated(data, slices)
    raise InputError(
        f"{path} holds a {type(content).__name__} that is none of what can be read: a "
        "torch_geometric Data, a list of them, or what an InMemoryDataset saves"
    )


class _Collated(Sequence[Data]):
    """Graphs in joint arrays, separated when they are accessed."""

    def __init__(self, data: Data, slices: dict[str, Any]) -> None:
        self._data = data
        self._slices = slices

    def __len__(self) -> int:
        return len(next(iter(self._slices.values()))) - 1

    def __getitem__(self, index: Any) -> Any:
        return separate(
            cls=Data, batch=self._data, idx=index, slice_dict=self._slices, decrement=False
        )


def _why_refused(path: Path, error: Exception) -> str:
    try:
        unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:
        unsafe = []
    if unsafe:
        return (
            f"holds {', '.join(sorted(unsafe))}, which is no part of a plain torch_geometric Data "
            "and could run code when loaded; save plain Data instead"
        )
    reason = str(error).strip().partition("\n")[0].partition(". ")[0]
    # For a class it does not know, torch advises a way of loading that runs code from the file.
    if not reason or "weights_only" in str(error):
        reason = "it is no file of torch.save"
    return f"cannot be read as a file of PyG graphs ({reason}); save it again"
