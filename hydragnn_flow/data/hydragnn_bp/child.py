"""Script that reads a BP5 file in a process of its own, as damage may crash or hang ADIOS2.

A HydraGNN file is read completely, as nothing else verifies its numbers. From the shards of a
store, whose checksums are verified, it reads all that may crash ADIOS2: metadata, and the first and
last value of each variable. It prints a space for each file and slice, then JSON: an empty object,
or a fault. It imports nothing of this package and prevents the import of torch, so that it starts
in a fraction of a second.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
from collections.abc import Iterator
from typing import IO, Any

# OpenBLAS would start a thread for each core.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# adios2 imports torch where it can, which takes seconds and is not needed to read.
sys.modules["torch"] = None  # type: ignore[assignment]

import adios2.bindings as adios  # noqa: E402
import numpy as np  # noqa: E402

_SLICE_BYTES = 4 << 20
_DTYPES = {"float": "float32", "double": "float64"} | {
    f"{kind}{bits}_t": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
}

Shape = tuple[int, ...]


class Fault(Exception):
    """Error for a damaged BP5 file; its two arguments are the file's name and the damage.

    The name is such as ``md.0``; ``data`` stands for any data file. The damage is the rest of a
    sentence that begins with the name.
    """


def read_all(path: str, progress: IO[str], whole: bool = True) -> None:
    """Read every attribute and variable of a BP5 file, and raise a Fault if it is damaged.

    If ``whole``, the values of each variable (named array) are compared with the Min and Max that
    were stored when they were written. The file is never closed: that would leave a file of timings
    in the temporary directory.

    Parameters
    ----------
    path
        Directory of the BP5 file.
    progress
        Text stream that receives a space for each slice.
    whole
        True to read all of each variable; False for only its first and last value, without
        comparison.

    Raises
    ------
    Fault
        For NaN, infinity, extremes other than the stored ones, contradictory metadata, types that
        no graph can hold, and more than one step, of which HydraGNN reads only the first.
    """
    context = adios.ADIOS()
    io = context.DeclareIO("read")
    io.SetEngine("BP5")
    io.SetParameter("Threads", "1")
    io.SetParameter("OpenTimeoutSecs", "1")  # instead of ten, if metadata are missing
    # ADIOS2 encodes every path as UTF-8, whatever the locale.
    engine = io.Open(os.fsencode(path).decode(), adios.Mode.ReadRandomAccess)
    if engine.Steps() != 1:
        raise Fault("md.idx", f"has {engine.Steps()} steps instead of one")
    for name in io.AvailableAttributes():
        attribute = io.InquireAttribute(name)
        attribute.DataString() if attribute.Type() == "string" else attribute.Data()
    described = io.AvailableVariables()
    if not described:  # asking for a variable would crash ADIOS2
        raise Fault("md.0", "(or mmd.0) has no variables that ADIOS2 can decode")
    extremes = {}
    for name in described:
        variable = io.InquireVariable(name)
        if variable.Type() not in _DTYPES:
            raise Fault("md.0", f"gives {name} the type {variable.Type()}, which no graph can hold")
        blocks = _blocks(engine, variable, name)
        if not whole:
            _read_ends(engine, variable)
            continue
        found = _extremes(engine, variable, name, progress)
        stated = _stated_extremes(blocks, variable.Type())
        if found is not None and stated is not None:
            extremes[name] = found, stated
    # Files written without Min and Max state a smallest value above the largest.
    if not any(low <= high for _, (low, high) in extremes.values()):
        return
    for name, (found, stated) in extremes.items():
        if not all(map(_alike, found, stated)):
            raise Fault(
                "data",
                f"holds {name} from {found[0]} to {found[1]} instead of from {stated[0]} to "
                f"{stated[1]}, as was written",
            )


def _read_ends(engine: Any, variable: Any) -> None:
    shape = list(variable.Shape())
    for start in ([0] * len(shape), [extent - 1 for extent in shape]) if all(shape) else ():
        variable.SetSelection((start, [1] * len(shape)))
        value = np.empty([1] * len(shape), _DTYPES[variable.Type()])
        engine.Get(variable, value, adios.Mode.Sync)


def _extremes(
    engine: Any, variable: Any, name: str, progress: IO[str]
) -> tuple[float, float] | None:
    """Return the smallest and largest value of a variable, reading all of it; None if empty.

    ``progress`` receives a space for each slice.
    """
    dtype = np.dtype(_DTYPES[variable.Type()])
    least, most = math.inf, -math.inf
    for start, count in selections(tuple(map(int, variable.Shape())), dtype.itemsize):
        # ADIOS2 may leave values unfilled without an error; they keep this number and are noticed.
        values = np.full(count, np.nan if dtype.kind == "f" else np.iinfo(dtype).min, dtype)
        variable.SetSelection((list(start), list(count)))
        engine.Get(variable, values, adios.Mode.Sync)
        low, high = values.min().item(), values.max().item()
        if not (math.isfinite(low) and math.isfinite(high)):
            raise Fault("data", f"holds NaN or infinity in {name}")
        least, most = min(least, low), max(most, high)
        print(end=" ", file=progress, flush=True)
    return (least, most) if least <= most else None


def _blocks(engine: Any, variable: Any, name: str) -> list[dict[str, str]]:
    """Return ADIOS2's descriptions of a variable's blocks (parts written at once) with values.

    The list is empty for uint8, which ADIOS2 cannot describe. A Fault is raised if the blocks hold
    more or fewer values than the variable's shape, as ADIOS2 would not fill the rest.
    """
    if variable.Type() == "uint8_t":  # stated as characters, which may be invalid
        return []
    blocks = [block for block in engine.BlocksInfo(name, 0) if "0" not in block["Count"].split(",")]
    held = sum(math.prod(map(int, block["Count"].split(","))) for block in blocks)
    if variable.Shape() and held != math.prod(variable.Shape()):
        raise Fault("md.0", f"gives {name} the shape {variable.Shape()}, but {held} values")
    return blocks


def _stated_extremes(blocks: list[dict[str, str]], kind: str) -> tuple[float, float] | None:
    """Return the stored Min and Max over the blocks of a variable; None without blocks.

    The file also has Min and Max of the whole variable, but in these an empty block, such as that
    of a process without edges, counts with the limits of the type. ``kind`` is ADIOS2's name of the
    type.
    """
    number = float if kind in ("float", "double") else int
    lows, highs = ([number(block[key]) for block in blocks] for key in ("Min", "Max"))
    return (min(lows), max(highs)) if blocks else None


def _alike(found: float, stated: float) -> bool:
    """Return True if a value matches the one that ADIOS2 states, with 6 digits for floats."""
    return found == stated if isinstance(found, int) else math.isclose(found, stated, rel_tol=1e-5)


def selections(shape: Shape, itemsize: int) -> Iterator[tuple[Shape, Shape]]:
    """Yield start and count of each slice, of about 4 MB, that together cover an array.

    ``shape`` is the shape of the array, ``itemsize`` the size of a value [bytes]. A longer row is
    divided into slices of its own: a slice with pieces of several rows makes ADIOS2 read everything
    between them.
    """
    if 0 in shape or not shape:
        return
    row_bytes = itemsize * math.prod(shape[1:])
    if row_bytes > _SLICE_BYTES and len(shape) > 1:
        for row in range(shape[0]):
            for start, count in selections(shape[1:], itemsize):
                yield (row, *start), (1, *count)
        return
    step = max(1, _SLICE_BYTES // row_bytes)
    for row in range(0, shape[0], step):
        yield (row, *(0 for _ in shape[1:])), (min(step, shape[0] - row), *shape[1:])


def main() -> None:
    """Read the BP5 file that the command line names, and print the damage found as JSON.

    If paths of shards follow the name, read the first and last value of each variable in the shards
    instead.
    """
    # This process exists to crash instead of the driver.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # ADIOS2's own output must not mix with the answer.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    found: dict[str, Any] = {}
    try:
        path, *shards = sys.argv[1:]
        for file in shards or [path]:
            print(end=" ", file=answer, flush=True)
            read_all(file, answer, whole=not shards)
    except Fault as fault:
        found = {"fault": fault.args, "file": file}
    json.dump(found, answer)
    answer.close()


if __name__ == "__main__":
    main()
