"""The few ADIOS2 calls a store needs, with the guards ADIOS2 itself does not have.

Reading past the end returns zeros, a buffer of the wrong size corrupts the heap, and an array that
is not contiguous is written scrambled, all without an error; hence only whole variables are read,
into arrays made here for them, and only contiguous arrays are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import adios2.bindings as adios
import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.errors import InputError

# Each write to disk begins on a page of its own; small arrays are better gathered first.
_BUFFER_BYTES = 1 << 22

_DTYPES = {
    "float": np.float32,
    "double": np.float64,
    "int8_t": np.int8,
    "int16_t": np.int16,
    "int32_t": np.int32,
    "int64_t": np.int64,
    "uint8_t": np.uint8,
    "uint16_t": np.uint16,
    "uint32_t": np.uint32,
    "uint64_t": np.uint64,
}


def write_bp5(
    path: Path,
    variables: Iterable[tuple[str, NDArray[Any]]],
    attributes: Mapping[str, str | list[str] | NDArray[np.int64]],
) -> None:
    """Write a BP5 file of one step.

    Parameters
    ----------
    path
        Directory to create; ADIOS2 would silently overwrite an existing one.
    variables
        Names and whole arrays; taken one at a time, and written out as they fill the buffer, so
        that no second copy of all of them is ever in memory.
    attributes
        Names and values.
    """
    context = adios.ADIOS()
    io = context.DeclareIO("write")
    io.SetEngine("BP5")
    engine = io.Open(str(path), adios.Mode.Write)
    try:
        engine.BeginStep()
        pending = 0
        for name, array in variables:
            # A copy where needed: ADIOS2 also refuses arrays marked read-only.
            whole = np.require(array, requirements=["C", "W"])
            shape = list(whole.shape)
            variable = io.DefineVariable(
                name, whole, shape, [0] * whole.ndim, shape, adios.ConstantDims
            )
            engine.Put(variable, whole, adios.Mode.Sync)
            pending += whole.nbytes
            if pending > _BUFFER_BYTES:
                engine.PerformDataWrite()
                pending = 0
        for name, value in attributes.items():
            io.DefineAttribute(name, value)
        engine.EndStep()
    finally:
        engine.Close()
    # Timings of the write, different each time: no part of the data.
    (path / "profiling.json").unlink(missing_ok=True)


class Bp5File:
    """A BP5 file open for reading; a context manager.

    One engine belongs to one thread: two threads reading through the same one get each other's
    numbers.

    Raises
    ------
    InputError
        Where ADIOS2 cannot open the file, or a variable or attribute is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._context = adios.ADIOS()
        self._io = self._context.DeclareIO("read")
        self._io.SetEngine("BP5")
        # Threads cost more than they save on the small reads of a store.
        self._io.SetParameter("Threads", "1")
        try:
            self._engine = self._io.Open(str(path), adios.Mode.ReadRandomAccess)
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"{path} cannot be opened as an ADIOS2 BP5 file; give a store or a HydraGNN .bp"
            ) from error

    def __enter__(self) -> Bp5File:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._engine.Close()

    def read(self, name: str) -> NDArray[Any]:
        """The whole of one variable."""
        variable = self._io.InquireVariable(name)
        if not variable:
            raise InputError(f"{self.path} has no variable {name}; it is not in HydraGNN's layout")
        dtype = _DTYPES.get(variable.Type())
        if dtype is None:
            raise InputError(
                f"{self.path}: {name} has the type {variable.Type()}, which no graph can hold"
            )
        array = np.zeros(variable.Shape(), dtype=dtype)
        # ADIOS2 fails on a Get of nothing.
        if array.size:
            try:
                self._engine.Get(variable, array, adios.Mode.Sync)
            except (RuntimeError, ValueError) as error:
                raise InputError(
                    f"{self.path}: {name} cannot be read; restore the file from a copy"
                ) from error
        return array

    def attribute(self, name: str) -> list[Any]:
        """The values of one attribute."""
        attribute = self._io.InquireAttribute(name)
        if not attribute:
            raise InputError(f"{self.path} has no attribute {name}; it is not in HydraGNN's layout")
        if attribute.Type() == "string":
            return list(attribute.DataString())
        return [value.item() for value in np.atleast_1d(attribute.Data())]

    def attribute_names(self) -> list[str]:
        """The names of all attributes."""
        return list(self._io.AvailableAttributes())
