"""A machine that runs segments at once by a function of a test's."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from parsl.executors.high_throughput.errors import ManagerLost, WorkerLost

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.members import MemberPhase
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.ensemble import Member
from hydragnn_flow.ensemble.selection import Choice, Selection
from hydragnn_flow.execution import Node, Rank, Site
from hydragnn_flow.execution.jobs import Workers
from hydragnn_flow.execution.pools.block import NodeHealth
from hydragnn_flow.execution.pools.pool import results_of
from hydragnn_flow.placement import Gcd, Host
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import EpochPlan, SegmentResult, SegmentSpec, Start, TrainingOutcome
from hydragnn_flow.training.checkpoints.checkpoint import checkpoints, save_checkpoint

NODE = Node(("0", "1"), Gcd(8, 1e10, 1e10, 1e-5, 0.5, 2), 1, "cpu")
SITE = Site("fake", 1, NODE, lambda directory: None)
RATES: dict[str, Any] = {"Training.Optimizer.learning_rate": {"float": [1e-3, 1e-2], "log": True}}
"""A space in which all networks are of one size."""
LARGE_STEPS: dict[str, Any] = {"training": {"batch_size": 16}, "space": RATES}
"""Steps of at least two structures for each of four ranks."""

Machine = Callable[[SegmentSpec], SegmentResult]
Campaign = Callable[..., Context]


def hosts(nodes: int) -> list[Host]:
    """Nodes of one block."""
    return [Host(f"node{number}", "block") for number in range(nodes)]


class FakePool(Workers):
    """Runs segments at once by a function of the test's; a lost worker is an exception of it."""

    def __init__(self, machine: Machine, nodes: int = 1) -> None:
        self.machine, self.nodes = machine, nodes
        self.sent: list[SegmentSpec] = []
        self.placed: list[tuple[Rank, str]] = []
        self.called_off: list[tuple[str, str, str]] = []
        self.health = NodeHealth()

    @property
    def ranks(self) -> list[Rank]:
        return [rank for rank, _ in self.placed]

    def update(self, demand: int = 0) -> None:
        self.health.check(self.nodes, set())

    def record(self, node: str, work: Hashable, worked: bool) -> None:
        assert not self.health.is_of_no_use(node)
        self.health.record(node, work, worked)

    def avoid(self, node: str, reason: str) -> None:
        self.health.condemn(node, reason)

    def hosts(self) -> list[Host]:
        return hosts(self.nodes)

    def call_off(self, node: str, attempt: str, reason: str) -> None:
        self.called_off.append((node, attempt, reason))

    def release(self, node: str, attempt: str) -> None:
        raise AssertionError("its segments end at once")

    def run(self, ranks: Sequence[Rank], node: str) -> Future[list[SegmentResult]]:
        task: Future[list[SegmentResult]] = Future()
        self.placed += [(rank, node) for rank in ranks]
        self.sent += [rank.spec for rank in ranks if rank.number == 0]
        try:
            task.set_result([self.machine(rank.spec) for rank in ranks])
        except (ConnectionError, ManagerLost, WorkerLost) as error:
            task.set_exception(error)
        answer: Future[list[SegmentResult]] = Future()
        answer.set_result(results_of(task, ranks))
        return answer


def leave_checkpoint(spec: SegmentSpec) -> None:
    """Get further, as far as the driver sees."""
    spec.folder.mkdir(parents=True, exist_ok=True)
    for before in checkpoints(spec.folder):
        before.unlink()
    so_far = {"epoch": spec.epochs.until_epoch, "step": 0, "best_val_error": 1.0 + spec.number}
    save_checkpoint(spec.checkpoint, {"attempt": spec.attempt, "progress": so_far})


def task_of(context, trial, until_epoch=2, *, done=0, kind="trial", rung=0, **changes):
    """A segment of a trial, or of its first member."""
    epochs = EpochPlan(until_epoch=until_epoch, after_epoch=done)
    number = trial.number if kind == "trial" else 0
    start = Start(may_have_begun=False)
    return context.task(kind, number, trial, rung=rung, start=start, epochs=epochs, **changes)


def well(spec: SegmentSpec) -> SegmentResult:
    """A segment that does what it should; lower-numbered trials are better."""
    leave_checkpoint(spec)
    outcome = TrainingOutcome(
        status="ok",
        checkpoint=spec.checkpoint.name,
        from_epoch=spec.epochs.after_epoch,
        to_epoch=spec.epochs.until_epoch,
        best_val_error=1.0 + spec.number,
        best_val_loss=1.0 + spec.number,
        best_epoch=spec.epochs.until_epoch,
        seconds=1.0,
        started=1.0,
        ended=2.0,
    )
    return SegmentResult.of(spec, outcome)


def badly(spec: SegmentSpec, status: Any = "error") -> SegmentResult:
    spec.folder.mkdir(parents=True, exist_ok=True)
    return SegmentResult.of(spec, TrainingOutcome(status=status, reason="disk full"))


def refused(spec: SegmentSpec, node: str) -> SegmentResult:
    reason = "store.gs/shard-00000.bp/data.0 has changed; restore a copy"
    return replace(badly(spec, "refused"), reason=reason, node=node)


def micro_batches(spec: SegmentSpec) -> int:
    return spec.network.Training.accumulation_steps


def change_gcd(context: Context, **changes: Any) -> None:
    """Have GCDs of another kind, of which nothing is known yet."""
    context.estimator = context.another_estimator(replace(context.gcd, **changes))


def slow_gcds(context: Context) -> Context:
    """Have GCDs so slow that more of them are worth their trouble."""
    change_gcd(context, flops=1e5, bandwidth=1e5, most_segments=1)
    return context


def member_phase(
    context: Context, trials: Sequence[TrialRecord], reserve: Sequence[TrialRecord] = ()
) -> MemberPhase:
    """The ensemble phase with these trials as members, and those next in line."""
    selection = Selection(
        [Choice(trial.number, 0, "by hand") for trial in trials],
        [Choice(trial.number, 0, "next in line") for trial in reserve],
    )
    return MemberPhase(context, selection, [*trials, *reserve])


def run(context: Context, machine: Machine) -> tuple[list[Any], FakePool]:
    pools = FakePool(machine, nodes=context.site.nodes)
    return searched(TrialPhase(context), pools), pools


def searched(phase: TrialPhase, workers: Workers) -> list[TrialRecord]:
    """The trials of a search on these workers."""
    return phase.run(Dispatch(phase.context, workers))


def trained(phase: MemberPhase, workers: Workers) -> list[Member]:
    """The members that are trained on these workers."""
    return phase.run(Dispatch(phase.context, workers))
