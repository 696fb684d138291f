"""Origins of a store's structures: the file of each, its index there and its id, on disk.

Shards keep HydraGNN's layout. So origins are in Parquet files of their own, one for each split,
with a row for each graph in the order of the split. A million structures of a thousand files take
less than a megabyte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydragnn_flow.config.sources import TEST
from hydragnn_flow.data.store.integrity import damaged

ORIGINS = "origins"
"""Name of the directory of origins in a store. Older stores, generated structures and files used in
place have none."""
MASKED = "masked"
"""Column of the labels that the preparation masks, as they are far off: JSON of value and reason by
target, or nothing. Older stores do not have it. The value is null if it is no single number."""


class Origin(NamedTuple):
    """Origin of a structure: its name in messages, its file, and its index and id there."""

    where: str
    """File and index of the structure in words."""
    file: str
    """Absolute path of the file; empty if the structure was generated."""
    frame: int
    """Index of the structure in the file, from 0."""
    id: str | None = None
    """Name of the structure in the file; None if it has none."""


def named(where: str, name: str | None) -> str:
    """Return what messages call a structure: its file and index, and its id if it has one."""
    return where if name is None else f"{where} (id {name})"


def origins_file(folder: Path, split: str) -> Path:
    """Return the path of a split's origins in the directory of a store."""
    return folder / ORIGINS / f"{split}.parquet"


def save_origins(path: Path, origins: Sequence[Origin]) -> None:
    """Write the origins of structures, in order, to a file."""
    import pyarrow as pa

    types = (pa.string(), pa.dictionary(pa.int32(), pa.string()), pa.int64(), pa.string())
    schema = pa.schema(zip(Origin._fields, types, strict=True))
    columns = [list(column) for column in zip(*origins, strict=True)]
    _write(path, pa.table(columns, schema=schema))


def where_of(path: Path, structure: int) -> str:
    """Return the name in messages of a structure, by its index in a file of origins.

    A negative index counts from the end.
    """
    return str(_read(path, ["where"])["where"][structure])


def divide_origins(
    paths: Iterable[Path], splits: Sequence[str], folder: Path, masked: Mapping[int, Any]
) -> None:
    """Write the origins of each split into the directory of a store.

    Parameters
    ----------
    paths
        Files of origins, which have all structures in order when read one after the other.
    splits
        Name of the split of each structure, [n]; empty for structures that are left out.
    folder
        Directory of the store.
    masked
        Value and reason by target of each structure with masked labels; those of the test split
        are not.
    """
    import numpy as np
    import pyarrow as pa

    origins = pa.concat_tables([_read(path, ["file", "frame", "id"]) for path in paths])
    said = {n: json.dumps(labels) for n, labels in masked.items() if splits[n] != TEST}
    told = pa.array(map(said.get, range(len(splits))), pa.string())
    origins = origins.append_column(MASKED, told)
    names = np.array(splits, dtype=object)
    (folder / ORIGINS).mkdir(exist_ok=True)
    for split in set(splits) - {""}:
        _write(origins_file(folder, split), origins.filter(pa.array(names == split)))


def load_origins(folder: Path, split: str, graphs: int) -> Any:
    """Read the origins of a split as an Arrow table: `file`, `frame`, `id`, perhaps `masked`.

    Parameters
    ----------
    folder
        Directory of the store.
    split
        Name of the split.
    graphs
        Number of graphs in the split.

    Returns
    -------
    pyarrow.Table or None
        Table with a row for each graph; None if the store has no origins.

    Raises
    ------
    StoreError
        If the file is missing or damaged, and those of other splits are there.
    """
    import pyarrow as pa

    path = origins_file(folder, split)
    if not path.parent.exists():
        return None
    if not path.exists():
        raise damaged(path, "is missing")
    try:
        table = _read(path)
    except (OSError, pa.ArrowException) as error:
        said = " ".join(str(error).split())
        raise damaged(path, f"cannot be read ({said})") from error
    if len(table) != graphs:
        raise damaged(path, f"has {len(table)} rows for {graphs} graphs")
    return table


def _read(path: Path, columns: Sequence[str] | None = None) -> Any:
    from pyarrow import parquet

    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        return file.read(columns)


def _write(path: Path, table: Any) -> None:
    from pyarrow import parquet

    parquet.write_table(
        table,
        path,
        compression="zstd",
        use_dictionary=["file"],
        column_encoding={"frame": "DELTA_BINARY_PACKED", "id": "DELTA_BYTE_ARRAY"},
        write_page_checksum=True,
    )
