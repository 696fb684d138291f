"""Structures to predict, one after the other, with where they come from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from numbers import Integral
from typing import Any, NamedTuple, TypeVar

from ase.data import chemical_symbols

from hydragnn_flow.data.sources.single import check_sites
from hydragnn_flow.data.sources.structures import Found
from hydragnn_flow.ensemble.predictions_table import GRAPH_ID, ID

CHUNK = 1024
"""Structures that are predicted, laid out and written together. A part of `predict --site` begins
at a multiple of it in its file or split, so that one file or split is batched as one process
would, and its predictions are the same to the last digit. Of a directory the files that are read
together differ, and digits of rounding with them."""

_NAMES = (ID, "material_id", "structure_id", "identifier", "name")
"""Keys by which files and `Atoms.info` name a structure; the first that is there counts."""

T = TypeVar("T")


class Record(NamedTuple):
    """A structure to predict."""

    found: Found
    """The structure, and all that is said of it."""
    file: str | None = None
    """Name of its file, if it comes from one."""
    frame: int = 0
    """Its number in that file, from 0."""


def columns_of(records: Sequence[Record], first: int) -> dict[str, list[Any]]:
    """First columns of the predictions table: where structures come from.

    Parameters
    ----------
    records
        Some structures.
    first
        Number of the first of them among all that are predicted.
    """
    columns: dict[str, list[Any]] = {GRAPH_ID: list(range(first, first + len(records)))}
    if any(record.file is not None for record in records):
        columns |= {"file": [r.file for r in records], "frame": [r.frame for r in records]}
    columns["formula"] = [_formula(record.found) for record in records]
    columns[ID] = [_name(record.found.values) for record in records]
    return columns


def fault_of(record: Record) -> str | None:
    """Why a file's structure has no graph, whatever the ensemble; None if it may have one."""
    if record.file is None:
        return None  # occupancies may be those of the file that it was once made of
    try:
        check_sites(record.found.atoms)
    except ValueError as error:
        return str(error)
    return None


def chunks(things: Iterable[T]) -> Iterator[list[T]]:
    """Things in lists of `CHUNK`; the last may be shorter."""
    rest = iter(things)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk


def _formula(found: Found) -> str:
    if any(number not in range(len(chemical_symbols)) for number in found.atoms.numbers.tolist()):
        return ""
    return str(found.atoms.symbols.formula.format("hill"))


def _name(values: Mapping[str, Any]) -> str | None:
    for key in _NAMES:
        value = values.get(key)
        if isinstance(value, (str, Integral)) and not isinstance(value, bool):
            return re.sub(r"\s+", " ", str(value)).strip() or None
    return None
