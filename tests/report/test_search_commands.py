"""`trials` and `dashboard`, as a user types them."""

import json
import re
import shutil
import socket
import sys
import threading
import urllib.error
import urllib.request

import optuna
import pandas as pd
import pytest
from console_cases import Console
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from hydragnn_flow.commands.console import console
from hydragnn_flow.errors import InputError
from hydragnn_flow.report.dashboard import dashboard_server


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    def run(*arguments, code=0, width=200):
        monkeypatch.setattr(console, "width", width)  # COLUMNS counts only when it is made
        return Console(tmp_path, monkeypatch, capsys).says(*arguments, code=code)

    return run


def test_trials_shows_the_best_first(command, finished):
    said = command("trials", finished.directory)
    losses = [n for n, state in finished.states.items() if state != "failed"]
    losses.sort(key=finished.losses.__getitem__)
    rows = re.findall(r"^ +(\d+) +(\w+)", said, flags=re.MULTILINE)
    assert [int(number) for number, _ in rows] == losses[:20]
    assert "num_gaussians" in said and "32 trials: " in said
    assert "…" not in command("trials", finished.directory, width=70)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_trials_writes_a_table_of_all(command, finished, tmp_path, name):
    said = command("trials", finished.directory, "-o", tmp_path / name)
    assert said.endswith(f"{name}: 32 trials\n")
    read = pd.read_csv if name.endswith("csv") else pd.read_parquet
    table = read(tmp_path / name)
    assert list(table["trial"]) == list(range(32))
    ended = table[table["state"] != "failed"]
    assert ended["value"].tolist() == pytest.approx([finished.losses[n] for n in ended["trial"]])
    failed = table[table["state"] == "failed"]
    assert failed["reason"].tolist() == ["training loss is nan in epoch 2"]


def test_mistakes_are_told_in_a_sentence(command, finished, tmp_path):
    said = command("trials", finished.directory, "-o", tmp_path / "t.txt", code=2)
    assert "must end in .csv or .parquet" in said
    assert "not the directory of a run" in command("trials", tmp_path, code=2)
    shutil.copy(finished.directory / "run.yaml", tmp_path)
    for name in ("trials", "dashboard"):
        assert "has no trials yet" in command(name, tmp_path, code=2)
    (tmp_path / "study.journal").touch()
    assert "has no trials yet" in command("trials", tmp_path, code=2)


def test_the_dashboard_is_an_extra(command, finished, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    said = command("dashboard", finished.directory, code=2)
    assert "pip install 'hydragnn_flow[dashboard]'" in said


def get(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        body = answer.read()
    return json.loads(body) if "/api/" in url else body.decode()


def test_the_dashboard_shows_and_follows_the_run_and_changes_nothing(searching):
    journal = searching.directory / "study.journal"
    with dashboard_server(searching.directory, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        before = journal.read_bytes()
        assert "<html" in get(url)
        (study,) = get(f"{url}/api/studies")["study_summaries"]
        assert study["study_name"] == "search"
        assert len(get(f"{url}/api/studies/0")["trials"]) == 7
        assert get(f"{url}/api/studies/0/param_importances")["param_importances"][0]
        for method, path, body in (
            ("PUT", "/api/studies/0/note", {"body": "x", "version": 1}),
            ("POST", "/api/trials/1/tell", {"state": "Fail"}),
            ("DELETE", "/api/studies/0", {}),
        ):
            asked = urllib.request.Request(url + path, json.dumps(body).encode(), method=method)
            asked.add_header("Content-Type", "application/json")
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(asked, timeout=60)
            assert refused.value.code == 403
            assert "nothing can be changed here" in json.loads(refused.value.read())["reason"]
        assert journal.read_bytes() == before
        assert [path.name for path in journal.parent.glob("*.lock*")] == []
        lines = len(get(f"{url}/csv/0").splitlines())
        storage = JournalStorage(JournalFileBackend(str(journal)))
        followed = optuna.load_study(study_name="search", storage=storage)
        followed.tell(followed.ask(), 0.25)
        with journal.open("ab") as file:
            file.write(b'{"op_code": 4, "worker_id": "x", "study')  # still being written
        table = get(f"{url}/csv/0").splitlines()
        assert len(table) == lines + 1
        assert table[-1].startswith("7,COMPLETE,0.25")
        server.shutdown()
        thread.join()


def test_a_port_in_use_is_refused_by_name_and_avoided_by_default(searching):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"--port {port}: cannot be used"):
            dashboard_server(searching.directory, port)
    run = searching.directory
    with dashboard_server(run) as one, dashboard_server(run) as other:
        assert one.server_port != other.server_port != 8080
