"""`hydragnn-flow site show`: the scripts a site would submit, on a machine without a scheduler."""

import re
from pathlib import Path
from typing import Any

import pytest
from page_cases import blocks
from typer.testing import CliRunner

from hydragnn_flow.cli import app
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import load_site
from hydragnn_flow.execution.binding import environment
from hydragnn_flow.execution.sites.preview import preview

# Environment of a trainer process and batch script, each line with the page that it is from.
GOLDEN = Path(__file__).parents[1] / "golden" / "sites.txt"
OPTIONS: dict[str, dict[str, Any]] = {
    "aurora": {"partition": "debug", "nodes": 2},
    "frontier": {"nodes": 8, "blocks": 2},
    "lsf": {"partition": "gpu", "nodes": 4, "blocks": 2},
    "pbs": {"partition": "gpu", "nodes": 2},
    "perlmutter": {"nodes": 2},
    "polaris": {"partition": "debug", "nodes": 2},
}


def shown(name, folder):
    """What the golden file has, line by line, of a site that ships or of one on a page."""
    for block in blocks("python"):
        if block.text.startswith(f"# {name}.py\n"):
            (folder / f"{name}.py").write_text(block.text, encoding="utf-8")
    file = folder / f"{name}.py"
    site = load_site(file if file.exists() else name, account="ABC123", **OPTIONS[name])
    for variable, value in sorted(environment(site.node, 1).items()):
        yield f"unset {variable}" if value is None else f"{variable}={value}"
    _, command, script, _ = preview(site)
    lines = [line for line in script.splitlines() if line.strip() and line != "#!/bin/bash"]
    ours = [line.startswith("export JOBNAME=") for line in lines].index(True)
    start = next(line for line in lines if line.startswith(("srun ", "mpiexec ", "mpirun ")))
    for line in (command, *lines[:ours], start):
        if not line.startswith(("export PATH=", "export PYTHONPATH=")):  # of this host
            yield re.sub(r"(block-0)\.[\d.]+\d", r"\1", line)


@pytest.mark.parametrize("name", OPTIONS)
def test_trainers_and_batch_jobs_get_what_the_pages_say(name, monkeypatch, tmp_path):
    of_the_host = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
    for variable in (*of_the_host, "NCCL_SOCKET_IFNAME", "CCL_KVS_IFACE", "PYTHONUSERBASE"):
        monkeypatch.delenv(variable, raising=False)
    golden = GOLDEN.read_text(encoding="utf-8").partition(f"[{name}]\n")[2].partition("\n\n")[0]
    told = [line.rpartition("  # ") for line in golden.splitlines() if line]
    assert [*shown(name, tmp_path)] == [line for line, _, _ in told]
    assert all(page for _, _, page in told), "from which page?"


def test_a_quality_of_service_is_asked_for_on_the_command_line():
    ran = CliRunner().invoke(app, ["site", "show", "frontier", "-A", "ABC123", "-q", "debug"])
    assert ran.exit_code == 0, ran.output
    assert "#SBATCH --qos=debug\n" in ran.output


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
