"""Conformance suite for sites (machines): what a campaign relies on, without submitting a job.

Write a subclass that names a site file, and run it with pytest in an environment with this
package::

    from hydragnn_flow.testing.sites import SiteSuite

    class TestMine(SiteSuite):
        name = "sites/mine.py"

On the machine itself `hydragnn-flow site check` then starts a Parsl block (one batch job).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hydragnn_flow.execution.site import Site, about_site, check_site, load_site

# Line of a batch script that stops the scheduler from starting the job a second time.
_STARTED_ONCE = {"slurm": "#SBATCH --no-requeue", "pbs": "#PBS -r n", "lsf": "#BSUB -rn"}


class SiteSuite:
    """Conformance tests of a site (description of a machine); a subclass sets :attr:`name`."""

    name: str | Path
    """Path of a site file, or name of a site that ships with the package."""
    options: Mapping[str, Any] = {}
    """Options of the site; a missing option has its value in the file's ``EXAMPLE``."""

    @pytest.fixture
    def site(self) -> Site:
        """Load the site; override this fixture if the site needs more than options."""
        return load_site(self.name, **{**example_options(self.name), **self.options})

    def test_its_facts_agree(self, site: Site) -> None:
        check_site(site, site.name)

    def test_it_has_a_worker_for_each_gcd(self, site: Site, tmp_path: Path) -> None:
        (executor,) = executors_of(site, tmp_path).values()
        assert executor.max_workers_per_node == len(site.node.gcds)

    def test_its_workers_bind_themselves_and_take_one_task_at_a_time(
        self, site: Site, tmp_path: Path
    ) -> None:
        for executor in executors_of(site, tmp_path).values():
            assert executor.encrypted
            assert executor.prefetch_capacity == 0
            assert executor.available_accelerators == []
            assert executor.cpu_affinity == "none"

    def test_blocks_are_started_when_there_is_work(self, site: Site, tmp_path: Path) -> None:
        for executor in executors_of(site, tmp_path).values():
            provider = executor.provider
            assert (provider.init_blocks, provider.min_blocks) == (0, 0)
            assert provider.max_blocks == site.blocks
            assert provider.nodes_per_block == site.nodes // site.blocks

    def test_its_workers_take_nothing_new_before_their_job_ends(
        self, site: Site, tmp_path: Path
    ) -> None:
        if site.scheduler is not None:
            for executor in executors_of(site, tmp_path).values():
                hours, minutes, seconds = map(int, executor.provider.walltime.split(":"))
                assert 0 < executor.drain_period < 3600 * hours + 60 * minutes + seconds

    def test_its_batch_scripts_say_when_they_end_and_are_started_once(self, site: Site) -> None:
        from hydragnn_flow.execution.sites.preview import preview

        script = preview(site).script
        if site.scheduler is not None:
            assert "HYDRAGNN_FLOW_JOB_END=" in script
            assert _STARTED_ONCE[site.scheduler] in script


def example_options(name: str | Path) -> dict[str, Any]:
    """Return the options in a site file's ``EXAMPLE``, as keywords for :func:`load_site`.

    ``name`` is the path of the file, or the name of a site that ships with the package.
    """
    return about_site(name)[1].model_dump(exclude_unset=True)


def executors_of(site: Site, directory: Path) -> dict[str, Any]:
    """Return the Parsl executors of a site (machine) by label.

    Parsl's run directory is ``directory``, and the driver's address 127.0.0.1, so that this works
    on a host outside the site.
    """
    from hydragnn_flow.execution.sites.batch import Executors

    parsl = site.parsl_config
    config = (
        parsl.config(directory, "127.0.0.1") if isinstance(parsl, Executors) else parsl(directory)
    )
    return {executor.label: executor for executor in config.executors}
