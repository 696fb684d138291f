"""Trackers get every epoch, while trials run and when they end, and never harm a campaign."""

import threading
import time

import pytest
from search_cases import segment

from hydragnn_flow.campaign import trackers
from hydragnn_flow.campaign.trackers import Trackers
from hydragnn_flow.log import LastEpoch, Running

HISTORY = [[1.0, 0.9, 0.95, 0.8], [2.0, 0.5, 0.55, 0.4], [3.0, 0.3, 0.35, 0.2]]
VALUES = ("train_loss", "val_loss", "val_error")
PARAMETERS = {"Architecture.hidden_dim": 32, "Training.precision": "bf16"}


@pytest.fixture
def tracked(tmp_path, monkeypatch):
    """A trial that was told of while it ran and ended, and continued, with a tracker."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)

    def track(name):
        some = Trackers([name], tmp_path, "mine")
        live = LastEpoch(2, 0.5, 0.4, time.time() + 10)
        some.running([Running("trial", 7, 3, live), Running("trial", 8, 3)])
        ended = segment(7, HISTORY)
        ended.parameters.update(PARAMETERS)
        some.record([ended])
        some.record([segment(7, [[4.0, 0.2, 0.25, 0.1]])])
        some.close()
        return tmp_path

    return track


def test_tensorboard_has_every_epoch(tracked):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tracked("tensorboard") / "tensorboard" / "trial-7")).Reload()
    told = {one.step: one.value for one in events.Scalars("val_error")}
    assert told == pytest.approx({1: 0.8, 2: 0.4, 3: 0.2, 4: 0.1})
    assert sorted(one.step for one in events.Scalars("val_error")) == [1, 2, 3, 4]


def steps_that_tensorboard_shows(folder, last):
    """By tag, as the reader in Rust shows them, which pages have, and as the one in Python does."""
    pytest.importorskip("tensorboard_data_server")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.context import RequestContext
    from tensorboard.data import server_ingester
    from tensorboard.util.grpc_util import ChannelCredsType

    server = server_ingester.SubprocessServerDataIngester(
        server_binary=server_ingester.get_server_binary(),
        logdir=str(folder),
        reload_interval=0,
        channel_creds_type=ChannelCredsType.LOCAL,
        samples_per_plugin={"scalars": 1000},
    )
    server.start()
    asked = {"experiment_id": "", "plugin_name": "scalars", "downsample": 1000}
    ends = time.monotonic() + 60
    while True:
        found = server.data_provider.read_scalars(RequestContext(), **asked).get(".", {})
        shown = {tag: [one.step for one in of] for tag, of in found.items()}
        if [of[-1] for of in shown.values()] == [last] * len(VALUES) or time.monotonic() > ends:
            break
        time.sleep(0.02)
    server._stdin_handle.close()  # ends it
    events = EventAccumulator(str(folder)).Reload()
    return shown, {tag: [one.step for one in events.Scalars(tag)] for tag in shown}


def test_tensorboard_shows_the_epochs_that_were_told_late(tmp_path):
    """A running segment tells some of its epochs, its result all; another driver goes on."""
    pytest.importorskip("tensorboard")
    history = [[float(epoch), 0.9, 0.95, 0.8] for epoch in range(1, 15)]
    first = Trackers(["tensorboard"], tmp_path, "mine")
    told_while_it_runs(first, "trial", 7, (2, 3, 5))
    first.record([segment(7, history[:7])])
    told_while_it_runs(first, "trial", 7, (9, 11))
    first.close()
    second = Trackers(["tensorboard"], tmp_path, "mine")
    told_while_it_runs(second, "trial", 7, (8, 12))
    second.record([segment(7, history[7:])])
    second.close()
    for shown in steps_that_tensorboard_shows(tmp_path / "tensorboard" / "trial-7", 14):
        assert shown == {name: [*range(1, 15)] for name in VALUES}


def test_mlflow_has_one_run_for_a_trial_with_its_parameters(tracked):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tracked('mlflow')}/mlflow.db")
    experiment = client.get_experiment_by_name("mine")
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "trial-7"
    assert run.data.params == {name: str(value) for name, value in PARAMETERS.items()}
    for name in ("train_loss", "val_loss"):  # of all epochs, those told while it ran included
        steps = [one.step for one in client.get_metric_history(run.info.run_id, name)]
        assert sorted(steps) == [1, 2, 3, 4]


def test_campaigns_of_one_name_have_runs_of_their_own(monkeypatch, tmp_path):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/common.db")
    for width in (32, 64):
        some = Trackers(["mlflow"], tmp_path / str(width), "mine")
        some.record([segment(7, HISTORY, parameters={"hidden_dim": width})])
        some.close()
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/common.db")
    experiment = client.get_experiment_by_name("mine")
    runs = client.search_runs([experiment.experiment_id])
    assert {run.data.params["hidden_dim"] for run in runs} == {"32", "64"}


def test_weights_and_biases_are_offline_by_default_and_say_how_to_send(tracked, caplog):
    pytest.importorskip("wandb")
    caplog.set_level("INFO", "hydragnn_flow")
    directory = tracked("wandb")
    files = [*(directory / "wandb").glob("offline-run-*/run-*.wandb")]  # one for each segment
    assert len(files) == 2
    for file in files:
        assert "mine-trial-7" in file.name
        ends = time.monotonic() + 60
        while b"val_error" not in file.read_bytes():  # its process writes until this one ends
            assert time.monotonic() < ends
            time.sleep(0.05)
    [told] = caplog.messages
    assert f"cd {directory} && wandb sync" in told


class Notes:
    """Tracker that remembers what it was told, and which runs were opened and ended."""

    keeps_at_once = True
    opened, told, ended = [], [], []

    def __init__(self, directory, name):
        pass

    def open(self, run):
        self.opened.append(run)
        return run

    def log(self, handle, new, known):
        self.told += [(handle, epoch, name) for epoch, values in new.items() for name in values]

    def close(self, handle, parameters, best):
        self.ended.append(handle)


@pytest.fixture
def notes(monkeypatch):
    for name in ("opened", "told", "ended"):
        monkeypatch.setattr(Notes, name, [])
    monkeypatch.setitem(trackers._KNOWN, "tensorboard", Notes)
    return Notes


def told_while_it_runs(some, kind, number, epochs):
    for epoch in epochs:
        some.running([Running(kind, number, 3, LastEpoch(epoch, 0.5, 0.4, time.time()))])


def test_epochs_that_a_new_driver_repeats_are_told_once(notes, tmp_path):
    first = Trackers(["tensorboard"], tmp_path, "mine")
    told_while_it_runs(first, "trial", 7, (1, 2))
    first.close()
    with (tmp_path / "trackers.jsonl").open("a") as file:
        file.write('\n5\n["tensorboard", "trial-7", 3, {"train_')  # a driver was killed here
    second = Trackers(["tensorboard"], tmp_path, "mine")
    told_while_it_runs(second, "trial", 7, (1, 2, 3))
    second.record([segment(7, HISTORY)])
    second.close()
    every = [("trial-7", epoch, name) for epoch in (1, 2, 3) for name in VALUES]
    assert sorted(notes.told) == sorted(every)


def test_a_second_ensemble_has_runs_of_its_own(notes, tmp_path):
    for trials in (16, 16, 32):
        some = Trackers(["tensorboard"], tmp_path, "mine", f"-of-{trials}-trials")
        told_while_it_runs(some, "member", 0, (1,))
        told_while_it_runs(some, "trial", 3, (1,))
        some.close()
    assert notes.opened == ["member-0-of-16-trials", "trial-3", "member-0-of-32-trials"]


def test_a_new_driver_repeats_what_a_tracker_lacks(notes, monkeypatch, tmp_path):
    """Killed before it kept its values, failed, or named later than another."""

    class Lost(Notes):
        keeps_at_once = False

        def log(self, handle, new, known):
            raise OSError("no connection")

    monkeypatch.setitem(trackers._KNOWN, "mlflow", Lost)
    first = Trackers(["tensorboard", "mlflow"], tmp_path, "mine")
    told_while_it_runs(first, "trial", 7, (1, 2))
    first.close()
    notes.told.clear()
    monkeypatch.setattr(Lost, "log", Notes.log)
    killed = Trackers(["mlflow"], tmp_path, "mine")
    told_while_it_runs(killed, "trial", 7, (1,))
    while len(notes.told) < 2:
        time.sleep(0.01)
    second = Trackers(["tensorboard", "mlflow"], tmp_path, "mine")
    second.record([segment(7, HISTORY[:1])])
    second.close()
    names = [("trial-7", 1, name) for name in ("train_loss", "val_error")]
    assert notes.told == [
        *names,
        ("trial-7", 1, "val_loss"),
        *sorted([*names, ("trial-7", 1, "val_loss")], key=lambda one: VALUES.index(one[2])),
    ]


def test_a_slow_tracker_gets_each_epoch_once_and_what_it_lacks_is_told(
    monkeypatch, tmp_path, caplog, notes
):
    went_on = threading.Event()

    class Slow(Notes):
        def __init__(self, directory, name):
            went_on.wait(60)

    caplog.set_level("INFO", "hydragnn_flow")
    monkeypatch.setitem(trackers._KNOWN, "tensorboard", Slow)
    monkeypatch.setattr(trackers, "_SECONDS_TO_END", 0.1)
    some = Trackers(["tensorboard"], tmp_path, "mine")
    for number in (1, 1, 1, 2, 2):
        some.running([Running("trial", 7, 3, LastEpoch(number, 0.5, 0.4, time.time()))])
    assert some._todo.qsize() <= 2
    some.close()
    assert "trackers lack the last" in caplog.text
    went_on.set()
    some._thread.join(60)
    names = ("train_loss", "val_error")
    assert notes.told == [("trial-7", epoch, name) for epoch in (1, 2) for name in names]


def test_a_campaign_that_ends_before_its_first_epoch_leaves_no_files(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    Trackers(["tensorboard", "mlflow"], tmp_path, "mine").close()
    assert not [*tmp_path.iterdir()]


def test_a_tracker_that_fails_is_told_once_and_gets_nothing_more(monkeypatch, tmp_path, caplog):
    class Broken(Notes):
        def open(self, run):
            raise OSError("no space left")

    caplog.set_level("INFO", "hydragnn_flow")
    monkeypatch.setitem(trackers._KNOWN, "tensorboard", Broken)
    some = Trackers(["tensorboard"], tmp_path, "mine")
    some.record([segment(7, HISTORY)])
    some.close()
    assert caplog.messages == ["tracker tensorboard gets nothing more: no space left"]
