"""What single segments come to on simulated workers."""

from dataclasses import replace
from queue import SimpleQueue

import numpy as np
import pytest
from phase_cases import NODE, SITE
from segment_cases import make_spec

from hydragnn_flow.execution import Rank, merged
from hydragnn_flow.execution.pools.waits import drain_seconds
from hydragnn_flow.simulation.blocks import Blocks, Conditions, VirtualClock
from hydragnn_flow.simulation.truth import Cost
from hydragnn_flow.simulation.workers import SimulatedWorkers
from hydragnn_flow.training.checkpoints.checkpoint import checkpoints, load_checkpoint

QUIET = Conditions(node_seconds=0.0, noise=0.0, interference=0.0)
COST = Cost(
    start_seconds=10.0, epoch_seconds=100.0, step_seconds=10.0, steps=10, busy=1.0, memory_gib=3.0
)


class Fixed:
    """A truth and a curve that are the same for all."""

    def __init__(self, cost=COST):
        self._cost = cost

    def cost(self, rank):
        return self._cost

    def errors(self, spec):
        return [1.0 / (1 + epoch) for epoch in range(spec.epochs.until_epoch)]


class Machine:
    """Simulated workers, driven by hand."""

    def __init__(self, config, folder, cost=COST, nodes=2, node=NODE):
        self.clock = VirtualClock()
        site = replace(SITE, nodes=nodes, node=node)
        fixed = Fixed(cost)
        self.workers = SimulatedWorkers(site, self.clock, fixed, fixed, QUIET, 0)
        self._config, self._folder = config, folder
        self.workers.update(1)
        self.wait(1e-6)
        self.nodes = [host.name for host in self.workers.hosts()]

    def wait(self, seconds):
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            self.clock.next(SimpleQueue(), min(0.4, until - self.clock.monotonic()))

    def spec(self, attempt, until=4, **changes):
        network = self._config.network_with({}).to_json()
        return make_spec(
            self._folder / "0", None, until, network=network, attempt=attempt, **changes
        )

    def send(self, rank, node=0):
        return self.workers.run([rank], self.nodes[node])


@pytest.fixture
def machine(config, tmp_path):
    return Machine(config, tmp_path)


def result(future):
    (only,) = future.result(timeout=0)
    return only


def test_a_segment_takes_its_start_and_its_epochs(machine):
    end = machine.send(Rank(machine.spec("a"), gcd=1))
    machine.wait(500.0)
    found = result(end)
    assert (found.status, found.to_epoch, found.best_epoch) == ("ok", 4, 4)
    assert found.seconds == pytest.approx(410.0) == found.ended - found.started
    assert [row[3] for row in found.history] == [1.0, 1 / 2, 1 / 3, 1 / 4]
    assert (found.steps, found.step_seconds) == (40, pytest.approx(10.0))
    assert (found.node, found.gcds) == (machine.nodes[0], ["1"])


def test_a_segment_is_cut_short_where_its_node_ends_and_goes_on(machine, tmp_path):
    end = machine.send(Rank(machine.spec("a"), gcd=0, seconds=285.0))
    machine.wait(300.0)
    cut = result(end)
    # Of 275 s until it has to stop 10 s are its start: two epochs and six steps.
    assert (cut.status, cut.from_epoch, cut.to_epoch, cut.steps) == ("interrupted", 0, 2, 26)
    assert cut.best_val_error == 1 / 2
    again = machine.send(Rank(machine.spec("b", begin_with=cut.checkpoint), gcd=0))
    machine.wait(200.0)
    found = result(again)
    assert (found.status, found.from_epoch, found.from_step, found.to_epoch) == ("ok", 2, 6, 4)
    assert found.seconds == pytest.approx(10.0 + 140.0)
    assert [row[0] for row in found.history] == [1, 2, 3, 4]
    (file,) = checkpoints(tmp_path / "0")
    assert file.name == found.checkpoint and load_checkpoint(file)["progress"]["epoch"] == 0


def test_a_segment_that_is_released_stops_at_once(machine):
    end = machine.send(Rank(machine.spec("a"), gcd=0))
    machine.wait(120.0)
    machine.workers.release(machine.nodes[0], "a")
    found = result(end)
    assert (found.status, found.to_epoch, found.seconds) == ("interrupted", 1, pytest.approx(120.0))
    machine.workers.release(machine.nodes[0], "a")  # which has ended


def test_what_does_not_fit_runs_out_of_memory(machine):
    ends = [
        machine.send(Rank(machine.spec(name, number=number), gcd=0))
        for number, name in enumerate(("a", "b", "c"))
    ]
    machine.wait(2_000.0)
    assert NODE.gcd.memory_gib == 8 and COST.memory_gib == 3
    statuses = [result(end).status for end in ends]
    assert statuses == ["ok", "ok", "out_of_memory"]
    assert not result(ends[2]).checkpoint


def test_the_peak_of_an_accelerator_is_without_its_libraries(config, tmp_path):
    peaks = []
    for name in "cpu", "cuda":
        node = replace(NODE, device=name)  # type: ignore[arg-type]
        machine = Machine(config, tmp_path, node=node)
        end = machine.send(Rank(machine.spec("a"), gcd=0))
        machine.wait(1_000.0)
        peaks.append(result(end).peak_memory_gib)
    assert peaks == [COST.memory_gib, COST.memory_gib - NODE.gcd.process_gib]


def test_a_gang_begins_when_its_last_rank_is_there_and_ends_as_one(machine):
    spec = machine.spec("gang")
    first = machine.workers.run([Rank(spec, 0, 3, 0), Rank(spec, 1, 3, 1)], machine.nodes[0])
    machine.wait(50.0)
    last = machine.workers.run([Rank(spec, 2, 3, 0, nodes=2)], machine.nodes[1])
    machine.wait(500.0)
    found = merged([*first.result(0), *last.result(0)])
    assert (found.status, found.seconds) == ("ok", pytest.approx(410.0))
    assert found.gcds == ["0", "1", f"{machine.nodes[1]}/0"]


def test_a_gang_is_lost_with_one_of_its_nodes(machine):
    spec = machine.spec("gang")
    first = machine.workers.run([Rank(spec, 0, 2, 0, nodes=2)], machine.nodes[0])
    last = machine.workers.run([Rank(spec, 1, 2, 0, nodes=2)], machine.nodes[1])
    machine.wait(50.0)
    (block,) = machine.workers.blocks._blocks
    machine.workers.blocks._lose(block, machine.nodes[1])
    found = merged([*first.result(0), *last.result(0)])
    assert (found.status, result(first).status) == ("lost", "interrupted")
    assert "was lost" in found.reason
    assert [host.name for host in machine.workers.hosts()] == machine.nodes[:1]


def test_what_is_sent_to_a_node_that_is_gone_comes_back(machine):
    end = machine.workers.run([Rank(machine.spec("a"), gcd=0)], "nowhere")
    found = result(end)
    assert (found.status, found.node) == ("interrupted", "")


def test_a_job_that_is_about_to_end_takes_no_more_work():
    """A segment of seconds would be stopped at once, and be sent there again and again."""
    clock = VirtualClock()
    site = replace(SITE, nodes=1, node=NODE, scheduler="slurm", walltime=1000.0)
    blocks = Blocks(site, clock, QUIET, np.random.default_rng(0), lambda node: None)

    def wait_until(seconds):
        while clock.monotonic() < seconds:
            clock.next(SimpleQueue(), min(0.4, seconds - clock.monotonic()))
        blocks.update(1)
        return [host.name for host in blocks.hosts()]

    wait_until(1.0)
    (node,) = wait_until(2.0)
    assert blocks.begin_work(node)
    last_work = 1000.0 - drain_seconds(1000.0)
    assert wait_until(last_work - 1) == [node]
    assert wait_until(last_work + 1) == [] and not blocks.begin_work(node)
    assert blocks.asked == 2, "the next one is asked for"
    (other,) = wait_until(last_work + 2)
    assert other != node
    blocks.end_work(node)
    wait_until(last_work + 3)
    assert blocks.node_seconds == pytest.approx(last_work + 3, abs=2.0), "it was given back"
