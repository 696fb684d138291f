"""Measures of uncertainty in the terminal and on the page, with their intervals."""

import io
from dataclasses import replace

from rich.console import Console

from hydragnn_flow.ensemble.bootstrap import MEASURES, interval_names
from hydragnn_flow.report.html import render
from hydragnn_flow.report.measures import measures_frame, measures_table, words
from hydragnn_flow.report.run_files import read_run

OF_INTERVALS = [name for c in (0.9, 0.995) for name in interval_names(c)]


def measured(unit, **special):
    """A target whose measures are all the same but some."""
    ends = {name: special.get(name, (0.5, 0.25, 0.75)) for name in (*MEASURES, *OF_INTERVALS)}
    measures = {name: dict(zip(("value", "lo", "hi"), e, strict=True)) for name, e in ends.items()}
    return {"unit": unit, "structures": 1, "values": 1234, "measures": measures}


TARGETS = {
    "energy": measured("eV", r2=(None, None, None), coverage_90=(1.0, 0.9375, 1.0)),
    "[red]<b>": measured("", mae=(0.5, None, None)),
}


def test_every_measure_has_words():
    told = [words(name) for name in (*MEASURES, "mae_flagged", "mae_unflagged", *OF_INTERVALS)]
    assert len(set(told)) == len(told)
    assert told[-2:] == ["99.5 % interval holds", "99.5 % interval width"]


def test_the_terminal_shows_each_target_and_fits():
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(measures_table(TARGETS))
    lines = console.export_text().splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert len(cells) == len(TARGETS) * len([*MEASURES, *OF_INTERVALS])
    assert cells[0] == ["energy", "MAE", "0.500", "0.250 to 0.750"]
    assert cells[1][0] == "eV"
    assert cells[2] == ["1 structure", "R²", "", ""], "undefined"
    assert [row[0] for row in cells[3:6]] == ["1,234 values", "0 flagged", ""]
    assert cells[10][1:] == ["90 % interval holds", "100.0 %", "93.8 % to 100.0 %"]
    assert cells[14] == ["[red]<b>", "MAE", "0.500", ""], "of one structure there is no interval"


def test_the_page_shows_them_below_the_errors(finished):
    # Without what is drawn from tables and segments, which takes seconds.
    run = replace(read_run(finished.directory), graphs=None, nodes=None, segments=[])
    assert run.ensemble is not None
    page = render(replace(run, ensemble={**run.ensemble, "measures": TARGETS}))
    frame = measures_frame(TARGETS)
    assert list(frame) == ["measure", "energy [eV]", "[red]<b>"]
    assert frame["energy [eV]"][:4].tolist() == ["1", "1,234", "0", "0.500 [0.250 to 0.750]"]
    for told in ("energy [eV]", "[red]&lt;b&gt;", "Spearman(|error|, std)", "93.8 % to 100.0 %"):
        assert told in page
    assert page.index("Accuracy on the test split") < page.index("Spearman")
