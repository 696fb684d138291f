"""The driver's judgement of bad ends, with the machine faked and everything else real."""

from __future__ import annotations

import copy
import errno
import io
import itertools
import os
from collections import Counter
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from campaign_cases import CONFIG, MEMBERS, TRIALS
from parsl.executors.high_throughput.errors import ManagerLost, WorkerLost
from phase_cases import (
    NODE,
    SITE,
    Campaign,
    FakePools,
    badly,
    change_gcd,
    micro_batches,
    refused,
    run,
    well,
)
from rich.console import Console

from hydragnn_flow import files
from hydragnn_flow.campaign import trials as trials_module
from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.driver import _finish
from hydragnn_flow.campaign.members import MemberPhase
from hydragnn_flow.campaign.task import MOST_LOSSES, MOST_TRIES
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import PoolName, sole_driver
from hydragnn_flow.execution.sites.site import guessed_gcd
from hydragnn_flow.execution.workers.gang import abort_reason
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.search import Outcome, Search, TrialRecord, read_trials
from hydragnn_flow.segment import SegmentResult, SegmentSpec


def test_a_store_in_memory_leaves_less_for_segments(campaign: Campaign) -> None:
    context = campaign()
    assert context.gcd.memory_gib == pytest.approx(8 - context.store.manifest.bytes / 2**30 / 2)
    data = context.config.data.model_copy(update={"mode": "stream"})
    streaming = replace(context, config=context.config.model_copy(update={"data": data}))
    assert streaming.gcd.memory_gib == 8
    on_gpus = replace(context, site=replace(SITE, node=replace(NODE, device="cuda")))
    assert on_gpus.gcd.memory_gib == 8


def test_a_store_too_large_for_memory_leaves_half_of_it(campaign: Campaign) -> None:
    """It lies on the node's disk, then."""
    context = campaign()
    small = replace(NODE, gcd=replace(NODE.gcd, memory_gib=1e-6, process_gib=1e-7))
    assert replace(context, site=replace(SITE, node=small)).gcd.memory_gib == 5e-7
    smaller = replace(NODE, gcd=replace(NODE.gcd, memory_gib=1e-6, process_gib=0.6))
    with pytest.raises(InputError, match=r"site fake: .* takes more than 0.6 GiB; use fewer GCDs"):
        replace(context, site=replace(SITE, node=smaller))


def test_fewer_trials_than_were_asked_for_end_the_search(campaign: Campaign) -> None:
    """With all that had begun, and workers to end it."""

    class Greedy(FakePools):
        wanted = 0

        def tend(self, gcd: int = 0, node: int = 0) -> None:
            self.wanted = gcd

        def free(self, pool: PoolName) -> int:
            return min(self.wanted, self.workers)

    phase = TrialPhase(campaign(trials=12))
    for _ in range(12):
        phase.search.ask()
    for number in range(9):
        phase.search.fail(number, "diverged: loss is nan")
    phase.search.close()
    trials = TrialPhase(campaign(trials=2)).run(Greedy(well))
    assert {trial.state for trial in trials[9:]} <= {"complete", "pruned"}


def test_the_search_shows_its_end_and_who_waits(campaign: Campaign) -> None:
    context, said = campaign(rungs="promotion"), io.StringIO()
    context.view = CampaignView(Console(file=said, width=200))
    run(context, well)
    lines = said.getvalue().splitlines()
    assert lines[-1].startswith(f"search: {TRIALS}/{TRIALS} 0 running")
    assert any(" waiting" in line for line in lines[:-1])


def test_all_is_well(campaign: Campaign) -> None:
    trials, pools = run(campaign(), well)
    assert len(trials) == TRIALS
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    assert len({spec.claim for spec in pools.sent}) == len(pools.sent)


@pytest.mark.parametrize("status", ["killed", "error", "interrupted", "lost"])
def test_what_may_be_an_accident_is_tried_again(campaign: Campaign, status: str) -> None:
    accidents = {(1, 0), (2, 0), (0, 1)}

    def machine(spec: SegmentSpec) -> SegmentResult:
        if (spec.number, spec.rung) in accidents:
            accidents.remove((spec.number, spec.rung))
            return badly(spec, status)
        return well(spec)

    trials, _ = run(campaign(), machine)
    assert not accidents
    assert {trial.state for trial in trials} <= {"complete", "pruned"}


def test_a_lost_worker_is_an_accident(campaign: Campaign) -> None:
    lost = 0

    def machine(spec: SegmentSpec) -> SegmentResult:
        nonlocal lost
        lost += 1
        if lost == 3:
            raise ConnectionError("node 7 is gone")
        return well(spec)

    context = campaign()
    trials, _ = run(context, machine)
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    assert any("node 7 is gone" in result.reason for result in context.directory.results())


def test_a_lost_node_is_not_charged_to_its_trials(campaign: Campaign) -> None:
    """More often than a trial may kill its worker; but a trial that only ever loses nodes ends."""
    lost: Counter[int] = Counter()
    worked = False

    def machine(spec: SegmentSpec) -> SegmentResult:
        nonlocal worked
        if not worked:  # or it would be the machine that is to blame
            worked = True
            return well(spec)
        lost[spec.number] += 1
        if spec.number == 1 and lost[1] <= 2 * MOST_TRIES:
            raise ManagerLost(b"m", "node7")
        if spec.number == 2:
            raise WorkerLost(1, "node9")
        if spec.number == 3:
            raise ManagerLost(b"m", "node8")
        return well(spec)

    context = campaign()
    change_gcd(context, share=1)  # who shares a worker is lost with it
    trials, _ = run(context, machine)
    assert lost[1] > 2 * MOST_TRIES
    assert trials[1].state in ("complete", "pruned")
    assert trials[2].state == "failed" and "worker on node9 was killed" in trials[2].reason
    assert lost[2] == MOST_TRIES
    assert trials[3].state == "failed" and "node8 was lost" in trials[3].reason
    assert lost[3] == MOST_LOSSES


@pytest.mark.parametrize(("launch_seconds", "asked"), [(0.0, 2), (1.0, 8)])
def test_no_more_trials_are_asked_for_than_fill_the_free_gcds(
    campaign: Campaign, launch_seconds: float, asked: int
) -> None:
    """What computes all the time fills a GCD; of what waits for its launches four share one."""
    context = campaign(trials=20)
    change_gcd(context, share=4, launch_seconds=launch_seconds)
    before: list[int] = []

    class Counting(FakePools):
        def run(self, *args: Any) -> Future[list[SegmentResult]]:
            before.append(phase.search.asked)
            return super().run(*args)

    phase = TrialPhase(context)
    phase.run(Counting(well))
    assert before[0] == asked


def test_the_first_trials_are_sent_before_the_last_are_asked_for(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials_module, "_MOST_AT_ONCE", 2)
    context = campaign(trials=20)
    context.site = replace(SITE, nodes=4)
    asked: list[int] = []

    class Counting(FakePools):
        def run(self, *args: Any) -> Future[list[SegmentResult]]:
            asked.append(phase.search.asked)
            return super().run(*args)

    phase = TrialPhase(context)
    phase.run(Counting(well, workers=8))
    per_gcd = context.gcd.share
    assert asked[0] <= 2 * per_gcd  # no more than fill two
    assert asked[7] >= 8, "not all free GCDs got work before the driver waited for results"


def test_on_cpu_slots_every_segment_has_its_own(campaign: Campaign) -> None:
    """However little it computes there: what launches an operation is the core."""
    context = campaign(trials=20)
    change_gcd(context, **vars(replace(guessed_gcd("cpu", 8.0), launch_seconds=1.0)))
    run(context, well)
    results = list(context.directory.results())
    assert len({result.bundle for result in results}) == len(results) >= 20


def test_what_has_waited_longest_is_sent_first(campaign: Campaign) -> None:
    """Though it is the shortest; a driver sends the longest first otherwise."""
    context = campaign()
    phase, pools = TrialPhase(context), FakePools(well)
    dispatch = Dispatch(context, pools, "gcd")
    for _ in range(3):
        phase._ask()
    phase._ready = [
        replace(task, estimate=replace(task.estimate, seconds=seconds, busy=1.0))
        for task, seconds in zip(phase._ready, (5.0, 9.0, 7.0), strict=True)
    ]
    phase._send(dispatch, 1)
    first = next(task for task in phase._ready if task.spec.number == 0)
    phase._ready.remove(first)
    phase._ready.append(replace(first, ready_since=first.ready_since - 8.0))
    phase._send(dispatch, 1)
    assert [spec.number for spec in pools.sent] == [1, 0]
    phase.search.close()


def test_a_trial_runs_on_as_many_gcds_as_it_asks_for(campaign: Campaign) -> None:
    space = {**CONFIG["search"]["space"], "Resources.gcds": {"choices": [1, 2, 64]}}
    trials, pools = run(campaign(space=space), well)
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    asked = {trial.number: trial.parameters["Resources.gcds"] for trial in trials}
    assert len(set(asked.values())) > 1
    for number, width in asked.items():
        width = min(width, 2)  # the site has no more
        first = [job for job in pools.jobs if job.spec.number == number][:width]
        assert [job.first_rank for job in first] == list(range(width))
        assert {job.world for job in first} == {None if width == 1 else width}
        assert len({job.spec.claim for job in first}) == 1


def test_a_gang_of_which_a_part_ends_badly_is_called_off_and_sent_again(
    campaign: Campaign,
) -> None:
    space = {**CONFIG["search"]["space"], "Resources.gcds": {"choices": [2]}}
    sent: list[SegmentSpec] = []

    def machine(spec: SegmentSpec) -> SegmentResult:
        sent.append(spec)
        if len(sent) == 1:
            raise ManagerLost(b"m", "node7")
        return well(spec)

    context = campaign(space=space)
    trials, _ = run(context, machine)
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    first, *_ = context.directory.results()
    assert (first.status, first.reason) == ("lost", "its node node7 was lost")
    assert "node7 was lost" in str(abort_reason(sent[0]))
    again = next(spec for spec in sent[2:] if spec.number == sent[0].number)
    assert again.claim != sent[0].claim and abort_reason(again) is None


def test_a_gang_that_ends_badly_tells_against_the_node_that_is_to_blame(
    campaign: Campaign,
) -> None:
    space = {**CONFIG["search"]["space"], "Resources.gcds": {"choices": [2]}}
    noted: list[tuple[str, bool]] = []
    ranks = 0

    class Noting(FakePools):
        def note(self, node: str, work: object, worked: bool) -> None:
            noted.append((node, worked))

    def machine(spec: SegmentSpec) -> SegmentResult:
        nonlocal ranks
        ranks += 1
        if ranks == 1:
            return replace(badly(spec, "lost"), node="good")
        if ranks == 2:
            return replace(badly(spec, "killed"), node="bad")
        return replace(well(spec), node="good")

    TrialPhase(campaign(space=space)).run(Noting(machine))
    assert [node for node, worked in noted if not worked] == ["bad"]


@pytest.mark.parametrize("status", ["diverged", "out_of_memory", "killed", "lost"])
def test_a_failure_is_recorded_where_the_configuration_says_so(
    campaign: Campaign, status: str
) -> None:
    failures = {"diverged": "record", "out_of_memory": "record", "lost": "record"}
    trials, pools = run(
        campaign(failures=failures),
        lambda spec: badly(spec, status) if spec.number == 2 else well(spec),
    )
    assert trials[2].state == "failed"
    assert trials[2].reason == f"{status}: disk full"
    assert sum(spec.number == 2 for spec in pools.sent) == 1


def test_a_diverged_trial_may_be_tried_again(campaign: Campaign) -> None:
    trials, pools = run(
        campaign(failures={"diverged": "retry"}),
        lambda spec: badly(spec, "diverged") if spec.number == 2 else well(spec),
    )
    assert trials[2].state == "failed"
    assert sum(spec.number == 2 for spec in pools.sent) == MOST_TRIES


def test_what_runs_out_of_memory_is_taken_in_more_parts(campaign: Campaign) -> None:
    """As often as it helps, also across a restart; what is learnt stays the same."""

    def machine(spec: SegmentSpec) -> SegmentResult:
        if micro_batches(spec) < needed(spec):
            return badly(spec, "out_of_memory")
        return well(spec)

    def needed(spec: SegmentSpec) -> int:
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


def of_little_memory(context: Context) -> Context:
    """With GCDs that a third of a step fills."""
    change_gcd(context, process_gib=0.0)
    trial = TrialRecord(0, "running", {}, None)
    folder = context.directory.trial(0)
    task = context.task("trial", 0, folder, trial, rung=0, until_epoch=2, done_epochs=0)
    change_gcd(context, memory_gib=task.estimate.memory_gib / 3)
    return context


SPACE_OF_ONE_SIZE = {"Training.Optimizer.learning_rate": {"float": [1e-3, 1e-2]}}


LARGE_STEPS = {"training": {"batch_size": 16}, "space": SPACE_OF_ONE_SIZE}


def test_what_does_not_fit_although_it_should_is_taken_in_more_parts_than_expected(
    campaign: Campaign,
) -> None:
    def machine(spec: SegmentSpec) -> SegmentResult:
        needed = 8 if spec.number == 1 else 99 if spec.number == 2 else 1
        return badly(spec, "out_of_memory") if micro_batches(spec) < needed else well(spec)

    context = of_little_memory(campaign(**LARGE_STEPS))
    trials, pools = run(context, machine)
    tried = {n: [micro_batches(spec) for spec in pools.sent if spec.number == n] for n in range(3)}
    assert set(tried[0]) == {4}
    assert tried[1][:2] == [4, 8] and set(tried[1][2:]) <= {8}
    assert tried[2] == [4, 8, 16] and trials[2].state == "failed"
    results = [r for r in context.directory.results() if r.number == 2]
    assert [result.parts for result in results] == tried[2]


def test_a_member_takes_as_many_parts_as_its_gcds_need(campaign: Campaign) -> None:
    """Two GCDs have half of a step each."""
    context = of_little_memory(campaign(**LARGE_STEPS))
    trials, _ = run(context, well)
    pools = FakePools(well)
    MemberPhase(context, trials[:MEMBERS]).run(pools)
    assert {micro_batches(job.spec) for job in pools.jobs} == {2}


def test_a_member_that_runs_out_of_memory_is_taken_in_more_parts(campaign: Campaign) -> None:
    """Of member 1 the steps cannot be small enough; the driver dies after its first end."""
    trials, _ = run(campaign(), well)
    chosen = sorted(trials, key=lambda trial: -trial.parameters["Training.batch_size"])[:MEMBERS]
    sent: list[tuple[int, int]] = []

    def machine(spec: SegmentSpec) -> SegmentResult:
        if len(sent) == MEMBERS:
            raise KeyboardInterrupt
        return enough(spec)

    def enough(spec: SegmentSpec) -> SegmentResult:
        sent.append((spec.number, micro_batches(spec)))
        if micro_batches(spec) < (99 if spec.number else 2):
            return badly(spec, "out_of_memory")
        return well(spec)

    with pytest.raises(KeyboardInterrupt):
        MemberPhase(campaign(), chosen).run(FakePools(machine))
    members = MemberPhase(campaign(), chosen).run(FakePools(enough))
    assert [p for number, p in sent if number == 0] == [1, 2]
    most = chosen[1].parameters["Training.batch_size"]
    assert [p for number, p in sent if number == 1] == [1, 2, 4][: most // 2 + 1]
    assert [member.reason for member in members] == ["", "out_of_memory: disk full"]


@pytest.mark.parametrize(
    ("training", "failures", "parts", "state"),
    [
        ({}, "resize", 1, "running"),
        ({}, "resize", 4, "failed"),
        ({"loss_function_type": "rmse"}, "resize", 1, "failed"),
        ({}, "record", 1, "failed"),
        ({}, "retry", 1, "running"),
    ],
)
def test_every_judge_of_what_did_not_fit_comes_to_the_same(
    campaign: Campaign, training: dict[str, Any], failures: str, parts: int, state: str
) -> None:
    """The driver at work, the next one, and who makes the study anew."""
    changes = {
        "training": {"batch_size": 4, **training},
        "space": SPACE_OF_ONE_SIZE,
        "failures": {"out_of_memory": failures},
    }
    phase = TrialPhase(campaign(**changes))
    trial, directory = phase.search.ask(), phase.context.directory
    phase.search.commit()
    task = phase._task(trial, 0)
    network = task.spec.network.with_accumulation(parts)
    task = replace(task, spec=replace(task.spec, network=network))
    result = badly(task.spec, "out_of_memory").expected(task.forecast("b1"))
    phase.context.record([result])
    before = directory.journal.read_bytes()
    phase._judge(task, result)
    assert phase.search.record(0).state == state
    phase.search.close()
    directory.journal.write_bytes(before)
    again = TrialPhase(campaign(**changes))
    assert again.search.record(0).state == state
    again.search.close()
    directory.journal.unlink()
    assert TrialPhase(campaign(**changes)).search.record(0).state == state


@pytest.mark.parametrize("rungs", ["stopping", "promotion", "hyperband", "none"])
def test_every_rule_ends_every_trial(campaign: Campaign, rungs: str) -> None:
    context = campaign(rungs=rungs)
    trials, _ = run(context, well)
    assert len(trials) == TRIALS
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    assert any(trial.state == "complete" for trial in trials)
    ends = {result.to_epoch for result in context.directory.results() if result.number == 0}
    assert max(ends) == context.config.num_epoch
    assert ends <= set(context.config.rungs)


def test_limits_and_costs_are_read_from_the_results(campaign: Campaign) -> None:
    def machine(spec: SegmentSpec) -> SegmentResult:
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


def test_work_that_nobody_reported_is_counted_once(campaign: Campaign) -> None:
    """A trial is not quick because the node was lost on which it was trained."""
    tries: Counter[int] = Counter()

    def machine(spec: SegmentSpec) -> SegmentResult:
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
    change_gcd(context, share=1)  # who shares a worker is lost with it
    trials, _ = run(context, machine)
    costs = [trial.values[1:] for trial in trials[:3]]
    assert costs == [(1.0, 10.0), (41.0, 410.0), (51.0, 510.0)]


def test_energy_that_nobody_measures_is_refused(campaign: Campaign) -> None:
    with pytest.raises(InputError, match="joules"):
        run(campaign(objectives=["val_loss", "joules"]), well)


def test_energy_that_one_node_does_not_measure_costs_the_trial(campaign: Campaign) -> None:
    def machine(spec: SegmentSpec) -> SegmentResult:
        return replace(well(spec), joules=None if spec.number == 2 else 5.0, node=f"n{spec.number}")

    trials, _ = run(campaign(objectives=["val_loss", "joules"], rungs="none"), machine)
    assert [trial.number for trial in trials if trial.state == "failed"] == [2]
    assert "'joules' cannot be measured on n2" in trials[2].reason


def test_a_member_whose_checkpoint_was_taken_away_is_trained_again(campaign: Campaign) -> None:
    trials, _ = run(campaign(), well)
    pools = FakePools(well)
    MemberPhase(campaign(), trials[:MEMBERS]).run(pools)
    folder = campaign().directory.ensemble / "members"
    (folder / "1" / "checkpoint.pt").unlink()
    again = FakePools(well)
    MemberPhase(campaign(), trials[:MEMBERS]).run(again)
    assert [spec.number for spec in again.sent] == [1]
    assert (folder / "1" / "checkpoint.pt").read_text() == again.sent[0].claim
    # Nor is what a killed driver has left of that taken for the whole.
    (folder / "1" / "checkpoint.pt").unlink()
    MemberPhase(campaign(), trials[:MEMBERS])
    (folder / "1" / "checkpoint.pt").write_text("of the first epoch")
    once_more = FakePools(well)
    MemberPhase(campaign(), trials[:MEMBERS]).run(once_more)
    assert [spec.number for spec in once_more.sent] == [1]


def test_a_trial_that_never_gets_further_is_failed(campaign: Campaign) -> None:
    trials, pools = run(campaign(), lambda spec: (badly if spec.number == 2 else well)(spec))
    assert trials[2].state == "failed"
    assert "without getting further" in trials[2].reason
    assert sum(spec.number == 2 for spec in pools.sent) == MOST_TRIES


def test_a_trial_that_gets_further_each_time_is_not(campaign: Campaign) -> None:
    """Three walltimes must not end a healthy trial."""
    ends = 0

    def machine(spec: SegmentSpec) -> SegmentResult:
        nonlocal ends
        if spec.number == 0 and spec.rung == 0 and ends < 3 * MOST_TRIES:
            ends += 1
            spec.folder.mkdir(parents=True, exist_ok=True)
            path = spec.folder / "checkpoint.pt"
            path.touch()
            os.utime(path, (ends, ends))
            return badly(spec, "killed")
        return well(spec)

    trials, _ = run(campaign(), machine)
    assert ends == 3 * MOST_TRIES
    assert trials[0].state in ("complete", "pruned")


# Each goes with the data by itself; `mlp_per_node` only where all structures are of one size.
NODE_HEADS = {"Architecture.output_heads.node.type": {"choices": ["mlp", "mlp_per_node"]}}


# Each pair goes together; all three do not.
HEADS = {
    "Architecture.hidden_dim": {"choices": [32, 33]},
    "Architecture.global_attn_heads": {"choices": [1, 4]},
    "Architecture.global_attn_engine": {"choices": ["", "GPS"]},
}


@pytest.mark.parametrize("space", [NODE_HEADS, HEADS], ids=["for the data", "at all"])
def test_a_network_that_cannot_be_fails_its_trial_alone(
    campaign: Campaign, space: dict[str, Any]
) -> None:
    changes = {"space": space, "sampler": "random", "trials": 24}
    trials, pools = run(campaign(**changes), well)
    failed = {trial.number for trial in trials if trial.state == "failed"}
    assert 0 < len(failed) < 24
    assert failed.isdisjoint(spec.number for spec in pools.sent)
    assert all(trials[number].reason.startswith("error: network") for number in failed)
    assert {trial.state for trial in trials} <= {"complete", "pruned", "failed"}


def test_a_driver_takes_up_trials_that_cannot_be(campaign: Campaign) -> None:
    """As the driver leaves them that is killed before it has seen that."""
    changes = {"space": NODE_HEADS, "sampler": "random"}
    phase = TrialPhase(campaign(**changes))
    asked = [phase.search.ask() for _ in range(TRIALS)]
    phase.search.close()
    trials, _ = run(campaign(**changes), well)
    assert [trial.state == "failed" for trial in trials] == [
        "mlp_per_node" in trial.parameters.values() for trial in asked
    ]
    assert any(trial.state == "failed" for trial in trials)


def test_where_no_network_can_be_the_search_says_so(campaign: Campaign) -> None:
    space = {"Architecture.output_heads.node.type": {"choices": ["mlp_per_node"]}}
    context = campaign(space=space, trials=1000)
    with pytest.raises(InputError, match=r"search\.space: none of the .* network.*mlp_per_node"):
        run(context, well)
    assert len(TrialPhase(campaign(space=space, trials=1000)).search.records) < 100


def test_where_nothing_ever_works_the_trials_keep_their_chance(
    campaign: Campaign,
) -> None:
    with pytest.raises(CampaignStopped, match="disk full"):
        run(campaign(), badly)
    trials, _ = run(campaign(), well)
    assert len(trials) == TRIALS
    assert {trial.state for trial in trials} <= {"complete", "pruned"}


def test_a_damaged_store_stops_the_run_and_blames_no_trial(
    campaign: Campaign,
) -> None:
    def machine(spec: SegmentSpec) -> SegmentResult:
        return refused(spec, "frontier00001")

    context = campaign()
    with pytest.raises(InputError, match="restore a copy"):
        run(context, machine)
    assert {result.status for result in context.directory.results()} == {"refused"}
    trials, _ = run(campaign(), well)
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    with pytest.raises(InputError, match="restore a copy"):
        MemberPhase(campaign(), trials[:MEMBERS]).run(FakePools(machine))
    members = MemberPhase(campaign(), trials[:MEMBERS]).run(FakePools(well))
    assert all(not member.reason for member in members)


@pytest.mark.parametrize("lost", ["retry", "record"])
def test_a_node_that_refuses_among_others_costs_no_trial_anything(
    campaign: Campaign, lost: str
) -> None:
    context = campaign(failures={"lost": lost})
    context.site = replace(SITE, nodes=4)
    sent = itertools.count()

    def machine(spec: SegmentSpec) -> SegmentResult:
        # Two of three get to a bad node, until the pools keep off it.
        if next(sent) % 3 and not pools.health.is_of_no_use("bad"):
            return refused(spec, "bad")
        return replace(well(spec), node="good")

    pools = FakePools(machine, nodes=4)
    trials = TrialPhase(context).run(pools)
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    assert pools.health.is_of_no_use("bad")


def test_results_are_on_disk_before_nodes_are_judged_by_them(campaign: Campaign) -> None:
    """To hold a node takes its time, in which the driver may be ended."""

    class Interrupted(FakePools):
        def avoid(self, node: str, reason: str) -> bool:
            raise KeyboardInterrupt

    context = campaign()
    context.site = replace(SITE, nodes=4)
    pools = Interrupted(lambda spec: refused(spec, "bad") if spec.number == 1 else well(spec))
    with pytest.raises(KeyboardInterrupt):
        TrialPhase(context).run(pools)
    recorded = Counter(result.number for result in context.directory.results())
    assert recorded == Counter(spec.number for spec in pools.sent)


def test_trials_that_fail_wherever_they_are_sent_cost_no_node(campaign: Campaign) -> None:
    sent = itertools.count()

    class Judging(FakePools):
        def note(self, node: str, work: Hashable, worked: bool) -> None:
            super().note(node, work, worked)
            assert not self.health.is_suspect(node)

    def machine(spec: SegmentSpec) -> SegmentResult:
        node = f"node{next(sent) % 2}"
        return replace(badly(spec) if spec.number > 1 else well(spec), node=node)

    context = campaign()
    context.site = replace(SITE, nodes=2)
    trials = TrialPhase(context).run(Judging(machine))
    assert [trial.state for trial in trials[2:]] == ["failed"] * (TRIALS - 2)


def test_what_works_beside_a_failure_speaks_for_the_node(campaign: Campaign) -> None:
    noted: list[bool] = []
    sent = itertools.count()

    class Noting(FakePools):
        def note(self, node: str, work: object, worked: bool) -> None:
            noted.append(worked)

    def machine(spec: SegmentSpec) -> SegmentResult:
        return replace(badly(spec) if next(sent) == 1 else well(spec), node="node0")

    context = campaign()
    TrialPhase(context).run(Noting(machine))
    first, second, *_ = context.directory.results()
    assert first.bundle == second.bundle
    assert noted[:2] == [False, True]


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_node_after_node_that_refuses_stops_the_run(campaign: Campaign, nodes: int) -> None:
    context = campaign()
    context.site = replace(SITE, nodes=nodes)
    sent = itertools.count()
    with pytest.raises(InputError, match="restore a copy"):
        run(context, lambda spec: refused(spec, f"frontier{next(sent) % nodes:05d}"))
    results = list(context.directory.results())
    assert len({result.node for result in results}) >= min(nodes, 3)
    assert len(results) <= 8, "it went on all the same"


def test_a_verdict_stands_after_a_restart(campaign: Campaign) -> None:
    """A trial that went on is not pruned because better ones came before the next driver."""
    phase = TrialPhase(campaign())
    first = phase.search.ask()
    assert phase.search.report(first.number, 0, Outcome((5.0,))) == "goes_on"
    for value in (1.0, 2.0, 3.0):
        phase.search.report(phase.search.ask().number, 0, Outcome((value,)))
    phase.search.close()
    result = well(
        phase.context.task(
            "trial",
            0,
            phase.context.directory.trial(0),
            first,
            rung=0,
            until_epoch=2,
            done_epochs=0,
        ).spec
    )
    phase.context.directory.record([replace(result, best_val_loss=5.0)])
    again = TrialPhase(campaign())
    assert again.search.records[0].state == "running"
    ready = [task for task in again._ready if task.spec.number == 0]
    assert [task.spec.rung for task in ready] == [1]


def test_members(campaign: Campaign) -> None:
    trials, _ = run(campaign(), well)
    chosen = trials[:MEMBERS]
    context = campaign()
    troubles = [1, 1]

    def machine(spec: SegmentSpec) -> SegmentResult:
        if spec.number == 1 and troubles:
            troubles.pop()
            return badly(spec, "killed")
        return well(spec)

    members = MemberPhase(context, chosen).run(FakePools(machine))
    assert [member.trial for member in members] == [trial.number for trial in chosen]
    assert all(not member.reason for member in members)
    # What is recorded is not trained again.
    pools = FakePools(well)
    MemberPhase(campaign(), chosen).run(pools)
    assert not pools.sent


def test_a_member_on_several_nodes_is_a_gang(campaign: Campaign) -> None:
    trials, _ = run(campaign(), well)
    context = campaign()
    context.site = replace(SITE, nodes=3)
    pools = FakePools(well, workers=3)
    members = MemberPhase(context, trials[:2]).run(pools)
    assert all(not member.reason for member in members)
    gangs = [job for job in pools.jobs if job.world is not None]
    assert [(job.first_rank, job.gcds) for job in gangs] == [(0, (0, 1)), (2, (0, 1))]
    assert len(pools.jobs) == 3, "the other member has a node of its own"


def test_a_member_wider_than_the_nodes_there_are_keeps_none_of_them_idle(
    campaign: Campaign,
) -> None:
    """Its other nodes may wait in a queue for hours, or have been lost."""

    class Growing(FakePools):
        asked = 0

        def free(self, pool: PoolName) -> int:
            self.asked += 1
            assert self.asked < 100, "nothing is sent"
            return 3 if self.jobs else 1

    trials, _ = run(campaign(), well)
    context = campaign()
    context.site = replace(SITE, nodes=3)
    pools = Growing(well)
    members = MemberPhase(context, trials[:2]).run(pools)
    assert all(not member.reason for member in members)
    assert [job.world for job in pools.jobs] == [None, 4, 4]


def test_a_member_that_diverges_stays_what_its_trial_was(campaign: Campaign) -> None:
    trials, _ = run(campaign(), well)
    context = campaign()
    phase = MemberPhase(context, trials[:MEMBERS])
    members = phase.run(FakePools(lambda spec: badly(spec, "diverged")))
    assert all(member.reason.startswith("diverged") for member in members)
    for member in members:
        own = context.directory.ensemble / "members" / str(member.member) / "checkpoint.pt"
        trial = context.directory.trial(member.trial) / "checkpoint.pt"
        assert own.read_text() == trial.read_text()


def test_a_member_that_cannot_be_trained_stops_the_run(campaign: Campaign) -> None:
    trials, _ = run(campaign(), well)
    with pytest.raises(CampaignStopped, match=r"member \d .*disk full"):
        MemberPhase(campaign(), trials[:MEMBERS]).run(FakePools(badly))
    members = MemberPhase(campaign(), trials[:MEMBERS]).run(FakePools(well))
    assert all(not member.reason for member in members)


def test_of_a_root_of_squares_no_parts_are_made(campaign: Campaign) -> None:
    """Nor does the refusal of such a network end the campaign."""
    context = campaign()
    network = copy.deepcopy(context.config.network)
    network["Training"]["loss_function_type"] = "rmse"
    context.config = context.config.model_copy(update={"network": network})
    trials, _ = run(
        context, lambda spec: badly(spec, "out_of_memory") if spec.number == 2 else well(spec)
    )
    assert trials[2].state == "failed" and trials[2].reason.startswith("out_of_memory")


def test_a_search_goes_on_without_its_study(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    def machine(spec: SegmentSpec) -> SegmentResult:
        if spec.number == 4:
            raise KeyboardInterrupt
        return well(spec)

    context = campaign()
    with pytest.raises(KeyboardInterrupt):
        run(context, machine)
    known = read_trials(context.directory.path)
    context.directory.journal.unlink()
    again, said = campaign(), list[str]()
    monkeypatch.setattr(again.view, "say", said.append)
    trials, pools = run(again, well)
    ran = [trial for trial in known if trial.number < 4]
    assert [trial.parameters for trial in trials[:4]] == [trial.parameters for trial in ran]
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    assert len(trials) == TRIALS
    assert {spec.number for spec in pools.sent if spec.rung == 0} == {4, 5}
    journal = context.directory.journal
    assert said[0] == (f"{journal}: was missing; made anew from segments.jsonl, 4 trials")


def test_a_study_older_than_its_ledger_is_refused(campaign: Campaign) -> None:
    context = campaign()
    journal = context.directory.journal
    phase = TrialPhase(context)
    phase.search.ask()
    phase.search.close()
    old = journal.read_bytes()
    run(campaign(), well)
    journal.write_bytes(old)
    with pytest.raises(InputError, match="move it away"):
        TrialPhase(campaign())


def test_a_member_keeps_the_parts_of_its_trial(campaign: Campaign) -> None:
    def machine(spec: SegmentSpec) -> SegmentResult:
        return well(spec) if micro_batches(spec) > 1 else badly(spec, "out_of_memory")

    trials, _ = run(campaign(), machine)
    pools = FakePools(machine)
    members = MemberPhase(campaign(), trials[:MEMBERS]).run(pools)
    assert all(not member.reason for member in members)


def test_peaks_of_what_did_not_fit_break_no_limit(campaign: Campaign) -> None:
    def machine(spec: SegmentSpec) -> SegmentResult:
        result = well(spec) if micro_batches(spec) > 1 else badly(spec, "out_of_memory")
        return replace(result, peak_memory_gib=9.0 / micro_batches(spec))

    trials, _ = run(campaign(constraints={"peak_memory_gib": 5.0}), machine)
    assert all(trial.feasible for trial in trials)


@pytest.mark.parametrize("when", ["a result comes", "a trial is asked for"])
def test_a_driver_that_another_has_replaced_writes_nothing_more(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its lock is gone, say, with the node that the file system took for dead."""
    context = campaign()
    directory = context.directory
    left: list[bytes] = []

    def on_disk() -> list[bytes]:
        return [directory.journal.read_bytes(), directory.segments.read_bytes()]

    def replaced() -> None:
        if directory.segments.exists() and not left:
            with sole_driver(directory.path):  # which leaves its token there
                left.extend(on_disk())

    def machine(spec: SegmentSpec) -> SegmentResult:
        if when == "a result comes":
            replaced()
        return well(spec)

    ask = Search.ask

    def asking(search: Search) -> TrialRecord:
        if when == "a trial is asked for":
            replaced()
        return ask(search)

    monkeypatch.setattr(Search, "ask", asking)
    with pytest.raises(CampaignStopped, match="has taken it over"):
        run(context, machine)
    assert left and on_disk() == left
    with pytest.raises(CampaignStopped, match="has taken it over"):
        _finish(context, ())


def test_a_disk_that_is_away_for_a_moment_stops_no_campaign(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, look, away = campaign(trials=2), Path.stat, [3]

    def stat(self: Path, **options: bool) -> os.stat_result:
        if self.name == "checkpoint.pt" and away[0]:
            away[0] -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return look(self, **options)

    monkeypatch.setattr(files, "SECONDS_BETWEEN_TRIES", 0.0)
    monkeypatch.setattr(Path, "stat", stat)
    trials, _ = run(context, well)
    assert len(trials) == 2
    assert away == [0]
