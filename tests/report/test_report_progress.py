"""What is logged where there is no terminal."""

import io

import pytest
from rich.console import Console

from hydragnn_flow.report.progress import CampaignView


@pytest.mark.parametrize("total", [1, 3, 29, 1000])
def test_the_last_line_is_always_there_and_once(total):
    output = io.StringIO()
    with CampaignView(Console(file=output)) as view:
        for done in range(total + 1):
            view.step("structures", done, total)
        view.step("structures", total, total)
    lines = output.getvalue().splitlines()
    assert lines[-1] == f"structures: {total}/{total}"
    assert len(set(lines)) == len(lines) <= 11
