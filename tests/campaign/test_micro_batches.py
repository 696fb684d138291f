"""Memory of segments: what the driver expects, and what it does where that was not enough."""

from dataclasses import replace
from itertools import groupby

import pytest
from campaign_cases import MEMBERS
from phase_cases import (
    NODE,
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

from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.errors import InputError
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.search.storage import end_of


def test_a_store_in_memory_leaves_less_for_segments(campaign):
    context = campaign()
    assert context.gcd.memory_gib == pytest.approx(8 - context.store.manifest.bytes / 2**30 / 2)
    data = context.config.data.model_copy(update={"mode": "stream"})
    streaming = replace(context, config=context.config.model_copy(update={"data": data}))
    assert streaming.gcd.memory_gib == 8
    on_gpus = replace(context, site=replace(SITE, node=replace(NODE, device="cuda")))
    assert on_gpus.gcd.memory_gib == 8


def test_a_store_too_large_for_memory_leaves_half_of_it(campaign):
    """It lies on the node's disk, then."""
    context = campaign()
    small = replace(NODE, gcd=replace(NODE.gcd, memory_gib=1e-6, process_gib=1e-7))
    assert replace(context, site=replace(SITE, node=small)).gcd.memory_gib == 5e-7
    smaller = replace(NODE, gcd=replace(NODE.gcd, memory_gib=1e-6, process_gib=0.6))
    with pytest.raises(InputError, match=r"site fake: .* takes more than 0.6 GiB; use fewer GCDs"):
        replace(context, site=replace(SITE, node=smaller))


def test_what_runs_out_of_memory_is_taken_in_more_parts(campaign):
    """As often as it helps, also across a restart; what is learnt stays the same."""

    def machine(spec):
        if micro_batches(spec) < needed(spec):
            return badly(spec, "out_of_memory")
        return well(spec)

    def needed(spec):
        return 2 if spec.number == 1 else 99 if spec.number == 2 else 1

    trials, pools = run(campaign(), machine)
    assert [micro_batches(spec) for spec in pools.sent if spec.number == 1][:2] == [1, 2]
    assert all(
        micro_batches(spec) == 2 for spec in pools.sent if spec.number == 1 and spec.rung > 0
    )
    assert trials[1].state in ("complete", "pruned")
    batch = trials[2].parameters["Training.batch_size"]
    tried = [micro_batches(spec) for spec in pools.sent if spec.number == 2]
    assert tried == [1, 2, 4][: len(tried)] and tried[-1] == batch
    assert trials[2].state == "failed" and trials[2].reason == "out_of_memory: disk full"


def of_little_memory(context):
    """With GCDs that a third of a step fills."""
    change_gcd(context, process_gib=0.0)
    trial = TrialRecord(0, "running", {}, None)
    task = task_of(context, trial)
    change_gcd(context, memory_gib=task.estimate.memory_gib / 3)
    return context


SPACE_OF_ONE_SIZE = {"Training.Optimizer.learning_rate": {"float": [1e-3, 1e-2]}}


LARGE_STEPS = {"training": {"batch_size": 16}, "space": SPACE_OF_ONE_SIZE}


def test_what_does_not_fit_although_it_should_is_taken_in_more_parts_than_expected(campaign):
    def machine(spec):
        needed = 8 if spec.number == 1 else 99 if spec.number == 2 else 1
        return badly(spec, "out_of_memory") if micro_batches(spec) < needed else well(spec)

    context = of_little_memory(campaign(**LARGE_STEPS))
    trials, pools = run(context, machine)
    tried = {n: [micro_batches(spec) for spec in pools.sent if spec.number == n] for n in range(3)}
    # That others of its type needed more than was expected says something of this one too.
    assert tried[0][0] == 4 and set(tried[0]) <= {4, 8}
    assert tried[1][:2] == [4, 8] and set(tried[1][2:]) <= {8, 16}
    assert tried[2] == [4, 8, 16] and trials[2].state == "failed"
    results = [r for r in context.directory.results() if r.number == 2]
    assert [result.accumulation_steps for result in results] == tried[2]


def test_parts_are_half_of_those_that_did_not_fit(campaign):
    """Whatever the model has learned meanwhile, and on however many GCDs."""
    context = campaign(**LARGE_STEPS)
    network = context.config.network_with({})
    trial = TrialRecord(0, "running", {}, None)
    task = task_of(context, trial)
    failed = replace(badly(task.spec, "out_of_memory"), accumulation_steps=2)
    gang = replace(failed, gcds=["0", "1"])
    for results, parts in (
        ([], {1: 1, 2: 1, 4: 1}),
        ([failed], {1: 4, 2: 2, 4: 1}),
        ([failed, gang, failed], {1: 8, 2: 4, 4: 2}),
    ):
        for width, expected in parts.items():
            found, _ = context.estimator.divide(network, 1, width, results)
            assert found.Training.accumulation_steps == expected
    # On a GCD of each batch they are the same whatever the width.
    each = replace(failed, gcds=["0", "1", "2", "3"], batches=4)
    for width, batches, expected in ((1, 1, 4), (2, 2, 4), (4, 4, 4), (2, 1, 2)):
        found, _ = context.estimator.divide(network, 1, width, [each], batches)
        assert found.Training.accumulation_steps == expected


def test_a_member_takes_as_many_parts_as_its_gcds_need(campaign):
    context = of_little_memory(campaign(**LARGE_STEPS))
    trials, _ = run(context, well)
    pools = FakePool(well)
    trained(member_phase(context, trials[:MEMBERS]), pools)
    assert {micro_batches(rank.spec) for rank in pools.ranks} == {4}


def test_a_member_that_runs_out_of_memory_is_taken_in_more_parts(campaign):
    """Of member 1 the steps cannot be small enough; the driver dies after its first end."""
    trials, _ = run(campaign(), well)
    chosen = sorted(trials, key=lambda trial: -trial.parameters["Training.batch_size"])[:MEMBERS]
    sent: list[tuple[int, int]] = []

    def machine(spec):
        if len(sent) == MEMBERS:
            raise KeyboardInterrupt
        return enough(spec)

    def enough(spec):
        sent.append((spec.number, micro_batches(spec)))
        if micro_batches(spec) < (99 if spec.number else 2):
            return badly(spec, "out_of_memory")
        return well(spec)

    with pytest.raises(KeyboardInterrupt):
        trained(member_phase(campaign(), chosen), FakePool(machine))
    members = trained(member_phase(campaign(), chosen), FakePool(enough))
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
    changes = {
        "training": {"batch_size": 4, **training},
        "space": SPACE_OF_ONE_SIZE,
    }
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
