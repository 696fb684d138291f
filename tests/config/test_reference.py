"""The page of the configuration says what the types say: ``make docs`` brings it up to date."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from hydragnn_flow.config import NetworkConfig

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DOCS)
    import tables

    return tables


def test_the_page_is_not_stale(tables: ModuleType) -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert page == tables.render(page), "run `make docs`"


def test_every_table_is_on_the_page_once(tables: ModuleType) -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"<!-- table: (\w+) -->", page)) == sorted(tables._TABLES)
    assert page.count("<!-- end -->") == len(tables._TABLES)


def test_every_key_has_a_meaning(tables: ModuleType) -> None:
    rows = [row for row in tables.network().splitlines() if row.startswith("| `")]
    assert len(rows) > 80
    silent = [row for row in rows if re.search(r"\|\s*(\*Ours\.\*)?\s*\|$", row)]
    assert silent == []


def test_a_table_says_values_default_and_whose_key_it_is(tables: ModuleType) -> None:
    page = tables.network()
    assert "| `hidden_dim` | whole number ≥ 1 | required | Width of node features. |" in page
    assert re.search(r"\| `dropout` \| number ≥ 0 and < 1 \| `0.0` \| .* \*Ours\.\* \|", page)
    assert re.search(
        r"\| `graph_pooling` \| `mean`, `add`, `sum`, `max` \| `mean` \| [^*]*$", page, re.M
    )
    for section in NetworkConfig.model_fields:
        assert f"#### `{section}`" in page
