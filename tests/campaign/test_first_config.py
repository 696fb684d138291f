"""A first configuration learns what the labels are, and fits the files it was made of."""

from dataclasses import replace

import pytest
import yaml
from campaign_cases import CONFIG
from source_cases import frames, write_extxyz

from hydragnn_flow.campaign.setup import stores
from hydragnn_flow.campaign.setup.first_config import first_config
from hydragnn_flow.config import DataConfig, RunConfig
from hydragnn_flow.data import prepare_store
from hydragnn_flow.data.found_labels import Label, quantity_of
from hydragnn_flow.data.looking import Finding
from hydragnn_flow.errors import InputError

FORCES = Label("force", "force", "node", 3, "")


def finding(folder, *labels, have_cells=False, unusable=None, **sizes):
    """What a look at extended XYZ would find."""
    files = {role: f"{role}.xyz" for role in ("train", *sizes)}
    source = {"format": "ase", **files}
    counts = {"sizes": {"train": 60, **sizes}, "looked_at": 60, "atoms": (8, 8.0, 8)}
    found = {"labels": list(labels), "have_cells": have_cells, "unusable": unusable or {}}
    return Finding(folder, source, "extxyz", elements=["Cu"], **found, **counts)


def made(folder, *labels, **sizes):
    return first_config(finding(folder, *labels, **sizes), "run", folder, 4)


def energy(key, unit=""):
    return Label(key.partition(" (")[0], key, "graph", 1, unit)


@pytest.mark.parametrize(
    "label",
    [
        energy("energy_per_atom"),
        energy("EnergyPerAtom"),
        energy("energy_scaled_num_nodes"),
        energy("formation_energy (eV/atom)", "eV/atom"),
        energy("energy", "meV atom^-1"),
    ],
    ids=lambda label: label.key,
)
def test_an_energy_per_atom_makes_no_potential(label, tmp_path):
    """Its slope is not the forces."""
    config = made(tmp_path, label, FORCES)
    assert not config.is_potential
    assert config.targets == [label] and config.others == [FORCES]
    assert config.network["NeuralNetwork"]["Architecture"]["graph_pooling"] == "mean"
    total, forces = energy("REF_energy"), replace(FORCES, key="REF_force")
    config = made(tmp_path, label, total, forces)
    assert config.is_potential
    assert [one.key for one in config.targets] == ["REF_energy", "REF_force"]
    assert config.others == [label], "what is learnt under another name is not listed again"


def forces(key="forces"):
    return Label(key, key, "node", 3, "eV/Å")


def stress(key="stress", unit="eV/Å³"):
    return Label(key, key, "graph", 6, unit)


@pytest.mark.parametrize(
    ("labels", "keys"),
    [
        ("MACE_forces REF_energy MACE_energy REF_forces", "REF_energy REF_forces"),
        ("energy REF_energy REF_forces", "REF_energy REF_forces"),
        ("xtb_forces dft_forces energy_dft stress_DFT", "energy_dft dft_forces stress_DFT"),
        ("energy_pbe forces_pbe", "energy_pbe forces_pbe"),
        ("free_energy forces stress", "free_energy forces stress"),
        ("total_energy potential_energy forces", "potential_energy forces"),
        ("REF_energy MACE_energy MACE_forces", "REF_energy"),
        ("dft_energy forces stress", "dft_energy"),
        ("fermi_energy forces", "fermi_energy"),
    ],
)
def test_labels_of_two_methods_are_never_learnt_together(labels, keys, tmp_path):
    kinds = {"energy": lambda key: energy(key, "eV"), "forces": forces, "stress": stress}
    given = [kinds[quantity_of(key)[0]](key) for key in labels.split()]
    config = made(tmp_path, *given, have_cells=True)
    assert [label.key for label in config.targets] == keys.split()
    assert config.is_potential == ("forces" in keys)


def test_a_stress_is_learnt_where_unit_and_cells_fit(tmp_path):
    both = energy("energy", "eV"), forces()
    for label, cells, learnt in (
        (stress(), True, True),
        (stress(), False, False),
        (stress(unit="GPa"), True, False),
        (stress(unit=""), True, False),
    ):
        config = made(tmp_path, *both, label, have_cells=cells)
        assert (label in config.targets) == learnt == (label not in config.others)
        architecture = config.network["NeuralNetwork"]["Architecture"]
        assert (architecture.get("stress_weight", 0.0) > 0) == learnt


@pytest.mark.parametrize("others", [(), (forces(), stress()), (energy("gap"),)])
def test_nothing_is_learnt_in_place_of_an_energy_that_cannot_be_read(others, tmp_path):
    with pytest.raises(InputError, match=r"energy 'energy' cannot be learnt \(in 1 of 60\); cor"):
        made(tmp_path, *others, unusable={"energy": "in 1 of 60"})
    config = made(tmp_path, energy("gap"), unusable={"formation_energy": "in 1 of 60"})
    assert config.targets == [energy("gap")]


def test_no_slope_and_no_whole_number_comes_first(tmp_path):
    with pytest.raises(InputError, match="has forces, stress and no energy"):
        made(tmp_path, forces(), stress())
    charge = replace(energy("charge"), doubtful=True)
    assert made(tmp_path, stress(), charge, energy("gap")).targets == [energy("gap")]


@pytest.mark.parametrize("key", ["energy", "total_energy", "DFT_energy"])
def test_a_total_energy_without_forces_is_a_sum_over_atoms(key, tmp_path):
    config = made(tmp_path, energy("fermi_energy"), energy(key, "eV"))
    assert not config.is_potential
    assert [(one.name, one.key) for one in config.targets] == [("energy", key)]
    assert [one.key for one in config.others] == ["fermi_energy"]
    assert config.network["NeuralNetwork"]["Architecture"]["graph_pooling"] == "add"
    slopes = replace(FORCES, key=key.replace("energy", "forces"))
    assert made(tmp_path, energy("fermi_energy"), energy(key), slopes).targets[0].key == key


@pytest.mark.parametrize("key", ["fermi_energy", "formation_energy", "gap_energy"])
def test_another_energy_keeps_its_name_and_is_no_sum(key, tmp_path):
    config = made(tmp_path, energy("volume"), energy(key))
    assert [one.name for one in config.targets] == [key]
    assert config.network["NeuralNetwork"]["Architecture"]["graph_pooling"] == "mean"


@pytest.mark.parametrize(
    ("structures", "atoms", "batch"),
    [(400, 8, 16), (400, 64, 8), (60, 8, 2), (4000, 8, 32)],
)
def test_a_step_has_atoms_enough_and_an_epoch_steps(structures, atoms, batch, tmp_path):
    """On fewer than a hundred or so atoms a step takes as long."""
    sizes = {"sizes": {"train": structures}, "atoms": (atoms, float(atoms), atoms)}
    found = replace(finding(tmp_path, energy("energy")), **sizes)
    network = first_config(found, "run", tmp_path, 4).network["NeuralNetwork"]
    assert network["Training"]["batch_size"] == batch


@pytest.mark.parametrize("pattern", ["*train*.json", "*"])
def test_its_files_are_not_put_among_the_data(pattern, tmp_path):
    found = finding(tmp_path, energy("energy"))
    found.source["train"] = pattern
    with pytest.raises(InputError, match=r"my-training\.\w+ would be taken for data here"):
        first_config(found, "my-training", tmp_path, 4)
    assert first_config(found, "my-training", tmp_path / "other", 4).trials
    found.source["train"] = "*.xyz"
    assert first_config(found, "my-training", tmp_path, 4).trials


def test_few_structures_for_validation_are_not_all_that_calibrates(tmp_path):
    def split(**sizes):
        values = yaml.safe_load(made(tmp_path, energy("energy"), **sizes).text)
        return dict(values["data"].get("split", {}))

    assert split(val=3, test=20) == {"calibration": 0.2}
    assert split(val=3) == {"test": 0.2, "calibration": 0.2}
    assert split(val=12, test=20) == {}
    assert split(test=3) == {"val": 0.2}


@pytest.mark.parametrize(
    ("sets", "split", "remedy"),
    [
        ({"val": 3}, {}, "valset has 3; draw some by data.split.calibration"),
        ({}, {"val": 0.1}, "valset has 3; raise its fraction in data.split"),
        ({"val": 3, "calibration": 2}, {}, "calibrationset has 2; give more of them"),
        ({"val": 3}, {"calibration": 0.1}, "calibrationset has 3; raise its fraction"),
        ({"val": 12}, {}, "valset has 2 with a label of forces; draw some by data.split"),
    ],
)
def test_too_few_to_calibrate_on_have_a_remedy_that_helps(sets, split, remedy, tmp_path):
    sizes = {"train": 30, **sets}
    for seed, (role, n) in enumerate(sizes.items()):
        made = frames(n, seed)
        for atoms in made[2:] if n == 12 else []:
            del atoms.calc.results["forces"]
        write_extxyz(tmp_path / f"{role}.xyz", made)
    files = {role: f"{role}.xyz" for role in sizes}
    source = {"format": "ase", **files, "targets": {"energy": "eV", "forces": "eV/Å"}}
    values = {"source": source, "path": tmp_path, "split": {"test": 0.2, **split}}
    data = DataConfig.model_validate(values)
    store = prepare_store(data, 5.0, 20, 0, tmp_path / "store.gs")
    config = RunConfig.model_validate(CONFIG).model_copy(update={"data": data})
    with pytest.raises(InputError, match=f"{remedy}.* or lower the coverage"):
        stores._check_calibration(config, store)
