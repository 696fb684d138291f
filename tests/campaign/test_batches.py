"""Steps with a batch on each GCD, or in parts that fit its memory, and what runs out of that."""

from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import pytest
from campaign_cases import CONFIG, MEMBERS
from phase_cases import (
    LARGE_STEPS,
    NODE,
    RATES,
    SITE,
    FakePool,
    badly,
    change_gcd,
    member_phase,
    micro_batches,
    run,
    slow_gcds,
    task_of,
    trained,
    well,
)

from hydragnn_flow.campaign.context import LEAST_STEPS
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.config.sources import TRAIN
from hydragnn_flow.errors import InputError
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.search.storage import end_of

PER_GCD = {"batch_per_gcd": True}
# Of the 36 structures to train on, one at a time.
SMALL: dict[str, Any] = {"training": {"batch_size": 1}, "space": RATES, "resources": PER_GCD}


def member(context):
    trial = TrialRecord(0, "running", {}, None)
    return task_of(context, trial, 8, kind="member", width=None)


def test_members_have_a_batch_of_each_of_their_gcds(campaign):
    trials, pools = run(campaign(**SMALL), well)
    assert {spec.epochs.batches for spec in pools.sent} == {1}, (
        "trials are compared with each other"
    )
    context = slow_gcds(campaign(**SMALL, nodes=3))

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
    recorded = [one.batches for one in context.directory.results() if one.kind == "member"]
    assert sorted(recorded) == sorted(spec.epochs.batches for spec in pools.sent)
    shared = slow_gcds(campaign({"batch_size": 16}, space=RATES, nodes=3))
    shapes = shared.shapes(member(shared))
    assert shapes[-1].width > 1 and {shape.spec.epochs.batches for shape in shapes} == {1}


def test_a_trial_has_as_many_as_it_asks_for_on_a_smaller_machine_too(campaign):
    space = {**CONFIG["search"]["space"], "Resources.gcds": {"choices": [1, 2, 8]}}
    trials, pools = run(campaign(resources=PER_GCD, space=space), well)
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    asked = {trial.number: trial.parameters["Resources.gcds"] for trial in trials}
    assert len(set(asked.values())) > 1
    for number, batches in asked.items():
        ranks = [rank for rank in pools.ranks if rank.spec.number == number]
        assert {rank.spec.epochs.batches for rank in ranks} == {batches}
        width = min(batches, 2)  # the site has no more
        assert {rank.world for rank in ranks} == {width}
        assert [rank.number for rank in ranks[:width]] == list(range(width))
        assert len({rank.spec.attempt for rank in ranks[:width]}) == 1


def test_a_wider_member_takes_fewer_steps_of_the_same_length(campaign):
    context = slow_gcds(campaign(**SMALL, nodes=3))
    shapes = context.shapes(member(context))
    assert [shape.width for shape in shapes] == [1, 2, 4]
    for narrow, wide in pairwise(shapes):
        assert wide.spec.epochs.batches == wide.width
        assert wide.spec.network == narrow.spec.network
        # All that differs is the exchange of gradients, and how steps are filled.
        assert wide.seconds == pytest.approx(narrow.seconds / 2, rel=0.15)
        assert wide.estimate.memory_gib == pytest.approx(narrow.estimate.memory_gib, rel=0.1)
    # Placed anew it begins with one: whatever is free by then decides how it goes on.
    again = context.sized(wide.again(replace(badly(wide.spec, "lost"), to_epoch=3)))
    assert (again.width, again.spec.epochs.batches) == (1, 1)
    assert context.shapes(again)[-1].spec.epochs.batches == wide.spec.epochs.batches


def test_an_epoch_keeps_steps_enough(campaign):
    context = slow_gcds(campaign(**SMALL, nodes=100))
    graphs = context.store.manifest.splits[TRAIN].graphs
    widest = context.shapes(member(context))[-1].width
    assert graphs // widest >= LEAST_STEPS > graphs // (2 * widest)


def test_gcds_that_a_batch_does_not_fit_get_it_in_parts(campaign):
    """More of them would have as much each."""
    context = campaign({"batch_size": 4}, PER_GCD, space=RATES)
    change_gcd(context, process_gib=0.0)
    needed = member(context).estimate.memory_gib
    change_gcd(context, process_gib=0.0, memory_gib=needed / 1.5)
    found = member(context)
    assert (found.width, micro_batches(found.spec)) == (1, 2)
    assert micro_batches(context._on(found, 2).spec) == 2


def test_a_store_in_memory_leaves_less_for_segments(campaign):
    context = campaign()
    assert context.gcd.memory_gib == pytest.approx(8 - context.store.manifest.bytes / 2**30 / 2)
    data = context.config.data.model_copy(update={"mode": "stream"})
    streaming = replace(context, config=context.config.model_copy(update={"data": data}))
    assert streaming.gcd.memory_gib == 8
    on_gpus = replace(context, site=replace(SITE, node=replace(NODE, device="cuda")))
    assert on_gpus.gcd.memory_gib == 8
    # One too large for memory leaves half of it: it lies on the node's disk, then.
    small = replace(NODE, gcd=replace(NODE.gcd, memory_gib=1e-6, process_gib=1e-7))
    assert replace(context, site=replace(SITE, node=small)).gcd.memory_gib == 5e-7
    smaller = replace(NODE, gcd=replace(NODE.gcd, memory_gib=1e-6, process_gib=0.6))
    with pytest.raises(InputError, match=r"site fake: .* takes more than 0.6 GiB; use fewer GCDs"):
        replace(context, site=replace(SITE, node=smaller))


@pytest.mark.parametrize("begun", [1, 4], ids=["all at once", "in parts already"])
def test_what_runs_out_of_memory_is_taken_in_more_parts(campaign, begun):
    """As often as it helps, and no longer; what is learnt stays the same."""
    needed = {1: 2 * begun, 2: 99}

    def machine(spec):
        is_enough = micro_batches(spec) >= needed.get(spec.number, 1)
        return well(spec) if is_enough else badly(spec, "out_of_memory")

    context = campaign(**LARGE_STEPS)
    if begun == 4:  # a third of a step fills a GCD
        change_gcd(context, process_gib=0.0)
        task = task_of(context, TrialRecord(0, "running", {}, None))
        change_gcd(context, memory_gib=task.estimate.memory_gib / 3)
    trials, pools = run(context, machine)
    tried = {n: [micro_batches(spec) for spec in pools.sent if spec.number == n] for n in range(3)}
    # That others of its type needed more than was expected says something of this one too.
    assert tried[0][0] == begun and set(tried[0]) <= {begun, 2 * begun}
    assert tried[1][:2] == [begun, 2 * begun] and set(tried[1][2:]) <= {2 * begun, 4 * begun}
    assert trials[1].state in ("complete", "pruned")
    assert tried[2] == [parts for parts in (1, 2, 4, 8, 16) if parts >= begun]
    assert trials[2].state == "failed" and trials[2].reason == "out_of_memory: disk full"
    results = [r for r in context.directory.results() if r.number == 2]
    assert [result.accumulation_steps for result in results] == tried[2]


def test_parts_are_half_of_those_that_did_not_fit(campaign):
    """Whatever the model has learned meanwhile, and on however many GCDs."""
    context = campaign(**LARGE_STEPS)
    network = context.config.network_with({})
    task = task_of(context, TrialRecord(0, "running", {}, None))
    failed = replace(badly(task.spec, "out_of_memory"), accumulation_steps=2)
    gang = replace(failed, gcds=["0", "1"])
    # On a GCD of each batch they are the same whatever the width.
    each = replace(failed, gcds=["0", "1", "2", "3"], batches=4)
    for results, places in (
        ([], {(1, 1): 1, (2, 1): 1, (4, 1): 1}),
        ([failed], {(1, 1): 4, (2, 1): 2, (4, 1): 1}),
        ([failed, gang, failed], {(1, 1): 8, (2, 1): 4, (4, 1): 2}),
        ([each], {(1, 1): 4, (2, 2): 4, (4, 4): 4, (2, 1): 2}),
    ):
        for (width, batches), expected in places.items():
            found, _ = context.estimator.divide(network, 1, width, results, batches)
            assert found.Training.accumulation_steps == expected


def test_a_member_that_runs_out_of_memory_is_taken_in_more_parts(campaign):
    """Of member 1 the steps cannot be small enough; the driver dies after its first end."""
    trials, _ = run(campaign(), well)
    chosen = sorted(trials, key=lambda trial: -trial.parameters["Training.batch_size"])[:MEMBERS]
    sent: list[tuple[int, int]] = []
    kills = [KeyboardInterrupt]

    def machine(spec):
        if len(sent) == MEMBERS and kills:
            raise kills.pop()
        sent.append((spec.number, micro_batches(spec)))
        if micro_batches(spec) < (99 if spec.number else 2):
            return badly(spec, "out_of_memory")
        return well(spec)

    with pytest.raises(KeyboardInterrupt):
        trained(member_phase(campaign(), chosen), FakePool(machine))
    members = trained(member_phase(campaign(), chosen), FakePool(machine))
    tried = [[p for p, _ in groupby(p for n, p in sent if n == number)] for number in range(2)]
    most = chosen[1].parameters["Training.batch_size"]
    assert tried == [[1, 2], [1, 2, 4][: most // 2 + 1]]
    assert [member.reason for member in members] == ["", "out_of_memory: disk full"]


@pytest.mark.parametrize(
    ("training", "steps", "state"),
    [({}, 1, "running"), ({}, 4, "failed"), ({"loss_function_type": "rmse"}, 1, "failed")],
)
def test_every_judge_of_what_did_not_fit_comes_to_the_same(campaign, training, steps, state):
    """The driver at work, the next one, and who makes the study anew."""
    changes = {"training": {"batch_size": 4, **training}, "space": RATES}
    phase = TrialPhase(campaign(**changes))
    trial, directory = phase.search.ask(), phase.context.directory
    phase.search.commit()
    task = phase._task(trial, 0, may_have_begun=False)
    network = task.spec.network.with_accumulation(steps)
    task = replace(task, spec=replace(task.spec, network=network))
    result = badly(task.spec, "out_of_memory").expected(task.forecast(1.0))
    phase.context.record([result])
    before = directory.journal.read_bytes()
    phase._judge(task, result)
    assert phase.search.record(0).state == state
    phase.search.close()
    directory.journal.write_bytes(before)
    end_of(directory.journal).unlink()  # as of a driver that was killed
    again = TrialPhase(campaign(**changes))
    assert again.search.record(0).state == state
    again.search.close()
    directory.journal.unlink()
    assert TrialPhase(campaign(**changes)).search.record(0).state == state


def test_a_member_keeps_the_parts_of_its_trial(campaign):
    def machine(spec):
        return well(spec) if micro_batches(spec) > 1 else badly(spec, "out_of_memory")

    trials, _ = run(campaign(), machine)
    pools = FakePool(machine)
    members = trained(member_phase(campaign(), trials[:MEMBERS]), pools)
    assert all(not member.reason for member in members)
    assert min(map(micro_batches, pools.sent)) == 2
