"""Tables of named arrays."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from hydragnn_flow.errors import InputError


def read_columns(path: Path, text: Collection[str] = ()) -> dict[str, NDArray[Any]]:
    """The columns of a CSV, by their names in its first line.

    Parameters
    ----------
    path
        The CSV.
    text
        Columns that are not numbers, even where they look like some.

    Raises
    ------
    InputError
        Where the file cannot be read.
    """
    try:
        table = pd.read_csv(path, skipinitialspace=True, dtype=dict.fromkeys(text, str))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a CSV ({error}); correct it") from None
    for name in text:
        if name in table and any("\0" in str(cell) for cell in table[name]):
            raise InputError(f"{path} holds a NUL in its column {name!r}; correct it")
    return {str(name): table[name].to_numpy() for name in table.columns}
