"""Tables of the documentation are those that the code gives; ``make docs`` writes them."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    "name", ["configuration", "data", "how-to/any-objective", "models", "search", "sites"]
)
def test_no_page_is_stale(name, tables):
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert page == tables.render(page), "run `make docs`"


def test_every_table_is_on_a_page_once(tables):
    pages = "".join(page.read_text(encoding="utf-8") for page in tables.PAGES)
    assert sorted(re.findall(r"<!-- table: (\w+) -->", pages)) == sorted(tables._TABLES)
    assert pages.count("<!-- end -->") == len(tables._TABLES)


def test_every_key_has_a_meaning(tables):
    rows = [row for row in tables.network().splitlines() if row.startswith("| `")]
    assert len(rows) > 80
    silent = [row for row in rows if re.search(r"\|\s*(\*Ours\.\*)?\s*\|$", row)]
    assert silent == []
