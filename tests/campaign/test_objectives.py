"""Objectives, limits and energy of trials, read from the results of their segments."""

import logging
from collections import Counter
from dataclasses import replace

import pytest
from campaign_cases import TRIALS
from parsl.executors.high_throughput.errors import ManagerLost
from phase_cases import FakePool, badly, change_gcd, micro_batches, run, searched, well

from hydragnn_flow.campaign.setup.start import _is_complete
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.errors import InputError
from hydragnn_flow.report.stage import stage_of
from hydragnn_flow.simulation.plan import survey

KWH = 3.6e6


def test_limits_and_costs_are_read_from_the_results(campaign):
    def machine(spec):
        metrics = {"energy_mae": 99.0, "energy_mae_per_atom": 10.0 - spec.number}
        peak = 1.0 + spec.number
        return replace(well(spec), peak_memory_gib=peak, gcds=["0"], metrics=metrics)

    changes = {"objectives": ["val.energy", "seconds"], "constraints": {"peak_memory_gib": 3.5}}
    trials, _ = run(campaign(rungs="none", **changes), machine)
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


def test_peaks_of_what_did_not_fit_break_no_limit(campaign):
    def machine(spec):
        result = well(spec) if micro_batches(spec) > 1 else badly(spec, "out_of_memory")
        return replace(result, peak_memory_gib=9.0 / micro_batches(spec))

    trials, _ = run(campaign(constraints={"peak_memory_gib": 5.0}), machine)
    assert all(trial.feasible for trial in trials)


def test_energy_that_nobody_measures_is_refused_by_the_first_result(campaign):
    with pytest.raises(InputError, match="'joules' cannot be measured"):
        run(campaign(objectives=["val_loss", "joules"]), well)
    with pytest.raises(InputError, match=r"^search.energy_kwh cannot be measured on .*remove it"):
        run(campaign(energy_kwh=1.0), well)


def test_energy_that_one_node_does_not_measure_costs_the_trial(campaign):
    def machine(spec):
        joules = None if spec.number == 2 else 5.0
        return replace(well(spec), joules=joules, node=f"n{spec.number}")

    trials, _ = run(campaign(objectives=["val_loss", "joules"], rungs="none"), machine)
    assert [trial.number for trial in trials if trial.state == "failed"] == [2]
    assert "'joules' cannot be measured on n2" in trials[2].reason


def of_a_kwh(spec):
    return replace(well(spec), joules=1.0 * KWH)


def test_a_trial_that_was_not_counted_keeps_within_the_limit_of_energy(campaign):
    def machine(spec):
        return well(spec) if spec.number == 3 else of_a_kwh(spec)

    trials, _ = run(campaign(rungs="none", energy_kwh=100.0), machine)
    assert [trial.state for trial in trials] == ["complete"] * TRIALS


def test_no_more_trials_are_asked_for_once_their_energy_is_used_up(campaign, caplog):
    """Two GCDs, so that one trial may be on its way when another ends; each takes a kWh."""
    caplog.set_level(logging.INFO)
    trials, _ = run(campaign(rungs="none", energy_kwh=2.5), of_a_kwh)
    assert [trial.state for trial in trials] == ["complete"] * len(trials)
    assert 3 <= len(trials) <= 4 < TRIALS
    (told,) = [r.getMessage() for r in caplog.records if r.levelno > logging.INFO]
    assert "search.energy_kwh = 2.5 is used up" in told
    assert f"no more trials after {len(trials)} of {TRIALS}" in told
    later = TrialPhase(campaign(rungs="none", energy_kwh=2.5))
    assert (later.context.ledger.trial_kwh, later._to_come) == (len(trials), 0)


def test_trials_that_have_begun_go_on_to_their_last_rung(campaign):
    trials, pool = run(campaign(energy_kwh=0.5), of_a_kwh)
    assert 1 <= len(trials) <= 4 < TRIALS, "as many as two GCDs take at a time"
    assert trials[0].state == "complete" and len(pool.sent) > len(trials)


def test_a_search_alone_that_has_used_its_energy_is_over(campaign):
    """Of trials that were asked for; another limit continues it."""
    context = campaign(rungs="none", energy_kwh=2.5, objectives=["seconds"])
    assert not _is_complete(context.config, context.directory)
    steady = {"steps": 20, "steady_steps": 15, "steady_graphs": 60, "steady_seconds": 1.0}
    run(context, lambda spec: replace(of_a_kwh(spec), gcds=["0"], **steady))
    assert _is_complete(context.config, context.directory)
    assert stage_of(context.directory.path).phase == "finished"
    more = context.config.search.model_copy(update={"energy_kwh": 10.0})
    further = context.config.model_copy(update={"search": more})
    assert not _is_complete(further, context.directory)


def test_no_trial_is_asked_for_beyond_a_limit_of_parameters(campaign):
    context = campaign(
        objectives=["val_error", "parameters"], constraints={"parameters": 1500}, rungs="none"
    )
    trials, _ = run(context, well)
    counts = [context.parameters(trial.parameters) for trial in trials]
    assert len(trials) == TRIALS and min(counts) > 0 and max(counts) <= 1500
    assert [trial.values[1] for trial in trials] == counts
    drawn = survey(context, 30, seed=0)
    assert max(context.parameters(one.parameters) for one in drawn) <= 1500
    sizes = {(one.mpnn_type, one.parameters["Architecture.hidden_dim"]) for one in drawn}
    assert len(sizes) >= 4, "not all the same network"


@pytest.mark.parametrize(
    ("name", "most"), [("seconds", 0.15), ("gcd_hours", 4e-5), ("peak_memory_gib", 5e-4)]
)
def test_no_trial_is_asked_for_beyond_a_limit_of_time_or_memory(campaign, name, most):
    context = campaign(constraints={name: most})
    drawn = (survey(of, 15, seed=0) for of in (context, campaign()))
    asked, free = ([context.foreseen(one.parameters)[name] for one in found] for found in drawn)
    assert max(asked) <= most < max(free)


def test_what_trials_take_is_learnt_for_later_ones(campaign):
    def machine(spec):
        steps = 6 * -(-36 // spec.network.Training.batch_size)
        times = {"seconds": float(steps), "step_seconds": 1.0, "steps": steps}
        return replace(well(spec), gcds=["0"], **times)

    limits = {"constraints": {"seconds": 80.0}, "rungs": "none", "sampler": "random"}
    trials, _ = run(campaign(trials=24, **limits), machine)
    sizes = [trial.parameters["Training.batch_size"] for trial in trials]
    assert 2 in sizes[:8] and {*sizes[12:]} == {4}


def test_networks_enqueued_beyond_a_limit_of_parameters_fail_by_name(campaign):
    phase = TrialPhase(campaign(constraints={"parameters": 900}))
    large = {"Architecture.mpnn_type": "PNA", "Architecture.hidden_dim": 8}
    phase.search._study.enqueue_trial(large)
    records = searched(phase, FakePool(well))
    assert [record.number for record in records if record.state == "failed"] == [0]
    assert records[0].parameters.items() >= large.items()
    count = phase.context.parameters(records[0].parameters)
    assert records[0].reason == (
        f"error: has {count:,} parameters, more than search.constraints.parameters allows"
    )
    assert count > 900


@pytest.mark.parametrize(
    ("search", "sentence"),
    [
        ({"constraints": {"parameters": 10}}, "drawn from search.space the smallest has"),
        (
            {
                "constraints": {"parameters": 900},
                "enqueue": [{"Architecture.mpnn_type": "PNA", "Architecture.hidden_dim": 8}],
            },
            "drawn from search.enqueue.0 the smallest has",
        ),
    ],
)
def test_a_limit_of_parameters_that_no_network_keeps_is_refused(campaign, search, sentence):
    with pytest.raises(InputError, match=rf"constraints\.parameters = .*{sentence}"):
        TrialPhase(campaign(**search))
