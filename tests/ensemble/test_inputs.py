"""What networks read of structures beside their atoms: charge and spin, encodings."""

import numpy as np
import pandas as pd
import pytest
import torch
from ase import Atoms
from ase.db import connect
from ase.io import read, write
from ensemble_cases import untrained_ensemble
from segment_cases import network_with

from hydragnn_flow import Ensemble, EnsembleCalculator
from hydragnn_flow.config import DataConfig, RunConfig
from hydragnn_flow.data import prepare_store
from hydragnn_flow.data.sources.structures import graph_attr
from hydragnn_flow.ensemble.predictions.structure_files import Files, origins
from hydragnn_flow.errors import InputError

CUTOFF = 4.0
NETWORK = network_with(
    Architecture__mpnn_type="SchNet",
    Architecture__global_attn_engine="GPS",
    Architecture__global_attn_heads=1,
    Architecture__pe_dim=3,
    Architecture__use_graph_attr_conditioning=True,
    Architecture__graph_attr_conditioning_mode="film",
)


def molecules():
    rng = np.random.default_rng(0)
    made = []
    for i in range(30):
        n = 3 + i % 4
        atoms = Atoms(f"Cu{n}", positions=rng.uniform(0, 4, (n, 3)) + 3 * np.arange(n)[:, None] / n)
        said = {"charge": i % 3 - 1, "spin": 1 + i % 2, "energy": float(rng.normal())}
        atoms.info |= said
        atoms.set_array("forces", rng.normal(size=(n, 3)))
        made.append(atoms)
    return made


@pytest.fixture(scope="module")
def section(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    # Not in the comment lines' own words for results.
    write(folder / "all.xyz", molecules(), write_results=False)
    source = {"format": "ase", "train": "all.xyz", "graph_attr": ["charge", "spin"]}
    source["targets"] = {"energy": "eV", "forces": "eV/Å"}
    return {"source": source, "path": folder, "split": {"val": 0.3, "test": 0.2}}


@pytest.fixture(scope="module")
def store(section, tmp_path_factory):
    """Prepared as a campaign would: nobody says how many encodings but the network."""
    search = {"trials": 2, "space": {"Architecture.hidden_dim": {"int": [4, 8], "step": 4}}}
    values = {"name": "a", "data": section, "network": NETWORK, "search": search}
    config = RunConfig.model_validate({**values, "ensemble": {"size": 2, "epochs": 6}})
    assert config.encodings == 3
    folder = tmp_path_factory.mktemp("store")
    return prepare_store(config.data, CUTOFF, None, 0, folder / "s", encodings=config.encodings)


@pytest.fixture(scope="module")
def ensemble(store, tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    found = Ensemble.load(untrained_ensemble(run, store, network=NETWORK))
    torch.manual_seed(0)
    with torch.no_grad():  # or nothing would come of the inputs
        for model in found.models:
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
    return found


def energies(ensemble, structures):
    return ensemble.predict(structures).graphs["energy_mean"].to_numpy()


def test_new_structures_get_what_the_graphs_of_the_store_have(ensemble, store, tmp_path):
    structures = molecules()
    of_structures = energies(ensemble, structures)
    assert np.isfinite(of_structures).all()
    graphs = ensemble.predict(store.path).graphs
    stored = of_structures[graphs["graph_id"].to_numpy()]
    np.testing.assert_allclose(graphs["energy_mean"], stored, atol=1e-4)
    write(tmp_path / "new.xyz", structures, write_results=False)
    with connect(tmp_path / "new.db") as database:
        for atoms in structures:
            plain = Atoms(atoms.symbols, atoms.positions)
            said = {key: atoms.info[key] for key in ("charge", "spin")}
            database.write(plain, key_value_pairs={"spin": said["spin"]}, data=said)
    for name in ("new.xyz", "new.db"):
        np.testing.assert_allclose(energies(ensemble, tmp_path / name), of_structures, atol=1e-4)
    other = structures[0].copy()
    other.info["charge"] = 1
    assert abs(of_structures[0] - energies(ensemble, [other])[0]) > 1e-4


def test_a_table_says_them_in_columns(tmp_path):
    structures = molecules()[:4]
    rows = []
    for atoms in structures:
        boxed = Atoms(atoms.symbols, atoms.positions, cell=[40, 40, 40])
        write(tmp_path / "one.cif", boxed)
        said = {name: atoms.info[name] for name in ("charge", "spin")}
        rows.append({"cell": (tmp_path / "one.cif").read_text(), **said})
    pd.DataFrame(rows).to_csv(tmp_path / "new.csv", index=False)
    files = Files(tmp_path / "new.csv", "cell", inputs=("charge", "spin"))
    for record, atoms in zip(files.records(print), structures, strict=True):
        found = graph_attr(record.found.atoms.info, ["charge", "spin"])
        assert found.tolist() == [[atoms.info["charge"], atoms.info["spin"]]]


def test_a_table_of_files_says_which_file_each_structure_is_in(tmp_path):
    for number, atoms in enumerate(molecules()[:3]):
        write(tmp_path / f"{number}.xyz", atoms)
    pd.DataFrame({"cell": ["2", "0", "1"]}).to_csv(tmp_path / "new.csv", index=False)
    records = list(Files(tmp_path / "new.csv", "cell").records(print))
    columns = origins(records, 0)
    assert columns["file"] == [str(tmp_path / f"{number}.xyz") for number in (2, 0, 1)]
    for file, frame, record in zip(columns["file"], columns["frame"], records, strict=True):
        assert read(file, frame) == record.atoms
    (tmp_path / "0.xyz").write_text("damaged")
    with pytest.raises(InputError, match=r"0\.xyz.* with its row \(.*new\.csv: structure 1\)$"):
        list(Files(tmp_path / "new.csv", "cell").records(print))
    with pytest.raises(InputError, match=r"new\.csv has no column 'cif' \(it has: cell\)"):
        list(Files(tmp_path / "new.csv", "cif").records(print))


def test_a_structure_that_lacks_one_says_which(ensemble):
    one, other = molecules()[:2]
    del other.info["spin"]
    graphs = ensemble.predict([one, other]).graphs
    assert graphs["energy_mean"].isna().tolist() == [False, True]
    assert "has no 'spin', a number that the network reads" in graphs["note"][1]
    # None at all: the outputs are shown on a structure that can be predicted.
    assert np.isnan(energies(ensemble, [other])).all()


def test_a_calculator_notices_another_charge(ensemble):
    atoms = molecules()[0]
    atoms.calc = EnsembleCalculator(ensemble)
    first = atoms.get_potential_energy()
    assert atoms.get_potential_energy() == first
    atoms.info["charge"] = 1
    assert atoms.get_potential_energy() != first
    atoms.info["charge"] = -1
    assert atoms.get_potential_energy() == first


def test_a_store_of_other_numbers_is_refused(ensemble, section, tmp_path):
    other = {**section, "source": {**section["source"], "graph_attr": ["spin", "charge"]}}
    config = DataConfig.model_validate(other)
    found = prepare_store(config, CUTOFF, None, 0, tmp_path / "other", encodings=3)
    with pytest.raises(InputError, match="graph_attr is spin, charge, but charge, spin in the"):
        ensemble.predict(found.path)
