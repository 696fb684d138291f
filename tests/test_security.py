"""What docs/security.md promises of a campaign: who can reach it, and who can read it."""

import ipaddress
import os
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
from campaign_cases import CONFIG, write_config
from driver_cases import TWO_CORES

from hydragnn_flow.execution.binding import bound_to

pytestmark = pytest.mark.slow

PATIENCE = 900.0
SECONDS_BETWEEN_LOOKS = 0.3  # ranks that train together keep their connections for seconds
TRAINER = "hydragnn_flow: "
MARK = "HYDRAGNN_FLOW_TEST_OF_SECURITY"
OF_A_KEY = b"secret-key"
TOKEN = "of-my-environment-4711"


def processes(driver, mark):
    """Those of a campaign, also when the one that started them is gone."""
    # A title, as the interchange and trainers have, overwrites the environment.
    yield from psutil.Process(driver).children(recursive=True)
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                yield process
                yield from process.children()


def look(driver, mark, reached, seen):
    """Note what processes a campaign has, and what addresses these use."""
    for process in processes(driver, mark):
        with suppress(psutil.Error):
            seen.add(process)
            kind = next((k for k in reached if k in " ".join(process.cmdline())), "other")
            for connection in process.net_connections("inet"):
                ends = [end for end in (connection.laddr, connection.raddr) if end]
                reached[kind] |= {end.ip.removeprefix("::ffff:") for end in ends}


def containing(folder, text):
    """Files somewhere in a folder with this text in them."""
    return (path for path in folder.rglob("*") if path.is_file() and text in path.read_bytes())


def test_a_campaign_is_reached_and_read_by_nobody_else_and_leaves_nothing_running(tmp_path):
    config = write_config(
        tmp_path,
        data={
            "source": {"format": "emt_alloys", "structures": 32, "atoms": [8, 8]},
            "split": {"val": 0.25, "test": 0.25},
        },
        search={
            "trials": 2,
            "rungs": "none",
            "space": CONFIG["search"]["space"] | {"Resources.gcds": {"choices": [2]}},
        },
        ensemble={"size": 2, "epochs": 9, "coverage": 0.8},
    )
    run, output, mark = tmp_path / "run", tmp_path / "output", str(tmp_path)
    command = [sys.executable, "-m", "hydragnn_flow", "run", config, "--run-dir", run]
    kinds = ("-m hydragnn_flow run", "interchange", TRAINER, "other")
    # Addresses at which its processes had sockets or were connected with, by what they are.
    reached: dict[str, set[str]] = {kind: set() for kind in kinds}
    seen: set[psutil.Process] = set()
    environment = os.environ | {MARK: mark, "MY_TOKEN": TOKEN}
    with output.open("wb") as log, bound_to(TWO_CORES):
        # With the umask of the most careless of users.
        started = subprocess.Popen(command, env=environment, stdout=log, stderr=log, umask=0)
    give_up = time.monotonic() + PATIENCE
    while started.poll() is None and time.monotonic() < give_up:
        look(started.pid, mark, reached, seen)
        time.sleep(SECONDS_BETWEEN_LOOKS)
    if started.poll() is None:
        started.kill()
    assert started.wait() == 0, output.read_text()

    # On one machine it uses the loopback alone.
    assert reached["-m hydragnn_flow run"], "the driver was not seen"
    assert reached["interchange"], "the interchange was not seen"
    assert reached[TRAINER], "the ranks of a trial were not seen"
    addresses = set().union(*reached.values())
    assert all(ipaddress.ip_address(address).is_loopback for address in addresses), reached

    assert run.stat().st_mode & 0o777 == 0o700
    keys = [*containing(run, OF_A_KEY)]
    assert keys
    for path in keys:
        assert path.parent.name == "certificates"
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert path.stat().st_mode & 0o777 == 0o600
    assert [*containing(run, TOKEN.encode())] == []

    _, alive = psutil.wait_procs(seen, timeout=60.0)
    assert alive == []
