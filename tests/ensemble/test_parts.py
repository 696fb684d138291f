"""Parts of predictions: planned whole, in order, for one purpose; none hangs for ever."""

import faulthandler
import subprocess
import sys
from dataclasses import replace

import ase.io
import pytest
from ase.build import bulk
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.ensemble.predictions import parts
from hydragnn_flow.ensemble.predictions.parts import Asked, OtherParts, divide, per_part, plan
from hydragnn_flow.ensemble.predictions.structure_files import Files, Piece


@settings(max_examples=50)
@given(sizes=st.lists(st.none() | st.integers(0, 40), max_size=12), most=st.integers(1, 15))
def test_parts_hold_everything_once_and_in_order(sizes, most):
    found = divide(((f"f{i}", n) for i, n in enumerate(sizes)), most)
    rest = [piece for part in found for piece in part.pieces]
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
    for part in found:
        assert part.pieces[0].stop is None or len(part.pieces) == 1, "one is dropped with its part"
        assert part.structures < 2 * most
    whole = [part for part in found if part.pieces[0].stop is None]
    assert sum(part.structures for part in found) == sum(n or 1 for n in sizes)
    # Between two that are cut, all but the last are filled.
    assert sum(part.structures < most for part in whole) <= 1 + sum((n or 0) > most for n in sizes)


@settings(max_examples=50)
@given(st.integers(0, 10**9), st.integers(1, 80_000))
def test_parts_end_where_structures_are_batched_anew(structures, gcds):
    most = per_part(structures, gcds)
    assert most > 0 and most % parts.CHUNK == 0 and most <= 64 * parts.CHUNK
    if most > parts.CHUNK:
        assert structures / most > 2 * gcds, "every GCD has several"


def test_a_plan_stays_until_something_else_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "CHUNK", 2)
    data, folder = tmp_path / "data", tmp_path / ".out.csv.parts"
    data.mkdir(), folder.mkdir()
    ase.io.write(data / "many-10.extxyz", [bulk("Cu")] * 5)
    for number in range(3):
        ase.io.write(data / f"many-{number}.cif", bulk("Au"))
    out = data / "out.csv"
    of_run = {"run": "run", "ensemble": "digest", "without": (), "data_set": None}
    of_data = {"data": str(data), "split": None, "outs": (str(out),)}
    asked = Asked(coverage=0.9, members=False, structures=False, **of_run, **of_data)

    def planned(gcds=1, **changes):
        return plan(folder, replace(asked, **changes), Files(data, None, [out]), gcds)

    first = planned(members=True)
    found = planned()
    assert found.keys().isdisjoint(first), "an orphan finishes parts of its own plan"
    next(iter(found)).mkdir()
    assert [part.what for part in found.values()] == [
        *("many-0.cif to many-1.cif", "many-2.cif"),
        *(f"structures {span} of many-10.extxyz" for span in ("0 to 1", "2 to 3", "4 to 4")),
    ]
    out.write_text("what is written there decides nothing")
    assert planned(gcds=99) == found
    assert planned(run="elsewhere") == found, "an ensemble is the same wherever it is"
    for changes, says in (({"ensemble": "another"}, "ensemble"), ({"members": True}, "options")):
        with pytest.raises(OtherParts, match=rf"parts: .* with other {says}; delete it"):
            planned(**changes)
    ase.io.write(data / "many-1.cif", bulk("Au") * (1, 1, 2))
    with pytest.raises(OtherParts, match="with other structures"):
        planned()


HANGS = """
import time
from hydragnn_flow.ensemble.predictions import parts
parts._PATIENCE = 0.05
def chunks():
    yield "first"
    time.sleep(600.0)
list(parts.watched(chunks()))
"""


def test_a_process_that_hangs_ends():
    """One of its own: a fork would wait for the thread by which pytest watches this one."""
    done = subprocess.run([sys.executable, "-c", HANGS], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "in watched" in done.stderr


def test_nobody_watches_what_has_ended(monkeypatch):
    called = []
    for name in ("dump_traceback_later", "cancel_dump_traceback_later"):
        monkeypatch.setattr(faulthandler, name, lambda *_, name=name, **__: called.append(name))
    assert list(parts.watched(["first", "second"])) == ["first", "second"]
    assert called == [*["dump_traceback_later"] * 3, "cancel_dump_traceback_later"]
