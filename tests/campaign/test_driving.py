"""What a driver makes of a run directory whose disk is not as it should be."""

import errno
import io
import os

import pytest
from campaign_cases import CONFIG
from rich.console import Console

from hydragnn_flow import locks
from hydragnn_flow.campaign.driver import _driving
from hydragnn_flow.config import RunConfig
from hydragnn_flow.errors import CampaignStopped
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory

SMALL = RunConfig.model_validate(CONFIG)


@pytest.fixture
def said():
    return io.StringIO()


@pytest.fixture
def view(said):
    return CampaignView(Console(file=said, width=1000))


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOSPC])
def test_a_disk_that_does_not_answer_is_told_in_one_sentence(tmp_path, view, number):
    directory = RunDirectory(tmp_path / "run")
    with (
        pytest.raises(CampaignStopped, match=rf"{directory.path}: .*{os.strerror(number)}.*cure"),
        _driving(directory, SMALL, view),
    ):
        raise OSError(number, os.strerror(number))
    with pytest.raises(ZeroDivisionError), _driving(directory, SMALL, view):
        raise ZeroDivisionError
    with pytest.raises(PermissionError), _driving(directory, SMALL, view):
        raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize("options", ["rw,flock", "rw,localflock"])
def test_locks_that_other_nodes_do_not_see_are_warned_of(
    tmp_path, view, said, monkeypatch, options
):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"orion {tmp_path} lustre {options} 0 0\n")
    monkeypatch.setattr(locks, "MOUNTS", mounts)
    with _driving(RunDirectory(tmp_path / "run"), SMALL, view):
        pass
    assert ("mounted with `localflock`" in said.getvalue()) is ("localflock" in options)
