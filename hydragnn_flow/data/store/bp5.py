"""ADIOS2 calls that a store needs, with the checks that ADIOS2 itself does not make.

Reading past the end returns zeros, a buffer of the wrong size corrupts the heap, and an array that
is not contiguous is read and written scrambled, all without an error; hence every selection, buffer
and array is checked here before ADIOS2 sees it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import adios2
import adios2.bindings as adios
import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.errors import StoreError

_DTYPES: dict[str, np.dtype[Any]] = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    **{f"{kind}{n}_t": np.dtype(f"{kind}{n}") for kind in ("int", "uint") for n in (8, 16, 32, 64)},
}


class Bp5Writer:
    """Writer of an ADIOS2 BP5 file, block by block, so that memory stays bounded.

    The file has one ADIOS2 step.

    Parameters
    ----------
    path
        Directory to create; ADIOS2 would silently overwrite an existing one.

    Raises
    ------
    StoreError
        If the file cannot be written, from the constructor and every method.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._context = adios.ADIOS()
        self._io = self._context.DeclareIO("write")
        self._io.SetEngine("BP5")
        self._joined: dict[str, Any] = {}
        where = _utf8(path)
        with self._writing():
            self._engine = self._io.Open(where, adios.Mode.Write)
            self._engine.BeginStep()

    def append(self, name: str, array: NDArray[Any], dim: int) -> None:
        """Write an array as the next block of a variable (named array) that grows along ``dim``.

        Arrays without rows are skipped.
        """
        if array.shape[dim] == 0:
            return
        whole = _writable(array)
        shape = list(whole.shape)
        with self._writing():
            variable = self._joined.get(name)
            if variable is None:
                full = shape.copy()
                full[dim] = adios2.JoinedDim
                variable = self._io.DefineVariable(name, whole, full, [], shape)
                self._joined[name] = variable
            variable.SetSelection(([], shape))
            self._engine.Put(variable, whole, adios.Mode.Sync)

    def put(self, name: str, array: NDArray[Any]) -> None:
        """Write a new variable (named array) as a whole."""
        whole = _writable(array)
        shape = list(whole.shape)
        with self._writing():
            variable = self._io.DefineVariable(
                name, whole, shape, [0] * whole.ndim, shape, adios.ConstantDims
            )
            self._engine.Put(variable, whole, adios.Mode.Sync)

    def attribute(self, name: str, value: str | list[str] | NDArray[np.int64]) -> None:
        """Write an attribute of the file: a name with a text, texts or integers."""
        self._io.DefineAttribute(name, value)

    def flush(self) -> int:
        """Write pending data, and return the size of the data file ``data.0`` [bytes].

        Without this call ADIOS2 keeps a copy of all data until the file is closed.
        """
        with self._writing():
            self._engine.PerformDataWrite()
        return (self.path / "data.0").stat().st_size

    def close(self) -> None:
        """Write all that is pending and close the finished file."""
        with self._writing():
            self._engine.EndStep()
            self._engine.Close()
        # Timings of the write, which differ each time and are not data.
        (self.path / "profiling.json").unlink(missing_ok=True)

    def abort(self) -> None:
        """Empty and close a file that will not be finished."""
        try:
            # ADIOS2 still writes the rest; on a full disk this makes room for it.
            os.truncate(self.path / "data.0", 0)
            self._engine.Close()
        except (OSError, RuntimeError, ValueError):
            # Freed, it would try again to write, fail again, and take the process down.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._context))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Context manager: convert errors of ADIOS2 raised inside it to a StoreError."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            lines = [line.strip(" :") for line in str(error).splitlines() if line.strip(" :")]
            reason = lines[-1] if lines else type(error).__name__
            # ADIOS2 does not say why; with less than a few blocks of room the disk is full.
            if shutil.disk_usage(self.path.parent).free < 16 << 20:
                reason = "its disk is full"
            raise StoreError(
                f"{self.path} cannot be written ({reason}); "
                "free space on its disk or choose another directory"
            ) from error


class Bp5File:
    """ADIOS2 BP5 file that is open for reading.

    Threads take turns to read: if two threads used one ADIOS2 engine at a time, each would get the
    other's values.

    Raises
    ------
    StoreError
        If ADIOS2 cannot open the file, or a variable or attribute is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._context = adios.ADIOS()
        self._io = self._context.DeclareIO("read")
        self._io.SetEngine("BP5")
        # Threads cost more than they save on the small reads of a store.
        self._io.SetParameter("Threads", "1")
        self._found: dict[str, Bp5Variable] = {}
        self._turn = threading.Lock()
        where = _utf8(path)
        try:
            self._engine = self._io.Open(where, adios.Mode.ReadRandomAccess)
        except (RuntimeError, ValueError) as error:
            raise StoreError(
                f"{path} cannot be opened as an ADIOS2 BP5 file; give a store or a HydraGNN .bp"
            ) from error

    def close(self) -> None:
        """Release the file; reads of its variables in progress may finish.

        ADIOS2 frees everything with its context. ADIOS2's own Close would leave a file of timings
        in the directory for temporary files.
        """
        self._found.clear()
        del self._engine, self._io, self._context

    @property
    def attributes(self) -> list[str]:
        """Names of the file's attributes, each of which is a text, texts or numbers."""
        return list(self._io.AvailableAttributes())

    @property
    def variables(self) -> list[str]:
        """Names of the file's variables (named arrays)."""
        return list(self._io.AvailableVariables())

    def variable(self, name: str) -> Bp5Variable:
        """Return a variable (named array) of the file, of which parts can be read."""
        found = self._found.get(name)
        if found is None:
            variable = self._io.InquireVariable(name)
            if not variable:
                raise StoreError(
                    f"{self.path} has no variable {name}; it is not in HydraGNN's layout"
                )
            dtype = _DTYPES.get(variable.Type())
            if dtype is None or not variable.Shape():
                raise StoreError(
                    f"{self.path}: {name} has the type {variable.Type()} and the shape "
                    f"{list(variable.Shape())}, which no graph can hold"
                )
            handles = (self._engine, self._io, self._context)
            found = Bp5Variable(f"{self.path}: {name}", variable, dtype, handles, self._turn)
            self._found[name] = found
        return found

    def read(self, name: str) -> NDArray[Any]:
        """Return all values of a variable (named array), in its stored shape and type."""
        variable = self.variable(name)
        array = np.empty(variable.shape, dtype=variable.dtype)
        variable.read_into(array, 0)
        return array

    def attribute(self, name: str) -> list[Any]:
        """Return the values of the file's attribute ``name``: texts or numbers."""
        attribute = self._io.InquireAttribute(name)
        if not attribute:
            raise StoreError(f"{self.path} has no attribute {name}; it is not in HydraGNN's layout")
        if attribute.Type() == "string":
            return list(attribute.DataString())
        return [value.item() for value in np.atleast_1d(attribute.Data())]


class Bp5Variable:
    """Variable (named array) of an open BP5 file, of which parts can be read.

    Attributes
    ----------
    shape
        Extents of the variable's dimensions.
    dtype
        Data type of the stored values.
    """

    def __init__(
        self,
        name: str,
        variable: Any,
        dtype: np.dtype[Any],
        handles: tuple[Any, ...],
        turn: threading.Lock,
    ) -> None:
        self.shape: tuple[int, ...] = tuple(variable.Shape())
        self.dtype = dtype
        self._name, self._variable, self._turn = name, variable, turn
        self._handles = handles  # engine, and what must outlive it
        self._zeros = [0] * (len(self.shape) - 1)

    def read_into(self, out: NDArray[Any], start: int, row: int | None = None) -> None:
        """Fill ``out`` with the variable's values from ``start`` on along the first dimension.

        Parameters
        ----------
        out
            Array to fill, C-contiguous and of the variable's type; any length along the first
            dimension, complete along the others.
        start
            Index of the first value along the first dimension.
        row
            Row of a two-dimensional variable to read alone, from ``start`` within it. A selection
            over pieces of several rows would read everything between them.

        Raises
        ------
        StoreError
            If the selection reaches past the end, or the bytes cannot be read.
        """
        if row is None:
            extent, rest = self.shape[0], self.shape[1:]
            selection = [start, *self._zeros], list(out.shape)
        else:
            extent, rest = self.shape[1] if 0 <= row < self.shape[0] else 0, ()
            selection = [row, start], [1, len(out)]
        fits = out.shape[1:] == rest and out.dtype == self.dtype and out.flags.c_contiguous
        if not fits or not 0 <= start <= extent - len(out):
            raise StoreError(
                f"{self._name} is {self.dtype}, {list(self.shape)}, and does not fit an array of "
                f"{out.dtype}, {list(out.shape)}, from {selection[0]} on; read it as it is stored"
            )
        if out.size == 0:  # ADIOS2 fails on a Get of nothing
            return
        try:
            with self._turn:
                self._variable.SetSelection(selection)
                self._handles[0].Get(self._variable, out, adios.Mode.Sync)
        except (RuntimeError, ValueError) as error:
            raise StoreError(
                f"{self._name} cannot be read ({error}); restore the file from a copy"
            ) from error


def _writable(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array itself if ADIOS2 writes it correctly, otherwise a copy.

    ADIOS2 scrambles arrays that are not contiguous, and refuses arrays that are marked read-only.
    """
    return np.require(array, requirements=["C", "W"])


def _utf8(path: Path) -> str:
    """Return the text that ADIOS2, which encodes every path as UTF-8, turns into a path's bytes.

    Under a locale of another encoding that is not the text of the path.
    """
    try:
        return os.fsencode(path).decode()
    except UnicodeDecodeError:
        raise StoreError(
            f"{str(path)!a} is not named in UTF-8, and ADIOS2 opens no other path; rename it"
        ) from None
