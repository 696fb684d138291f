"""Reading all of a HydraGNN file: a script, run in a process that may hang or die of it.

It prints JSON: the survey, or under ``fault`` what is wrong. It imports nothing of this package and
keeps torch from being imported, since to start must cost little.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
from collections.abc import Iterator
from typing import Any

# On a machine of many cores one thread for each would start, for nothing.
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
    """What is wrong: the files it can be found in, and the rest of the sentence."""


class File:
    """A BP5 file, of which nothing is believed.

    It is never closed: that would leave a file of timings in the directory for temporary files.
    """

    def __init__(self, path: str) -> None:
        self._context = adios.ADIOS()
        self._io = self._context.DeclareIO("read")
        self._io.SetEngine("BP5")
        self._io.SetParameter("Threads", "1")
        self._engine = self._io.Open(path, adios.Mode.ReadRandomAccess)
        self._variables = self._io.AvailableVariables()
        self._has_extremes = any(self._says_extremes(name) for name in self._variables)

    def splits(self) -> list[str]:
        """Names of the splits."""
        names = self._io.AvailableAttributes()
        splits = [name.removesuffix("/ndata") for name in names if name.endswith("/ndata")]
        for name in self._variables:
            if splits and not name.startswith(tuple(f"{split}/" for split in splits)):
                raise Fault("md.0", f"does not say of how many graphs {name} is")
        return splits

    def keys(self, split: str) -> set[str]:
        """The keys of a split of which there are variables."""
        end = "/variable_count"
        return {
            name.removeprefix(f"{split}/").removesuffix(end)
            for name in self._variables
            if name.startswith(f"{split}/") and name.endswith(end)
        }

    def strings(self, name: str) -> list[str]:
        """The values of an attribute of text."""
        attribute = self._io.InquireAttribute(name)
        if not attribute or attribute.Type() != "string":
            raise Fault("md.0", f"has no list of names {name}")
        return list(attribute.DataString())

    def number(self, name: str) -> int:
        """The value of an attribute that is a number."""
        attribute = self._io.InquireAttribute(name)
        if not attribute or attribute.Type() not in _DTYPES:
            raise Fault("md.0", f"has no number {name}")
        return int(np.atleast_1d(attribute.Data())[0])

    def has(self, name: str) -> bool:
        """Whether there is such a variable."""
        return name in self._variables

    def shape(self, name: str) -> Shape:
        """The shape of a variable."""
        return tuple(int(extent) for extent in self._variable(name).Shape())

    def dtype(self, name: str) -> np.dtype[Any]:
        """The data type of a variable."""
        kind = self._variable(name).Type()
        if kind not in _DTYPES:
            raise Fault("md.0", f"gives {name} the type {kind}, which no graph can hold")
        return np.dtype(_DTYPES[kind])

    def whole(self, name: str, length: int) -> Any:
        """A variable of one dimension of the length given."""
        if self.shape(name) != (length,):
            raise Fault("md.0", f"does not give {name} the shape [{length}]")
        return np.concatenate([part for _, part in self.slices(name)])

    def slices(self, name: str) -> Iterator[tuple[Shape, Any]]:
        """Position and values of parts of some megabytes; at the end Min and Max are checked."""
        variable, shape, dtype = self._variable(name), self.shape(name), self.dtype(name)
        least, most = math.inf, -math.inf
        for start, count in selections(shape, dtype.itemsize):
            # What ADIOS2 does not fill, as happens without an error, keeps this and is noticed.
            part = np.full(count, np.nan if dtype.kind == "f" else np.iinfo(dtype).min, dtype)
            variable.SetSelection((list(start), list(count)))
            self._engine.Get(variable, part, adios.Mode.Sync)
            low, high = part.min().item(), part.max().item()
            if not (math.isfinite(low) and math.isfinite(high)):
                raise Fault("data", f"holds NaN or infinity in {name}")
            least, most = min(least, low), max(most, high)
            yield start, part
        if self._has_extremes and least <= most:
            said = self._variables[name]
            if not (_alike(least, said["Min"]) and _alike(most, said["Max"])):
                raise Fault(
                    "data",
                    f"holds {name} from {least} to {most} instead of from {said['Min']} to "
                    f"{said['Max']}, as was written",
                )

    def _variable(self, name: str) -> Any:
        variable = self._io.InquireVariable(name)
        if not variable:
            raise Fault("md.0", f"has no variable {name}")
        return variable

    def _says_extremes(self, name: str) -> bool:
        """Whether the file was written with Min and Max; without, they are said to be zero."""
        if self._variables[name]["Type"] in ("int8_t", "uint8_t"):
            return False  # given as characters, which need not be any
        return any(
            float(block["Min"]) <= float(block["Max"]) for block in self._engine.BlocksInfo(name, 0)
        )


def selections(shape: Shape, itemsize: int) -> Iterator[tuple[Shape, Shape]]:
    """Starts and counts that cover an array of some dimensions in parts of some megabytes.

    Of rows longer than that each is taken alone: a selection over parts of several makes ADIOS2
    read all that lies between.
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


def survey_split(file: File, split: str) -> dict[str, Any]:
    """Read a split and check what its keys must agree on."""
    graphs = file.number(f"{split}/ndata")
    stored = file.keys(split)
    keys = file.strings(f"{split}/keys") if graphs else []
    # A shard of a store has it unlisted, as HydraGNN's reader fails at a key of that name.
    keys += [key for key in ("dataset_name",) if key in stored - set(keys)]
    if set(keys) != stored:
        differing = ", ".join(sorted(set(keys) ^ stored))
        raise Fault("md.0", f"contradicts itself about the keys {differing} of {split}")
    if graphs == 0:
        return {"graphs": 0, "atoms": 0, "edges": 0, "keys": {}}
    for key in ("x", "edge_index"):
        if key not in keys:
            raise Fault("md.0", f"has no key {key} in {split}")
    atoms = read_counts(file, f"{split}/x", graphs)
    if (atoms == 0).any():
        raise Fault("data", f"holds a graph without atoms in {split}")
    edges = read_edges(file, f"{split}/edge_index", atoms)
    expected = {"pos": atoms, "edge_shifts": edges, "edge_attr": edges}
    for key in keys:
        if key == "edge_index":
            continue
        name = f"{split}/{key}"
        counts = read_counts(file, name, graphs)
        if not np.array_equal(counts, expected.get(key, counts)):
            raise Fault("data", f"holds other numbers of rows in {name} than of atoms or edges")
        if file.has(name):
            for _ in file.slices(name):
                pass
    return {
        "graphs": graphs,
        "atoms": int(atoms.sum()),
        "edges": int(edges.sum()),
        "keys": {key: describe(file, f"{split}/{key}") for key in keys},
    }


def describe(file: File, name: str) -> dict[str, Any] | None:
    """What a key is; nothing is stored of one that no graph has a row of."""
    if not file.has(name):
        return None
    return {
        "dtype": file.dtype(name).name,
        "shape": file.shape(name),
        "dim": file.number(f"{name}/variable_dim"),
    }


def read_counts(file: File, name: str, graphs: int) -> Any:
    """Rows of a key in each graph; they must be those that are there, one graph after the other."""
    counts = file.whole(f"{name}/variable_count", graphs).astype(np.int64)
    offsets = file.whole(f"{name}/variable_offset", graphs)
    if (counts < 0).any() or not np.array_equal(offsets, np.cumsum(counts) - counts):
        raise Fault("data", f"holds graphs in {name} that do not follow one another")
    if not counts.any() and not file.has(name):
        return counts
    dim, shape = file.number(f"{name}/variable_dim"), file.shape(name)
    if not 0 <= dim < len(shape) or shape[dim] != counts.sum() or (0 in shape and counts.any()):
        raise Fault("data", f"holds another number of rows in {name} than its graphs have")
    return counts


def read_edges(file: File, name: str, atoms: Any) -> Any:
    """Edges of each graph; all must join atoms of their graph.

    HydraGNN joins along the dimension that varies, and along the first where none does: where all
    graphs have e edges the array is [2 n_graphs, e], otherwise [2, sum of edges].
    """
    counts = read_counts(file, name, len(atoms))
    if not file.has(name):
        return counts
    dim, shape = file.number(f"{name}/variable_dim"), file.shape(name)
    if len(shape) != 2 or (dim == 1 and shape[0] != 2) or (dim == 0 and (counts != 2).any()):
        raise Fault("md.0", f"does not give {name} two rows in each graph")
    ends = np.cumsum(counts)
    for start, part in file.slices(name):
        first, last = start[dim], start[dim] + part.shape[dim]
        graphs = np.searchsorted(ends, np.arange(first, last), side="right")
        limits = np.expand_dims(atoms[graphs], 1 - dim)
        if (part < 0).any() or (part >= limits).any():
            raise Fault("data", f"holds an edge in {name} of an atom that its graph does not have")
    return counts if dim == 1 else np.full(len(atoms), shape[1], dtype=np.int64)


def _alike(found: float, said: str) -> bool:
    """Whether a number is the one that ADIOS2 writes with 7 digits, or an integer with all."""
    if isinstance(found, int):
        return found == int(said)
    return math.isclose(found, float(said), rel_tol=1e-6)


def main() -> None:
    """Survey the file named on the command line."""
    # Crashing is what this process is for.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # What ADIOS2 may print is no part of the answer.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        file = File(sys.argv[1])
        splits = {name: survey_split(file, name) for name in file.splits()}
    except Fault as fault:
        json.dump({"fault": fault.args}, answer)
    else:
        json.dump({"splits": splits}, answer)
    answer.close()


if __name__ == "__main__":
    main()
