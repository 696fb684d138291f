"""Objectives and limits of trials, read from the results of their segments."""

from collections import Counter
from dataclasses import replace

import pytest
from campaign_cases import TRIALS
from parsl.executors.high_throughput.errors import ManagerLost
from phase_cases import badly, change_gcd, micro_batches, run, well

from hydragnn_flow.errors import InputError


def test_limits_and_costs_are_read_from_the_results(campaign):
    def machine(spec):
        metrics = {"energy_mae": 99.0, "energy_mae_per_atom": 10.0 - spec.number}
        peak = 1.0 + spec.number
        return replace(well(spec), peak_memory_gib=peak, gcds=["0"], metrics=metrics)

    changes = {
        "objectives": ["val.energy", "seconds"],
        "constraints": {"peak_memory_gib": 3.5},
        "rungs": "none",
    }
    trials, _ = run(campaign(**changes), machine)
    assert [trial.value for trial in trials] == [10.0 - n for n in range(TRIALS)]
    assert all(trial.values == (trial.value, 1.0) for trial in trials)
    assert [trial.feasible for trial in trials] == [n < 3 for n in range(TRIALS)]


def test_work_that_nobody_reported_is_counted_once(campaign):
    """A trial is not quick because the node was lost on which it was trained."""
    tries: Counter[int] = Counter()

    def machine(spec):
        tries[spec.number] += 1
        if spec.number == 1 and tries[1] == 1:
            raise ManagerLost(b"m", "node7")
        result = replace(well(spec), joules=10.0)
        if spec.number == 1:
            result = replace(result, spent_seconds=40.0, spent_joules=400.0)
        if spec.number == 2 and tries[2] == 1:
            return replace(badly(spec), seconds=50.0, joules=500.0)
        if spec.number == 2:  # of those fifty
            result = replace(result, spent_seconds=30.0, spent_joules=300.0)
        return result

    context = campaign(objectives=["val_loss", "seconds", "joules"], rungs="none")
    change_gcd(context, most_segments=1)  # who shares a worker is lost with it
    trials, _ = run(context, machine)
    costs = [trial.values[1:] for trial in trials[:3]]
    assert costs == [(1.0, 10.0), (41.0, 410.0), (51.0, 510.0)]


def test_energy_that_nobody_measures_is_refused(campaign):
    with pytest.raises(InputError, match="'joules' cannot be measured"):
        run(campaign(objectives=["val_loss", "joules"]), well)


def test_energy_that_one_node_does_not_measure_costs_the_trial(campaign):
    def machine(spec):
        return replace(well(spec), joules=None if spec.number == 2 else 5.0, node=f"n{spec.number}")

    trials, _ = run(campaign(objectives=["val_loss", "joules"], rungs="none"), machine)
    assert [trial.number for trial in trials if trial.state == "failed"] == [2]
    assert "'joules' cannot be measured on n2" in trials[2].reason


def test_peaks_of_what_did_not_fit_break_no_limit(campaign):
    def machine(spec):
        result = well(spec) if micro_batches(spec) > 1 else badly(spec, "out_of_memory")
        return replace(result, peak_memory_gib=9.0 / micro_batches(spec))

    trials, _ = run(campaign(constraints={"peak_memory_gib": 5.0}), machine)
    assert all(trial.feasible for trial in trials)
