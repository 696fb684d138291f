"""The page in a real browser: light and dark, on a phone and on A4, nothing fetched."""

import re

import pytest
from chromium import PROGRAM, chromium

from hydragnn_flow.report.html import write_report

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here: apt install chromium"),
    pytest.mark.xdist_group("chromium"),
]
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
# Width and height of each figure on the page, and whether its picture has pixels of its own.
FIGURES = """
Promise.all([...document.images].map(image => image.decode())).then(() =>
  [...document.querySelectorAll("figure")].map(figure => {
    const image = figure.querySelector("img"), box = figure.getBoundingClientRect();
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 64;
    const ink = canvas.getContext("2d");
    ink.drawImage(image, 0, 0, 64, 64);
    const shades = new Set(new Uint32Array(ink.getImageData(0, 0, 64, 64).data.buffer));
    return [box.left, box.right, box.height, shades.size];
  }))
"""


@pytest.fixture(scope="module")
def page(finished):
    return write_report(finished.directory)


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_figure_is_drawn_and_fits(tab, page, size, scheme):
    width, height = SIZES[size]
    tab.open(page, width, height, prefers_color_scheme=scheme)
    figures = tab.evaluate(FIGURES)
    assert len(figures) == 10
    for left, right, tall, shades in figures:
        assert 0 <= left < right <= width and tall > 100
        assert shades > 20, "a picture that is not one colour"
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    red, green, blue = map(int, re.findall(r"\d+", tab.evaluate(
        "getComputedStyle(document.body).backgroundColor")))  # fmt: skip
    assert (red + green + blue < 200) == (scheme == "dark")


def test_nothing_is_fetched(tab, page):
    tab.requests.clear()
    tab.open(page, *SIZES["desktop"])
    tab.evaluate(FIGURES)
    assert tab.complaints == []
    assert tab.requests[0] == page.resolve().as_uri()
    assert len(tab.requests) > 1
    assert all(address.startswith("data:image/") for address in tab.requests[1:])
    # The page's own policy keeps even a script that got into it from asking.
    tab.evaluate("fetch('http://example.com/').catch(() => 0)")
    assert "Content Security Policy" in " ".join(tab.complaints)
    tab.complaints.clear()


def test_the_configuration_is_printed(tab, page):
    tab.open(page, *SIZES["desktop"])
    is_open = "document.querySelector('details').open"
    assert not tab.evaluate(is_open)
    tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert tab.evaluate(is_open)


@pytest.mark.parametrize(
    ("asked", "holds"),
    [
        ("complete", lambda row: row["state"] == "complete"),
        ("hidden_dim>=32 pna", lambda row: int(row['hidden_dim']) >= 32 and 'PNA' in row.values()),
        ("mpnn_type=schnet", lambda row: row["mpnn_type"] == "SchNet"),
        ("seconds>9", lambda row: float(row["seconds [s]"]) > 9),
        ("nothing like it", lambda row: False),
    ],
)  # fmt: skip
def test_trials_are_filtered(tab, page, asked, holds):
    tab.open(page, *SIZES["desktop"])
    headings, rows = tab.evaluate(f"""(() => {{
      const input = document.querySelector("#trials input");
      input.value = {asked!r};
      input.dispatchEvent(new Event("input"));
      const table = document.querySelector("#trials table");
      const words = row => [...row.cells].map(cell => cell.textContent);
      const rows = [...table.tBodies[0].rows];
      return [words(table.tHead.rows[0]), rows.map(row => [...words(row), row.hidden])];
    }})()""")
    assert len(rows) == 16
    for *cells, hidden in rows:
        assert hidden != holds(dict(zip(headings, cells, strict=True)))


def test_trials_are_sorted_with_gaps_last(tab, page):
    tab.open(page, *SIZES["desktop"])
    gaussians = """(() => {
      const table = document.querySelector("#trials table");
      const headings = [...table.tHead.rows[0].cells];
      const column = headings.findIndex(cell => cell.textContent === "num_gaussians");
      headings[column].querySelector("button").click();
      return [...table.tBodies[0].rows].map(row => row.cells[column].textContent);
    })()"""
    for sign in (1, -1):
        cells = tab.evaluate(gaussians)
        known = [int(cell) for cell in cells if cell]
        assert known == sorted(known, key=lambda value: sign * value) and len(set(known)) > 1
        assert cells[len(known) :] == [""] * (16 - len(known))
