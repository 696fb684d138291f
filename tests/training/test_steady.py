"""Steps that tell how fast a training is: those after the first few."""

from types import SimpleNamespace

import pytest
import torch
from segment_cases import make_spec, network_with

from hydragnn_flow.config.search import WARM_UP_STEPS
from hydragnn_flow.training import monitor as monitoring
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.monitor import Steady, TrainingMonitor
from hydragnn_flow.training.runner import run_segment


def test_what_comes_first_or_between_is_not_counted(monkeypatch):
    """Slow first steps, validation and checkpoints do not change the speed."""
    now = 0.0
    monkeypatch.setattr(monitoring, "time", SimpleNamespace(monotonic=lambda: now))
    monitor = TrainingMonitor(
        World(), torch.device("cpu"), None, lambda: False, joules=lambda: 7.0 * now
    )
    loss = torch.ones((), dtype=torch.float64)
    for step in range(1, 41):
        now += 30.0 if step == 1 else 3.0 if step <= WARM_UP_STEPS else 0.25
        monitor.record(loss, loss, graphs=8)
        if monitor.sync_is_due:
            monitor.sync(1, step)
        if step == 20:
            monitor.sync(1, step)
            now += 100.0
            monitor.evaluated(100.0)
        if step == 30:
            monitor.sync(1, step)
            now += 50.0
            monitor.saved(50.0)
    monitor.sync(1, 40)
    steady = monitor.steady
    assert steady.steps == 40 - WARM_UP_STEPS
    assert steady.graphs == 8 * steady.steps
    assert steady.seconds == pytest.approx(0.25 * steady.steps)
    assert steady.joules == pytest.approx(7.0 * steady.seconds)
    # The mean step excludes the first one alone.
    between = 3.0 * (WARM_UP_STEPS - 1) + steady.seconds
    assert monitor.steps == 40 and monitor.step_seconds == pytest.approx(between / 39)


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
    network = network_with(Training__num_epoch=1)
    spec = make_spec(tmp_path / "t", alloy_store, 1, network=network, budget=("steps", steps))
    result = run_segment(spec)
    counted = max(0, steps - WARM_UP_STEPS)
    assert (result.status, result.steps, result.steady_steps) == ("ok", steps, counted)
    assert result.steady_graphs == 4 * counted
    assert (result.steady_seconds > 0) == (counted > 0)
    assert result.steady_seconds < result.seconds
