"""Predictions on a site: those of one process, whatever becomes of workers and driver."""

import runpy
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import ase.io
import pandas as pd
import pytest
from ase import Atoms
from ase.build import bulk
from ensemble_cases import untrained_ensemble
from hypothesis import given, settings
from hypothesis import strategies as st
from job_cases import CallsHere, ended

from hydragnn_flow import Ensemble, cli
from hydragnn_flow.campaign import prediction
from hydragnn_flow.campaign.prediction import predict_on_site
from hydragnn_flow.ensemble import write_predictions
from hydragnn_flow.ensemble.predictions import member_predictions, parts
from hydragnn_flow.ensemble.predictions.files import PredictionFiles
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import Node, Site, jobs
from hydragnn_flow.placement import Gcd
from hydragnn_flow.segment import TrainingOutcome

NODE = Node(("0", "1"), Gcd(8, 1e10, 1e10, 1e-5, 0.5, 2), 1, "cpu")
SITE = Site("fake", 3, NODE, lambda directory: None)


class FakePool(CallsHere):
    """Runs calls at once in this process, unless a function of the test's has them end."""

    def __enter__(self):
        self.ran.clear()
        return self

    def __exit__(self, *_): ...


@pytest.fixture(autouse=True)
def pool(monkeypatch):
    pool = FakePool()
    monkeypatch.setattr(prediction, "workers_of", lambda site, directory: pool)
    return pool


@pytest.fixture(scope="module")
def run(alloy_store, tmp_path_factory):
    return untrained_ensemble(tmp_path_factory.mktemp("run"), alloy_store)


@pytest.fixture(scope="module")
def ensemble(run):
    return Ensemble.load(run)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Parts of two structures; called, of another number."""

    def of(size):
        monkeypatch.setattr(member_predictions, "CHUNK", size)
        monkeypatch.setattr(parts, "CHUNK", size)

    of(2)
    return of


def write_crystals(file, numbers, *, broken=None):
    """A file of structures; line `broken` of it is none of an atom."""
    ase.io.write(file, [crystal(number) for number in numbers])
    if broken is not None:
        rows = file.read_text().splitlines()
        rows[broken] = "Cu nowhere 0 0"
        file.write_text("\n".join(rows) + "\n")
    return file


def crystal(number):
    if number % 5 == 3:
        return Atoms("Al")
    atoms = bulk("Cu", cubic=True) if number % 2 else bulk("Au")
    atoms.rattle(0.1, seed=number)
    atoms.info["id"] = f"s-{number}"
    if number % 5 == 4:
        atoms.info["energy"] = float(number)
    return atoms


def table(file):
    """What was written, with a row for each structure."""
    if file.suffix == ".extxyz":
        return pd.DataFrame({**atoms.info, **atoms.arrays} for atoms in ase.io.read(file, ":"))
    return pd.read_parquet(file) if file.suffix == ".parquet" else pd.read_csv(file)


def both_ways(ensemble, data, folder, suffixes, digits, **asked):
    """Predict here and on a site, and compare; returns what both have told."""
    told: dict[str, list[str]] = {"one": [], "other": []}
    outs = {name: [folder / name / f"out{suffix}" for suffix in suffixes] for name in told}
    for name in told:
        (folder / name).mkdir()
    one = write_predictions(ensemble, data, outs["one"], say=told["one"].append, **asked)
    other = predict_on_site(ensemble, data, outs["other"], SITE, say=told["other"].append, **asked)
    assert [path.name for path in one.files] == [path.name for path in other.files]
    assert one[1:] == other[1:]
    for tables in zip(map(table, one.files), map(table, other.files), strict=True):
        pd.testing.assert_frame_equal(*tables, rtol=digits, atol=digits)
        assert tables[0].attrs == tables[1].attrs
    assert told["one"] == told["other"]
    for name in told:
        assert not [file for file in (folder / name).iterdir() if file.name.startswith(".")]
    return told["one"]


@settings(deadline=None, max_examples=2)
@given(sizes=st.lists(st.integers(-1, 5), min_size=1, max_size=4), broken=st.integers(0, 9))
def test_a_directory_is_predicted_as_by_one_process(ensemble, tmp_path_factory, sizes, broken):
    """Files of every size, empty ones, one that breaks off, and one that holds no structures."""
    folder = tmp_path_factory.mktemp("spread")
    data = folder / "data"
    data.mkdir()
    numbers = iter(range(99))
    ase.io.write(data / "whole.cif", crystal(1))
    for number, size in enumerate(sizes):
        file = data / f"run-{number}.extxyz"
        if size < 0:
            (data / f"README-{number}").write_text("no structures")
        elif size == 0:
            file.write_text("")
        else:
            write_crystals(file, [next(numbers) for _ in range(size)])
    rows = (data / "run-0.extxyz").read_text().splitlines() if sizes[0] > 0 else []
    if broken < len(rows) and rows[broken].startswith(("Cu", "Au")):
        write_crystals(data / "run-0.extxyz", range(sizes[0]), broken=broken)
    both_ways(ensemble, data, folder, [".parquet", ".extxyz"], 1e-6, members=True)


def test_what_follows_a_fault_in_a_file_is_left_out(ensemble, tmp_path):
    """Workers could enter the file behind it."""
    data = tmp_path / "data"
    data.mkdir()
    ase.io.write(data / "a.cif", crystal(1))
    write_crystals(data / "long.extxyz", (1, 2, 5, 6, 7, 9), broken=17)  # an atom of the fourth
    ase.io.write(data / "z.cif", crystal(1))
    told = both_ways(ensemble, data, tmp_path, [".parquet", ".extxyz"], 1e-6)
    assert told[0] == "skipped (1 file that cannot be read):"
    table = pd.read_parquet(tmp_path / "other" / "out.parquet")
    assert table["file"].tolist() == ["a.cif", *["long.extxyz"] * 3, "z.cif"]
    assert table["graph_id"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["extxyz", "traj", "db"])
def test_a_file_is_predicted_to_the_last_digit(ensemble, tmp_path, pool, kind):
    file = write_crystals(tmp_path / f"all.{kind}", range(5))
    both_ways(ensemble, file, tmp_path, [".csv" if kind == "db" else ".extxyz"], 0.0)
    assert [what for _, what in pool.ran] == [
        f"structures {first} to {min(first + 1, 4)} of all.{kind}" for first in range(0, 5, 2)
    ]


def test_a_store_keeps_its_splits_and_numbers(ensemble, tmp_path, alloy_store, pool, small_parts):
    small_parts(6)
    both_ways(ensemble, alloy_store.path, tmp_path, [".parquet"], 0.0)
    assert "structures 6 to 11 of trainset" in {what for _, what in pool.ran}
    table = pd.read_parquet(tmp_path / "other" / "out.parquet")
    assert table["split"].unique().tolist() == list(alloy_store.splits)
    with pytest.raises(InputError, match=r"extxyz is for structures from files"):
        predict_on_site(ensemble, alloy_store.path, [tmp_path / "out.extxyz"], SITE)


def test_finished_parts_are_not_predicted_again(ensemble, tmp_path, pool):
    file, out = write_crystals(tmp_path / "all.extxyz", range(9)), tmp_path / "out.csv"
    whole = tmp_path / "whole.csv"
    write_predictions(ensemble, file, [whole])

    def stopped(node, argument):
        if len(pool.ran) == 3:
            raise KeyboardInterrupt

    pool.machine = stopped
    with pytest.raises(KeyboardInterrupt):
        predict_on_site(ensemble, file, [out], SITE)
    assert not out.exists() and len(pool.ran) == 3
    pool.machine = lambda node, argument: None
    with pytest.raises(InputError, match=r"\.out\.csv\.parts: .*with other options; delete it"):
        predict_on_site(ensemble, file, [out], SITE, members=True)
    shown: list[tuple[int, int, str]] = []
    predict_on_site(ensemble, file, [out], SITE, progress=lambda *how: shown.append(how))
    # The third was interrupted.
    assert [what.partition(" of")[0].split()[1] for _, what in pool.ran] == ["4", "6", "8"]
    assert (shown[0][:2], shown[-1][:2], len(shown)) == ((4, 9), (9, 9), 4)
    assert out.read_bytes() == whole.read_bytes()
    assert not (tmp_path / ".out.csv.parts").exists()


def test_a_part_is_lost_and_run_again(ensemble, tmp_path, pool):
    file, out = write_crystals(tmp_path / "all.extxyz", range(6)), tmp_path / "out.csv"
    lost = {"structures 2 to 3 of all.extxyz": 2}

    def machine(node, request):
        left = lost.get(request["what"], 0)
        lost[request["what"]] = left - 1
        return ended("killed", "its process was killed by SIGKILL") if left > 0 else None

    pool.machine = machine
    predict_on_site(ensemble, file, [out], SITE)
    assert pd.read_csv(out)["graph_id"].tolist() == list(range(6))
    lost["structures 2 to 3 of all.extxyz"] = 99
    with pytest.raises(
        CampaignStopped, match=r"failed \d+ times at structures 2 to 3 of all\.extxyz, .*SIGKILL"
    ):
        predict_on_site(ensemble, file, [out], SITE)
    done = sorted((tmp_path / ".out.csv.parts").glob("*/part-*"))
    assert {"part-000000", "part-000002"} <= {path.name for path in done}
    pool.ran.clear()  # files that somebody else writes cost no part
    with PredictionFiles([out]), pytest.raises(InputError, match="another process is writing"):
        predict_on_site(ensemble, file, [out], SITE)
    assert not pool.ran and done == sorted((tmp_path / ".out.csv.parts").glob("*/part-*"))


def test_a_node_that_cannot_load_the_ensemble_is_not_the_inputs_fault(run, monkeypatch):
    def broken(ensemble, device):
        raise InputError("device cuda: cannot be used")

    monkeypatch.setattr(Ensemble, "on_device", broken)
    digest = parts.digest_of_ensemble(run)
    asked = Mock(run=run, ensemble=digest, without=(), coverage=0.8, data_set=None)
    with pytest.raises(RuntimeError, match="this node cannot load the ensemble: device cuda"):
        parts._ensemble(asked, "cuda")


def test_workers_load_what_the_driver_has_loaded(alloy_store, tmp_path):
    """Members that are left out, and another coverage; a made ensemble has no files to load."""
    untrained_ensemble(tmp_path / "run", alloy_store, 3)
    narrow = Ensemble.load(tmp_path / "run", without=[1]).at(0.5)
    file = write_crystals(tmp_path / "all.extxyz", range(3))
    both_ways(narrow, file, tmp_path, [".parquet"], 0.0, members=True)
    table = pd.read_parquet(tmp_path / "other" / "out.parquet")
    assert "energy_member_2" in table and "energy_member_1" not in table
    assert table.attrs["coverage"] == 0.5
    with pytest.raises(InputError, match="not loaded from a directory"):
        predict_on_site(replace(narrow, directory=None), file, [tmp_path / "out.csv"], SITE)


def test_input_that_is_at_fault_leaves_nothing(ensemble, tmp_path):
    file, out = write_crystals(tmp_path / "all.extxyz", [1] * 6, broken=-1), tmp_path / "out.csv"
    with pytest.raises(InputError, match=r"all\.extxyz cannot be read"):
        predict_on_site(ensemble, file, [out], SITE)
    with pytest.raises(InputError, match=r"none\.xyz: does not exist"):
        predict_on_site(ensemble, tmp_path / "none.xyz", [out], SITE)
    with pytest.raises(InputError, match="has no GCDs"):
        predict_on_site(ensemble, file, [out], Site("bare", 1, Node((), NODE.gcd, 1, "cpu"), print))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: holds no file .*the directory holds no files"):
        predict_on_site(ensemble, tmp_path / "empty", [out], SITE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.extxyz", "empty"]


def test_directories_that_nodes_do_not_see_are_named(ensemble, tmp_path, pool, monkeypatch):
    """A worker writes where the driver cannot see it."""
    file = write_crystals(tmp_path / "all.extxyz", [1] * 3)
    pool.machine = lambda node, argument: TrainingOutcome(status="ok")
    monkeypatch.setattr(jobs, "SECONDS_TO_SEE", 0.0)
    with pytest.raises(CampaignStopped, match=r"part-000000: .*nodes of the site share"):
        predict_on_site(ensemble, file, [tmp_path / "out.csv"], SITE)


def test_command_and_script_say_on_a_site_what_they_say_here(run, tmp_path, monkeypatch, capsys):
    data, script = tmp_path / "data", Path(__file__).parents[2] / "workflows" / "predict.py"
    data.mkdir()
    write_crystals(data / "some.extxyz", range(5))
    (data / "README").write_text("no structures")
    monkeypatch.chdir(tmp_path)
    for start in (cli.main, lambda: runpy.run_path(str(script), run_name="__main__")):
        said, tables = [], []
        for site in ([], ["--site", "local"]):
            monkeypatch.setattr("sys.argv", ["x", str(run), "data", "--out", "out.csv", *site])
            if start is cli.main:
                sys.argv.insert(1, "predict")
            with suppress(SystemExit):
                start()
            said.append([line for line in capsys.readouterr().out.splitlines() if "/" not in line])
            tables.append(pd.read_csv("out.csv"))
            Path("out.csv").unlink()
        assert said[0] == said[1] and "skipped (not structure files): README" in said[0]
        assert any("1 of 5 structures have no" in line or "1 without" in line for line in said[0])
        pd.testing.assert_frame_equal(*tables)
