"""Drills: what goes wrong on a machine for a while, and comes right again."""

import shutil
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from slurm_cases import SPACE, write_campaign, write_site
from slurm_runs import PATIENCE, Campaign, assert_nothing_lost_or_repeated

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

TRIALS, EPOCHS, GCDS = 6, 40, 2
# None of them is charged to a trial.
NO_FAULT = {"ok", "lost", "interrupted"}
SECONDS_APART = 300


def begun(cluster, folder, path=None, *before, **options):
    """A campaign on two blocks of one node each."""
    config = write_campaign(folder, TRIALS, EPOCHS)
    site = write_site(folder, nodes=2, blocks=2, gcds=GCDS, **options)
    campaign = Campaign(cluster, config, site, path)
    campaign.start(*before)
    return campaign


def assert_without_a_fault(campaign):
    """Every trial was trained once, and none was charged with an attempt."""
    assert {result.status for result in campaign.results()} <= NO_FAULT
    assert_nothing_lost_or_repeated(campaign, TRIALS, [EPOCHS])


def pid_on_node(pid):
    """Number by which a node knows a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    (numbers,) = (line.split() for line in status.splitlines() if line.startswith("NSpid:"))
    return int(numbers[-1])


def newest_checkpoint(campaign, trial):
    """Time of a trial's newest checkpoint [ns]; 0 if there is none."""
    files = (campaign.seen / "trials" / str(trial)).glob("checkpoint-*.pt")
    return max((file.stat().st_mtime_ns for file in files), default=0)


@contextmanager
def hanging(processes):
    """Have processes stand still, as on a node whose kernel or network hangs."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # its job was ended
                process.resume()


def test_a_node_that_hangs_loses_its_segments_and_may_come_back(cluster, tmp_path):
    campaign = begun(cluster, tmp_path)
    with campaign.held(2 * GCDS) as held:
        node = cluster.nodes[0]
        hit = set(held[node])
        agent = held[node][min(hit)].parent()
        with hanging([agent, *agent.children(recursive=True)]):
            campaign.wait_for(
                "the loss of its segments",
                lambda: hit <= {r.number for r in campaign.results() if r.status == "lost"},
            )
            assert "sign of life" in campaign.status("--log")
    campaign.finish()
    for number in hit:
        first, *after = campaign.of_trial(number)
        assert first.status == "lost"
        assert all(result.from_epoch > 0 for result in after), "began again from nothing"
    assert_without_a_fault(campaign)


def test_a_scheduler_that_is_restarted_costs_nothing(cluster, tmp_path):
    campaign = begun(cluster, tmp_path)
    with campaign.held(2 * GCDS):
        with cluster.without_scheduler():
            time.sleep(20)  # long enough for the driver to ask for its jobs, in vain
        assert cluster.wait_until(lambda: len(cluster.squeue()) == 2)
    campaign.finish()
    assert {result.status for result in campaign.results()} == {"ok"}
    assert [job.n_nodes for job in cluster.jobs()] == [1, 1]
    assert_without_a_fault(campaign)


def test_a_scheduler_that_is_away_at_the_start_is_waited_for(cluster, tmp_path):
    with cluster.without_scheduler():
        campaign = begun(cluster, tmp_path)
        for said in (campaign.log.read_text, campaign.status):
            campaign.wait_for("a word", lambda said=said: "scheduler does not answer" in said())
    campaign.finish()
    assert [job.n_nodes for job in cluster.jobs()] == [1, 1]
    assert_without_a_fault(campaign)


def test_a_scheduler_that_is_there_and_refuses_ends_the_campaign_at_once(cluster, tmp_path):
    campaign = begun(cluster, tmp_path, partition="none")
    assert campaign.driver.wait(PATIENCE) == 2
    assert "gets no workers: sbatch: error:" in " ".join(campaign.log.read_text().split())
    assert not cluster.jobs()


def test_losses_of_all_that_is_there_end_no_campaign_that_gets_further(cluster, tmp_path):
    """One block at a time, whose node loses power after it has written new checkpoints."""
    trials, epochs, losses = 2, 3000, 3
    config = write_campaign(tmp_path, trials, epochs)
    campaign = Campaign(cluster, config, write_site(tmp_path, nodes=1, blocks=1, gcds=trials))
    campaign.start()
    last = 0
    for loss in range(1, losses + 1):
        campaign.wait_for(
            "new checkpoints",
            lambda last=last: all(newest_checkpoint(campaign, n) > last for n in range(trials)),
        )
        cluster.power_off(next(node for node, there in campaign.at_work().items() if there))
        last = max(newest_checkpoint(campaign, number) for number in range(trials))
        campaign.wait_for(
            "the loss of its segments",
            lambda loss=loss: sum(r.status == "lost" for r in campaign.results()) == loss * trials,
        )
    campaign.wait_for("trials on the last node", lambda: any(campaign.at_work().values()))
    assert "without a result or a checkpoint" not in campaign.log.read_text()
    assert campaign.interrupt() == 130


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_suspended_job_goes_on_or_is_given_up(cluster, tmp_path, is_given_up):
    """It goes on if it misses fewer than four heartbeats; resumed later, it does no harm."""
    # Longer than the driver takes to ask why a node is silent.
    campaign = begun(cluster, tmp_path, heartbeat=8)
    with campaign.held(2 * GCDS) as held:
        node = cluster.nodes[0]
        job = next(job.number for job in cluster.squeue() if node in cluster.nodes_of(job))
        hit = set(held[node]) if is_given_up else set[int]()
        cluster.ask("scontrol", "suspend", job)
        if is_given_up:
            campaign.wait_for(
                "the loss of its segments",
                lambda: hit <= {r.number for r in campaign.results() if r.status == "lost"},
            )
        else:
            time.sleep(5)
        cluster.ask("sh", "-c", f"scontrol resume {job} || true")  # it may be cancelled by now
    campaign.finish()
    for number in range(TRIALS):
        first, *after = campaign.of_trial(number)
        assert first.status == ("lost" if number in hit else "ok")
        assert all(result.from_epoch > 0 for result in after), "began again from nothing"
    if is_given_up:
        assert "(the scheduler says: suspended)" in (campaign.seen / "driver.log").read_text()
    assert_without_a_fault(campaign)


def test_clocks_of_nodes_may_differ_by_minutes(cluster, tmp_path):
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    clock = f"import time\n_time = time.time\ntime.time = lambda: _time() + {SECONDS_APART}\n"
    (wrong / "sitecustomize.py").write_text(clock)
    fast = cluster.nodes[0]
    campaign = begun(
        cluster,
        tmp_path,
        worker_init=f'[ "$(hostname)" != {fast} ] || export PYTHONPATH={wrong}',
        walltime="00:10:00",
    )
    campaign.finish()
    by_node = {node: [r for r in campaign.results() if r.node == node] for node in cluster.nodes}
    assert all(r.ended > time.time() for r in by_node[fast]), "its clock was right"
    assert all(r.ended < time.time() for r in by_node[cluster.nodes[1]])
    assert by_node[fast]
    assert by_node[cluster.nodes[1]]
    assert {result.status for result in campaign.results()} == {"ok"}
    assert_without_a_fault(campaign)


def test_a_second_driver_takes_over_where_the_lock_was_removed(cluster, tmp_path):
    campaign = begun(cluster, tmp_path)
    second = Campaign(cluster, campaign.config, campaign.site)
    second.log = tmp_path / "second"
    with campaign.held(2 * GCDS):
        (campaign.seen / "driver.lock").unlink()
        second.start()
        assert campaign.driver.wait(120) != 0
        assert "has taken it over" in campaign.log.read_text()
    second.finish()
    assert_without_a_fault(second)


def test_a_shared_disk_that_answers_nobody_for_a_minute(cluster, tmp_path):
    if not cluster.freezer_is_there():
        pytest.skip("needs a loop device and mkfs.ext4, for a file system that can be frozen")
    campaign = begun(cluster, tmp_path, cluster.freezer / "run")
    with campaign.held(2 * GCDS):
        pass
    cluster.freeze(60)
    campaign.finish()
    assert_without_a_fault(campaign)


def test_a_shared_disk_that_has_forgotten_its_files_for_a_while(cluster, tmp_path):
    """Driver, agents and trainers get ESTALE for every file of the run, those that are open too."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler, for a library that has calls fail")
    library, flag, path = tmp_path / "stale.so", tmp_path / "stale", tmp_path / "run"
    source = Path(__file__).with_name("stale.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    variables = {"LD_PRELOAD": library, "STALE_BELOW": path, "STALE_WHILE": flag}
    before = ["env", *(f"{name}={value}" for name, value in variables.items())]
    campaign = begun(cluster, tmp_path, path, *before)
    with campaign.held(2 * GCDS) as held:
        at_work = [process for there in held.values() for process in there.values()]
        trainers = {pid_on_node(process.pid) for process in at_work}
        agents = {pid_on_node(process.ppid()) for process in at_work}
        flag.touch()
    time.sleep(30)
    hit = set(map(int, flag.read_text().split()))
    flag.unlink()
    assert hit & agents
    assert hit & trainers
    campaign.finish()
    assert "(Stale file handle)" in " ".join(campaign.log.read_text().split())
    assert_without_a_fault(campaign)


def test_a_gang_of_each_width_is_on_one_node_or_on_whole_ones_of_a_block(cluster, tmp_path):
    """Sixteen are two nodes; two blocks have two each, and none of a gang's is in another block."""
    gcds, epochs, widths = 8, 4, (2, 16, 4, 8, 16, 2)
    space = SPACE | {
        "Resources.gcds": {"choices": sorted(set(widths))},
        "Training.batch_size": {"choices": [16]},
    }
    enqueue = [{"Resources.gcds": width} for width in widths]
    config = write_campaign(tmp_path, len(widths), epochs, space=space, enqueue=enqueue)
    campaign = Campaign(cluster, config, write_site(tmp_path, gcds=gcds))
    campaign.start()
    blocks: list[set[str]] = []
    campaign.wait_for("both blocks", lambda: len(campaign.blocks("running")) == 2)
    blocks = [set(cluster.nodes_of(job)) for job in cluster.squeue()]
    campaign.finish()
    for number, width in enumerate(widths):
        *_, last = campaign.of_trial(number)
        places = last.places
        nodes = {node for node, _ in places}
        assert len(set(places)) == width
        assert len(nodes) == max(1, width // gcds)
        assert any(nodes <= block for block in blocks), (nodes, blocks)
    assert_nothing_lost_or_repeated(campaign, len(widths), [epochs])
