"""Tables, figures and the HTML report of a campaign."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydragnn_flow.lazy import lazily

if TYPE_CHECKING:
    from hydragnn_flow.report.closing import closing_table
    from hydragnn_flow.report.html import write_report
    from hydragnn_flow.report.tables import accuracy_table, trials_table
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "accuracy_table": "tables",
            "closing_table": "closing",
            "trials_table": "tables",
            "write_report": "html",
        },
    )

__all__ = [
    "accuracy_table",
    "closing_table",
    "trials_table",
    "write_report",
]
