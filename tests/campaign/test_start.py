"""What is wrong with a run directory, data files or a sampler is found before the driver starts."""

import os
from contextlib import contextmanager

import pytest
from campaign_cases import CONFIG

from hydragnn_flow import InputError, check_paths
from hydragnn_flow.config import RunConfig
from hydragnn_flow.run_directory import RunDirectory


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


def test_nothing_is_written(tmp_path):
    run = tmp_path / "runs" / "new"
    assert check_paths(RunConfig.model_validate(CONFIG), run).path == run
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_may_not_be_looked_into(tmp_path):
    (tmp_path / "closed").mkdir(mode=0)
    with unprivileged(), pytest.raises(InputError, match=r"closed.*Permission denied; .*another"):
        check_paths(RunConfig.model_validate(CONFIG), tmp_path / "closed" / "run")


def test_a_directory_that_may_not_be_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path or not mode & os.W_OK)
    with pytest.raises(InputError, match=f"a/run: nothing may be written in {tmp_path}; .*run-dir"):
        check_paths(RunConfig.model_validate(CONFIG), tmp_path / "a" / "run")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"train": "no.xyz"}, r"no.xyz \(data.source.train\) matches no files"),
        ({"train": "a.xyz", "val": "b/*.xyz"}, r"\*.xyz \(data.source.val\) matches no files"),
        ({"train": "a.xyz", "test": "empty"}, r"empty \(data.source.test\) matches no files"),
        (
            {"format": "hydragnn", "file": "no.bp", "targets": None},
            r"\(data.source.file\) matches no",
        ),
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
    with pytest.raises(
        InputError, match=r"BruteForceSampler cannot propose for this search: .*step"
    ):
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
