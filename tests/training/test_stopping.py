"""How a segment ends before its rung, how often it looks whether to, and how its time is told."""

import itertools
import json
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
import torch
from driver_cases import PATIENCE
from segment_cases import make_spec
from training_cases import CPU, member_of, segment, trainer_of

from hydragnn_flow.config.search import WARM_UP_STEPS
from hydragnn_flow.training import monitor as monitoring
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.monitor import Diverged, Steady, TrainingMonitor
from hydragnn_flow.training.runner import run_segment
from hydragnn_flow.training.trainer import Trainer


def steps_saved(folder):
    progress = load_checkpoint(folder / FILE)["progress"]
    return progress["epoch"], progress["step"]


def test_a_segment_ends_before_its_deadline(tmp_path, alloy_store, monkeypatch):
    """A second passes each time that somebody looks at the clock, several times a step."""
    seconds = itertools.count()
    told = SimpleNamespace(monotonic=lambda: float(next(seconds)))
    monkeypatch.setattr(monitoring, "time", told)
    spec = make_spec(tmp_path / "t", alloy_store, 10_000, deadline=120.0)
    result = run_segment(spec)
    assert 60 < next(seconds) <= spec.deadline
    assert result.status == "interrupted"
    assert result.reason.startswith("its time is up, in epoch")
    assert steps_saved(tmp_path / "t") >= (result.to_epoch, 0)
    assert result.to_epoch > 0


def test_a_segment_without_time_gets_a_step_further(tmp_path, alloy_store):
    """Sent to a worker that is about to end, again and again, it must not look stuck."""
    for number in range(1, 4):
        result = run_segment(make_spec(tmp_path / "t", alloy_store, 9, deadline=time.monotonic()))
        assert result.status == "interrupted"
        assert steps_saved(tmp_path / "t") == (0, number)


ORPHAN = """
import json, sys
from hydragnn_flow.execution.workers.trainer_process import TrainerProcess
trainer = TrainerProcess({})
print(trainer._process.pid, flush=True)
spec = json.loads(sys.argv[1])
request = {"spec": spec, "rank": 0, "world": 1, "rendezvous": None, "device": "cpu"}
trainer.call(request)
"""


def test_a_trainer_that_lost_its_worker_saves_first(tmp_path, alloy_store):
    spec = make_spec(tmp_path / "t", alloy_store, 10_000)
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, json.dumps(spec.to_dict())],
        stdout=subprocess.PIPE,
        text=True,
    )
    trainer = psutil.Process(int(parent.stdout.readline()))

    def come_to(reached):
        give_up = time.monotonic() + 120
        while not reached():
            assert parent.poll() is None and time.monotonic() < give_up
            time.sleep(0.05)

    def worked():
        times = trainer.cpu_times()
        return times.user + times.system

    come_to((tmp_path / "t" / FILE).exists)
    before = (tmp_path / "t" / FILE).stat().st_mtime_ns
    seen, since = steps_saved(tmp_path / "t"), worked()
    come_to(lambda: worked() > since + 0.5)  # some steps, and nothing saved for as long
    parent.kill()
    parent.wait()
    trainer.wait(timeout=PATIENCE)
    assert (tmp_path / "t" / FILE).stat().st_mtime_ns > before
    assert steps_saved(tmp_path / "t") > seen


class Poisoned(Trainer):
    """Its weights or its gradient go bad in the sixth step."""

    what, count = "", 0

    def train_step(self, step, batch):
        self.count += 1
        weight = next(self.model.parameters())
        if self.count == 6 and self.what == "loss":
            with torch.no_grad():
                weight.fill_(torch.nan)
        if self.count == 6 and self.what == "norm":
            weight.register_hook(lambda gradient: gradient * torch.inf)
        return super().train_step(step, batch)


@pytest.mark.parametrize(
    ("what", "said"),
    [("loss", "training loss is nan"), ("norm", "training gradient's norm is (nan|inf)")],
)
@pytest.mark.parametrize(("clip", "interval", "most"), [(10.0, 0.0, 6), (0.0, 1e9, 8)])
def test_divergence_is_named_by_its_step(
    tmp_path, alloy_store, monkeypatch, what, said, clip, interval, most
):
    """Found at the next synchronisation, within the epoch where that is soon, it names the step."""
    monkeypatch.setattr(monitoring, "SECONDS_BETWEEN_SYNCS", interval)
    trainer = trainer_of(tmp_path, alloy_store, 5, Poisoned, Training__gradient_clip=clip)
    assert len(trainer.plan(0)) == 4
    trainer.what = what
    with pytest.raises(Diverged, match=f"^{said} in epoch 2, step 2$"):
        trainer.run()
    assert trainer.count == most


def test_atoms_that_leave_for_nowhere_diverge(tmp_path, alloy_store):
    """Where layers move the atoms, bad weights make lengths NaN, which no spline can look up."""
    moving = {"Architecture__mpnn_type": "EGNN", "Architecture__equivariance": True}
    hopeless = {"Training__Optimizer__learning_rate": 1e30}
    result = run_segment(segment(tmp_path / "t", alloy_store, 3, **moving, **hopeless))
    assert result.status == "diverged", result.reason


def test_lack_of_memory_is_a_result(tmp_path, alloy_store):
    result = run_segment(segment(tmp_path / "t", alloy_store, 1, Architecture__hidden_dim=10**6))
    assert result.status == "out_of_memory"
    assert "memory" in result.reason
    again = run_segment(make_spec(tmp_path / "t", alloy_store, 1))
    assert again.status == "ok"


def test_early_stopping_ends_a_trial_well(tmp_path, alloy_store):
    """Nothing is learnt at this rate; later rungs find it ended, and a member begins anew."""
    still = {
        "Training__EarlyStopping": True,
        "Training__patience": 3,
        "Training__Optimizer": {"type": "SGD", "learning_rate": 1e-30},
    }
    result = run_segment(spec := segment(tmp_path / "t", alloy_store, 10, **still))
    assert (result.status, result.best_epoch, result.to_epoch) == ("ok", 1, 4)
    again = run_segment(segment(tmp_path / "t", alloy_store, 20, **still, after_epoch=10, rung=1))
    assert (again.status, again.to_epoch, again.history) == ("ok", 4, [])
    assert again.best_val_error == result.best_val_error
    member = segment(tmp_path / "m", alloy_store, 20, **still, **member_of(spec))
    assert run_segment(member).to_epoch == 8


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(monitoring, "time", SimpleNamespace(monotonic=lambda: self.now))


def test_what_comes_first_or_between_is_not_counted(monkeypatch):
    """Slow first steps, validation and checkpoints do not change the speed."""
    clock = Clock(monkeypatch)
    monitor = TrainingMonitor(World(), CPU, None, lambda: False, joules=lambda: 7.0 * clock.now)
    loss = torch.ones((), dtype=torch.float64)
    for step in range(1, 41):
        clock.now += 30.0 if step == 1 else 3.0 if step <= WARM_UP_STEPS else 0.25
        monitor.record(loss, loss, graphs=8)
        if monitor.sync_is_due or step in (20, 30, 40):
            monitor.sync(1, step)
        if step == 20:
            clock.now += 100.0
            monitor.evaluated(100.0)
        if step == 30:
            clock.now += 50.0
            monitor.saved(50.0)
    steady = monitor.steady
    assert steady.steps == 40 - WARM_UP_STEPS
    assert steady.graphs == 8 * steady.steps
    assert steady.seconds == pytest.approx(0.25 * steady.steps)
    assert steady.joules == pytest.approx(7.0 * steady.seconds)
    # The mean step excludes the first one alone.
    between = 3.0 * (WARM_UP_STEPS - 1) + steady.seconds
    assert monitor.steps == 40 and monitor.step_seconds == pytest.approx(between / 39)


class _Alike(World):
    """One of several ranks that all do and say the same."""

    def sum(self, values):
        return values * self.size


def _take_steps(monitor, clock, seconds):
    """Steps of so many seconds each, until a synchronisation is due; returns how many."""
    number = 0
    while not monitor.sync_is_due:
        clock.now += seconds
        monitor.record(torch.tensor(1.0, dtype=torch.float64), torch.tensor(1.0))
        number += 1
    monitor.sync(1, number)
    return number


@pytest.mark.parametrize("least", [0.0, 200.0])
def test_a_site_of_many_gcds_saves_less_often(least, monkeypatch):
    clock = Clock(monkeypatch)
    monitor = TrainingMonitor(World(), CPU, None, lambda: False, seconds_between_saves=least)
    saves, begin = 0, clock.now
    while clock.now < begin + 1000.0:
        _take_steps(monitor, clock, 1.0)
        if monitor.save_is_due(within_epoch=False):
            clock.now += 1.0
            monitor.saved(1.0)
            saves += 1
    assert saves == pytest.approx(1000 / (1 + max(least, 20.0)), abs=1)


@pytest.mark.parametrize("ranks", [1, 8])
def test_several_ranks_synchronise_as_often_as_one(ranks, monkeypatch):
    """About every second; each synchronisation makes them all wait for each other."""
    clock = Clock(monkeypatch)
    monitor = TrainingMonitor(_Alike(0, ranks), CPU, None, lambda: False)
    warm_up = [_take_steps(monitor, clock, 0.05), _take_steps(monitor, clock, 0.05)]
    assert warm_up == [1, WARM_UP_STEPS - 1], "the steps that are measured begin with one"
    assert _take_steps(monitor, clock, 0.05) == 20


def test_energy_of_a_counter_that_is_lost_is_not_known():
    """What it had counted until then would make the trial look cheap."""
    readings = iter([0.0, 0.0, 1.0, 2.0, None, None])
    steady = Steady(lambda: next(readings))
    steady.resume()
    steady.count(WARM_UP_STEPS, 8, 1.0)
    steady.count(1, 8, 1.0)
    assert steady.joules == 1.0
    steady.count(1, 8, 1.0)
    steady.count(1, 8, 1.0)
    assert (steady.steps, steady.joules) == (3, None)


@pytest.mark.parametrize("steps", [WARM_UP_STEPS - 1, WARM_UP_STEPS, WARM_UP_STEPS + 4])
def test_a_segment_tells_its_steady_steps(tmp_path, alloy_store, steps):
    whole = {"Training__num_epoch": 1, "budget": ("steps", steps)}
    result = run_segment(segment(tmp_path / "t", alloy_store, 1, **whole))
    counted = max(0, steps - WARM_UP_STEPS)
    assert (result.status, result.steps, result.steady_steps) == ("ok", steps, counted)
    assert result.steady_graphs == 4 * counted
    assert (result.steady_seconds > 0) == (counted > 0)
    assert result.steady_seconds < result.seconds
