"""Campaigns whose trials have budgets in steps or samples."""

from collections import defaultdict
from dataclasses import replace

import pytest
from phase_cases import FakePool, run, task_of, trained
from rich.console import Console

from hydragnn_flow.campaign.members import MemberPhase, select_trials
from hydragnn_flow.campaign.setup import stores
from hydragnn_flow.campaign.setup.stores import checked_store, graphs_judged
from hydragnn_flow.data import write_store
from hydragnn_flow.data.store.manifest import SplitSize
from hydragnn_flow.errors import InputError
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import SegmentResult, TrainingOutcome
from hydragnn_flow.training.checkpoints.checkpoint import load_checkpoint
from hydragnn_flow.training.plan.sampling import judged_by
from hydragnn_flow.training.runner import run_segment


def really(spec):
    """Train it, in this process."""
    spec.folder.mkdir(parents=True, exist_ok=True)
    return SegmentResult.of(spec, run_segment(spec))


def test_a_campaign_in_steps_through_rungs_to_its_members(campaign, store):
    """20 steps in 6 epochs: rungs after 6 and 20 steps; members have 9 epochs."""
    context = campaign(ensemble={"epochs": 9}, budget={"steps": 20}, validation_samples=5)
    assert (context.config.rungs, context.config.members.epochs) == ((2, 6), 9)
    context.directory.store.symlink_to(store.path)
    trials, pools = run(context, really)
    assert {trial.state for trial in trials} == {"complete", "pruned"}
    found: defaultdict[int, list[SegmentResult]] = defaultdict(list)
    for result in context.directory.results():
        found[result.number].append(result)
    for number, results in found.items():
        assert [result.steps for result in results] == [6, 14][: len(results)]
        assert {result.graphs_per_step for result in results} <= {2.0, 4.0}
        assert results[-1].planned_epochs == [2, 4][len(results) - 1]
        last = context.directory.trial(number) / results[-1].checkpoint
        assert [*load_checkpoint(last)["predicted"]] == ["5 of valset"]
    assert {len(results) for results in found.values()} == {1, 2}
    assert {spec.validation.subset for spec in pools.sent} == {(5, 3)}

    selection = select_trials(context, trials)  # by the predictions of those five
    members = trained(MemberPhase(context, selection, trials), FakePool(really))
    assert len(members) == 2
    for k in range(2):
        mine = [result for result in context.ledger.members if result.number == k]
        assert {result.status for result in mine} == {"ok"} and mine[-1].to_epoch == 9
        state = load_checkpoint(context.directory.ensemble / f"members/{k}/checkpoint.pt")
        assert len(state["predicted"]["valset"]["energy"]) == 12
        of_trial = context.ledger.trials[members[k].trial][-1]
        drawn = state["progress"]["start"]  # of the trial and the member together
        assert drawn == round(30 * of_trial.graphs_per_step)


@pytest.mark.parametrize(
    ("search", "judged"),
    [
        ({}, 10**6),
        ({"budget": {"steps": 60}}, 1000),  # 40 graphs an epoch
        ({"budget": {"steps": 60_000}}, 40_000),
        ({"budget": {"samples": 60_000}}, 10_000),
        ({"budget": {"steps": 60}, "validation_samples": "all"}, 10**6),
        ({"validation_samples": 77}, 77),
    ],
)
def test_judging_costs_no_more_than_training(campaign, store, search, judged):
    manifest, config = store.manifest, campaign(**search).config
    sizes = manifest.splits | {"valset": SplitSize(graphs=10**6, atoms=10**7, edges=10**8)}
    assert graphs_judged(config, manifest.model_copy(update={"splits": sizes})) == judged
    assert graphs_judged(config, manifest) == min(judged, 12)


def test_structures_that_judge_have_a_label_of_every_target(campaign, store, tmp_path):
    splits = {name: list(store[name]) for name in store.splits}
    for graph in splits["valset"][1:]:
        graph.forces[:] = float("nan")
    masked = write_store(tmp_path / "s", splits, targets=store.manifest.targets, cutoff=4.0)
    few = campaign(validation_samples=1).config
    some = judged_by(store["valset"], (1, few.seed)).target("energy")
    assert some != store["valset"].target("energy")[0]  # the one with forces is not drawn
    with pytest.raises(InputError, match=r"the 1 val.* label of forces.*validation_samples"):
        stores._check_judged(few, masked)
    stores._check_judged(campaign(validation_samples="all").config, masked)
    costs = campaign(objectives=["seconds"]).config
    assert graphs_judged(costs, masked.manifest) == 1  # all have an energy
    energies = {"valset": {"energy": 5, "forces": 3}}
    assert graphs_judged(costs, store.manifest.model_copy(update={"lacking": energies})) == 4


def estimated(context, batch_size, until):
    parameters = {"Architecture.mpnn_type": "SchNet", "Training.batch_size": batch_size}
    return task_of(context, TrialRecord(0, "running", parameters, None), until)


@pytest.mark.parametrize(
    ("budget", "of_four", "of_two"), [("steps", 1000, 1000), ("samples", 250, 500)]
)
def test_the_estimator_counts_the_steps_of_a_segment(campaign, budget, of_four, of_two):
    """36 graphs: a pass is 9 steps of 4, or 18 of 2; a segment has two of six epochs."""
    whole, part = campaign(), campaign(budget={budget: 3000})
    for size, expected in ((4, of_four), (2, of_two)):
        in_a_pass = estimated(whole, size, 1).estimate.uncorrected_seconds
        in_two = estimated(whole, size, 2).estimate.uncorrected_seconds
        assert in_two == pytest.approx(2 * in_a_pass)
        found = estimated(part, size, 2).estimate.uncorrected_seconds
        assert found == pytest.approx(expected * in_a_pass / (36 / size))


def test_what_a_segment_validates_by_is_a_part(campaign):
    context = campaign(budget={"steps": 60}, validation_samples=5)
    outcome = TrainingOutcome(
        status="ok", to_epoch=2, steps=20, graphs_per_step=4.0, seconds=2.0, step_seconds=0.1
    )
    result = SegmentResult.of(estimated(context, 4, 2).spec, outcome)
    taken = context.estimator._taken(replace(result, planned_epochs=2, step_work=[1.0] * 5))
    assert taken is not None and taken.evaluated == 5 / 4


def test_what_does_not_suit_the_store_is_refused_and_a_part_is_named(campaign, store, caplog):
    view, config = CampaignView(Console(quiet=True)), campaign(validation_samples=5).config
    with caplog.at_level("INFO"):
        checked_store(config, store.path, view)
    assert "epochs are judged by 5 of 12 validation structures" in caplog.text
    equal = config.data.model_copy(update={"sampling": "equal"})
    with pytest.raises(InputError, match=r"^small: data\.sampling chooses among the branches"):
        checked_store(config.model_copy(update={"data": equal}), store.path, view)
