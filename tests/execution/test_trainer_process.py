"""Trainer processes and what a worker does with them: real processes, killed for real."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from driver_cases import is_at_work
from segment_cases import changed, make_spec, network_with
from trainer_cases import (
    LONG,
    NODE,
    PATIENCE,
    Running,
    call,
    called,
    checkpoint,
    epochs_saved,
    run_alone,
    run_together,
    trainer_of,
    trainer_pids,
    until,
)

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import prepare_store
from hydragnn_flow.execution import Rank
from hydragnn_flow.execution.workers import answers, worker
from hydragnn_flow.execution.workers.trainer_process import TrainerProcess, Trainers

pytestmark = pytest.mark.xdist_group("trainers")  # which are warm from file to file


def test_segments_share_a_gcd(tmp_path, alloy_store):
    warm = [make_spec(tmp_path / f"w{i}", alloy_store, 1) for i in range(2)]
    run_together(warm)
    specs = [make_spec(tmp_path / str(i), alloy_store, 20, number=i) for i in range(2)]
    for spec in specs:
        spec.folder.rmdir()  # a driver leaves it to the first who needs it
    results = run_together(specs)
    assert [(r.number, r.status, r.to_epoch) for r in results] == [(0, "ok", 20), (1, "ok", 20)]
    assert results[0].gcds == results[1].gcds
    assert max(r.started for r in results) < min(r.ended for r in results), "not side by side"
    before = trainer_pids()
    assert {trainer_of(0, place).pid for place in range(2)} <= set(before)
    run_together([make_spec(tmp_path / "2", alloy_store, 1)])
    assert trainer_pids() == before, "a warm trainer process was not used again"


def own_memory_mib(pid):
    """What a process keeps for itself, pages of files not counted [MiB]."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def own_memory_when_idle(pid):
    """What it keeps when it has answered a further request, having cleared up after the last."""
    assert called("builtins:dict", {}).status == "ok"
    assert trainer_of(0)._process.pid == pid
    return own_memory_mib(pid)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says what it is")
def test_an_idle_trainer_keeps_no_memory_of_its_last_segment(tmp_path, alloy_store):
    """Others share its GCD, and count on what it has left."""
    run_together([make_spec(tmp_path / "w", alloy_store, 1)])
    pid = trainer_of(0)._process.pid
    before = own_memory_when_idle(pid)
    network = network_with(Architecture__hidden_dim=512, Training__batch_size=32)
    (result,) = run_together([make_spec(tmp_path / "t", alloy_store, 1, network=network)])
    used = 1024 * result.peak_memory_gib - before
    assert used > 50
    left = own_memory_when_idle(pid) - before
    assert left <= 0.2 * used, f"{left:.0f} of {used:.0f} MiB"


def test_a_killed_segment_is_a_result_and_its_neighbour_goes_on(tmp_path, alloy_store):
    run_together([make_spec(tmp_path / f"w{i}", alloy_store, 1) for i in range(2)])
    spec = make_spec(tmp_path / "0", alloy_store, LONG)
    other = make_spec(tmp_path / "1", alloy_store, 100, number=1)
    victim = trainer_of(0)._process
    running = Running([Rank(spec, gcd=0)])
    checkpoint(spec.folder)
    beside = Running([Rank(other, gcd=0)])
    checkpoint(other.folder)
    victim.kill()
    (killed,), (neighbour,) = running.results(), beside.results()
    assert killed.status == "killed"
    assert "SIGKILL" in killed.reason
    assert (neighbour.status, neighbour.to_epoch) == ("ok", 100)
    assert killed.ended < neighbour.ended, "it had ended before"
    epochs = epochs_saved(spec) + 1
    (again,) = run_together([changed(spec, until_epoch=epochs)])
    assert (again.status, again.to_epoch) == ("ok", epochs)


def test_a_trainer_that_cannot_come_back_costs_no_result(tmp_path, alloy_store, monkeypatch):
    (warm,) = run_together([make_spec(tmp_path / "w", alloy_store, 1)])
    start = Mock(side_effect=OSError(errno.EAGAIN, "Resource temporarily unavailable"))
    call = TrainerProcess.call

    def last(self, *request):
        answer = call(self, *request)
        self.kill()
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Trainers, "_start", start)
        patch.setattr(TrainerProcess, "call", last)
        result = run_alone(Rank(make_spec(tmp_path / "t", alloy_store, 1), gcd=0))
    assert (warm.status, result.status, start.call_count) == ("ok", "ok", 1)
    assert run_alone(Rank(make_spec(tmp_path / "t", alloy_store, 2), gcd=0)).status == "ok"


WORKER = """
import json, sys, time
from hydragnn_flow.execution.workers.trainer_process import TrainerProcess
trainer = TrainerProcess({})
spec = json.loads(sys.argv[1])
request = {"spec": spec, "rank": 0, "world": 1, "rendezvous": None, "device": "cpu"}
answer = trainer.call(request)
print(trainer._process.pid, answer["status"], flush=True)
time.sleep(600)
"""


def test_a_node_without_a_users_module_is_named(tmp_path, alloy_store):
    spec = make_spec(tmp_path / "t", alloy_store, 1).to_dict()
    spec["network"]["Architecture"]["mpnn_type"] = "not_on_this_node:Mine"
    request = {"spec": spec, "rank": 0, "world": 1, "device": "cpu"}
    outcome = answers._answer(request, answers._Asked(), lambda message: None)
    assert outcome["status"] == "refused"
    assert "not_on_this_node" in outcome["reason"]


def test_a_trainer_leaves_nothing_in_shared_memory(tmp_path):
    """Its worker ends, as at the end of every campaign, and the node has its memory back."""
    source = {"format": "emt_alloys", "structures": 12, "atoms": [8, 8]}
    data = DataConfig.model_validate({"source": source, "split": {"val": 0.2, "test": 0.2}})
    store = prepare_store(data, 4.0, None, os.getpid(), tmp_path / "store.gs")  # nobody else's
    spec = json.dumps(make_spec(tmp_path / "t", store, 1).to_dict())
    parent = subprocess.Popen(
        [sys.executable, "-c", WORKER, spec], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid, status = parent.stdout.readline().split()
    assert status == "ok"
    trainer = psutil.Process(int(pid))
    locks = [Path(file.path) for file in trainer.open_files() if file.path.endswith(".lock")]
    entries = [lock.with_suffix("") for lock in locks]
    assert entries
    assert all(entry.is_dir() for entry in entries)
    parent.kill()
    parent.wait()
    trainer.wait(timeout=PATIENCE)
    assert not any(entry.exists() for entry in entries)


def test_a_terminated_trainer_saves_and_makes_room(tmp_path, alloy_store):
    run_together([make_spec(tmp_path / "w", alloy_store, 1)])
    trainer = trainer_of(0)._process
    running = Running([Rank(make_spec(tmp_path / "t", alloy_store, LONG), gcd=0)])
    checkpoint(tmp_path / "t")
    trainer.terminate()
    (result,) = running.results()
    assert result.status == "interrupted"
    assert trainer.wait(timeout=PATIENCE) == 0
    go_on = make_spec(tmp_path / "t", alloy_store, result.to_epoch + 1)
    assert run_together([go_on])[0].status == "ok"
    idle = trainer_of(0)._process
    idle.terminate()
    assert idle.wait(timeout=PATIENCE) == 0


def test_a_preparation_that_fails_names_its_node(monkeypatch):
    trainers = worker.trainers_of(NODE)
    with trainers.lend(0) as trainer:
        trainer._process.send_signal(signal.SIGSTOP)  # it takes requests and answers none
    stopped = psutil.Process(trainer.pid)
    until(lambda: stopped.status() == psutil.STATUS_STOPPED)
    asked = threading.Thread(target=lambda: [until(lambda: trainers._lent[0]), trainer.kill()])
    asked.start()
    died = called("hydragnn_flow.data:run_task", {})
    asked.join()
    assert (died.node, died.status) == (socket.gethostname(), "killed")
    assert "SIGKILL" in died.reason
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    few = called("hydragnn_flow.data:run_task", {}, 1, replace(NODE, device="cuda"))
    assert (few.node, few.status) == (socket.gethostname(), "refused")
    assert "was given only" in few.reason


@pytest.fixture
def hanging(tmp_path):
    """A call that never returns: its end, and the program that it waits for."""
    argument = {"told": str(tmp_path / "told")}
    job = call("own_objective:hangs_request", argument, attempt=str(tmp_path))
    with ThreadPoolExecutor() as pool:
        end = pool.submit(run_alone, Rank(job, gcd=0))
        told = tmp_path / "told"
        until(lambda: end.done() or (told.exists() and told.read_text()[-1:] == "\n"))
        yield end, int((tmp_path / "told").read_text())


def test_a_function_that_is_called_off_ends_with_all_that_it_started(tmp_path, hanging):
    end, sleeper = hanging
    worker.call_off(str(tmp_path), "it hung")
    result = end.result(60)
    assert (result.node, result.status) == (socket.gethostname(), "killed")
    assert result.reason == "it hung"
    until(lambda: not is_at_work(sleeper))
    again = called("hydragnn_flow.data:run_task", {})
    assert "KeyError" in again.reason, "its GCD takes no more work"


def test_what_a_function_started_ends_with_its_agent(hanging):
    end, sleeper = hanging
    (lent,) = worker.trainers_of(NODE)._lent[0]
    lent.trainer._requests.close()
    assert end.result(60).status == "killed"
    until(lambda: not is_at_work(sleeper))


@pytest.mark.parametrize(("number", "status"), [(errno.ENOSPC, "refused"), (errno.EAGAIN, "error")])
def test_a_node_without_room_is_named(monkeypatch, number, status):
    """Or it would spoil job after job, as a lost worker that nobody knows the node of."""

    error = OSError(number, os.strerror(number))
    monkeypatch.setattr(Trainers, "_take", Mock(side_effect=error))
    result = called("hydragnn_flow.data:run_task", {})
    assert (result.status, result.node) == (status, socket.gethostname())
    assert os.strerror(number) in result.reason
