"""Steps of members and trials where each GCD has a batch of its own."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from campaign_cases import CONFIG
from phase_cases import (
    SITE,
    FakePool,
    badly,
    change_gcd,
    member_phase,
    micro_batches,
    run,
    task_of,
    trained,
    well,
)

from hydragnn_flow.campaign.context import LEAST_STEPS
from hydragnn_flow.data.splits import TRAIN
from hydragnn_flow.search import TrialRecord

PER_GCD = {"batch_per_gcd": True}
SPACE: dict[str, Any] = {"Training.Optimizer.learning_rate": {"float": [1e-3, 1e-2]}}
# Of the 36 structures to train on, one at a time.
SMALL: dict[str, Any] = {"training": {"batch_size": 1}, "space": SPACE, "resources": PER_GCD}


def on_slow_gcds(context, nodes=3):
    """With GCDs so slow that more of them are worth their trouble."""
    change_gcd(context, flops=1e5, bandwidth=1e5, most_segments=1)
    context.site = replace(SITE, nodes=nodes)
    return context


def member(context):
    trial = TrialRecord(0, "running", {}, None)
    return task_of(context, trial, 8, kind="member", width=None)


def test_members_have_a_batch_of_each_of_their_gcds(campaign):
    trials, pools = run(campaign(**SMALL), well)
    assert {spec.epochs.batches for spec in pools.sent} == {1}, (
        "trials are compared with each other"
    )
    context = on_slow_gcds(campaign(**SMALL))

    def machine(spec):
        return replace(well(spec), graphs_per_step=1.0 * spec.epochs.batches, learning_rate=0.01)

    pools = FakePool(machine, nodes=3)
    members = trained(member_phase(context, trials[:2]), pools)
    assert all(not one.reason for one in members)
    batches = {spec.number: spec.epochs.batches for spec in pools.sent}
    assert {one.member: one.graphs_per_step for one in members} == batches
    assert {one.learning_rate for one in members} == {0.01}
    assert {rank.spec.epochs.batches for rank in pools.ranks if rank.world == 4} == {4}
    assert all(rank.spec.epochs.batches == rank.world for rank in pools.ranks)
    recorded = [one for one in context.directory.results() if one.kind == "member"]
    assert sorted(one.batches for one in recorded) == sorted(
        spec.epochs.batches for spec in pools.sent
    )
    shared = on_slow_gcds(campaign(**{**SMALL, "resources": {}, "training": {"batch_size": 16}}))
    shapes = shared.shapes(member(shared))
    assert shapes[-1].width > 1 and {shape.spec.epochs.batches for shape in shapes} == {1}


def test_a_trial_has_as_many_as_it_asks_for_on_a_smaller_machine_too(campaign):
    space = {**CONFIG["search"]["space"], "Resources.gcds": {"choices": [1, 2, 8]}}
    trials, pools = run(campaign(resources=PER_GCD, space=space), well)
    asked = {trial.number: trial.parameters["Resources.gcds"] for trial in trials}
    assert len(set(asked.values())) > 1
    for rank in pools.ranks:
        assert rank.spec.epochs.batches == asked[rank.spec.number]
        assert rank.world == min(2, rank.spec.epochs.batches)


def test_a_wider_member_takes_fewer_steps_of_the_same_length(campaign):
    context = on_slow_gcds(campaign(**SMALL))
    shapes = context.shapes(member(context))
    assert [shape.width for shape in shapes] == [1, 2, 4]
    for narrow, wide in pairwise(shapes):
        assert wide.spec.epochs.batches == wide.width
        assert wide.spec.network == narrow.spec.network
        # All that differs is the exchange of gradients, and how steps are filled.
        assert wide.seconds == pytest.approx(narrow.seconds / 2, rel=0.15)
        assert wide.estimate.memory_gib == pytest.approx(narrow.estimate.memory_gib, rel=0.1)


def test_an_epoch_keeps_steps_enough(campaign):
    context = on_slow_gcds(campaign(**SMALL), nodes=100)
    graphs = context.store.manifest.splits[TRAIN].graphs
    widest = context.shapes(member(context))[-1].width
    assert graphs // widest >= LEAST_STEPS > graphs // (2 * widest)


def test_a_member_that_is_placed_anew_begins_with_one(campaign):
    """Whatever is free by then decides how it goes on, and its steps with that."""
    context = on_slow_gcds(campaign(**SMALL))
    wide = context.shapes(member(context))[-1]
    end = replace(badly(wide.spec, "lost"), to_epoch=3)
    again = context.sized(wide.again(end))
    assert (again.width, again.spec.epochs.batches) == (1, 1)
    assert context.shapes(again)[-1].spec.epochs.batches == wide.spec.epochs.batches


def test_gcds_that_a_batch_does_not_fit_get_it_in_parts(campaign):
    """More of them would have as much each."""
    changes = {**SMALL, "training": {"batch_size": 4}}
    context = campaign(**changes)
    change_gcd(context, process_gib=0.0)
    needed = member(context).estimate.memory_gib
    change_gcd(context, process_gib=0.0, memory_gib=needed / 1.5)
    found = member(context)
    assert (found.width, micro_batches(found.spec)) == (1, 2)
    (_, wide, *_) = [context._on(found, width) for width in (1, 2, 4)]
    assert micro_batches(wide.spec) == 2
