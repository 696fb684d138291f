"""Sites from a user's own `parsl.Config`: those that pages print, and mistakes in such a file."""

import subprocess

import pytest
import torch
from driver_cases import PATIENCE
from pool_cases import update_until
from published_configs import AURORA_MPI, EXPANSE, IMPORTS, PARSL_POLARIS, PUBLISHED
from typer.testing import CliRunner

from hydragnn_flow.cli import app
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import load_site
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.sites.preview import preview
from hydragnn_flow.testing.sites import SiteSuite, executors_of

# Kind of the accelerators that a file does not tell.
KIND = "hip" if torch.version.hip else "xpu" if getattr(torch.version, "xpu", None) else "cuda"
HTEX = "HighThroughputExecutor(label='{}', max_workers_per_node=2, provider={}(), {})"


def config(*executors):
    return f"config = Config(executors=[{', '.join(executors)}])"


@pytest.fixture
def pasted(tmp_path, monkeypatch):
    """Write a file with a configuration, and return its path."""
    (tmp_path / "nodes").write_text("x1\nx2\n")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))

    def write(text, name="mine"):
        (tmp_path / f"{name}.py").write_text(IMPORTS + text)
        return tmp_path / f"{name}.py"

    return write


def at(walltime):
    return {} if walltime is None else {"walltime": walltime}


class TestPublished(SiteSuite):
    @pytest.fixture(params=PUBLISHED)
    def site(self, request, pasted):
        walltime = "01:00:00" if request.param == "parsl_polaris" else None
        return load_site(pasted(PUBLISHED[request.param], request.param), **at(walltime))

    def test_its_script_is_sound_and_starts_the_agent(self, site):
        script = preview(site).script
        checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
        assert "-m hydragnn_flow.execution.pools.agent " in script


@pytest.mark.parametrize(
    ("name", "nodes", "gcds", "kind", "each", "cores", "interface", "scheduler"),
    [
        ("parsl_polaris", 128, "0123", KIND, 16, "3,7,11,15,19,23,27", "bond0", "pbs"),
        ("alcf_polaris", 3, "0123", KIND, 8, "0-7,32-39", None, "pbs"),
        (
            "aurora",
            1,
            [f"{n}.{t}" for n in range(6) for t in (0, 1)],
            "xpu",
            8,
            "93-",
            "hsn0",
            "pbs",
        ),
        (
            "aurora_in_a_job",
            2,
            [f"{n}.{t}" for n in range(6) for t in (0, 1)],
            "xpu",
            8,
            "93-",
            "hsn0",
            None,
        ),
        ("expanse", 2, [str(n) for n in range(32)], "cpu", 1, "", None, "slurm"),
        ("anvil", 1, "0", KIND, 4, "", None, "slurm"),
        ("frontera", 2, "0", "cpu", 1, "", None, "slurm"),
        ("bridges", 2, "0", "cpu", 1, "", "ens3f0", "slurm"),
    ],
)
def test_facts_are_read(pasted, name, nodes, gcds, kind, each, cores, interface, scheduler):
    site = load_site(pasted(PUBLISHED[name]), **at("01:00:00" if "polaris" in name else None))
    node = site.node
    assert (site.nodes, site.scheduler, [*node.gcds]) == (nodes, scheduler, [*gcds])
    assert (node.device, node.cores_per_gcd, node.interface) == (kind, each, interface)
    assert (node.cores or ("",))[-1].startswith(cores)


def test_what_is_derived_guessed_and_replaced_is_shown(pasted):
    path = str(pasted(PARSL_POLARIS))
    ran = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["site", "show", path, "-t", "01:00:00"])
    assert ran.exit_code == 0, ran.output
    for part in (
        "128, in 1 block(s)",
        "14 GiB is a guess",
        "alternating",
        "#PBS -r n",
        "pools.agent",
    ):
        assert part in ran.output
    assert "conda activate YOUR_ENV" in ran.output, "the file's own lines are lost"


def test_a_site_yaml_gives_what_the_file_lacks(pasted):
    yaml = pasted(EXPANSE).with_name("site.yaml")
    yaml.write_text("site: mine.py\nnodes: 4\nblocks: 2\nnode: {memory_gib: 7, device: hip}\n")
    site = load_site(yaml)
    assert (site.blocks, site.node.gcd.memory_gib, site.node.device) == (2, 7, "hip")
    assert len(site.notes) == 1, "what is given is called a guess"
    (executor,) = executors_of(site, yaml.parent).values()
    assert (executor.label, executor.provider.account) == (
        "Expanse_CPU_Multinode",
        "YOUR_ALLOCATION_ON_EXPANSE",
    )
    yaml.write_text("site: mine.py\naccount: ABC123\n")
    with pytest.raises(InputError, match="takes no option `account`"):
        load_site(yaml)


SLURM, GPUS = "SlurmProvider", "available_accelerators=['0', '1']"


@pytest.mark.parametrize(
    ("executors", "named", "label"),
    [
        (("ThreadPoolExecutor()", HTEX.format("a", SLURM, "")), None, "a"),
        ((HTEX.format("a", SLURM, ""), HTEX.format("b", SLURM, GPUS)), None, "b"),
        ((HTEX.format("a", SLURM, ""), HTEX.format("b", SLURM, GPUS)), ["a"], "a"),
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
    provider = "lambda: SlurmProvider(cores_per_node=8)"
    node = load_site(
        pasted(config(HTEX.format("a", f"({provider})", f"cpu_affinity='{affinity}'")))
    ).node
    assert (node.cores, node.cores_per_gcd) == (cores, 4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no attribute 'site' and no parsl.Config; define either"),
        ("a, b = Config(), Config()", "several Configs .a, b.; name one `config`"),
        (config("ThreadPoolExecutor()"), "executors: ThreadPoolExecutor cannot run this package's"),
        (AURORA_MPI, "executors: MPIExecutor cannot run this package's workers; add a High"),
        (config(HTEX.format("a", SLURM, ""), HTEX.format("a", SLURM, "")), "unique labels"),
        (
            config(HTEX.format("a", SLURM, ""), HTEX.format("b", SLURM, "")),
            "write `executors: .a.`",
        ),
        (config(HTEX.format("a", "LSFProvider", "")), "provider: LSFProvider is not supported"),
        (
            config(HTEX.format("a", SLURM, "launch_cmd='mine'")),
            "launch_cmd: does not start process",
        ),
        (config(HTEX.format("a", SLURM, "cpu_affinity='list:0:x'")), "'x' is not a group such as"),
        (config(HTEX.format("a", SLURM, "cpu_affinity='list:0'")), "node.cores: 1 groups for 2"),
        (PARSL_POLARIS, "walltime: must be HH:MM:SS and at least a minute, got 'YOUR_WALLTIME'"),
        (
            config(HTEX.format("a", "(lambda: SlurmProvider(nodes_per_block=2))", "")),
            "launcher: SingleNodeLauncher starts workers on one of the 2 nodes",
        ),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(pasted, text, says):
    with pytest.raises(InputError, match=says) as error:
        load_site(pasted(text))
    assert "\n" not in str(error.value) and "mine.py" in str(error.value)


def test_an_executor_is_named_only_where_there_are_several(pasted):
    with pytest.raises(InputError, match="executors: give one of a in a list"):
        load_site(pasted(config(HTEX.format("a", SLURM, ""))), executors=["b"])
    with pytest.raises(InputError, match=r"executors: frontier.py defines no parsl.Config"):
        load_site("frontier", account="ABC123", executors=["a"])


def test_its_workers_run_here(pasted, tmp_path):
    """Two executors, one of them of threads, as a workflow of one's own may have them."""
    path = pasted(config("ThreadPoolExecutor()", HTEX.format("mine", "LocalProvider", "")))
    with Pool(load_site(path, heartbeat=1), tmp_path / "parsl") as pool:
        update_until(pool, lambda: pool.workers() == 2, 2)
        assert pool.submit(pow, 2, 5).result(PATIENCE) == 32
