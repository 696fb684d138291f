"""Results of benchmarks with machine, code and versions, kept in ``docs/results`` and shown on
pages.

A program makes a :class:`Run` before it measures, and ends it with its tables::

    run = Run("store", measures=["hydragnn_flow/data/store"], packages=["adios2"])
    ...
    result = run.end([Table(("path", "ratio"), rows)], details={"rounds": rounds})
    print(result.markdown())
    result.write(path)
"""

from results.lines import Line, behind, missed, table_of
from results.result import Result, Run
from results.table import Cell, Number, Table

__all__ = ["Cell", "Line", "Number", "Result", "Run", "Table", "behind", "missed", "table_of"]
