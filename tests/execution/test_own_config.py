"""Sites from a user's own `parsl.Config`: those that pages print, and mistakes in such a file."""

import published_configs as pages
import pytest
import torch
from driver_cases import PATIENCE
from pool_cases import update_until
from typer.testing import CliRunner

from hydragnn_flow.cli import app
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import load_site
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.sites.preview import preview
from hydragnn_flow.testing.sites import SiteSuite, executors_of

# Kind of the accelerators that a file does not tell.
KIND = next((kind for kind in ("hip", "xpu") if getattr(torch.version, kind, None)), "cuda")
TILES = tuple(f"{card}.{tile}" for card in range(6) for tile in range(2))
FACTS = {
    "PARSL_POLARIS": (128, "pbs", tuple("0123"), KIND, 16, "bond0", "3,7,11,15,"),
    "ALCF_POLARIS": (3, "pbs", tuple("0123"), KIND, 8, None, "0-7,32-39"),
    "AURORA": (1, "pbs", TILES, "xpu", 8, "hsn0", "93-100,197-204"),
    "AURORA_IN_A_JOB": (2, None, TILES, "xpu", 8, "hsn0", "93-100,197-204"),
    "EXPANSE": (2, "slurm", tuple(map(str, range(32))), "cpu", 1, None, ""),
    "ANVIL": (1, "slurm", ("0",), KIND, 4, None, ""),
    "FRONTERA": (2, "slurm", ("0",), "cpu", 1, None, ""),
    "SUMMIT": (2, "lsf", ("0",), "cpu", 1, "ib0", ""),
    "BRIDGES": (2, "slurm", ("0",), "cpu", 1, "ens3f0", ""),
}


def htex(label, more="", provider="SlurmProvider()"):
    return f"HighThroughputExecutor('{label}', {provider}, max_workers_per_node=2, {more})"


def config(*executors):
    return f"config = Config(executors=[{', '.join(executors)}])"


@pytest.fixture
def pasted(tmp_path, monkeypatch):
    """Write a file with a configuration, and return its path."""
    (tmp_path / "nodes").write_text("x1\nx2\n")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))

    def write(text):
        (tmp_path / "mine.py").write_text(pages.IMPORTS + text)
        return tmp_path / "mine.py"

    return write


class TestPublished(SiteSuite):
    @pytest.fixture(params=FACTS)
    def page(self, request):
        return request.param

    @pytest.fixture
    def site(self, page, pasted):
        more = {"walltime": "01:00:00"} if page == "PARSL_POLARIS" else {}  # a placeholder
        return load_site(pasted(getattr(pages, page)), **more)

    def test_its_facts_are_read(self, page, site):
        node, cores = site.node, (site.node.cores or ("",))[-1]
        found = (site.nodes, site.scheduler, node.gcds, node.device, node.cores_per_gcd)
        assert (*found, node.interface) == FACTS[page][:-1]
        assert cores.startswith(FACTS[page][-1])
        assert "-m hydragnn_flow.execution.pools.agent " in preview(site).script


def test_what_is_read_guessed_and_replaced_is_shown(pasted):
    command = ["site", "show", str(pasted(pages.PARSL_POLARIS)), "-t", "01:00:00"]
    ran = CliRunner(env={"COLUMNS": "200"}).invoke(app, command)
    assert ran.exit_code == 0, ran.output
    shown = ("128, in 1 block(s)", "14 GiB is a guess", "alternating", "#PBS -r n", "pools.agent")
    for part in (*shown, "conda activate YOUR_ENV"):
        assert part in ran.output


def test_a_site_yaml_gives_what_the_file_lacks(pasted):
    yaml = pasted(pages.BRIDGES).with_name("site.yaml")
    yaml.write_text("site: mine.py\nnodes: 4\nblocks: 2\nnode: {memory_gib: 7}\n")
    site = load_site(yaml)
    assert (site.blocks, site.node.gcd.memory_gib, len(site.notes)) == (2, 7, 1)
    assert [*executors_of(site, yaml.parent)] == ["Bridges_HTEX_multinode"]
    yaml.write_text("site: mine.py\naccount: ABC123\n")
    with pytest.raises(InputError, match="takes no option `account`"):
        load_site(yaml)


GPUS = htex("b", "available_accelerators=2")


@pytest.mark.parametrize(
    ("executors", "named", "label"),
    [
        (("ThreadPoolExecutor()", htex("a")), None, "a"),
        ((htex("a"), GPUS), None, "b"),
        ((htex("a"), GPUS), ["a"], "a"),
    ],
)
def test_one_of_several_executors_computes(pasted, tmp_path, executors, named, label):
    site = load_site(pasted(config(*executors)), executors=named)
    assert [*executors_of(site, tmp_path)] == [label]


@pytest.mark.parametrize(
    ("affinity", "cores"),
    [
        ("block", ("0-3", "4-7")),
        ("block-reverse", ("4-7", "0-3")),
        ("alternating", ("0,2,4,6", "1,3,5,7")),
        ("list:0-3:4-7", ("0-3", "4-7")),
        ("none", ()),
    ],
)
def test_cores_are_those_that_parsl_would_bind_to(pasted, affinity, cores):
    executor = htex("a", f"cpu_affinity='{affinity}'", "SlurmProvider(cores_per_node=8)")
    node = load_site(pasted(config(executor))).node
    assert (node.cores, node.cores_per_gcd) == (cores, 4)


@pytest.mark.parametrize(
    ("size", "asked"),
    [("", "-nnodes 2"), ("False, cores_per_block=8, cores_per_node=8", "-n 16")],
)
def test_lsf_is_asked_for_the_nodes_of_a_block(pasted, size, asked):
    by = f"request_by_nodes={size or True}, launcher=JsrunLauncher()"
    site = load_site(pasted(config(htex("a", "", f"LSFProvider({by})"))), nodes=4, blocks=2)
    script = preview(site).script
    assert f"\n#BSUB {asked}\n" in script
    assert "jsrun -n 2 -r 1 -a 1 -c ALL_CPUS " in script, "each agent has all of its node"


MPI = "MPIExecutor(max_workers_per_block=5, provider=SlurmProvider(launcher=SimpleLauncher()))"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no attribute 'site' and no parsl.Config; define either"),
        ("a, b = Config(), Config()", "several Configs .a, b.; name one `config`"),
        (config("ThreadPoolExecutor()"), "ThreadPoolExecutor cannot run this package's workers"),
        (config(MPI), "executors: MPIExecutor cannot run this package's workers; add a High"),
        (config(htex("a"), htex("a")), "unique labels"),
        (config(htex("a"), htex("b")), "executors: a, b could each compute; write `executors: "),
        (config(htex("a", "", "TorqueProvider()")), "provider: TorqueProvider is not supported"),
        (config(htex("a", "launch_cmd='mine'")), "launch_cmd: does not start process_worker_pool"),
        (config(htex("a", "cpu_affinity='list:0:x'")), "'x' is not a group such as"),
        (config(htex("a", "cpu_affinity='list:0'")), "node.cores: 1 groups for 2 GCDs; give one"),
        (pages.PARSL_POLARIS, "walltime: must be HH:MM:SS and at least a minute, got 'YOUR_WALLT"),
        (
            config(htex("a", "", "SlurmProvider(nodes_per_block=2)")),
            "SingleNodeLauncher starts workers on one of the 2 nodes of a block; write Srun",
        ),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(pasted, text, says):
    with pytest.raises(InputError, match=says) as error:
        load_site(pasted(text))
    assert "\n" not in str(error.value) and "mine.py" in str(error.value)


def test_an_executor_is_named_only_where_there_is_one(pasted):
    with pytest.raises(InputError, match="executors: give one of a in a list"):
        load_site(pasted(config(htex("a"))), executors=["b"])
    with pytest.raises(InputError, match=r"executors: frontier.py defines no parsl.Config"):
        load_site("frontier", account="ABC123", executors=["a"])


def test_its_workers_run_here(pasted, tmp_path):
    """Of two executors, one of them of threads, as a workflow of one's own may have them."""
    path = pasted(config("ThreadPoolExecutor()", htex("mine", "", "LocalProvider()")))
    with Pool(load_site(path, heartbeat=1), tmp_path / "parsl") as pool:
        update_until(pool, lambda: pool.workers() == 2, 2)
        assert pool.submit(pow, 2, 5).result(PATIENCE) == 32
