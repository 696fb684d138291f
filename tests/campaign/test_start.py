"""What is wrong is found, and what matters is said, before anything trains."""

import copy
import errno
import io
import os
from contextlib import contextmanager

import pytest
from campaign_cases import CONFIG
from rich.console import Console

from hydragnn_flow import InputError, check_paths, locks
from hydragnn_flow.campaign import prepare
from hydragnn_flow.campaign.driver import _driving
from hydragnn_flow.config import RunConfig
from hydragnn_flow.errors import CampaignStopped
from hydragnn_flow.execution import load_site
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory

SMALL = RunConfig.model_validate(CONFIG)


def files(folder, **source):
    """A configuration whose data are files of a folder."""
    targets = {"energy": "eV", "forces": "eV/Å"}
    source = {"format": "ase", "targets": targets} | source
    given = {"val", "test"} if source["format"] == "hydragnn" else set(source)
    split = {role: 0.2 for role in ("val", "test") if role not in given}
    data = {"source": source, "path": folder, "split": split}
    return RunConfig.model_validate({**CONFIG, "data": data})


@contextmanager
def unprivileged():
    """Be somebody whom the system can refuse something."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_directories_that_cannot_be_used(tmp_path, monkeypatch):
    run = tmp_path / "runs" / "new"
    assert check_paths(SMALL, run).path == run
    assert list(tmp_path.iterdir()) == [], "nothing is written"
    (tmp_path / "closed").mkdir(mode=0)
    with unprivileged(), pytest.raises(InputError, match=r"closed.*Permission denied; .*another"):
        check_paths(SMALL, tmp_path / "closed" / "run")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file is a file; name a directory"):
        check_paths(SMALL, tmp_path / "file" / "run")
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path or not mode & os.W_OK)
    with pytest.raises(InputError, match=f"new: nothing may be written in {tmp_path}; .*run-dir"):
        check_paths(SMALL, run)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"train": "no.xyz"}, r"no.xyz \(data.source.train\) matches no files"),
        ({"train": "a.xyz", "val": "b/*.xyz"}, r"\*.xyz \(data.source.val\) matches no files"),
        ({"train": "a.xyz", "test": "empty"}, r"empty \(data.source.test\) matches no files"),
        ({"format": "hydragnn", "file": "no.bp", "targets": None}, "source.file.* matches no"),
    ],
)
def test_data_files_that_are_not_there(source, said, tmp_path):
    (tmp_path / "a.xyz").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".hidden").touch()
    with pytest.raises(InputError, match=said):
        check_paths(files(tmp_path, **source), tmp_path / "run")


def test_data_files_that_may_not_be_read(tmp_path, monkeypatch):
    for name in ("a.xyz", "b.xyz"):
        (tmp_path / name).touch()
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.R_OK)
    with pytest.raises(InputError, match=r"xyz \(data.source.train\) cannot be read"):
        check_paths(files(tmp_path, train="*.xyz"), tmp_path / "run")


def test_a_sampler_that_cannot_propose_for_this_search(tmp_path):
    search = {**CONFIG["search"], "sampler": {"type": "BruteForceSampler"}}
    with pytest.raises(InputError, match=r"BruteForceSampler cannot propose .*: .*step"):
        check_paths(RunConfig.model_validate({**CONFIG, "search": search}), tmp_path / "run")


def test_a_finished_run_no_longer_needs_its_data_nor_a_right_to_write(tmp_path, monkeypatch):
    asked = files(tmp_path, train="no.xyz")
    run = RunDirectory(tmp_path / "run")
    run.record_start(asked)
    run.summary.parent.mkdir()
    run.summary.write_text("{}")
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert check_paths(asked, run.path).is_complete(asked)
    more = asked.search.model_copy(update={"trials": asked.search.trials + 1})
    with pytest.raises(InputError):
        check_paths(asked.model_copy(update={"search": more}), run.path)


@pytest.fixture
def said():
    return io.StringIO()


@pytest.fixture
def view(said):
    return CampaignView(Console(file=said, width=1000))


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOSPC])
def test_a_disk_that_does_not_answer_is_told_in_one_sentence(tmp_path, view, number):
    directory = RunDirectory(tmp_path / "run")
    told = rf"{directory.path}: .*{os.strerror(number)}.*cure"
    with pytest.raises(CampaignStopped, match=told), _driving(directory, SMALL, view):
        raise OSError(number, os.strerror(number))
    for other in (ZeroDivisionError(), PermissionError(errno.EACCES, "Permission denied")):
        with pytest.raises(type(other)), _driving(directory, SMALL, view):
            raise other


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


def prepared(run, config):
    """Prepare a run's store; returns the lines that were said."""
    text = io.StringIO()
    with CampaignView(Console(file=text, width=1000)) as view:
        prepare(RunConfig.model_validate(config), load_site("local"), run, view)
    return text.getvalue().splitlines()


def test_keys_that_change_nothing_are_named_once(tmp_path):
    config = copy.deepcopy(CONFIG)
    network = config["network"]
    network["Variables_of_interest"]["output_names"] = ["graph_energy"]
    network["Training"]["perc_train"] = 0.7
    said = [line for line in prepared(tmp_path / "run", config) if line.startswith("network: ")]
    expected = "Training.perc_train, Variables_of_interest.output_names"
    assert said[0] == f"network: keys that change nothing here: {expected}"
    assert [line.split(" is ")[0] for line in said[1:]] == ["network: Training.batch_size = 4"]


def test_a_potential_with_cut_neighbour_lists_is_refused(tmp_path):
    """Most of HydraGNN's are; nothing stays of the preparation."""
    config, run = copy.deepcopy(CONFIG), tmp_path / "run"
    architecture = config["network"]["Architecture"]
    architecture["max_neighbours"] = 12
    with pytest.raises(InputError, match=r"forces are not the gradient .*max_neighbours = 12"):
        prepared(run, config)
    assert list(tmp_path.iterdir()) == []
    architecture["truncated_neighbours"] = "allow"
    said = [line for line in prepared(run, config) if "leaves out" in line]
    assert len(said) == 1 and said[0].startswith("max_neighbours = 12 leaves out ")
    # A network that refuses meets the finished store.
    del architecture["truncated_neighbours"]
    with pytest.raises(InputError, match="max_neighbours = 12 leaves out"):
        prepared(run, config)
    architecture["enable_interatomic_potential"] = False
    architecture["output_heads"] = {"graph": {"num_headlayers": 1, "dim_headlayers": [8]}}
    config["network"]["Variables_of_interest"]["type"] = ["graph"]
    assert any("leaves out" in line for line in prepared(run, config))
