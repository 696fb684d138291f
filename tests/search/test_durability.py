"""A study that was cut short at any byte goes on; a damaged one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from study_cases import CONFIG, fits, open_search

from hydragnn_flow.errors import InputError
from hydragnn_flow.search import JOURNAL, Search, TrialRecord, read_trials


def some_trials(path: Path) -> Search:
    """Six trials: complete, pruned, failed, and three running, one of them judged once."""
    search = open_search(path)
    for number in range(6):
        assert search.ask().number == number
    assert [search.report(0, rung, 0.3 - 0.1 * rung) for rung in range(3)] == [True, True, False]
    assert not search.report(1, 0, 0.9)
    search.fail(2, "diverged: loss is NaN")
    assert search.report(3, 0, 0.1)
    return search


def numbers(records: list[TrialRecord]) -> list[int]:
    return [record.number for record in records]


def test_words_values_and_reasons(tmp_path: Path) -> None:
    records = some_trials(tmp_path / JOURNAL).records
    assert [record.state for record in records] == [
        "complete",
        "pruned",
        "failed",
        "running",
        "running",
        "running",
    ]
    assert [record.value for record in records] == [
        pytest.approx(0.1),
        0.9,
        None,
        0.1,
        None,
        None,
    ]
    assert records[2].reason == "diverged: loss is NaN"
    assert all(record.reason == "" for record in records if record.number != 2)
    assert all(fits(record.parameters) for record in records)


def test_reopening_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    records = some_trials(path).records
    before = path.read_bytes()
    assert open_search(path).records == records
    assert path.read_bytes() == before


def test_a_resumed_search_does_not_repeat_its_suggestions(tmp_path: Path) -> None:
    first = [record.parameters for record in some_trials(tmp_path / JOURNAL).records]
    resumed = open_search(tmp_path / JOURNAL)
    assert all(resumed.ask().parameters not in first for _ in range(3))


@pytest.mark.parametrize("last_records", [1, 2, 5])
def test_a_study_cut_at_any_byte_goes_on(last_records: int, tmp_path: Path) -> None:
    """Every cut in the last record; for the others, the record's end and its middle."""
    path = tmp_path / JOURNAL
    some_trials(path)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    kept = b"".join(lines[:-last_records])
    torn = lines[-last_records]
    full = open_search(path).records
    cuts = range(len(torn)) if last_records == 1 else (0, len(torn) // 2, len(torn) - 1)
    for cut in cuts:
        path.write_bytes(kept + torn[:cut])
        search = open_search(path)
        assert path.read_bytes() == kept
        assert numbers(search.records)[: len(full)] == numbers(full)[: len(search.records)]
        asked = search.ask()
        assert asked.number == len(search.records) - 1
        assert read_trials(tmp_path) == open_search(path).records


def test_a_suggestion_that_was_cut_short_is_completed(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    search = open_search(path)
    search.ask()
    before = path.read_bytes()
    search.ask()
    added = path.read_bytes()[len(before) :].splitlines(keepends=True)
    for n_lines in range(1, len(added) + 1):
        path.write_bytes(before + b"".join(added[:n_lines]))
        cut = open_search(path, seed=n_lines)
        known = cut.records[1].parameters
        assert cut.records[1].state == "running"
        completed = cut.resume(1)
        assert completed.number == 1
        assert fits(completed.parameters)
        assert known.items() <= completed.parameters.items()
        assert open_search(path).records[1].parameters == completed.parameters
        assert len(cut.records) == 2


def test_a_judgement_that_was_cut_short_is_repeated(tmp_path: Path) -> None:
    """Cut anywhere between the report and the end of a trial, the same verdict follows."""
    path = tmp_path / JOURNAL
    for value, rung, verdict in ((0.9, 0, "pruned"), (0.05, 0, "running"), (0.2, 2, "complete")):
        path.unlink(missing_ok=True)
        search = some_trials(path)
        number = 4
        for earlier in range(rung):
            search.report(number, earlier, 0.01)
        before = path.read_bytes()
        goes_on = search.report(number, rung, value)
        assert search.records[number].state == verdict
        added = path.read_bytes()[len(before) :].splitlines(keepends=True)
        for n_lines in range(len(added)):
            path.write_bytes(before + b"".join(added[:n_lines]))
            again = open_search(path)
            assert again.report(number, rung, value) == goes_on
            assert again.records[number].state == verdict


def test_reporting_twice_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    search = some_trials(path)
    records, written = search.records, path.read_bytes()
    assert search.report(3, 0, 0.1)
    assert search.report(3, 0, 0.1)
    assert search.records == records
    assert path.read_bytes() == written


def test_each_rung_keeps_the_best_third(tmp_path: Path) -> None:
    search = open_search(tmp_path / JOURNAL)
    losses = [5.0, 4.0, 6.0, 3.0, 7.0, 2.0, 2.8, 2.5, 1.0, 8.0, 2.7, 2.2]
    kept = []
    for number, loss in enumerate(losses):
        search.ask()
        kept.append(search.report(number, 0, loss))
        rank = sorted(losses[: number + 1]).index(loss)
        assert kept[-1] == (rank < max(1, (number + 1) // CONFIG.reduction_factor))
    assert kept == [n in (0, 1, 3, 5, 6, 7, 8, 11) for n in range(12)]


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    some_trials(path)
    lines = path.read_bytes().splitlines(keepends=True)
    for line in range(len(lines)):
        for damage in (b"\0" * (len(lines[line]) - 1) + b"\n", lines[line][3:]):
            path.write_bytes(b"".join([*lines[:line], damage, *lines[line + 1 :]]))
            before = path.read_bytes()
            with pytest.raises(InputError) as caught:
                open_search(path)
            assert str(caught.value).startswith(f"{path}: ")
            assert "\n" not in str(caught.value)
            assert path.read_bytes() == before
            with pytest.raises(InputError):
                read_trials(tmp_path)


def test_looking_at_a_live_study_leaves_it_alone(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    search = some_trials(path)
    whole = path.read_bytes()
    end = whole.rfind(b"\n", 0, -1) + 1
    for cut in (len(whole), end + 7, end):
        path.write_bytes(whole[:cut])
        path.chmod(0o400)
        assert numbers(read_trials(tmp_path)) == list(range(6))
        assert path.read_bytes() == whole[:cut]
        assert [entry.name for entry in tmp_path.iterdir()] == [JOURNAL]
        path.chmod(0o600)
    path.write_bytes(whole)
    assert read_trials(tmp_path) == search.records


def test_there_are_no_trials_before_the_search_began(tmp_path: Path) -> None:
    assert read_trials(tmp_path) == []
    path = tmp_path / JOURNAL
    open_search(path)
    first = path.read_bytes()
    for cut in range(len(first)):
        path.write_bytes(first[:cut])
        assert read_trials(tmp_path) == []
        assert open_search(path).ask().number == 0
