"""What the files of a BP5 directory must say of one another, checked without ADIOS2.

A BP5 directory has no checksums, but much is in it twice. ``md.idx`` says where the metadata lie
in ``md.0`` and the data of each writer in ``data.N``; ``md.0`` says how long these data are and
which parts of them are whose; ``mmd.0`` describes the records of ``md.0`` and names each
description by its hash. So what ADIOS2 would wait for in vain or crash on is found here, in
milliseconds: a file that is missing, too short or too long, and nearly every change to ``md.idx``,
``md.0`` and ``mmd.0``. The values in ``data.N`` are left, and in ``md.0`` those of attributes and
of Min and Max.

The layout is that of ADIOS2's BP5Engine.h and BP5Base.h, the same in ADIOS2 2.9 to 2.12. Of what
is written in another way nothing is said.
"""

from __future__ import annotations

from pathlib import Path

from hydragnn_flow.data.store.foreign.damage import damaged
from hydragnn_flow.data.store.foreign.index import Index, read_index
from hydragnn_flow.data.store.foreign.metadata import check_metadata, read_formats
from hydragnn_flow.errors import StoreError


def check_container(path: Path) -> None:
    """Check that the files of a BP5 directory are there and fit one another.

    Raises
    ------
    StoreError
        Naming the file that is missing or damaged, with the one that it contradicts.
    """
    for name in ("md.idx", "md.0", "mmd.0"):
        part = path / name
        if not part.is_file() or part.stat().st_size == 0:
            raise StoreError(f"{part} is missing or empty; restore {path} from a copy")
    index = read_index(path / "md.idx")
    if index is None:
        return
    formats = read_formats(path / "mmd.0")
    lengths = check_metadata(path / "md.0", index, formats)
    _check_data(path, index, lengths)


def _check_data(path: Path, index: Index, lengths: list[int | None]) -> None:
    """Check that ``data.N`` hold what was written early and the rest, and nothing else."""
    places: dict[int, list[tuple[int, int]]] = {}
    for subfile, pieces, last, length in zip(
        index.subfiles, index.pieces, index.last, lengths, strict=True
    ):
        if length is None:
            return
        rest = length - sum(size for _, size in pieces)
        if rest < 0:
            raise damaged(path / "md.0", "says that less was written than md.idx does")
        # Where nothing is written the position means nothing.
        written = [(start, start + size) for start, size in (*pieces, (last, rest)) if size]
        places.setdefault(subfile, []).extend(written)
    for subfile, intervals in places.items():
        end = 0
        for start, stop in sorted(intervals):
            if start < end:
                raise damaged(path / "md.idx", f"has data at the same place of data.{subfile}")
            end = stop
        data = path / f"data.{subfile}"
        if end and not data.is_file():
            raise damaged(data, "is missing, and md.idx says that data are in it")
        if end and (size := data.stat().st_size) != end:
            raise damaged(data, f"has {size} bytes instead of the {end} that md.0 and md.idx say")
