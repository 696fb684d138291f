"""`hydragnn-flow site show`: the scripts a site would submit, on a machine without a scheduler."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hydragnn_flow.cli import app
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import load_site
from hydragnn_flow.execution.sites.preview import preview


def test_frontiers_script_asks_for_what_olcf_says():
    _, command, script, _ = preview(load_site("frontier", account="ABC123", nodes=8, blocks=2))
    assert command.startswith("sbatch ")
    for line in (
        "#SBATCH --nodes=4",
        "#SBATCH --time=120",
        "#SBATCH --account=ABC123",
        "#SBATCH --constraint=nvme",
        "#SBATCH --no-requeue",
    ):
        assert f"{line}\n" in script
    assert "srun --ntasks 4 -l --ntasks-per-node=1 -c 56 --gpus-per-node=8 --no-kill" in script
    assert "--max_workers_per_node=8 " in script


def test_polaris_is_asked_by_qsub():
    _, command, script, _ = preview(load_site("polaris", account="ABC123", partition="debug"))
    assert command.split()[:5] == ["qsub", "-q", "debug", "-A", "ABC123"]
    assert "#PBS -l select=1:ncpus=64:ngpus=4\n" in script
    assert "mpiexec --cpu-bind none --ppn 1 -n $WORKERCOUNT" in script


def test_a_network_that_this_host_lacks_is_no_hindrance():
    site = load_site("frontier", account="ABC123", interface="hsn9")
    with pytest.raises(InputError, match="hsn9"):
        site.parsl_config(Path())
    shown = preview(site)
    assert shown.note.startswith("ADDRESS is the address")
    assert " -a ADDRESS " in shown.script


def test_show_prints_facts_scripts_and_configuration():
    ran = CliRunner().invoke(app, ["site", "show", "frontier", "-A", "ABC123", "-N", "8"])
    assert ran.exit_code == 0, ran.output
    for part in ("49-55  57-63", "#SBATCH --nodes=8", "Config(", "drain_period=7110"):
        assert part in ran.output
