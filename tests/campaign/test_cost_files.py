"""What segments took is kept for the next campaign on the site."""

import errno
import logging
import os
import re
from dataclasses import replace
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from phase_cases import NODE, SITE, FakePool, searched, well

from hydragnn_flow.campaign import context as context_module
from hydragnn_flow.campaign import cost_files
from hydragnn_flow.campaign.cost_files import CostFile
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.locks import Unlockable, locked
from hydragnn_flow.placement import CostModel, Experience, Taken, Work

TORCH = re.sub(r"[^\w.-]", "-", version("torch"))

TAKEN = Taken(Work(1e9, 1e9, 100, 1e6, 1e5), 10, 3.0, 35.0, 2, 0.4, memory=1.1, width=2)
SEEN = Experience(
    {"PNA": [TAKEN, replace(TAKEN, step_seconds=4.0)]}, {"PNA": [1.1]}, [0.1, -0.2], 0.4
)


@pytest.fixture(autouse=True)
def _hear_what_is_told(caplog):
    caplog.set_level(logging.INFO)


def site_file():
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""), "hydragnn_flow", "cost")
    return folder / f"fake-cpu-1-{TORCH}.json"


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]


def seconds(model, kind="PNA"):
    return model.estimate(kind, TAKEN.work, 10).seconds


def test_what_is_written_is_read(caplog):
    assert CostFile(SITE).read() is None
    CostFile(SITE).write(SEEN)
    assert CostFile(SITE).read() == SEEN
    assert not told(caplog)


def test_a_name_is_no_path():
    CostFile(replace(SITE, name="../a b/c")).write(SEEN)
    name = f"..-a-b-c-cpu-1-{TORCH}.json"
    assert {path.name for path in site_file().parent.iterdir()} == {name, f".{name}.lock"}


def seen_by(kind):
    return Experience({kind: [TAKEN]}, {kind: [1.0]}, [], 0.5)


def write_many(kind):
    """A campaign whose driver began when there was nothing, and that ends several times."""
    for number in range(12):
        CostFile(SITE).write(seen_by(f"{kind}{number}"))


def test_campaigns_that_end_at_once_keep_what_both_have_seen():
    kinds, fork = ("PNA", "EGNN"), get_context("fork")
    with fork.Pool(2) as both:
        both.map(write_many, kinds, chunksize=1)
    found = CostFile(SITE).read()
    names = {f"{kind}{number}" for kind in kinds for number in range(12)}
    assert set(found.segments) == set(found.memory) == names
    assert all(several == [TAKEN] for several in found.segments.values())


def test_a_campaign_that_holds_the_file_is_not_waited_for_without_end(caplog, monkeypatch):
    CostFile(SITE).write(SEEN)
    monkeypatch.setattr(cost_files, "locked", lambda path, seconds: locked(path, 0.0))
    with locked(site_file().with_name(f".{site_file().name}.lock"), 0.0):
        CostFile(SITE).write(seen_by("EGNN"))
    (sentence,) = told(caplog)
    assert "cannot be written (its lock is held)" in sentence
    assert CostFile(SITE).read() == SEEN
    # On a file system without locks what was seen is kept all the same.
    no_locks = Unlockable(errno.ENOLCK, "No locks available")
    monkeypatch.setattr(cost_files, "locked", Mock(side_effect=no_locks))
    CostFile(SITE).write(seen_by("EGNN"))
    found = CostFile(SITE).read()
    assert set(found.segments) == {"PNA", "EGNN"}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: text[:-5], "is damaged ("),
        (lambda text: "[1]", "is damaged (it is no JSON object)"),
        (lambda text: text.replace('"version": 2', '"version": 1'), "is of version 1, this"),
        (lambda text: text.replace('"steps": 10', '"steps": "x"'), "is damaged (Expected `int`"),
        (lambda text: text.replace('"segments"', '"others"'), "is damaged (Object missing"),
        (lambda text: text.replace('"torch": "', '"torch": "1.'), "is of torch 1."),
        (lambda text: text.replace('"threads": 1', '"threads": 7'), "is of threads 7, here it is"),
    ],
)
def test_a_file_of_no_use_is_ignored_in_a_sentence(damage, reason, caplog):
    """And the next one written is sound again."""
    file = CostFile(SITE)
    file.write(SEEN)
    site_file().write_text(damage(site_file().read_text()))
    assert file.read() is None
    (sentence,) = told(caplog)
    assert sentence.startswith(f"{site_file()}: {reason}")
    assert sentence.endswith("; it is ignored, and costs are learned anew")
    file.write(SEEN)
    assert file.read() == SEEN


def test_a_cache_that_cannot_be_written_is_told_once(tmp_path, caplog, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    file = CostFile(SITE)
    for _ in range(2):
        file.write(SEEN)
    (sentence,) = told(caplog)
    assert "cannot be written (Not a directory)" in sentence


def test_the_users_cache_is_where_others_are(monkeypatch):
    home = Path(os.environ["XDG_CACHE_HOME"], "home")
    monkeypatch.setattr(Path, "home", lambda: home)
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        CostFile(SITE).write(SEEN)
        assert (home / ".cache" / "hydragnn_flow" / "cost" / site_file().name).exists()
    monkeypatch.delenv("XDG_CACHE_HOME")
    CostFile(SITE).write(SEEN)
    assert CostFile(SITE).read() == SEEN

    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("no home directory")))
    CostFile(SITE).write(SEEN)
    assert CostFile(SITE).read() is None


@given(st.lists(st.integers(0, 40), unique=True), st.lists(st.integers(0, 40), unique=True))
def test_a_segment_that_is_recalled_twice_counts_once(old, new):
    """Those observed here are the newest, and no type has more than before."""

    def segment(number):
        return replace(TAKEN, step_seconds=1.0 + number)

    model = CostModel(NODE.gcd)
    for number in new:
        model.observe("PNA", segment(number))
    earlier = Experience({"PNA": [segment(number) for number in old]}, {}, [], 0.5)
    for _ in range(2):
        model.recall(earlier)
    kept = model.experience.segments.get("PNA", [])
    both = [*(n for n in old if n not in new[-16:]), *new]
    assert kept == [segment(number) for number in both][-16:]


def test_values_that_are_no_measurements_are_left_out():
    model, nan = CostModel(NODE.gcd), float("nan")
    before = model.estimate("PNA", TAKEN.work, 10)
    wrong = ({"together": -1.0}, {"width": 0}, {"seconds": nan}, {"memory": 0.0})
    segments = [replace(TAKEN, **changes) for changes in wrong]
    model.recall(Experience({"PNA": segments}, {"PNA": [nan, 0.0, -1.0]}, [nan], -1.0))
    assert model.estimate("PNA", TAKEN.work, 10) == before


def timed(spec):
    """Steps of two seconds each."""
    steps = 9 * (spec.epochs.until_epoch - spec.epochs.after_epoch)
    each = 2.0 + spec.number / 100
    costs = {"steps": steps, "step_seconds": each, "seconds": 2.1 * steps, "peak_memory_gib": 0.2}
    return replace(well(spec), **costs)


def test_the_next_campaign_starts_calibrated(campaign, monkeypatch):
    """What this one has seen is kept now and then, and at its end."""
    context = campaign()
    context.cost_file = CostFile(SITE)
    before = seconds(context.estimator.costs)
    searched(TrialPhase(context), FakePool(timed))
    learned = seconds(context.estimator.costs)
    assert learned > 2 * before
    first = CostFile(SITE).read()
    early, late = (
        sum(map(len, experience.segments.values()))
        for experience in (first, context.estimator.costs.experience)
    )
    assert 0 < early < late, "it is written when something new ended, and minutes later"
    monkeypatch.setattr(context_module, "_SECONDS_BETWEEN_COST_FILES", 0.0)
    context.record([])
    following = replace(campaign(), cost_file=CostFile(SITE))
    assert seconds(following.estimator.costs) == pytest.approx(learned)
    assert following.estimator.costs.process_gib == pytest.approx(0.22)
    # Another run, which has no ledger yet.
    context.directory.segments.unlink()
    other = replace(campaign(), cost_file=CostFile(SITE))
    assert seconds(other.estimator.costs) == pytest.approx(learned, rel=0.02)


def numbered(numbers):
    several = [replace(TAKEN, step_seconds=1.0 + number) for number in numbers]
    return Experience({"PNA": several}, {"PNA": [1.0 + n for n in numbers]}, [], 0.5)


def test_what_was_read_at_first_does_not_count_as_new():
    """What another process has measured since stays, and takes the place of that."""
    CostFile(SITE).write(numbered(range(16)))
    mine = CostFile(SITE)
    read = mine.read()
    CostFile(SITE).write(numbered(range(20, 36)))
    mine.write(read)
    assert CostFile(SITE).read() == numbered(range(20, 36))
    mine.write(numbered(range(40, 42)).after(read))
    expected = numbered(range(40, 42)).after(numbered(range(20, 36)))
    assert CostFile(SITE).read() == expected
