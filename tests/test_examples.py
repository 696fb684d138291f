"""Examples of properties are the same in every run, whatever ran before."""

import importlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.skipif(
    not settings().derandomize, reason="chance is what `make test-random` asks for"
)


def test_every_property_has_the_examples_of_the_profile(request):
    """Those with settings of their own, too."""
    for item in request.session.items:
        found = getattr(getattr(item, "function", None), "_hypothesis_internal_use_settings", None)
        assert found is None or (found.derandomize and found.database is None), item.nodeid


def drawn():
    found = []

    @given(st.integers())
    @settings(max_examples=500)
    def draw(number):
        found.append(number)

    draw()
    return found


def test_examples_do_not_depend_on_what_was_imported(tmp_path_factory, monkeypatch):
    before, folder = drawn(), tmp_path_factory.mktemp("modules")
    Path(folder / "of_many_constants.py").write_text(
        f"MANY = {list(range(5000, 6000))}\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(folder)
    importlib.import_module("of_many_constants")
    assert len(before) == 500
    assert drawn() == before
