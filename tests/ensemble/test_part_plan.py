"""The plan of predictions in parts: whole, in order, and only for what it was made for."""

from dataclasses import replace

import ase.io
import pytest
from ase.build import bulk
from ensemble_cases import untrained_ensemble
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow import Ensemble
from hydragnn_flow.ensemble import part_plan
from hydragnn_flow.ensemble.part_plan import (
    CHUNK,
    Asked,
    OtherParts,
    digest_of_ensemble,
    divide,
    per_part,
    plan,
)
from hydragnn_flow.ensemble.structure_files import Files, Piece


@settings(max_examples=50)
@given(sizes=st.lists(st.none() | st.integers(0, 40), max_size=12), most=st.integers(1, 15))
def test_parts_hold_everything_once_and_in_order(sizes, most):
    parts = divide(((f"f{i}", n) for i, n in enumerate(sizes)), most)
    rest = [piece for part in parts for piece in part.pieces]
    for i, n in enumerate(sizes):
        if n is None or n <= most:
            assert rest.pop(0) == Piece(f"f{i}")
            continue
        at = 0
        while at < n:
            piece = rest.pop(0)
            assert (piece.name, piece.start) == (f"f{i}", at)
            assert piece.stop is not None and at < piece.stop <= min(n, at + most)
            at = piece.stop
    assert not rest
    for part in parts:
        if part.pieces[0].stop is not None:
            assert len(part.pieces) == 1, "a piece is dropped with its part"
        assert part.structures < 2 * most
    whole = [part for part in parts if part.pieces[0].stop is None]
    assert sum(part.structures for part in parts) == sum(n or 1 for n in sizes)
    # Between two that are cut, all but the last are filled.
    assert sum(part.structures < most for part in whole) <= 1 + sum((n or 0) > most for n in sizes)


@settings(max_examples=50)
@given(st.integers(0, 10**9), st.integers(1, 80_000))
def test_parts_end_where_structures_are_batched_anew(structures, gcds):
    most = per_part(structures, gcds)
    assert most > 0 and most % CHUNK == 0 and most <= 64 * CHUNK
    if most > CHUNK:
        assert structures / most > 2 * gcds, "every GCD has several"


@pytest.fixture(scope="module")
def run(alloy_store, tmp_path_factory):
    return untrained_ensemble(tmp_path_factory.mktemp("run"), alloy_store)


@pytest.fixture(scope="module")
def ensemble(run):
    return Ensemble.load(run)


def test_a_plan_stays_until_something_else_is_asked_for(tmp_path, run, ensemble, monkeypatch):
    monkeypatch.setattr(part_plan, "CHUNK", 2)
    data, folder = tmp_path / "data", tmp_path / ".out.csv.parts"
    data.mkdir(), folder.mkdir()
    ase.io.write(data / "many-10.extxyz", [bulk("Cu")] * 5)
    for number in range(3):
        ase.io.write(data / f"many-{number}.cif", bulk("Au"))
    out = data / "out.csv"
    asked = Asked(
        run=str(run),
        without=(),
        coverage=None,
        data_set=None,
        data=str(data),
        split=None,
        members=False,
        frames=False,
        outs=(str(out),),
        ensemble=digest_of_ensemble(run),
    )

    def planned(asked, gcds=1):
        return plan(folder, asked, Files(data, None, [out]), ensemble, gcds)

    first = planned(replace(asked, members=True))
    parts = planned(asked)
    assert parts.keys().isdisjoint(first), "an orphan finishes parts of its own plan"
    next(iter(parts)).mkdir()
    assert [part.what for part in parts.values()] == [
        *("many-0.cif to many-1.cif", "many-2.cif"),
        *(f"structures {span} of many-10.extxyz" for span in ("0 to 1", "2 to 3", "4 to 4")),
    ]
    out.write_text("what is written there decides nothing")
    assert planned(asked, gcds=99) == parts
    moved = replace(asked, run=str(run.parent))
    assert planned(moved) == parts, "an ensemble is the same wherever it is"
    with pytest.raises(OtherParts, match=r"parts: .* with other ensemble; delete it"):
        planned(replace(asked, ensemble="another"))
    with pytest.raises(OtherParts, match="with other options"):
        planned(replace(asked, members=True))
    ase.io.write(data / "many-1.cif", bulk("Au") * (1, 1, 2))
    with pytest.raises(OtherParts, match="with other structures"):
        planned(asked)
