"""Targets that are sums over the atoms of a structure, as the data say, or their name and unit."""

from typing import Any

import ase.io
import pytest
import source_cases as cases

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import Target, prepare_store
from hydragnn_flow.errors import InputError


@pytest.mark.parametrize(
    ("name", "target", "extensive"),
    [
        ("energy", {"unit": "eV"}, True),
        ("energy", {"unit": ""}, True),
        ("energy", {"unit": "eV/atom"}, False),
        ("energy", {"unit": "meV / atoms"}, False),
        ("energy", {"unit": "kJ per atom"}, False),
        ("energy", {"unit": "eV atom^-1"}, False),
        ("energy", {"unit": "kJ/mol"}, True),
        ("energy", {"unit": "eV", "extensive": False}, False),
        ("energy", {"unit": "eV", "level": "node"}, False),
        ("gap", {"unit": "eV"}, False),
        ("stress", {"unit": "eV/Å^3", "dim": 6}, False),
        ("total_energy", {"unit": "eV"}, False),
        ("total_energy", {"unit": "eV", "extensive": True}, True),
        ("energy_scaled_num_nodes", {"unit": "Ry"}, False),
        ("volume", {}, False),  # no target of the store
    ],
)
def test_what_is_extensive(alloy_store, name, target, extensive):
    targets = {name: Target(**{"level": "graph", "dim": 1, **target})} if target else {}
    manifest = alloy_store.manifest.model_copy(update={"targets": targets})
    assert manifest.is_extensive(name) is extensive


def test_the_configuration_reaches_the_store_and_labels_of_atoms_are_refused(tmp_path):
    frames = cases.frames(12)
    for atoms in frames:
        atoms.info |= {"enthalpy": 1.0, "gap": 2.0, "e_scaled_num_nodes": 1.0}
    ase.io.write(tmp_path / "all.xyz", frames)
    targets: dict[str, Any] = {"gap": "eV", "enthalpy": {"unit": "eV", "extensive": True}}
    targets["energy"] = {"unit": "Ry", "key": "e_scaled_num_nodes"}  # HydraGNN's mark: divided
    source = {"format": "ase", "train": "all.xyz", "targets": targets}
    data = cases.config(tmp_path, **source)
    first = prepare_store(data, 4.0, None, 0, tmp_path / "a.gs")
    assert [first.manifest.is_extensive(name) for name in targets] == [False, True, False]
    # A store of a store's targets has what it says of them.
    again = {"source": {"format": "hydragnn", "file": "a.gs"}, "path": tmp_path}
    second = prepare_store(DataConfig.model_validate(again), 4.0, None, 0, tmp_path / "b.gs")
    assert [second.manifest.is_extensive(name) for name in targets] == [False, True, False]
    source["targets"] = {"forces": {"unit": "eV/Å", "extensive": True}}
    with pytest.raises(InputError, match=r"'forces' for each atom.*targets\.forces\.extensive"):
        prepare_store(cases.config(tmp_path, **source), 4.0, None, 0, tmp_path / "c.gs")
