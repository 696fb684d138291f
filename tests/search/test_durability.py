"""A study that was cut short at any byte goes on; a damaged one is refused."""

import json
import re
import subprocess
import sys
import time
from threading import Timer

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from storage_cases import content, optunas
from study_cases import CONFIG, came_to, fits, open_search

from hydragnn_flow.config import Parameter
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.search import JOURNAL, Outcome, Search, read_trials
from hydragnn_flow.search.storage import end_of, read_journal


def some_trials(path):
    """Six trials: complete, pruned, failed, and three running, one of them judged once."""
    search = open_search(path)
    for number in range(6):
        assert search.ask().number == number
    search.commit()
    verdicts = [search.report(0, rung, came_to(0.3 - 0.1 * rung)) for rung in range(3)]
    assert verdicts == ["goes_on", "goes_on", "complete"]
    assert search.report(1, 0, came_to(0.9)) == "stops"
    search.fail(2, "diverged: loss is NaN")
    assert search.report(3, 0, came_to(0.1)) == "goes_on"
    search.commit()
    return search


def numbers(records):
    return [record.number for record in records]


def test_words_values_and_reasons(path):
    search = some_trials(path)
    records = search.records
    states = [record.state for record in records]
    assert states == ["complete", "pruned", "failed", "running", "running", "running"]
    assert [record.value for record in records] == [pytest.approx(0.1), 0.9, None, 0.1, None, None]
    assert records[0].values == (pytest.approx(0.1),)
    assert [record.reason for record in records] == ["", "", "diverged: loss is NaN", "", "", ""]
    assert all(fits(record.parameters) for record in records)
    assert search.asked == 6
    assert search.states == {"complete": 1, "pruned": 1, "failed": 1, "running": 3}
    assert search.best == pytest.approx(0.1)


def doubles(study, trial):
    """Enqueues twice the width of every trial that has ended."""
    seen.append((trial.number, trial.state, trial.value))
    study.enqueue_trial({"Architecture.hidden_dim": 2 * trial.params["Architecture.hidden_dim"]})


def breaks(study, trial):
    raise OSError("no network")


seen: list[tuple[int, TrialState, float | None]] = []


def test_callbacks_get_each_trial_that_has_ended_and_may_enqueue_others(path, caplog):
    seen.clear()
    caplog.set_level("INFO")
    names = tuple(f"{__name__}:{callback.__name__}" for callback in (breaks, doubles))
    first = {"Architecture.hidden_dim": 30}
    config = CONFIG.model_copy(update={"callbacks": names, "enqueue": (first,), "rungs": "none"})
    with open_search(path, config) as search:
        search.ask(), search.ask()
        search.commit()
        assert not seen
        assert search.report(0, 0, came_to(0.3)) == "complete"
        assert not seen, "not before it is on disk"
        search.commit()
        search.commit()
        assert seen == [(0, TrialState.COMPLETE, 0.3)]
        assert f"{names[0]} after trial 0: no network" in caplog.text
        again = search.ask()
        assert again.parameters["Architecture.hidden_dim"] == 60
        search.commit()
        search.fail(again.number, "diverged: loss is NaN")
    assert seen[1:] == [(again.number, TrialState.FAIL, None)], "the last commit calls them too"
    again = open_search(path, config)
    again.ask()
    assert "configuration: Architecture.hidden_dim = 120 is not in its domain" in caplog.text
    assert again.asked == 4


def test_optuna_sees_the_names_of_objectives_and_what_an_ended_trial_has_cost(path):
    costs = {"gcd_seconds": 3.5, "gcds": 2, "peak_memory_gib": 0.25}
    with open_search(path) as search:
        first, second = search.ask().number, search.ask().number
        for number, value in ((first, 0.1), (second, 0.9)):
            search.report(number, 0, Outcome((value,), costs=costs))
    study = optuna.load_study(study_name="search", storage=read_journal(path))
    assert study.metric_names == ["val_error"]
    going_on, stopped = study.trials
    assert stopped.user_attrs == costs
    assert going_on.user_attrs == {"passed": 0}
    assert "user_attrs_gcd_seconds" in study.trials_dataframe()


def test_a_search_that_is_opened_again_is_where_it_was_committed(path):
    """Neither opening nor a report that is repeated changes it."""
    search = some_trials(path)
    records, about = search.records, (search.asked, search.states, search.best)
    written = path.read_bytes()
    search.ask()
    search.report(4, 0, came_to(0.2))
    assert path.read_bytes() == written
    search._storage.unlock()  # or the next waits for the killed one
    assert read_trials(path.parent) == open_search(path, seed=2**32 - 1).records == records
    again = open_search(path)
    assert (again.asked, again.states, again.best) == about
    assert again.report(3, 0, came_to(0.1)) == "goes_on"
    again.commit()
    assert again.records == records
    assert path.read_bytes() == written
    new = [again.ask() for _ in range(3)]
    assert again.records == records + new
    first = [record.parameters for record in records]
    assert all(trial.parameters not in first for trial in new), "the seed goes on"


def test_a_study_cut_at_any_byte_goes_on(path, tmp_path):
    """With whole trials, the verdicts of whole records, and the file as it was until the cut."""
    some_trials(path)
    whole, full = path.read_bytes(), open_search(path).records
    ends = [n for n in range(len(whole) - 400, len(whole)) if b"\n" in whole[n - 1 : n + 2]]
    for cut in (*range(len(whole) - 400, len(whole), 20), *ends):
        path.write_bytes(whole[:cut])
        search = open_search(path)
        assert path.read_bytes() == whole[: whole.rfind(b"\n", 0, cut) + 1]
        known = search.records
        assert [r.parameters for r in known] == [r.parameters for r in full][: len(known)]
        assert search.ask().number == len(known)
        search.commit()
        assert read_trials(tmp_path) == open_search(path).records


def test_a_judgement_that_was_cut_short_is_repeated(path, tmp_path):
    """Cut anywhere between the report and the end of a trial, the same verdict follows."""
    cases = [(0.9, 0, "stops"), (0.05, 0, "goes_on"), (0.2, 2, "complete")]
    for value, rung, verdict in cases:
        path.unlink(missing_ok=True)
        search = some_trials(path)
        number = 4
        for earlier in range(rung):
            search.report(number, earlier, came_to(0.01))
        search.commit()
        before = path.read_bytes()
        assert search.report(number, rung, came_to(value)) == verdict
        search.commit()
        added = path.read_bytes()[len(before) :].splitlines(keepends=True)
        assert added
        for n_lines in range(len(added)):
            path.write_bytes(before + b"".join(added[:n_lines]))
            again = open_search(path)
            assert again.report(number, rung, came_to(value)) == verdict
            assert again.records[number] == search.records[number]


def test_a_study_begins_with_what_is_enqueued(path):
    wanted = {"Architecture.mpnn_type": "SchNet", "Architecture.hidden_dim": 48}
    config = CONFIG.model_copy(update={"enqueue": (wanted,)})
    search = open_search(path, config)
    assert search.records == [] and search.asked == 0
    assert wanted.items() <= search.ask().parameters.items()
    search.commit()
    again = open_search(path, config)  # not a second time
    assert [again.ask().parameters.items() >= wanted.items() for _ in range(3)].count(True) < 3
    again.commit()
    more = {"Architecture.mpnn_type": "PNA"}
    search = open_search(path, config.model_copy(update={"enqueue": (wanted, more)}))
    assert search.ask().parameters["Architecture.mpnn_type"] == "PNA"


ENQUEUES = """
import json, sys
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
storage = JournalStorage(JournalFileBackend(sys.argv[1]))
study = optuna.load_study(study_name="search", storage=storage)
print("opened", flush=True)
for text in sys.argv[2:]:
    study.enqueue_trial(json.loads(text))
"""
TYPE, WIDTH = "Architecture.mpnn_type", "Architecture.hidden_dim"


def test_another_program_enqueues_trials_in_a_search_that_runs(path, caplog):
    """It waits while trials are asked for, so that all know the same numbers."""
    caplog.set_level("INFO")
    config = CONFIG.model_copy(update={"where": ("mpnn_type == 'PNA' or hidden_dim <= 32",)})
    wrong = {
        "hidden_dim = 65 is not in its domain": {WIDTH: 65},
        "hidden_dim = 'x' is not in its domain": {WIDTH: "x"},
        "'hidden_dim', which is not in space; did you mean 'Architecture.hidden": {"hidden_dim": 9},
        "\"mpnn_type == 'PNA' or hidden_dim <= 32\" of where cannot": {TYPE: "EGNN", WIDTH: 33},
        "num_gaussians does not exist while": {"Architecture.num_gaussians": 9, TYPE: "PNA"},
        "mpnn_type is SchNet; add Architecture.mpnn_type": {"Architecture.num_gaussians": 9},
        "names no parameter": {},
    }
    wanted = [{TYPE: "SchNet", WIDTH: 17.0}, *wrong.values(), {WIDTH: 64}]
    search = open_search(path, config)
    search.ask()
    search.commit()
    first = search.ask()  # holds the lock
    before = path.read_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", ENQUEUES, path, *map(json.dumps, wanted)]
    ) as other:
        while not list(path.parent.glob("*.lock")) and other.poll() is None:
            time.sleep(0.01)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(4)
        assert path.read_bytes() == before
        search.report(0, 0, came_to(0.5))
        search.commit()
        assert other.wait(60) == 0
    taken = [search.ask() for _ in range(3)]
    search.commit()
    assert taken[0].parameters.items() >= wanted[0].items()
    assert (taken[1].parameters[TYPE], taken[1].parameters[WIDTH]) == ("PNA", 64)
    assert numbers([first, *taken]) == [1, 2, 10, 11]
    for trial, reason in zip(search._study.trials[3:10], wrong, strict=True):
        said = trial.user_attrs["reason"]
        assert trial.state == TrialState.FAIL and reason in said
        assert f"trial {trial.number} has failed: the enqueued configuration" in caplog.text
        assert said in caplog.text
    assert numbers(search.records) == [0, 1, 2, 10, 11] and search.asked == 5
    search.close()
    assert content(optunas(path)) == content(search._storage) == content(read_journal(path))
    again = open_search(path, config)
    assert again.records == search.records and again.states == search.states
    assert list(path.parent.glob("*.lock")) == []


def test_a_trial_that_another_program_adds_is_none_of_the_search(path):
    search = open_search(path)
    search.ask()
    search.commit()
    other = optuna.load_study(study_name="search", storage=optunas(path))
    other.add_trial(optuna.create_trial(value=0.5))
    other.ask()
    assert search.ask().number == 3
    search.commit()
    for one in (search, open_search(path)):
        assert numbers(one.records) == [0, 3] and one.states == {"running": 2}
        assert one._study.best_value == 0.5, "the sampler learns from it"


def test_a_lock_is_waited_for_and_no_number_is_given_twice(path):
    lock = path.with_name("study.journal.lock")
    search = open_search(path)
    lock.symlink_to("study.journal")
    Timer(4, lock.unlink).start()  # one that a slow file system delays
    began = time.monotonic()
    search.ask()
    assert 4 <= time.monotonic() - began < 30
    lock.unlink()  # as Optuna does after half a minute
    other = optuna.load_study(study_name="search", storage=optunas(path))
    other.set_user_attr("note", "from another program")
    search.commit()
    assert search._study.user_attrs["note"] == "from another program"
    records = search.records
    search.ask()
    lock.unlink()
    other.enqueue_trial({WIDTH: 17})
    with pytest.raises(CampaignStopped, match="another program created a trial at the same moment"):
        search.commit()
    again = open_search(path)
    assert again.records == records
    assert again.ask().parameters[WIDTH] == 17


def test_a_study_learns_from_an_earlier_one(path, tmp_path):
    first = tmp_path / "first"
    earlier = open_search(first)
    for number in range(40):
        trial = earlier.ask()
        loss = abs(trial.parameters["Training.Optimizer.learning_rate"] - 3e-3)
        for rung in range(3):
            if earlier.report(number, rung, came_to(loss)) != "goes_on":
                break
    earlier.close()
    config = CONFIG.model_copy(update={"warm_start": (first,)})
    search = open_search(path, config)
    assert search.asked == 0 and search.records == []
    trials = [search.ask() for _ in range(10)]
    assert trials[0].number == 40  # numbers are the study's, and the earlier trials have the first
    near = [abs(t.parameters["Training.Optimizer.learning_rate"] - 3e-3) < 2e-3 for t in trials]
    assert sum(near) >= 7
    search.commit()
    assert numbers(open_search(path, config).records) == list(range(40, 50))
    assert numbers(read_trials(tmp_path)) == list(range(40, 50))


def test_a_beginning_that_was_cut_short_is_completed(path, tmp_path):
    """Ctrl-C between two suggestions must not leave a trial with half its parameters."""
    search = open_search(path)
    trial = search._study.ask()
    trial.suggest_categorical("Architecture.mpnn_type", ("SchNet", "EGNN", "PNA"))
    search.close()
    assert not fits(dict(read_trials(tmp_path)[0].parameters))
    completed = open_search(path).records[0].parameters
    assert fits(completed)
    assert trial.params.items() <= completed.items()
    assert read_trials(tmp_path)[0].parameters == completed


def test_a_first_commit_that_was_cut_short_is_made_again(path, tmp_path):
    """There are no trials before the search began."""
    some_trials(tmp_path / "first").close()
    config = CONFIG.model_copy(update={"warm_start": (tmp_path / "first",)})
    assert read_trials(tmp_path) == []
    open_search(path, config).close()
    whole = path.read_bytes()
    end_of(path).unlink()
    for cut in (*range(0, len(whole), 40), len(whole) - 1, whole.index(b"\n") + 1):
        path.write_bytes(whole[:cut])
        assert read_trials(tmp_path) == []
        # After those of the first study that have a value.
        assert open_search(path, config).ask().number == 2
        path.with_name("study.journal.lock").unlink()  # or the next waits for the killed one


def test_a_study_does_not_pass_on_what_it_had_learnt(tmp_path):
    journals = [tmp_path / "one" / JOURNAL, tmp_path / "two", tmp_path / "three"]
    journals[0].parent.mkdir()
    some_trials(journals[0]).close()
    two = CONFIG.model_copy(update={"warm_start": (tmp_path / "one",)})
    search = open_search(journals[1], two)
    number = search.ask().number
    for rung in range(3):
        search.report(number, rung, came_to(1.0))
    search.close()
    three = CONFIG.model_copy(update={"warm_start": (tmp_path / "one", tmp_path / "two")})
    assert open_search(journals[2], three).ask().number == 3


NARROW = {**CONFIG.space, "Architecture.hidden_dim": Parameter(int=(100, 200))}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"space": NARROW}, r"no trial of .* is in search\.space"),
        ({"warm_start": ("lost",)}, "lost does not exist; restore it"),
        ({"objectives": ("val.energy",)}, "searched for val_error"),
        ({"objectives": ("val_error", "seconds")}, "searched for val_error"),
    ],
)
def test_an_earlier_study_that_cannot_help_is_refused(tmp_path, changes, said):
    some_trials(tmp_path / "first").close()
    config = CONFIG.model_copy(update={"warm_start": (tmp_path / "first",), **changes})
    with pytest.raises(InputError, match=rf"search\.warm_start: .*{said}"):
        open_search(tmp_path / "other", config)


def test_earlier_trials_are_held_to_the_limits_of_the_search_they_help(tmp_path):
    first = tmp_path / "first"
    limited = CONFIG.model_copy(update={"constraints": {"gcd_hours": 2.0}, "rungs": "none"})
    search = open_search(first, limited)
    for number in range(8):
        search.ask()
        search.report(number, 0, Outcome((1.0,), {"gcd_hours": number - 2.0}))
    search.close()

    def known(name, constraints):
        changes = {"warm_start": (first,), "constraints": constraints}
        config = CONFIG.model_copy(update=changes)
        with open_search(tmp_path / name, config) as second:
            trials = second._study.get_trials()
        return [trial.constraints for trial in trials]

    for limit in (2.0, 5.0, 0.5):
        expected = [{"gcd_hours": number - limit} for number in range(8)]
        assert known(f"limit {limit}", {"gcd_hours": limit}) == expected
    assert known("other", {"seconds": 5.0}) == known("none", {}) == [{}] * 8
    told = b'"limits":{"gcd_hours":2.0}'
    assert first.read_bytes().count(told) == 1
    without = first.read_bytes().replace(told, b'"limits":{}')
    first.write_bytes(re.sub(rb',"crc":\d+}\n', b"}\n", without))
    end_of(first).unlink()
    with pytest.raises(InputError, match="held to a limit of 'gcd_hours' that it does not tell"):
        known("untold", {"gcd_hours": 2.0})
    assert known("untold none", {}) == [{}] * 8


def test_earlier_trials_teach_no_broken_rule_and_no_network_that_is_too_large(tmp_path):
    with open_search(tmp_path / "first", CONFIG.model_copy(update={"rungs": "none"})) as search:
        for number in range(20):
            search.ask()
            search.report(number, 0, came_to(1.0))
    changes = {"where": ("hidden_dim <= 40",), "constraints": {"parameters": 600.0}}
    config = CONFIG.model_copy(update={"warm_start": (tmp_path / "first",), **changes})

    def foreseen(values):
        return {"parameters": float("inf") if values[WIDTH] % 2 else values[WIDTH] ** 2}

    with Search(tmp_path / "second", config, 18, 1, foreseen=foreseen) as second:
        trials = second._study.get_trials()
        found = [second.ask().parameters[WIDTH] ** 2 for _ in range(12)]
    widths = [trial.params[WIDTH] for trial in trials]
    assert not any(width % 2 for width in widths)
    assert max(widths) <= 40 < max(one.parameters[WIDTH] for one in search.records)
    assert [t.constraints["parameters"] for t in trials] == [w**2 - 600 for w in widths]
    assert max(found) <= 600 < max(widths) ** 2
    none = config.model_copy(update={"where": ("hidden_dim > 40", "hidden_dim < 41")})
    with pytest.raises(
        InputError, match=r"no trial of .* is in search\.space and meets search\.wh"
    ):
        open_search(tmp_path / "third", none)


@pytest.mark.parametrize("objectives", [("val_error",), ("val_error", "seconds")])
def test_trials_end_with_the_values_that_optuna_gives_them(path, objectives):
    search = open_search(path, CONFIG.model_copy(update={"objectives": objectives}))
    reported = [[[0.5, 0.4, 0.3], "complete"], [[0.9], "stops"], [[0.2], "goes_on"]]
    for number, (losses, verdict) in enumerate(reported):
        search.ask()
        outcomes = [came_to(*(loss, 7.0)[: len(objectives)]) for loss in losses]
        verdicts = [search.report(number, rung, come) for rung, come in enumerate(outcomes)]
        assert verdicts[-1] == verdict
    search.fail(2, "diverged: loss is NaN")
    study = optuna.create_study(directions=["minimize"] * len(objectives))
    for trial in search._study.trials:
        other = study.ask()
        for step, value in trial.intermediate_values.items():
            study._storage.set_trial_intermediate_value(other._trial_id, step, value)
        told = trial.values if trial.state == TrialState.COMPLETE else None
        study.tell(other, told, state=trial.state)
    ends = [[trial.state, trial.values] for trial in study.trials]
    assert [[trial.state, trial.values] for trial in search._study.trials] == ends


def test_a_value_that_is_no_number_is_not_stored(path):
    search = open_search(path)
    search.ask()
    with pytest.raises(ValueError, match="NaN"):
        search.report(0, 0, came_to(float("nan")))
    search.close()
    assert open_search(path).records[0].value is None


def test_a_line_that_is_lost_doubled_moved_or_changed_is_named(path, tmp_path):
    """Where no driver is at work; or else what is read is what it was."""
    some_trials(path).close()
    records = read_trials(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    n = len(lines)

    def told(changed):
        """Number of the line that is named, 0 if the study is as it was."""
        path.write_bytes(b"".join(changed))
        try:
            assert read_trials(tmp_path) == records
            return 0
        except InputError as error:
            return int(str(error).partition(": line ")[2].partition(" ")[0])

    for k in range(n):
        before, line, after = lines[:k], lines[k], lines[k + 1 :]
        assert told([*before, *after]) == min(k + 1, n - 1)
        assert told([*before, line, line, *after]) == k + 2
        assert told(before) == k
        if after:
            assert told([*before, after[0], line, *after[1:]]) == k + 1
        for place in range(len(line)):
            if line[place : place + 1].isdigit():
                changed = bytearray(line)
                changed[place] ^= 1
                assert told([*before, bytes(changed), *after]) == k + 1
    for k in range(n - 1):  # the driver is told as well
        path.write_bytes(b"".join(lines[:k] + lines[k + 1 :]))
        with pytest.raises(InputError, match=rf"line {k + 1} is damaged"):
            open_search(path)
    path.write_bytes(b"".join(lines))
    assert open_search(path).records == records


def test_an_older_copy_goes_on_without_the_file_that_knows_the_end(path, tmp_path):
    search = some_trials(path)
    search.commit()
    older, records = path.read_bytes(), search.records
    search.ask()
    search.close()
    path.write_bytes(older + b'{"op_code": 4, "wor')
    says = re.escape(f"is not the last one by {end_of(path).name}, and no other follows; restore ")
    with pytest.raises(InputError, match=f"{says}both from a copy, or delete {end_of(path)} "):
        open_search(path)
    assert path.read_bytes() == older + b'{"op_code": 4, "wor'  # as it was
    end_of(path).unlink()
    assert open_search(path).records == records
    assert path.read_bytes() == older


def test_the_file_that_knows_the_end_has_one(path):
    some_trials(path).close()
    end_of(path).unlink()
    end_of(path).symlink_to("/dev/zero")
    for read in (open_search, lambda path: read_trials(path.parent)):
        with pytest.raises(OSError, match=r"is no regular file.*\.end"):
            read(path)


def test_notes_of_others_and_lines_of_earlier_versions_are_read(path, tmp_path):
    records = some_trials(path).records
    path.write_bytes(re.sub(rb',"crc":\d+}\n', b"}\n", path.read_bytes()))
    search = open_search(path)
    assert search.records == records
    JournalStorage(JournalFileBackend(str(path))).set_study_user_attr(0, "note", {"crc": 1})
    search.close()
    JournalStorage(JournalFileBackend(str(path))).set_study_user_attr(0, "note", {"crc": 2})
    assert read_trials(tmp_path) == open_search(path).records == records
    search = open_search(path)  # it goes on, and so may end anywhere
    search.ask()
    search.commit()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    assert read_trials(tmp_path) == records
