"""The tables of docs/models.md say what the types promise and which keys they read."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from model_cases import alloy, as_batch, network

from hydragnn_flow.config import load_network
from hydragnn_flow.config.network.architecture import READ_BY
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import PROPERTIES, HydraModel

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
Make = Callable[..., HydraModel]
_LENGTHS = {"always": "always", "request": "on request", "never": "never"}


def _table(name: str) -> dict[str, dict[str, str]]:
    """Rows of a table of the page by type, their cells by column."""
    page = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"<!-- table: {name} -->\n(.*?)\n<!-- end -->", page, flags=re.DOTALL)
    assert found is not None, name
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()
    ]
    types = [row[0].strip("`") for row in rows]
    assert len(set(types)) == len(types)
    return {row[0].strip("`"): dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def _word(promised: bool) -> str:
    return "yes" if promised else "no"


@pytest.mark.parametrize("name", ["types", "properties"])
def test_every_type_has_a_row(name: str) -> None:
    assert _table(name).keys() == PROPERTIES.keys()


def test_the_page_says_what_is_promised(mpnn: str) -> None:
    row, promised = _table("properties")[mpnn], PROPERTIES[mpnn]
    assert row["lengths"] == _LENGTHS[promised.lengths]
    assert row["angles"] == _word(promised.sees_angles)
    assert row["continuous energy"] == _word(promised.continuous_at_cutoff)
    assert row["smooth forces"] == _word(promised.smooth_forces)


def test_the_page_says_what_the_configuration_allows(mpnn: str) -> None:
    row = _table("properties")[mpnn]
    assert row["potential"] == _word(_is_allowed(network(mpnn)))
    features = network(mpnn, potential=False, edge_features=["lengths", "area"])
    assert row["edge attributes"] == _word(_is_allowed(features))


def test_the_page_says_which_types_have_vectors(mpnn: str, make: Make) -> None:
    plain, asked = (
        _has_vectors(make(mpnn, potential=False, equivariance=e)) for e in (False, True)
    )
    expected = "always" if plain else "on request" if asked else "no"
    assert _table("properties")[mpnn]["vectors"] == expected


def test_the_page_says_which_keys_are_read(mpnn: str) -> None:
    listed = re.findall(r"`(\w+)`", _table("types")[mpnn]["keys"])
    assert len(set(listed)) == len(listed)
    assert set(listed) == {key for key, types in READ_BY.items() if mpnn in types}


def _is_allowed(section: dict[str, object]) -> bool:
    try:
        load_network(section)
    except InputError:
        return False
    return True


def _has_vectors(model: HydraModel) -> bool:
    """Whether the first of two layers hands on features that turn with the frame."""
    batch, stack = as_batch(alloy()), model.encoder.layers
    geometry = model.encoder.geometry(batch, batch.pos)
    state = stack.begin(model.encoder.embedding(batch.x, batch.pos.dtype), geometry)
    return stack.layers[0](state, stack.edge_features(geometry), geometry).tensors is not None
