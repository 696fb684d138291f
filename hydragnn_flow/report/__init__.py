"""What a person sees of a campaign: tables, figures and one HTML report."""

from hydragnn_flow.report.html import write_report
from hydragnn_flow.report.tables import accuracy_table, closing_table, trials_table

__all__ = ["accuracy_table", "closing_table", "trials_table", "write_report"]
