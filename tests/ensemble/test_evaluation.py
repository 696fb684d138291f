"""Errors and uncertainty on labelled data: of stores, files and structures in Python."""

import copy
import dataclasses
import json
import re
import sys
from collections import Counter
from collections.abc import Callable

import ase.db
import numpy as np
import pandas as pd
import pytest
import torch
from ase import Atoms
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from hydragnn_flow import InputError, cli
from hydragnn_flow.data import Target, atoms_to_graph, write_store
from hydragnn_flow.data.sources.structures import Found
from hydragnn_flow.ensemble import evaluate
from hydragnn_flow.ensemble.evaluation import doubt_of, offset_of
from hydragnn_flow.ensemble.labels import every_label


@pytest.fixture
def structures(alloy_store):
    """Those of the test split, with their labels as results of a calculation."""
    found = []
    for graph in alloy_store["testset"]:
        atoms = Atoms(
            graph.x[:, 0].int().numpy(),
            graph.pos.double().numpy(),
            cell=graph.cell.double().numpy(),
            pbc=graph.pbc.bool().numpy(),
        )
        results = {"energy": graph.energy.item(), "forces": graph.forces.double().numpy()}
        atoms.calc = SinglePointCalculator(atoms, **results)
        found.append(atoms)
    return found


def renamed(structures):
    """The same with their labels under other names, where ASE makes no results of them."""
    for atoms in structures:
        atoms.info["dft_energy"] = atoms.get_potential_energy()
        atoms.arrays["dft_forces"] = atoms.get_forces()
        atoms.calc = None
    return structures


KEYS = {"energy": "dft_energy", "forces": "dft_forces"}
TARGETS = ["energy", "energy per atom", "forces"]


def same(found, expected):
    """Measures agree as far as positions in single precision let them."""
    assert list(found) == list(expected) == TARGETS
    for name, target in expected.items():
        assert found[name].unit == target.unit and found[name].values == target.values
        for measure, estimate in target.measures.items():
            close = pytest.approx(estimate, rel=1e-3, abs=1e-4)
            assert found[name].measures[measure] == close, (name, measure)


def test_a_campaign_ends_with_the_measures_of_its_test_split(run, ensemble, alloy_store):
    summary = json.loads((run / "ensemble" / "ensemble.json").read_text())
    found = evaluate(ensemble, alloy_store, split="testset")
    assert list(found) == TARGETS
    for name, target in summary["measures"].items():
        now = found[name].to_dict()
        measures, before = now.pop("measures"), target.pop("measures")
        assert now == target
        assert measures.keys() == before.keys()
        for measure, estimate in measures.items():
            assert estimate == pytest.approx(before[measure], rel=1e-9), (name, measure)
    energy, per_atom, forces = (found[name] for name in TARGETS)
    n_atoms = alloy_store["testset"].n_atoms
    assert (energy.unit, per_atom.unit, forces.unit) == ("eV", "meV/atom", "eV/Å")
    assert energy.structures == energy.values == forces.structures == len(n_atoms)
    assert forces.values == 3 * n_atoms.sum()
    test = summary["test"]
    for measured, told in (
        (energy.measures["mae"].value, test["energy"]["mae_ensemble"]),
        (per_atom.measures["mae"].value, 1000 * test["energy"]["mae_per_atom_ensemble"]),
        (forces.measures["mae"].value, test["forces"]["mae_ensemble"]),
        (forces.measures["coverage_80"].value, test["forces"]["coverage"]),
    ):
        assert measured == pytest.approx(told)


def test_all_ways_to_the_same_data_give_the_same_measures(
    ensemble, alloy_store, structures, tmp_path
):
    expected = evaluate(ensemble, alloy_store, split="testset")
    same(evaluate(ensemble, alloy_store.path, split="testset"), expected)
    same(evaluate(ensemble, structures), expected)
    file, database = tmp_path / "all.extxyz", tmp_path / "all.db"
    write(file, structures)
    same(evaluate(ensemble, str(file)), expected)
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder / "b-10.xyz", structures[2:], format="extxyz")
    write(folder / "b-2.xyz", structures[:2], format="extxyz")
    (folder / "README").write_text("labels by EMT")
    said: list[str] = []
    same(evaluate(ensemble, folder, say=said.append), expected)
    assert said == ["skipped (not structure files): README"]
    with ase.db.connect(database) as connection:
        for atoms in renamed(structures):
            forces = atoms.arrays["dft_forces"]
            row = {"dft_energy": atoms.info["dft_energy"], "data": {"dft_forces": forces}}
            connection.write(Atoms(atoms), **row)
    same(evaluate(ensemble, database, keys=KEYS), expected)
    write(file, structures)
    same(evaluate(ensemble, file, keys=KEYS), expected)


def test_flagged_structures_are_counted_and_their_errors_told_apart(ensemble, structures, tmp_path):
    odd = structures[1]
    results = odd.calc.results
    odd.set_cell(0.8 * odd.cell.array, scale_atoms=True)
    odd.calc = SinglePointCalculator(odd, **results)
    flagged = ensemble.predict(structures).graphs["flagged"].to_numpy(bool)
    assert flagged[1] and not flagged.all()
    file = tmp_path / "all.extxyz"
    write(file, structures)
    for data in (structures, file):
        found = evaluate(ensemble, data)
        table = ensemble.predict(structures).graphs
        away = np.abs(table["energy_error"].to_numpy())
        energy = found["energy"]
        assert energy.flagged == flagged.sum()
        assert energy.measures["mae_flagged"].value == pytest.approx(away[flagged].mean(), rel=1e-4)
        mean = away[~flagged].mean()
        assert energy.measures["mae_unflagged"].value == pytest.approx(mean, rel=1e-4)
        assert {"mae_flagged", "mae_unflagged"} <= found["forces"].measures.keys()
    some = [atoms for atoms, is_flagged in zip(structures, flagged, strict=True) if not is_flagged]
    alike = evaluate(ensemble, some)["energy"]
    assert alike.flagged == 0 and "mae_flagged" not in alike.measures


@pytest.fixture
def of_tables(ensemble):
    """As trained on a table."""
    targets = {"energy": {"unit": "eV", "key": "E"}}
    source = {"format": "csv", "train": "x.csv", "structure": "cif", "targets": targets}
    manifest = ensemble.manifest.model_copy(update={"provenance": {"source": source}})
    return dataclasses.replace(ensemble, manifest=manifest)


def test_tables_are_read_as_in_training(of_tables, structures, tmp_path):
    """The structures as CIF text, or as names of files."""
    expected = evaluate(of_tables, structures, say=lambda line: None)["energy"]
    texts, names = [], []
    for number, atoms in enumerate(structures):
        names.append(f"{number}.cif")
        write(tmp_path / names[-1], atoms)
        texts.append((tmp_path / names[-1]).read_text())
    energies = [atoms.get_potential_energy() for atoms in structures]
    for cells in (texts, names):
        table = pd.DataFrame({"material_id": list("abcde"), "cif": cells, "E": energies})
        table.to_csv(tmp_path / "new.csv", index=False)
        found = evaluate(of_tables, tmp_path / "new.csv", say=lambda line: None)
        mae = found["energy"].measures["mae"].value
        assert mae == pytest.approx(expected.measures["mae"].value, rel=1e-4)
        graphs = of_tables.predict(tmp_path / "new.csv").graphs
        assert list(graphs["id"]) == list("abcde") and list(graphs["frame"]) == [0, 1, 2, 3, 4]
        np.testing.assert_allclose(graphs["energy"], energies)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("name,E\na,1\n", r"new\.csv: structure 0 has no column 'cif', where the training data"),
        ("cif,E\n,1\n", r"new\.csv: structure 0 has an empty cell 'cif'"),
        ("cif,E\nnone.cif,1\n", r"structure 0 cannot be read \(.*none\.cif.*\); correct or rem"),
        ("cif,E\n", r"new\.csv holds no structures; give a file that does"),
        ("cif,cif\n", r"new\.csv has two columns 'cif'; rename or remove one"),
    ],
)
def test_tables_without_structures_are_refused(of_tables, tmp_path, table, says):
    (tmp_path / "new.csv").write_text(table)
    with pytest.raises(InputError, match=says):
        evaluate(of_tables, tmp_path / "new.csv")


def test_labels_have_the_keys_of_training_unless_others_are_given(ensemble, structures):
    targets = {"energy": {"unit": "eV", "key": "dft_energy"}, "forces": {"unit": "eV/Å"}}
    source = {"format": "ase", "train": "x", "targets": targets}
    manifest = ensemble.manifest.model_copy(update={"provenance": {"source": source}})
    trained = dataclasses.replace(ensemble, manifest=manifest)
    expected = evaluate(ensemble, structures)
    for atoms in structures:  # where both are there, that of training counts
        atoms.info["dft_energy"] = atoms.calc.results["energy"]
        atoms.calc.results["energy"] = 0.0
    same(evaluate(trained, structures), expected)
    away = evaluate(trained, structures, keys={"energy": "energy"})
    assert away["energy"].measures["mae"].value != expected["energy"].measures["mae"].value


def test_a_target_without_labels_is_told_and_left_out(ensemble, structures, alloy_store, tmp_path):
    said: list[str] = []
    for atoms in structures:
        del atoms.calc.results["forces"]
    found = evaluate(ensemble, structures, say=said.append)
    assert list(found) == TARGETS[:2]
    graph = atoms_to_graph(structures[0], 4.0, None, targets={"energy": np.array([1.5])})
    path = tmp_path / "energies.gs"
    write_store(
        path, {"trainset": [graph]}, targets={"energy": Target(level="graph", dim=1)}, cutoff=4.0
    )
    found = evaluate(ensemble, path, say=said.append)
    assert list(found) == TARGETS[:2] and found["energy"].structures == 1
    assert said == 2 * ["not evaluated, as no structure has a label: forces"]


def test_labels_of_two_methods_are_not_mixed(ensemble, structures):
    targets = {"energy": {"unit": "eV", "key": "dft_energy"}}
    manifest = ensemble.manifest.model_copy(update={"provenance": {"source": {"targets": targets}}})
    structures[0].info["dft_energy"] = 1.0
    trained = dataclasses.replace(ensemble, manifest=manifest)
    with pytest.raises(InputError, match=r"no label of energy \('dft_energy'\), though 1 of 5"):
        evaluate(trained, structures)


def test_splits_that_count_together_are_told(ensemble, alloy_store):
    """Among them is what the networks were trained on."""
    said: list[str] = []
    found = evaluate(ensemble, alloy_store, say=said.append)
    assert found["energy"].structures == sum(len(alloy_store[name]) for name in alloy_store.splits)
    assert "trainset, valset, testset" in said[0]


def test_labels_in_another_unit_or_of_the_other_sign_are_doubted(ensemble, structures):
    def doubts(factor):
        said: list[str] = []
        predicted = ensemble.predict(structures).nodes
        columns = predicted[[f"forces_{axis}_mean" for axis in "xyz"]].to_numpy()
        ends = np.cumsum([len(atoms) for atoms in structures])[:-1]
        for atoms, forces in zip(structures, np.split(columns, ends), strict=True):
            noise = np.random.default_rng(0).normal(0, 0.1 * columns.std(), forces.shape)
            atoms.calc.results = {"forces": factor * (forces + noise)}
        evaluate(ensemble, structures, say=said.append)
        return [line for line in said if line.startswith("labels of forces")]

    assert doubts(1.0) == doubts(2.0) == doubts(0.5) == []
    [said] = doubts(51.4)
    assert re.match(r"labels of forces are about 5\d\.\d times the .* in eV/Å, with the sign", said)
    [said] = doubts(-1.0)
    assert "about -" in said
    some = np.linspace(0, 1, 20)
    assert doubt_of(some, 40 * some) is not None
    assert doubt_of(some[:9], 40 * some[:9]) is None, "too few"
    assert doubt_of(some, np.random.default_rng(0).normal(0, 40, 20)) is None, "errors, no unit"
    assert doubt_of(some, np.ones(20)) is doubt_of(np.ones(20), some) is None


def test_labels_with_another_zero_are_doubted(ensemble, structures):
    """All structures of one size: no factor would tell."""

    def doubts(per_atom):
        said: list[str] = []
        some = [atoms.copy() for atoms in structures for _ in range(3)]
        graphs = ensemble.predict(some).graphs
        noise = np.random.default_rng(0).normal(0, 1e-3, len(some))
        for atoms, energy, error in zip(some, graphs["energy_mean"], noise, strict=True):
            atoms.info["energy"] = energy + (error + per_atom) * len(atoms)
        evaluate(ensemble, some, say=said.append)
        return [line for line in said if line.startswith("labels of energy")]

    assert doubts(0.0) == []
    [said] = doubts(-500.0)
    assert "about -500 away from the predictions per atom: are they in eV, counted from" in said
    zeros, ones = np.zeros(20), np.ones(20)
    assert offset_of(zeros, 0.05 * ones, ones) == 1
    assert offset_of(zeros, 0.2 * ones, ones) is None, "five error bars are no other zero"
    assert offset_of(zeros, 0.05 * ones, np.linspace(-1, 3, 20)) is None, "errors of a model"
    assert offset_of(zeros[:9], 0.05 * ones[:9], ones[:9]) is None, "too few"


def test_energies_per_atom_are_doubted(ensemble, structures):
    said: list[str] = []
    some = [atoms * (1, 1, k) for atoms in structures for k in (1, 2, 3)]
    graphs = ensemble.predict(some).graphs
    for atoms, energy in zip(some, graphs["energy_mean"], strict=True):
        atoms.info["energy"] = 1.05 * energy / len(atoms)
    evaluate(ensemble, some, say=said.append)
    [doubt] = [line for line in said if line.startswith("labels of energy")]
    assert doubt.endswith(
        "follow the predictions divided by the number of atoms: multiply them by it"
    )


def test_what_is_not_predicted_is_told(ensemble, structures):
    """A network that knows nothing of an element that some of the structures have."""
    said: list[str] = []
    counts = Counter(int(z) for atoms in structures for z in set(atoms.numbers))
    [(element, k), *_] = [pair for pair in counts.items() if pair[1] < len(structures)]
    models = copy.deepcopy(ensemble.models)
    with torch.no_grad():
        for model in models:
            dict(model.named_parameters())["encoder.embedding.elements.weight"][element] = np.nan
    found = evaluate(dataclasses.replace(ensemble, models=models), structures, say=said.append)
    assert f"energy of {k} structures is not finite in the prediction and does not count" in said
    assert found["energy"].structures == len(structures) - k


def test_results_of_another_structure_are_no_labels(ensemble, structures):
    shared = EMT()
    for atoms in structures:
        atoms.calc = shared
        atoms.get_potential_energy()
    with pytest.raises(InputError, match="though 1 of"):
        evaluate(ensemble, structures)
    assert next(iter(evaluate(ensemble, structures[-1]))) == "energy"
    structures[0].calc = object()  # ASE takes any that has the methods it calls
    with pytest.raises(InputError, match="no structure has a label of energy, forces"):
        evaluate(ensemble, structures[0])


def broken(change):
    def changed(structures):
        change(structures)
        return structures

    return changed


def forces(value):
    return broken(lambda structures: structures[1].calc.results.update(forces=value))


@pytest.mark.parametrize(
    ("change", "keys", "says"),
    [
        (
            broken(lambda structures: structures[1].calc.results.pop("forces")),
            {},
            r"^structure 1: has no label of forces \('forces'\), though 4 of 5 structures",
        ),
        (forces(np.full((9, 3), np.nan)), {}, r"^structure 1: its label of forces is not"),
        (forces([1.0, 2.0]), {}, r"^structure 1: .* not 3 numbers per atom \(\[1\.0, 2\.0\]\); c"),
        (
            lambda structures: forces(structures[1].get_forces().T)(structures),
            {},
            r"^structure 1: .* not 3 numbers per atom \(array",
        ),
        (forces("large"), {}, r"^structure 1: .* not 3 numbers per atom \('large'\); correct"),
        (
            broken(lambda structures: structures[2].calc.results.update(energy=np.inf)),
            {},
            r"^structure 2: has NaN or infinity in its label of energy; correct it or leave",
        ),
        (renamed, {}, r"^no structure has .*is dft_energy, dft_forces\).*--key energy=KEY"),
        (renamed, {"enrgy": "dft_energy"}, r"predicts no target 'enrgy'; its targets are energy"),
        (
            lambda structures: structures,
            {"forces": "dft"},
            r"^no structure has a label of forces \(looked for dft; there is energy, forces\); ",
        ),
        (lambda structures: [], {}, r"there are no structures"),
    ],
)
def test_labels_that_will_not_do_are_refused(ensemble, structures, change, keys, says):
    with pytest.raises(InputError, match=says):
        evaluate(ensemble, change(structures), keys=keys)


def test_refusals_name_the_file(ensemble, structures, alloy_store, tmp_path):
    bare = structures[0].copy()
    write(tmp_path / "bare.xyz", bare, format="extxyz")
    with pytest.raises(InputError, match=r"/bare\.xyz: no structure has a label.*is nothing\); n"):
        evaluate(ensemble, tmp_path / "bare.xyz")
    write(tmp_path / "labelled.xyz", structures, format="extxyz")
    with pytest.raises(InputError, match=r"/bare\.xyz: has no label of energy.*though 5 of 6"):
        evaluate(ensemble, tmp_path)
    with pytest.raises(InputError, match=r"labelled\.xyz: is no GraphStore.*leave --split out"):
        evaluate(ensemble, tmp_path / "labelled.xyz", split="testset")
    with pytest.raises(InputError, match=r"store\.gs: a GraphStore names its labels by targets"):
        evaluate(ensemble, alloy_store, keys=KEYS)
    with pytest.raises(InputError, match=r"^structures have no splits"):
        evaluate(ensemble, structures, split="testset")
    with pytest.raises(InputError, match=r"nowhere: does not exist"):
        evaluate(ensemble, tmp_path / "nowhere")
    graph = atoms_to_graph(structures[0], 4.0, None)
    write_store(tmp_path / "bare.gs", {"trainset": [graph]}, cutoff=4.0)
    with pytest.raises(InputError, match=r"bare\.gs: has no labels of energy, forces; give data"):
        evaluate(ensemble, tmp_path / "bare.gs")


@pytest.mark.parametrize("dim", [6, 9])
def test_a_stress_is_read_in_both_orders(dim):
    tensor = np.array([[1.0, 6.0, 5.0], [6.0, 2.0, 4.0], [5.0, 4.0, 3.0]])
    voigt = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    cell = Atoms("Cu", cell=[3, 3, 3], pbc=True)
    said = dict(zip("abc", (tensor, voigt, tensor.ravel().tolist()), strict=True))
    found = {name: Found(cell, {"stress": value}) for name, value in said.items()}
    found["d"] = Found(Atoms("Cu"), {})
    described = Target(level="graph", dim=dim, unit="eV/Å^3")
    read = every_label(found, "stress", described, ["stress"])
    np.testing.assert_array_equal(read[:3], [voigt if dim == 6 else tensor.ravel()] * 3)
    assert np.isnan(read[3]).all(), "a molecule has none"
    found["d"] = Found(cell, {})
    with pytest.raises(InputError, match="d: has no label of stress"):
        every_label(found, "stress", described, ["stress"])


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(run, monkeypatch, capsys):
    """Runs `hydragnn-flow evaluate`: its exit code, and what it says."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["hydragnn-flow", "evaluate", str(run), *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return call


def test_the_command_prints_a_table_and_writes_it(command, ensemble, alloy_store, tmp_path):
    expected = evaluate(ensemble, alloy_store, split="testset")
    csv, file = tmp_path / "measures.csv", tmp_path / "measures.json"
    code, said, wrong = command(alloy_store.path, "--split", "testset", "-o", csv)
    assert code == 0, wrong
    assert "[meV/atom]" in said and "80 % interval holds" in said
    assert re.search(r"\] +structures +5 ", said)
    assert said.splitlines()[-1] == str(csv)
    table = pd.read_csv(csv)
    assert list(table) == [
        *("target", "unit", "structures", "values", "measure", "value", "lo", "hi")
    ]
    assert list(dict.fromkeys(table["target"])) == TARGETS
    for row in table.itertuples():
        told = (row.value, row.lo, row.hi)
        assert told == pytest.approx(expected[row.target].measures[row.measure], nan_ok=True)
    assert command(alloy_store.path, "--split", "testset", "-o", file)[0] == 0
    assert json.loads(file.read_text()).keys() == expected.keys()


def test_the_command_takes_keys(command, structures, tmp_path):
    file = tmp_path / "new.extxyz"
    write(file, renamed(structures))
    keys = [f"--key={target}={key}" for target, key in KEYS.items()]
    code, said, wrong = command(file, *keys)
    assert code == 0 and "forces" in said, wrong


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{store}", "-o", "{folder}/a.parquet"], "must end in .csv or .json"),
        (["{store}", "-o", "{folder}/no/a.csv"], "there is no directory"),
        (["{store}", "--key", "energy"], "--key energy: must be TARGET=KEY"),
        (["{store}", "--split", "test"], "no split 'test'"),
        (["{folder}/nowhere"], "does not exist; correct the path"),
        (["{folder}"], "holds no file of structures"),
    ],
)
def test_the_command_refuses_in_a_sentence(command, alloy_store, tmp_path, words, says):
    filled = [word.format(store=alloy_store.path, folder=tmp_path) for word in words]
    code, said, wrong = command(*filled)
    assert code == 2 and said == ""
    assert says in wrong and wrong.count("\n") == 1
    assert not list(tmp_path.iterdir())
