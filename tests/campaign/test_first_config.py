"""A first configuration learns what the labels are, and fits the files it was made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydragnn_flow.campaign.first_config import FirstConfig, first_config
from hydragnn_flow.data.looking import Finding, Label

FORCES = Label("force", "force", "node", 3, "")


def finding(folder: Path, *labels: Label, **sizes: int) -> Finding:
    """What a look at extended XYZ would find."""
    files = {role: f"{role}.xyz" for role in ("train", *sizes)}
    source = {"format": "ase", **files}
    numbers = {"train": 60, **sizes}
    atoms = (8, 8.0, 8)
    return Finding(folder, source, "extxyz", numbers, 60, ["Cu"], atoms, list(labels))  # type: ignore[arg-type]


def made(folder: Path, *labels: Label, **sizes: int) -> FirstConfig:
    return first_config(finding(folder, *labels, **sizes), "run", folder, 4)


def energy(key: str, unit: str = "") -> Label:
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
def test_an_energy_per_atom_makes_no_potential(label: Label, tmp_path: Path) -> None:
    """Its slope is not the forces."""
    config = made(tmp_path, label, FORCES)
    assert not config.is_potential
    assert config.targets == [label] and config.others == [FORCES]
    assert config.network["NeuralNetwork"]["Architecture"]["graph_pooling"] == "mean"
    total = energy("REF_energy")
    config = made(tmp_path, label, total, FORCES)
    assert config.is_potential
    assert [one.key for one in config.targets] == ["REF_energy", "force"]
    assert config.others == [label], "what is learnt under another name is not listed again"


@pytest.mark.parametrize("key", ["energy", "total_energy", "potential_energy", "DFT_energy"])
def test_a_total_energy_without_forces_is_a_sum_over_atoms(key: str, tmp_path: Path) -> None:
    config = made(tmp_path, energy("fermi_energy"), energy(key, "eV"))
    assert not config.is_potential
    assert [(one.name, one.key) for one in config.targets] == [("energy", key)]
    assert [one.key for one in config.others] == ["fermi_energy"]
    assert config.network["NeuralNetwork"]["Architecture"]["graph_pooling"] == "add"
    assert made(tmp_path, energy("fermi_energy"), energy(key), FORCES).targets[0].key == key


@pytest.mark.parametrize("key", ["fermi_energy", "formation_energy", "gap_energy"])
def test_another_energy_keeps_its_name_and_is_no_sum(key: str, tmp_path: Path) -> None:
    config = made(tmp_path, energy("volume"), energy(key))
    assert [one.name for one in config.targets] == [key]
    assert config.network["NeuralNetwork"]["Architecture"]["graph_pooling"] == "mean"
