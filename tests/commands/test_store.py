"""`store info` and `store check`, as a user types them."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import check_store, prepare_store, write_store
from hydragnn_flow.data.store.manifest import Manifest, Target, save_manifest
from hydragnn_flow.errors import StoreError


@pytest.fixture
def copied(alloy_store, tmp_path):
    return Path(shutil.copytree(alloy_store.path, tmp_path / "store.gs"))


def mesh(number):
    """A graph of something else than atoms."""
    torch.manual_seed(number)
    ring = torch.arange(5)
    return Data(
        x=torch.rand(5, 2),
        pos=torch.rand(5, 3),
        edge_index=torch.stack([ring, ring.roll(1)]),
        heat=torch.rand(1),
    )


def test_info_says_what_a_store_holds(console, alloy_store):
    said = " ".join(console.says("store", "info", alloy_store.path).split())
    for expected in (
        "forces float32 [nodes, 3] eV/Å",
        "edge_index int64 [2, edges]",
        "energy [eV] per structure, forces [eV/Å] per atom",
        "features atomic_number",
        "cutoff 4.0 Å",
        "dtypes hydragnn",
        "in 1 shard",
    ):
        assert expected in said, expected
    assert "left out" not in said


@pytest.mark.parametrize(
    ("kept", "words"), [(12, "max_neighbours = 12 leaves out "), (60, "none left out")]
)
def test_info_says_what_neighbour_lists_leave_out(console, alloy_store, tmp_path, kept, words):
    source = alloy_store.manifest.provenance["source"]
    data = DataConfig.model_validate({"source": source, "split": {"test": 0.2}})
    prepare_store(data, 4.0, kept, 0, tmp_path / "s")
    assert words in console.says("store", "info", tmp_path / "s")


def test_info_of_graphs_that_are_not_atoms(console, tmp_path):
    graphs = {"trainset": [mesh(0), mesh(1)], "valset": [mesh(2)]}
    target = {"heat": Target(level="graph", dim=1, unit="W")}
    write_store(tmp_path / "s", graphs, targets=target, node_features=["t", "p"], cutoff=2.5)
    said = console.says("store", "info", tmp_path / "s")
    for expected in ("cutoff     2.5\n", "heat [W] per graph", "features   t, p\n"):
        assert expected in said
    assert "elements" not in said and "Å" not in said


def test_a_run_directory_stands_for_its_store(console, copied):
    run = copied.parent
    (run / "run.yaml").touch()
    said = "".join(console.says("store", "info", run).split())
    assert str(copied) in said, "wherever the title was broken"
    assert console.says("store", "check", run).startswith(f"{copied}: sound; ")
    shutil.rmtree(copied)
    assert "not prepared" in console.says("store", "info", run, code=2)


def test_check_of_a_long_store_shows_how_far_it_is(console, copied):
    assert len(console.says("store", "check", copied).splitlines()) == 1
    with (copied / "of_a_gib").open("wb") as file:
        file.truncate((1 << 30) + 1)  # takes no space
    said = console.says("store", "check", copied)
    assert "graphs read: 24/24" in said
    assert "MB verified: " in said


def test_check_of_a_hydragnn_file_promises_no_more_than_it_did(console, copied):
    (copied / "shard-00000.bp" / "blocks.npz").unlink()
    said = console.says("store", "check", copied / "shard-00000.bp")
    assert "24 graphs read and plausible; a HydraGNN file has no checksums" in said


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("pos", {"shape": [4]}),
        ("forces", {"shape": [3, 1]}),
        ("energy", {"rows": 2}),
        ("edge_index", {"dim": 0}),
        ("pos", {"dim": 7}),
        ("cell", {"rows": None, "node": True}),
    ],
)
def test_check_reads_all_that_the_manifest_promises(copied, key, change):
    values = json.loads((copied / "manifest.json").read_text())
    del values["crc32"]
    values["keys"][key] |= change
    save_manifest(copied, Manifest.model_validate(values))
    with pytest.raises(StoreError, match=str(copied)) as caught:
        check_store(copied)
    assert "\n" not in str(caught.value)


def test_info_and_check_say_what_is_used_in_place(console, shared_data, tmp_path):
    section = {"format": "hydragnn", "file": "hydragnn_cuau.bp"}
    values = {"source": section, "path": shared_data / "hydragnn_bp", "in_place": True}
    store = prepare_store(DataConfig.model_validate(values), 5.0, 20, 0, tmp_path / "s.gs")
    said = " ".join(console.says("store", "info", store.path).split())
    assert "in place" in said and "hydragnn_cuau.bp (1.3 MB)" in said
    said = " ".join(console.says("store", "check", store.path).split())
    assert "60 graphs read and plausible; 1 file used in place without a checksum" in said
