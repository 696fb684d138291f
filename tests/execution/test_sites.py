"""Site files: what ships, and what a user's own may get wrong."""

import json
import math
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsl.executors.high_throughput.manager_selector import BlockIdManagerSelector

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import load_site, shipped_sites
from hydragnn_flow.execution.site import Node, Site, check_site, cores_in, guessed_gcd
from hydragnn_flow.execution.sites import Options, slurm_jobs
from hydragnn_flow.testing.sites import example_options, executors_of

NODE = {"gcds": 4, "device": "cuda", "memory_gib": 36, "cores_per_gcd": 16}
GCD = guessed_gcd("cuda", 36)
pytestmark = pytest.mark.usefixtures("in_a_slurm_job")


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("frontier", {"walltime": "02:01:00"}, "`batch` gives a job of 1 node at most 2 h;"),
        ("frontier", {"nodes": 184, "blocks": 2, "walltime": "07:00:00"}, "92 nodes at most 6 h;"),
        ("frontier", {"nodes": 65, "partition": "extended"}, "jobs of 1 to 64 nodes, not of 65"),
        ("frontier", {"node": NODE}, "takes no option `node`"),
        ("polaris", {"partition": "prod"}, "`prod` takes jobs of 10 to 496 nodes, not of 1;"),
        ("aurora", {"partition": None}, "needs `partition`"),
        ("slurm", {"node": None}, "does not know your nodes"),
        ("slurm", {"nodes": 5, "blocks": 2}, "`nodes` 5 is not a multiple of `blocks` 2; give 4"),
        ("slurm", {"nodes": 1, "blocks": 2}, "`nodes` 1 is not a multiple of `blocks` 2; give 2"),
        ("slurm", {"walltime": "90"}, "must be HH:MM:SS"),
        ("slurm", {"walltime": "00:00:59"}, "must be HH:MM:SS and at least a minute"),
        ("slurm", {"account": 12}, "account: must be one word, a number in quotes; got 12"),
        ("slurm", {"account": ""}, "account: must be one word"),
        ("slurm", {"qos": "a\n#SBATCH --nodes=9"}, "qos: must be one word"),
        ("slurm", {"acount": "ABC123"}, "did you mean 'account'"),
        ("slurm", {"environment": "stage"}, "its nodes have no scratch"),
        ("slurm", {"environment": "nvme"}, "must be `stage`, `shared` or an absolute path"),
        ("slurm", {"node": {**NODE, "scratch": "nvme"}}, "node.scratch: must be an absolute path"),
        ("local", {"nodes": 2}, "takes no option `nodes`"),
        ("allocation", {"nodes": 7}, "this job has 6 nodes, not 7"),
        ("allocation", {"walltime": "01:00:00"}, "takes no option `walltime`"),
    ],
)
def test_what_a_site_cannot_do_is_said_in_a_sentence(name, options, says):
    with pytest.raises(InputError, match=says) as error:
        load_site(name, **{**example_options(name), **options})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "nodes_per_job"),
    [
        ({"nodes": 91, "walltime": "02:00:00"}, 91),
        ({"nodes": 184, "blocks": 2, "walltime": "06:00:00"}, 92),
        ({"nodes": 184, "walltime": "12:00:00"}, 184),
        ({"nodes": 64, "walltime": "24:00:00", "partition": "extended"}, 64),
    ],
)
def test_frontier_takes_what_its_queues_take(options, nodes_per_job, tmp_path):
    site = load_site("frontier", account="ABC123", **options)
    assert executors_of(site, tmp_path)["gcd"].provider.nodes_per_block == nodes_per_job


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"nodes": 64, "blocks": 4}, ""),
        ({"nodes": 64, "blocks": 8}, "--blocks 4 is enough"),
        ({"nodes": 64, "blocks": 8, "partition": "extended"}, ""),
        ({"nodes": 4096}, "a job of 4,096 nodes is queued as if it had waited 4 days"),
        # Three blocks would not divide the nodes.
        ({"nodes": 4096, "blocks": 4}, "--blocks 2 has more priority: a job of 2,048 nodes"),
        ({"nodes": 9408, "blocks": 4}, "--blocks 1 has more priority: a job of 9,408 nodes"),
    ],
)
def test_frontiers_bins_of_priority_are_known(options, says):
    priority = load_site("frontier", account="ABC123", **options).priority
    assert priority.startswith(says) and bool(priority) is bool(says)


@pytest.mark.parametrize("base", [None, "/home/me/.local/pytorch2.8"])
def test_jobs_see_no_packages_in_the_home_directory_unless_a_module_means_them(monkeypatch, base):
    monkeypatch.delenv("PYTHONUSERBASE", raising=False)
    if base is not None:
        monkeypatch.setenv("PYTHONUSERBASE", base)
    provider = executors_of(load_site("slurm", node=NODE, interface="lo"), Path())["gcd"].provider
    assert ("export PYTHONNOUSERSITE=1\n" in provider.worker_init) is (base is None)


def test_jobs_find_the_users_modules(tmp_path, monkeypatch):
    """A PBS job does not inherit the driver's variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f".:{tmp_path}/mine")
    site = load_site("polaris", account="ABC123", partition="prod", nodes=10, walltime="00:30:00")
    provider = executors_of(site, tmp_path)["gcd"].provider
    assert f"export PYTHONPATH={tmp_path}:{tmp_path}/mine${{PYTHONPATH:+" in provider.worker_init


def test_an_allocation_is_one_block_until_it_ends(tmp_path):
    """On Slingshot, ranks in two steps of a job do not reach each other."""
    site = load_site("allocation", node=NODE)
    assert (site.nodes, site.blocks, site.scheduler) == (6, 1, None)
    provider = executors_of(site, tmp_path)["gcd"].provider
    assert provider.launcher.overrides.startswith(
        "--nodes=6 --ntasks-per-node=1 -c 64 --gpus-per-node=4"
    )
    assert "export SLURM_JOB_END_TIME=99999999999\n" in provider.worker_init


@pytest.mark.parametrize(
    ("nodes", "heartbeat", "to_connect", "logs"),
    [(None, 5, 30, None), (64, 5, 31, None), (65, 5, 31, "/tmp/"), (9_408, 19, 218, "/tmp/")],
)
def test_many_nodes_spare_the_driver_and_the_shared_disk(nodes, heartbeat, to_connect, logs):
    site = load_site("slurm", node=NODE, interface="lo", nodes=nodes)
    executor = executors_of(site, Path())["gcd"]
    assert executor.heartbeat_period == heartbeat
    assert 60 <= executor.heartbeat_threshold <= 90, "a lost node is missed too late"
    assert executor.address_probe_timeout == to_connect
    assert isinstance(executor.manager_selector, BlockIdManagerSelector), "the newest block first"
    kept = executor.worker_logdir_root
    assert kept is None if logs is None else kept.startswith(logs)


def test_an_allocation_is_refused_from_within_a_step(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    with pytest.raises(InputError, match="started by srun"):
        load_site("allocation", node=NODE)
    monkeypatch.setenv("SLURM_STEP_ID", "4294967290")  # the shell of salloc
    assert load_site("allocation", node=NODE).nodes == 6


def test_a_site_yaml_gives_options_that_keywords_override(tmp_path):
    yaml = tmp_path / "site.yaml"
    yaml.write_text(
        "site: slurm\naccount: 0987\nnodes: 8\nblocks: 2\nwalltime: 12:00:00\n"
        "node: {gcds: 2, device: hip, memory_gib: 50, cores_per_gcd: 8, cores: ['0-7', '8-15']}\n"
    )
    site = load_site(yaml, nodes=4, blocks=None)
    assert (site.nodes, site.blocks, site.node.cores) == (4, 2, ("0-7", "8-15"))
    provider = executors_of(site, tmp_path)["gcd"].provider
    assert (provider.walltime, provider.account) == ("12:00:00", "0987"), "a project of digits"
    assert "#SBATCH --gpus-per-node=2\n" in provider.scheduler_options


def test_a_site_yaml_may_name_a_site_file_beside_it(tmp_path):
    (tmp_path / "mine.py").write_text(shipped_sites()["local"].read_text())
    (tmp_path / "site.yaml").write_text("site: mine.py\nheartbeat: 7\n")
    site = load_site(tmp_path / "site.yaml")
    executor = executors_of(site, tmp_path)["gcd"]
    assert (executor.heartbeat_period, executor.heartbeat_threshold) == (5, 28)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("account: ABC123\n", "site: this key is required"),
        ("site: slurm\nnodes: 3\nnodes: 4\n", "'nodes' is given twice .* line 3"),
        ("site: slurm\nnods: 3\n", "unknown key 'nods'; did you mean 'nodes'"),
        ("site: slurm\nnode: {gcd: 3}\n", "node: unknown key 'gcd'; did you mean 'gcds'"),
        ("site: frontire\n", "frontire is neither a file nor one of .*; did you mean 'frontier'"),
        ("site: atlantis\n", "atlantis is neither a file nor one of .*; check the name"),
        ("site: site.yaml\n", "site.yaml is no site file; name a Python file or"),
        (
            json.dumps({"site": "slurm", "node": {**NODE, "memory_gib": 0.5}}),
            "yaml: node.memory_gib: 0.5 GiB leave nothing beside",
        ),
    ],
)
def test_a_wrong_site_yaml_is_named(tmp_path, content, says):
    yaml = tmp_path / "site.yaml"
    yaml.write_text(content)
    with pytest.raises(InputError, match=says) as error:
        load_site(yaml)
    assert str(error.value).startswith(str(yaml))


def test_a_copied_site_file_works(tmp_path):
    mine = tmp_path / "mine.py"
    copied = shipped_sites()["slurm"].read_text()
    facts = 'NODE = NodeOptions(gcds=4, device="cuda", memory_gib=36, cores_per_gcd=16)'
    mine.write_text(copied.replace("NODE: NodeOptions | None = None", facts))
    assert len(load_site(mine).node.gcds) == 4
    mine.write_text(mine.read_text().replace("memory_gib=36", "memory_gib=0.5"))
    with pytest.raises(InputError) as error:
        load_site(mine)
    assert str(error.value).startswith(f"{mine}: node.gcd.memory_gib: 0.5 GiB leave nothing")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("def site(:", "SyntaxError"),
        ("x = 1", "no attribute 'site'"),
        ("def site(options):\n    return 3", "must return"),
        ("import no_such_module", "no_such_module"),
        (
            "import hydragnn_flow.execution as its\n"
            "def site(options):\n    return its.Site('mine', 1, None, dict)",
            r"cannot be loaded \(AttributeError",
        ),
    ],
)
def test_a_wrong_site_file_is_named(tmp_path, content, says):
    mine = tmp_path / "mine.py"
    mine.write_text(content)
    with pytest.raises(InputError, match=says) as error:
        load_site(mine)
    assert "mine.py" in str(error.value)


OF_CUDA = Node(("0", "1"), GCD, 2, "cuda", cores=("0-1", "2-3"), cores_of_a_node=4)


@pytest.mark.parametrize(
    ("site", "says"),
    [
        ({"nodes": 0}, "nodes: must be at least 1, got 0"),
        ({"blocks": 3}, "nodes: 4 is not a multiple of the 3 blocks; give 3 nodes"),
        ({"node": {"gcds": (), "cores": ()}}, "node.gcds: the node has no GCD"),
        ({"node": {"gcds": ("0", "0")}}, "node.gcds: '0' is there 2 times; give each GCD a name"),
        ({"node": {"gcd": guessed_gcd("cuda", 0)}}, "memory_gib: must be above 0 and finite"),
        ({"node": {"gcd": guessed_gcd("cuda", math.nan)}}, "memory_gib: must be above 0"),
        ({"node": {"gcd": guessed_gcd("cuda", 0.6)}}, "memory_gib: 0.6 GiB leave nothing beside"),
        ({"node": {"gcd": replace(GCD, process_gib=-1)}}, "leave nothing beside the -1 GiB"),
        ({"node": {"gcd": replace(GCD, flops=0)}}, "node.gcd.flops: must be above 0"),
        ({"node": {"gcd": replace(GCD, launch_seconds=-1)}}, "launch_seconds: must be above 0"),
        ({"node": {"gcd": replace(GCD, most_segments=0)}}, "most_segments: must be at least 1"),
        ({"node": {"scratch": "nvme"}}, "node.scratch: must be an absolute path, got 'nvme'"),
        ({"node": {"cores_per_gcd": 0}}, "node.cores_per_gcd: must be at least 1, got 0"),
        ({"node": {"cores_of_a_node": 3}}, "2 GCDs of 2 cores need 4, and a node has 3; give"),
        ({"node": {"cores": ("0-1",)}}, "node.cores: 1 groups for 2 GCDs; give one each"),
        ({"node": {"cores": ("0-1", "x")}}, "node.cores: 'x' is not a group such as"),
        ({"node": {"cores": ("0-1", "3-2")}}, "node.cores: '3-2' ends before it begins"),
        ({"node": {"cores": ("0-1", "2-4")}}, "'2-4' names 3 for a cores_per_gcd of 2"),
        ({"node": {"cores": ("0-1", "1-2")}}, "'0-1' and '1-2' both name core 1; give each GCD"),
    ],
)
def test_contradictory_facts_of_a_site_are_refused(site, says):
    node = replace(OF_CUDA, **site.get("node", {}))
    made = Site(**{"name": "mine", "nodes": 4, "parsl_config": dict} | site | {"node": node})
    with pytest.raises(InputError, match=re.escape(says)) as error:
        check_site(made, "mine.py")
    assert str(error.value).startswith("mine.py: ") and "\n" not in str(error.value)


@given(
    gcds=st.integers(1, 12),
    each=st.integers(1, 16),
    threads=st.sampled_from((1, 2, 4)),
    data=st.data(),
)
def test_cores_are_refused_exactly_where_they_are_there_twice(gcds, each, threads, data):
    size = each * threads
    slots = st.tuples(st.integers(0, 30), st.sampled_from((0, 0, 0, 1)))
    drawn = data.draw(st.lists(slots, min_size=gcds, max_size=gcds, unique=True))
    starts = [slot * size + shift for slot, shift in drawn]
    groups = tuple(f"{start}-{start + size - 1}" for start in starts)
    names = tuple(map(str, range(gcds)))
    node = Node(names, GCD, each, "cuda", cores=groups, cores_of_a_node=gcds * each)
    apart = len({core for group in groups for core in cores_in(group)}) == gcds * size
    with nullcontext() if apart else pytest.raises(InputError, match="both name core"):
        check_site(Site("mine", 1, node, dict), "mine.py")


def test_a_site_file_gives_any_argument_of_parsls_provider():
    provider = slurm_jobs(Options(), gpus_per_node=0, gres="gpu:4")(nodes_per_block=2)
    assert "#SBATCH --gres=gpu:4\n" in provider.scheduler_options
    assert "--gpus" not in provider.scheduler_options + provider.launcher.overrides


def test_the_site_yaml_to_copy_works():
    copied = shipped_sites()["frontier"].with_name("site.yaml")
    assert (load_site(copied).nodes, load_site(copied).blocks) == (16, 4)


def test_nodes_may_have_another_interface_than_the_login_node():
    node = {**NODE, "interface": "ib0"}
    assert load_site("slurm", node=node, interface="lo").node.interface == "ib0"
    assert load_site("slurm", node=NODE, interface="lo").node.interface == "lo"
