"""Nodes that refuse work or spoil it, and the runs they must not spoil."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from campaign_cases import CONFIG, MEMBERS, TRIALS
from phase_cases import SITE, FakePool, badly, member_phase, refused, run, searched, trained, well

from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.errors import InputError


def test_a_gang_that_ends_badly_tells_against_the_node_that_is_to_blame(campaign):
    space = {**CONFIG["search"]["space"], "Resources.gcds": {"choices": [2]}}
    noted: list[tuple[str, bool]] = []
    ranks = 0

    class Noting(FakePool):
        def record(self, node, work, worked):
            noted.append((node, worked))

    def machine(spec):
        nonlocal ranks
        ranks += 1
        if ranks == 1:
            return replace(badly(spec, "lost"), node="good")
        if ranks == 2:
            return replace(badly(spec, "killed"), node="bad")
        return replace(well(spec), node="good")

    searched(TrialPhase(campaign(space=space)), Noting(machine))
    assert [node for node, worked in noted if not worked] == ["bad"]


def test_a_damaged_store_stops_the_run_and_blames_no_trial(campaign):
    def machine(spec):
        return refused(spec, "frontier00001")

    context = campaign()
    with pytest.raises(InputError, match="restore a copy"):
        run(context, machine)
    assert {result.status for result in context.directory.results()} == {"refused"}
    trials, _ = run(campaign(), well)
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    with pytest.raises(InputError, match="restore a copy"):
        trained(member_phase(campaign(), trials[:MEMBERS]), FakePool(machine))
    members = trained(member_phase(campaign(), trials[:MEMBERS]), FakePool(well))
    assert all(not member.reason for member in members)


def test_a_node_that_refuses_among_others_costs_no_trial_anything(campaign):
    context = campaign()
    context.site = replace(SITE, nodes=4)
    sent = itertools.count()

    def machine(spec):
        # Two of three get to a bad node, until the pools keep off it.
        if next(sent) % 3 and not pools.health.is_of_no_use("bad"):
            return refused(spec, "bad")
        return replace(well(spec), node="good")

    pools = FakePool(machine, nodes=4)
    trials = searched(TrialPhase(context), pools)
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    assert pools.health.is_of_no_use("bad")


def test_results_are_on_disk_before_nodes_are_judged_by_them(campaign):
    """To hold a node takes its time, in which the driver may be ended."""

    class Interrupted(FakePool):
        def avoid(self, node, reason):
            raise KeyboardInterrupt

    context = campaign()
    context.site = replace(SITE, nodes=4)
    pools = Interrupted(lambda spec: refused(spec, "bad") if spec.number == 1 else well(spec))
    with pytest.raises(KeyboardInterrupt):
        searched(TrialPhase(context), pools)
    recorded = Counter(result.number for result in context.directory.results())
    assert recorded == Counter(spec.number for spec in pools.sent)


def test_trials_that_fail_wherever_they_are_sent_cost_no_node(campaign):
    sent = itertools.count()

    class Judging(FakePool):
        def record(self, node, work, worked):
            super().record(node, work, worked)
            assert not self.health.is_suspect(node)

    def machine(spec):
        node = f"node{next(sent) % 2}"
        return replace(badly(spec) if spec.number > 1 else well(spec), node=node)

    context = campaign()
    context.site = replace(SITE, nodes=2)
    trials = searched(TrialPhase(context), Judging(machine))
    assert [trial.state for trial in trials[2:]] == ["failed"] * (TRIALS - 2)


def test_what_works_beside_a_failure_speaks_for_the_node(campaign):
    noted: list[bool] = []
    sent = itertools.count()

    class Noting(FakePool):
        def record(self, node, work, worked):
            noted.append(worked)

    def machine(spec):
        return replace(badly(spec) if next(sent) == 1 else well(spec), node="node0")

    context = campaign()
    searched(TrialPhase(context), Noting(machine))
    assert noted[:2] == [False, True]


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_node_after_node_that_refuses_stops_the_run(campaign, nodes):
    context = campaign()
    context.site = replace(SITE, nodes=nodes)
    sent = itertools.count()
    with pytest.raises(InputError, match="restore a copy"):
        run(context, lambda spec: refused(spec, f"frontier{next(sent) % nodes:05d}"))
    results = list(context.directory.results())
    assert len({result.node for result in results}) >= min(nodes, 3)
    assert len(results) <= 8, "it went on all the same"
