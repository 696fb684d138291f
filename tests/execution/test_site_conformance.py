"""The sites that ship, and one from outside the package, by the suite for users' own."""

import inspect
import subprocess
from dataclasses import replace

import pytest

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import load_site, shipped_sites
from hydragnn_flow.execution.site import about_site
from hydragnn_flow.execution.sites import Executors
from hydragnn_flow.execution.sites.preview import preview
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

    def test_its_script_is_sound_and_starts_the_agent(self, site):
        script = preview(site).script
        checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
        assert "-m hydragnn_flow.execution.pools.agent " in script


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


BIND_THEMSELVES = "its_workers_bind_themselves_and_take_one_task_at_a_time"
STARTED_ONCE = "its_batch_scripts_say_when_they_end_and_are_started_once"


@pytest.mark.parametrize(
    ("fails", "change", "to"),
    [
        ("its_facts_agree", replace, {"nodes": 3}),
        ("it_has_a_worker_for_each_gcd", other_executors, {"max_workers_per_node": 1}),
        (BIND_THEMSELVES, other_executors, {"encrypted": False}),
        (BIND_THEMSELVES, other_executors, {"prefetch_capacity": 1}),
        ("blocks_are_started_when_there_is_work", replace, {"blocks": 4, "nodes": 4}),
        (STARTED_ONCE, replace, {"scheduler": "pbs"}),
    ],
)
def test_the_suite_finds_what_is_wrong(fails, change, to, toy, tmp_path):
    site = load_site(toy, **example_options(toy))
    test = getattr(SiteSuite(), f"test_{fails}")
    others = {"tmp_path": tmp_path} if "tmp_path" in inspect.signature(test).parameters else {}
    test(site, **others)
    with pytest.raises((AssertionError, InputError)):
        test(change(site, **to), **others)
