"""The run directory belongs to one configuration and loses no record."""

import copy
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hydragnn_flow.config import RunConfig, load_config
from hydragnn_flow.config.network import write_network
from hydragnn_flow.errors import InputError
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentResult

CONFIG = load_config(Path(__file__).resolve().parents[1] / "configs" / "quickstart.yaml")


def configured(**sections):
    """The quickstart's configuration with some values changed, sections by keyword."""
    values = CONFIG.model_dump(mode="json", exclude_none=True)
    for name, value in sections.items():
        values[name] = {**values[name], **value} if isinstance(value, dict) else value
    return RunConfig.model_validate(values)


def result(number, **values):
    fields: dict[str, Any] = {"from_epoch": 0, "to_epoch": 3, "status": "ok", **values}
    return SegmentResult(kind="trial", number=number, rung=0, **fields)


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A directory whose search has begun."""
    monkeypatch.setattr("sys.argv", ["/usr/bin/hydragnn-flow", "run", "a b.yaml"])
    directory = RunDirectory(tmp_path / "runs" / "quickstart")
    directory.check(CONFIG)
    directory.record_start(CONFIG)
    directory.journal.touch()
    return directory


def refusal(call):
    with pytest.raises(InputError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_run_yaml_holds_the_configuration_and_the_versions_in_a_private_directory(directory):
    values = yaml.safe_load((directory.path / "run.yaml").read_text(encoding="utf-8"))
    versions, started = values.pop("versions"), values.pop("started")
    assert len(started) == 1
    assert values.pop("commands") == ["hydragnn-flow run 'a b.yaml'"]
    assert RunConfig.model_validate(values) == CONFIG
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert {"torch", "optuna", "parsl", "hydragnn_flow"} <= versions.keys()


def test_wall_time_leaves_out_when_nobody_drove(directory, monkeypatch):
    (directory.path / "run.yaml").unlink()
    for started, ended in ((1000, 1100), (5000, None), (9000, None)):
        monkeypatch.setattr("time.time", lambda now=started: now)
        directory.record_start(CONFIG)
        if ended:
            directory.record([result(0, started=started, ended=ended)])
    monkeypatch.setattr("time.time", lambda: 9030)
    assert directory.wall_seconds() == 100 + 0 + 30
    monkeypatch.setattr("time.time", lambda: 8000)  # set back
    assert directory.wall_seconds() == 100


def test_clearing_keeps_what_is_prepared_and_what_is_not_its_own(tmp_path):
    for kept in ("store.gs/manifest.json", ".store.gs.preparing/0a/unit-00000/record.json"):
        directory = RunDirectory(tmp_path / kept.split("/")[0])
        directory.record_start(CONFIG)
        (directory.path / kept).parent.mkdir(parents=True)
        (directory.path / kept).touch()
        directory.clear(remove=True)
        assert (directory.path / kept).exists()
        directory.check(CONFIG)
    directory = RunDirectory(tmp_path / "run")
    directory.record_start(CONFIG)
    (directory.path / "thesis.tex").touch()
    directory.clear(remove=True)
    assert [entry.name for entry in directory.path.iterdir()] == ["thesis.tex"]
    (directory.path / "thesis.tex").unlink()
    directory.record_start(CONFIG)
    directory.clear(remove=True)
    assert not directory.path.exists()


def test_until_the_search_begins_only_the_store_binds(directory):
    directory.journal.unlink()
    directory.check(configured(seed=2))
    directory.store.mkdir()
    directory.check(configured(network=OTHER_NETWORK))
    directory.check(configured(ensemble={"coverage": 0.8}, data={"mode": "random"}))
    assert "(seed differs)" in refusal(lambda: directory.check(configured(seed=2)))


OTHER_NETWORK = copy.deepcopy(CONFIG.network)
OTHER_NETWORK["Training"]["Optimizer"]["learning_rate"] = 0.1


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"name": "other"}, "name"),
        ({"network": OTHER_NETWORK}, "network.Training.Optimizer.learning_rate"),
        ({"ensemble": {"bootstrap": True}}, "ensemble.bootstrap"),
        ({"data": {"split": {"val": 0.2, "test": 0.15}}}, "data.split.val"),
        ({"search": {"min_epochs": 5}}, "search.min_epochs"),
        (
            {"search": {"space": {"Training.batch_size": {"choices": [8, 16]}}}},
            "search.space.Architecture.hidden_dim",
        ),
    ],
)
def test_another_configuration_is_refused_and_nothing_changed(sections, key, directory):
    """A key that is new since then has its default; the data may move."""
    file = directory.path / "run.yaml"
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    del values["ensemble"]["bootstrap"], values["search"]["pruner"]
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    directory.summary.parent.mkdir()
    directory.summary.touch()
    before = {path: path.stat().st_mtime_ns for path in directory.path.rglob("*")}
    directory.check(configured(data={"path": str(directory.path)}))
    message = refusal(lambda: directory.check(configured(**sections)))
    assert message.startswith(str(file)) and f"({key} differs)" in message
    assert {path: path.stat().st_mtime_ns for path in directory.path.rglob("*")} == before


@pytest.mark.parametrize("sections", [{"search": {"trials": 4}}, {"ensemble": {"size": 4}}])
def test_more_is_allowed_until_a_member_is_trained(sections, directory):
    more = configured(**sections)
    directory.check(more)
    directory.record_start(more)
    directory.check(CONFIG)
    directory.record_start(CONFIG)
    write_network(directory.ensemble / "members" / "0", CONFIG.network)
    directory.check(CONFIG)
    [(section, [key])] = sections.items()
    assert f"({section}.{key} differs)" in refusal(lambda: directory.check(more))


def test_what_finishes_an_ensemble_may_change_until_it_is_finished(directory):
    write_network(directory.ensemble / "members" / "0", CONFIG.network)
    other = configured(ensemble={"coverage": 0.8})
    directory.check(other)
    message = refusal(lambda: directory.check(configured(ensemble={"size": 4})))
    assert "(ensemble.size differs)" in message
    assert "only ensemble.coverage can be changed" in message
    directory.summary.touch()
    message = refusal(lambda: directory.check(other))
    assert "of a finished ensemble no key can be changed" in message
    assert "can be changed" not in refusal(lambda: directory.check(configured(seed=2)))


def test_a_search_that_has_begun_needs_the_earlier_ones_no_more(tmp_path):
    earlier, directory = tmp_path / "earlier", RunDirectory(tmp_path / "run")
    config = configured(search={"warm_start": [str(earlier)]})
    assert "search.warm_start.0:" in refusal(lambda: directory.check(config))
    earlier.mkdir()
    (earlier / "study.journal").write_text('{"op_code": 0}\n')
    directory.check(config)
    directory.record_start(config)
    earlier.rename(tmp_path / "moved")
    assert "does not exist" in refusal(lambda: directory.check(config))
    directory.journal.touch()
    for later in (config, CONFIG, configured(search={"warm_start": [str(tmp_path / "moved")]})):
        directory.check(later)
        directory.record_start(later)
        values = yaml.safe_load((directory.path / "run.yaml").read_text(encoding="utf-8"))
        assert values["search"]["warm_start"] == [str(earlier)]  # to make the study anew
    directory.ensemble.mkdir()
    directory.check(CONFIG)


def test_a_directory_of_something_else_or_a_damaged_one_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    message = refusal(lambda: RunDirectory(tmp_path).check(CONFIG))
    assert message.startswith(f"{tmp_path}: is not empty")
    file = tmp_path / "thesis.tex"
    assert refusal(lambda: RunDirectory(file).check(CONFIG)).startswith(str(file))
    file.unlink()
    for name in ("driver.lock", "driver.token", ".run.yaml.17.tmp"):  # of a driver killed at once
        (tmp_path / name).write_text("")
    RunDirectory(tmp_path).check(CONFIG)
    for text in ("", "name: [", "- 1", "search:", "search: [1]"):
        (tmp_path / "run.yaml").write_text(text)
        message = refusal(lambda: RunDirectory(tmp_path).check(CONFIG))
        assert message.startswith(str(tmp_path / "run.yaml")) and "is damaged (" in message


def test_results_come_back_as_recorded(directory):
    assert list(directory.results()) == []
    recorded = [
        result(0, history=[[1, 0.5, 0.4]], best_val_loss=0.4, gcds=["0"], node="h", together=1.5),
        result(1, status="diverged", reason="loss is NaN: größer\nals"),
        result(0, metrics={"energy_mae": 1e-5}),
    ]
    for segment in recorded:
        directory.record([segment])
    assert list(directory.results()) == recorded


def test_a_torn_last_line_is_dropped_at_every_byte(directory):
    directory.record([result(0)])
    directory.record([result(1)])
    kept, torn = directory.segments.read_bytes().splitlines(keepends=True)
    for cut in range(len(torn)):
        directory.segments.write_bytes(kept + torn[:cut])
        assert list(directory.results()) == [result(0)]
        if cut % 20:
            continue  # files.drop_torn_record has its own test
        directory.record_start(CONFIG)
        assert directory.segments.read_bytes() == kept
        directory.record([result(2)])
        assert list(directory.results()) == [result(0), result(2)]


@pytest.mark.parametrize("damage", ["{", "[]", "3", "", '{"kind": "trial"}', '{"king": 1}'])
def test_a_damaged_line_is_refused(damage, directory):
    for number in range(3):
        directory.record([result(number)])
    lines = directory.segments.read_text().splitlines()
    for at in range(3 if damage else 2):  # an empty line at the end is none
        changed = [*lines[:at], damage, *lines[at + 1 :]]
        directory.segments.write_text("\n".join(changed) + "\n")
        message = refusal(lambda: list(directory.results()))
        assert message.startswith(f"{directory.segments}: line {at + 1} is damaged")


def test_a_line_of_another_version_is_refused(directory):
    for version in (4, 6):
        directory.segments.unlink(missing_ok=True)
        directory.record([result(0, version=version)])
        message = refusal(lambda: list(directory.results()))
        assert f"version {version}, this package reads 5" in message


def test_more_trials_set_the_ensemble_aside(directory):
    """Cut short anywhere and called again, it comes to the same."""
    more = configured(search={"trials": CONFIG.search.trials + 1})
    assert not directory.is_extended(more)
    for kind in ("trial", "member"):
        directory.record([replace(result(0), kind=kind)])
    (directory.ensemble / "members").mkdir(parents=True)
    (directory.path / "predictions").mkdir()
    assert directory.is_extended(more) and not directory.is_extended(CONFIG)
    directory.check(more)
    aside = directory.set_ensemble_aside()
    assert not directory.is_extended(more)
    assert not directory.ensemble.exists() and not (directory.path / "predictions").exists()
    assert (aside / "members").exists() and (aside / "predictions").exists()
    assert [line.kind for line in directory.results()] == ["trial"]
    assert '"kind": "member"' in (aside / "segments.jsonl").read_text()
    directory.check(more)
    directory.ensemble.mkdir()
    assert directory.set_ensemble_aside() != aside


def test_members_whose_folder_was_deleted_are_set_aside(directory):
    member = replace(result(3), kind="member")
    directory.record([result(3), member])
    assert directory.has_stray_members and not directory.has_members
    directory.check(configured(ensemble={"epochs": 50}))
    aside = directory.set_ensemble_aside()
    assert list(directory.results()) == [result(3)]
    assert not directory.has_stray_members
    assert (aside / "segments.jsonl").exists()


@pytest.mark.parametrize("key", ["search.brackets", "network.Training.huber_delta"])
def test_a_run_with_unknown_keys_is_refused_by_their_name(directory, key):
    """As an earlier state of the package may have written it."""
    file = directory.path / "run.yaml"
    values = yaml.safe_load(file.read_text())
    *path, last = key.split(".")
    place = values
    for name in path:
        place = place[name]
    place[last] = 3
    file.write_text(yaml.safe_dump(values))
    directory.summary.parent.mkdir()
    directory.summary.touch()
    said = refusal(directory.config)
    assert said.startswith(str(file)) and f"unknown key {last!r}" in said
    assert f"({key} differs)" in refusal(lambda: directory.check(CONFIG))
