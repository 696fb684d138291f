"""Simulated campaigns: the real loop on machines that are not there."""

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import pytest
from campaign_cases import MEMBERS, TRIALS
from phase_cases import NODE, SITE
from rich.console import Console

from hydragnn_flow.campaign import check_paths
from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.search import TrainingBudget
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.placement import Gcd
from hydragnn_flow.report.html import write_report
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.report.stage import status_table
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import read_trials
from hydragnn_flow.segment import SegmentResult
from hydragnn_flow.simulation import Conditions, Simulated, simulate

Simulate = Callable[..., Simulated]
VIEW = CampaignView(Console(quiet=True))
MOST = 3
GPU = replace(NODE, gcd=Gcd(8, 1e8, 1e8, 1e-3, 0.5, MOST), device="cuda")
BATCH = replace(SITE, node=GPU, nodes=4, blocks=2, scheduler="slurm", walltime=400.0)


@pytest.fixture
def run(tmp_path, config, store):
    """Simulate the small campaign; its directory is `run` below the test's."""

    def simulated(site=SITE, trials=TRIALS, callbacks=(), **changes):
        update = {"trials": trials, "callbacks": callbacks}
        search = config.search.model_copy(update=update)
        return simulate(
            config.model_copy(update={"search": search}),
            site,
            tmp_path / "run",
            VIEW,
            store=store,
            **{"conditions": Conditions(), **changes},
        )

    return simulated


def results(path):
    return list(RunDirectory(path).results())


def timeless(path):
    """Segments without what differs between two simulations of one seed: the real time."""
    found = results(path)
    begun = min(result.started for result in found)
    return [
        [
            *(r.kind, r.number, r.rung, r.status, r.node, r.gcds, r.parameters, r.history),
            *(round(r.started - begun, 3), round(r.ended - begun, 3)),
        ]
        for r in found
    ]


def test_one_seed_gives_one_result_and_another_one_another(run, tmp_path):
    seen = []
    for seed in (1, 1, 2):
        seen.append((run(seed=seed, trials=12), timeless(tmp_path / "run")))
    assert seen[0] == seen[1]
    assert seen[0][0].makespan != seen[2][0].makespan


def test_functions_of_the_user_are_not_called_for_trials_that_are_not_there(run, capsys):
    run(seed=1, callbacks=("builtins:print",))
    assert capsys.readouterr().out == ""


def test_no_gcd_has_more_segments_than_it_may(run, tmp_path):
    found = run(BATCH, 60, conditions=Conditions(queue_seconds=60.0, losses=2.0), seed=5)
    spans: defaultdict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for result in results(tmp_path / "run"):
        for place in result.places if result.seconds > 0 else ():
            spans[place] += [(result.started, 1), (result.ended, -1)]
    most = 0
    for events in spans.values():
        together = 0
        for _, change in sorted(events):
            together += change
            most = max(most, together)
    assert 1 < most <= MOST
    assert found.batch_jobs >= 2


def test_a_campaign_comes_to_its_end_and_takes_what_its_work_and_longest_trial_need(run, tmp_path):
    found = run(trials=30, conditions=Conditions(node_seconds=0.0))
    assert sum(found.trials.values()) == 30 and set(found.trials) <= {"complete", "pruned"}
    assert found.members == MEMBERS
    ended = results(tmp_path / "run")
    assert len(ended) >= 30 + MEMBERS
    assert 0 < found.search_seconds < found.makespan
    assert found.busy <= found.occupied * (1 + 1e-9) <= 1
    seconds: defaultdict[tuple[str, int], float] = defaultdict(float)
    for result in ended:
        seconds[result.kind, result.number] += result.seconds
    gcds = len(SITE.node.gcds) * SITE.nodes
    assert SITE.node.gcd.most_segments == 2
    assert found.makespan >= max(seconds.values())
    assert found.gcd_hours * 3600 <= gcds * found.makespan * (1 + 1e-9)
    assert found.node_hours * 3600 == pytest.approx(found.makespan, rel=0.2)


def test_what_a_batch_job_cuts_short_goes_on_in_the_next(run, tmp_path):
    slow = replace(BATCH, node=replace(GPU, gcd=replace(GPU.gcd, flops=1e6, bandwidth=1e6)))
    found = run(slow, 8)
    ended = results(tmp_path / "run")
    cut = [result for result in ended if result.status == "interrupted" and result.seconds > 0]
    assert cut and found.batch_jobs > 2
    assert sum(found.trials.values()) == 8 and "failed" not in found.trials
    for one in cut:
        following = [r for r in ended if (r.kind, r.number) == (one.kind, one.number)]
        after = following[following.index(one) + 1]
        if one.checkpoint:
            assert (after.from_epoch, after.from_step) >= (one.from_epoch, one.from_step)
            assert after.from_epoch == one.to_epoch


def test_networks_on_a_simulated_gpu_are_as_small_as_they_are(run, tmp_path):
    """The peak of a process is not taken for that of its network, thousands of times as large."""
    found = run(replace(SITE, node=GPU, nodes=4), 40)
    assert "failed" not in found.trials
    assert all((r.predicted_memory_gib or 0.0) < 1.0 for r in results(tmp_path / "run"))


def test_packs_that_are_slower_than_apart_are_undone(run, tmp_path):
    """Launches leave these GCDs idle for most of the time, but segments slow each other down."""

    def makespan(most, interference):
        gcd = replace(GPU.gcd, launch_seconds=0.05, most_segments=most)
        site = replace(SITE, node=replace(GPU, gcd=gcd), nodes=4)
        return run(site, 100, conditions=Conditions(interference=interference)).makespan

    apart = makespan(1, 4.0)
    assert makespan(MOST, 0.0) < 0.7 * apart
    assert makespan(MOST, 4.0) < 1.1 * apart
    ended = sorted(results(tmp_path / "run"), key=lambda result: result.ended)
    assert any(result.status == "interrupted" for result in ended)
    assert any(result.together > 2 for result in ended[: len(ended) // 2])
    assert all(result.together < 1.5 for result in ended[len(ended) // 2 :])


def test_lost_nodes_cost_segments_and_not_the_campaign(run, tmp_path):
    conditions = Conditions(losses=20.0)
    found = run(replace(BATCH, walltime=3600.0), 40, conditions=conditions, seed=3)
    lost = [result for result in results(tmp_path / "run") if result.status == "lost"]
    assert lost and found.failed_segments >= len(lost)
    assert sum(found.trials.values()) == 40 and found.members == MEMBERS


def test_a_machine_that_loses_all_its_nodes_stops_the_campaign(run):
    with pytest.raises(CampaignStopped, match="all simulated nodes are lost"):
        run(conditions=Conditions(losses=1e5))


def test_a_simulated_run_says_so_and_replaces_no_real_one(run, tmp_path, config):
    run()
    path = tmp_path / "run"
    about = json.loads((path / "simulated.json").read_text())
    assert about["seed"] == 0 and about["makespan"] > 0
    console = Console(record=True, width=200)
    console.print(status_table(path))
    said = console.export_text()
    assert "nothing was trained" in said and "continues it" not in said
    assert "nothing was trained" in write_report(path).read_text()
    with pytest.raises(InputError, match="holds a simulated campaign"):
        check_paths(config, path)
    (path / "simulated.json").unlink()
    before = (path / "run.yaml").read_text()
    with pytest.raises(InputError, match="holds no simulation"):
        run()
    assert (path / "run.yaml").read_text() == before


@pytest.mark.parametrize("budget", [{"steps": 600}, {"samples": 2400}])
def test_a_simulated_campaign_has_the_steps_of_its_budget(budget, tmp_path, config, store):
    """Every trial that comes to its end has them all, or is as long as it may be."""
    search = config.search.model_copy(update={"budget": TrainingBudget(**budget)})
    config = config.model_copy(update={"search": search})
    conditions = Conditions(noise=0.0, interference=0.0, node_seconds=0.0)
    simulate(config, SITE, tmp_path / "run", VIEW, store=store, conditions=conditions)
    taken: defaultdict[int, list[SegmentResult]] = defaultdict(list)
    for result in results(tmp_path / "run"):
        if result.kind == "trial":
            taken[result.number].append(result)
    whole = [of for of in taken.values() if of[-1].to_epoch == 6]
    assert len(whole) >= MEMBERS
    for of_trial in whole:
        steps = sum(result.steps for result in of_trial)
        if "steps" in budget:
            assert steps == 600
        else:
            assert steps * of_trial[0].graphs_per_step == 2400


def test_a_search_for_the_fastest_training_can_be_planned(config, store, tmp_path):
    """It has no members, and trials of few steps on GCDs of their own."""
    values = config.model_dump(mode="json", exclude_unset=True, exclude={"ensemble"})
    values["search"] |= {"objectives": ["throughput"], "budget": {"steps": 20}, "rungs": "none"}
    found = simulate(
        RunConfig.model_validate(values),
        replace(SITE, node=GPU),
        tmp_path / "run",
        VIEW,
        store=store,
        conditions=Conditions(),
    )
    assert found.trials == {"complete": TRIALS}
    assert found.members == 0
    ended = results(tmp_path / "run")
    assert {result.together for result in ended} == {1.0}
    assert {result.steady_steps for result in ended} == {15}
    assert all(trial.value and trial.value > 0 for trial in read_trials(tmp_path / "run"))
    write_report(tmp_path / "run")
