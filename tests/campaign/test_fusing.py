"""Segments of one shape are sent together where that is of use, and go on by themselves after."""

from dataclasses import replace
from typing import Any

import pytest
from phase_cases import RATES, FakePool, badly, change_gcd, member_phase, run, trained, well

from hydragnn_flow.campaign.dispatch import Fusing
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.segment import APART

ONE_SHAPE: dict[str, Any] = {
    "space": {**RATES, "Training.gradient_clip": {"float": [1.0, 10.0]}},
    "rungs": "none",
}
FOUR: dict[str, Any] = {"resources": {"fused_members": 4}}


def made(context, gcd):
    return Fusing(context.config.search, context.config.resources.fused_members, gcd)


def groups(pool):
    """Numbers of the segments of each process."""
    return [[spec.number for spec in rank.specs] for rank in pool.ranks]


def test_trials_of_one_shape_are_sent_together_each_with_an_attempt_of_its_own(campaign):
    context = campaign(**FOUR, **ONE_SHAPE)
    _, pool = run(context, well)
    assert sorted(number for group in groups(pool) for number in group) == [*range(6)]
    assert 1 < max(len(group) for group in groups(pool)) <= 4
    assert len({spec.attempt for spec in pool.sent}) == 6
    # Each has its own result, with the forecast of itself, and nobody learns from the times.
    results = [context.ledger.trials[number][-1] for number in range(6)]
    assert [result.status for result in results] == ["ok"] * 6
    assert {result.planned_epochs for result in results} == {6}


def test_trials_of_different_shapes_or_judged_by_what_they_cost_are_not_fused(campaign):
    widths = {**ONE_SHAPE, "space": {"Architecture.hidden_dim": {"choices": [4, 8, 12, 16]}}}
    context = campaign(**FOUR, **widths)
    phase = TrialPhase(context)
    for _ in range(6):
        phase._ask()
    found = made(context, context.gcd).together(phase._ready, 1, 0.5)
    shapes = [{task.spec.network.Architecture.hidden_dim for task in one.members} for one in found]
    assert sum(len(one.members) for one in found) == 6 > len(found)
    assert {len(widths) for widths in shapes} == {1} and len(set().union(*shapes)) > 1
    phase.search.close()
    costs = {**ONE_SHAPE, "objectives": ["val_error", "seconds"]}
    for settings in ({**FOUR, **costs}, ONE_SHAPE):  # and not without the key
        assert made(campaign(**settings), campaign().gcd).trials_at_once == 1


@pytest.fixture
def four(campaign):
    """The phase of four members of one shape, on one node whose two GCDs nobody shares."""
    context = campaign(**FOUR, **ONE_SHAPE)
    change_gcd(context, most_segments=1)
    return member_phase(context, run(context, well)[0][:4])


def test_members_share_the_free_gcds_and_one_that_fails_is_sent_again_alone(four):
    fails = [1]

    def machine(spec):
        if spec.number in fails:
            fails.remove(spec.number)
            return badly(spec, "killed")
        return well(spec)

    pool = FakePool(machine)
    trained(four, pool)
    *together, again = groups(pool)
    assert sorted(map(len, together)) == [2, 2]  # one process on each GCD
    assert sorted(number for group in together for number in group) == [0, 1, 2, 3]
    assert again == [1]


def test_what_does_not_pay_goes_on_separately_and_is_nobodys_failure(four):
    tried = set[str]()

    class Unfit(FakePool):
        def run(self, ranks, node):
            tried.update(spec.attempt for rank in ranks if rank.fused for spec in rank.specs)
            return super().run(ranks, node)

    def machine(spec):
        if spec.attempt in tried:
            return replace(badly(spec, "interrupted"), reason=f"{APART}does not pay")
        return well(spec)

    pool = Unfit(machine)
    found = trained(four, pool)
    sizes = [len(group) for group in groups(pool)]
    assert max(sizes[:2]) == 2 and sum(size == 1 for size in sizes) == 4
    assert len(found) == 4 and not any(member.reason for member in found)


def test_no_more_are_put_together_than_fit_the_memory(campaign):
    context = campaign(**FOUR, **ONE_SHAPE)
    phase = TrialPhase(context)
    for _ in range(4):
        phase._ask()
    tasks = [replace(t, estimate=replace(t.estimate, memory_gib=1.0)) for t in phase._ready]
    fusing = made(context, replace(context.gcd, memory_gib=2.0))

    def sizes(found):
        return [len(task.members) for task in found]

    # 0.9 of 2 GiB is room for a process of 0.5 GiB and two networks of 0.5 GiB.
    assert sizes(fusing.together(tasks, 1, 0.5)) == [2, 2]
    (bundle, _) = fusing.together(tasks, 1, 0.5)
    assert bundle.estimate.memory_gib == pytest.approx(1.5)
    assert bundle.estimate.seconds == pytest.approx(sum(t.estimate.seconds for t in tasks[:2]))
    assert sizes(fusing.together(tasks, 4, 0.5)) == [1] * 4  # a GCD for each
    assert sizes(fusing.together(tasks, 0, 0.5)) == [1] * 4
    whole = made(context, replace(context.gcd, memory_gib=16.0))
    assert sizes(whole.together(tasks, 1, 0.5)) == [4]
    assert sizes(whole.together(tasks, 2, 0.5)) == [2, 2]
