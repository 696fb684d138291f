"""The sites that ship, and one from outside the package, by the suite for users' own."""

import inspect
from dataclasses import replace

import pytest

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import load_site, shipped_sites
from hydragnn_flow.execution.site import about_site
from hydragnn_flow.execution.sites import Executors
from hydragnn_flow.testing.sites import SiteSuite, example_options

# As a user writes it, with what the package offers to site files.
TOY = '''"""Toy: two CPU slots a node, Slurm."""

from hydragnn_flow.execution.sites import Node, Options, Site, batch_site, guessed_gcd, slurm_jobs

EXAMPLE = Options(account="ABC123", nodes=4, blocks=2)
NODE = Node(("0", "1"), guessed_gcd("cpu", 4), 2, "cpu", cores=("0-1", "2-3"))


def site(options: Options) -> Site:
    run = options.resolved("toy", needs=("account",), nodes=1, blocks=1, walltime="00:30:00")
    return batch_site("toy", NODE, run, slurm_jobs(run, gpus_per_node=0), scheduler="slurm")
'''


@pytest.fixture
def toy(tmp_path):
    path = tmp_path / "toy.py"
    path.write_text(TOY)
    return path


class TestShippedSites(SiteSuite):
    @pytest.fixture(params=sorted(shipped_sites()))
    def site(self, request, in_a_slurm_job):
        return load_site(request.param, **example_options(request.param))

    def test_parsl_neither_scales_nor_repeats(self, site, tmp_path):
        assert isinstance(site.parsl_config, Executors)
        config = site.parsl_config.config(tmp_path, "127.0.0.1")
        assert (config.strategy, config.retries) == ("none", 0)


class TestToy(SiteSuite):
    options = {"nodes": 2}  # noqa: RUF012 -- as a user writes it; the file's example has others

    @pytest.fixture(autouse=True)
    def here(self, toy):
        self.name = toy


@pytest.mark.parametrize("name", sorted(shipped_sites()))
def test_a_shipped_site_says_what_it_is_and_needs(name, in_a_slurm_job):
    about, example = about_site(name)
    assert len(about) > 10
    needs = sorted(example.model_fields_set)
    if needs:
        with pytest.raises(InputError, match=f"`{needs[0]}`"):
            load_site(name)


def other_executors(site, **changes):
    """The site with executors of which something was changed."""
    make = site.parsl_config

    def parsl_config(directory):
        config = make.config(directory, "127.0.0.1")
        for executor in config.executors:
            for name, value in changes.items():
                setattr(executor, name, value)
        return config

    return replace(site, parsl_config=parsl_config)


def other_node(site, **changes):
    return replace(site, node=replace(site.node, **changes))


@pytest.mark.parametrize(
    ("fails", "spoil"),
    [
        ("test_its_blocks_share_its_nodes_evenly", lambda site: replace(site, nodes=3)),
        ("test_each_gcd_has_a_name_and_memory", lambda site: other_node(site, gcds=("0", "0"))),
        ("test_each_gcd_has_a_name_and_memory", lambda site: other_node(site, scratch="nvme")),
        ("test_each_gcd_has_cores_of_its_own", lambda site: other_node(site, cores=("0-1",) * 2)),
        ("test_each_gcd_has_cores_of_its_own", lambda site: other_node(site, cores=("0-1",))),
        ("test_each_gcd_has_cores_of_its_own", lambda site: other_node(site, cores=("0", "1-3"))),
        (
            "test_it_has_a_worker_for_each_gcd",
            lambda site: other_executors(site, max_workers_per_node=1),
        ),
        (
            "test_its_workers_bind_themselves_and_take_one_task_at_a_time",
            lambda site: other_executors(site, encrypted=False),
        ),
        (
            "test_its_workers_bind_themselves_and_take_one_task_at_a_time",
            lambda site: other_executors(site, prefetch_capacity=1),
        ),
        (
            "test_blocks_are_started_when_there_is_work",
            lambda site: replace(site, blocks=4, nodes=4),
        ),
        (
            "test_its_batch_scripts_say_when_they_end_and_are_started_once",
            lambda site: replace(site, scheduler="pbs"),
        ),
    ],
)
def test_the_suite_finds_what_is_wrong(fails, spoil, toy, tmp_path):
    site = load_site(toy, **example_options(toy))
    test = getattr(SiteSuite(), fails)
    arguments = {"site": site, "tmp_path": tmp_path}
    wanted = inspect.signature(test).parameters
    test(**{name: arguments[name] for name in wanted})
    arguments["site"] = spoil(site)
    with pytest.raises(AssertionError):
        test(**{name: arguments[name] for name in wanted})
