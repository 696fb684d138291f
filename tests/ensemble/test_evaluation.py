"""Errors and uncertainty on labelled data: of stores, files and structures in Python."""

import dataclasses
import json
import re

import ase.db
import numpy as np
import pandas as pd
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from hydragnn_flow import InputError
from hydragnn_flow.data import Target, atoms_to_graph, write_store
from hydragnn_flow.data.sources.structures import Found
from hydragnn_flow.ensemble import evaluate
from hydragnn_flow.ensemble.predictions.labels import every_label
from hydragnn_flow.ensemble.predictions.structure_files import store_records


@pytest.fixture
def structures(alloy_store):
    """Those of the test split, with their labels as results of a calculation."""
    found = [one.atoms for one in store_records(alloy_store).values() if one.file == "testset"]
    for atoms, graph in zip(found, alloy_store["testset"], strict=True):
        results = {"energy": graph.energy.item(), "forces": graph.forces.double().numpy()}
        atoms.calc = SinglePointCalculator(atoms, **results)
    return found


def renamed(structures):
    """The same with their labels under other names, where ASE makes no results of them."""
    for atoms in structures:
        atoms.info["dft_energy"] = atoms.get_potential_energy()
        atoms.arrays["dft_forces"] = atoms.get_forces()
        atoms.calc = None
    return structures


def trained_on(ensemble, **source):
    """The ensemble, as trained on such files."""
    manifest = ensemble.manifest.model_copy(update={"provenance": {"source": source}})
    return dataclasses.replace(ensemble, manifest=manifest)


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
    assert list(found) == list(summary["measures"]) == TARGETS
    for name, before in summary["measures"].items():
        now = found[name].to_dict()
        assert now.keys() == before.keys() and now["measures"].keys() == before["measures"].keys()
        for measure, estimate in now.pop("measures").items():
            assert estimate == pytest.approx(before["measures"][measure], rel=1e-9), measure
        assert now.items() <= before.items()
    energy, per_atom, forces = (found[name] for name in TARGETS)
    n_atoms = alloy_store["testset"].n_atoms
    assert (energy.unit, per_atom.unit, forces.unit) == ("eV", "meV/atom", "eV/Å")
    assert energy.structures == energy.values == forces.structures == len(n_atoms)
    assert forces.values == 3 * n_atoms.sum()


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


def test_flagged_structures_are_counted_and_their_errors_told_apart(ensemble, structures):
    odd = structures[1]
    results = odd.calc.results
    odd.set_cell(0.8 * odd.cell.array, scale_atoms=True)
    odd.calc = SinglePointCalculator(odd, **results)
    table = ensemble.predict(structures).graphs
    flagged, away = table["flagged"].to_numpy(bool), np.abs(table["energy_error"].to_numpy())
    assert flagged[1] and not flagged.all()
    found = evaluate(ensemble, structures)
    energy = found["energy"]
    assert energy.flagged == flagged.sum()
    for name, which in (("mae_flagged", flagged), ("mae_unflagged", ~flagged)):
        assert energy.measures[name].value == pytest.approx(away[which].mean(), rel=1e-4)
        assert name in found["forces"].measures
    some = [atoms for atoms, is_flagged in zip(structures, flagged, strict=True) if not is_flagged]
    alike = evaluate(ensemble, some)["energy"]
    assert alike.flagged == 0 and "mae_flagged" not in alike.measures


def test_tables_are_read_as_in_training(ensemble, structures, tmp_path):
    """The structures as CIF text, or as names of files."""
    targets = {"energy": {"unit": "eV", "key": "E"}}
    trained = trained_on(ensemble, format="csv", train="x.csv", structure="cif", targets=targets)
    expected = evaluate(trained, structures, say=lambda line: None)["energy"].measures["mae"].value
    names = [f"{number}.cif" for number in range(5)]
    for name, atoms in zip(names, structures, strict=True):
        write(tmp_path / name, atoms)
    texts = [(tmp_path / name).read_text() for name in names]
    energies = [atoms.get_potential_energy() for atoms in structures]
    file = tmp_path / "new.csv"
    own = [str(tmp_path / name) for name in names]
    for cells, files, frames in ((texts, ["new.csv"] * 5, [*range(5)]), (names, own, [0] * 5)):
        table = pd.DataFrame({"material_id": list("abcde"), "cif": cells, "E": energies})
        table.to_csv(file, index=False)
        found = evaluate(trained, file, say=lambda line: None)["energy"].measures["mae"].value
        assert found == pytest.approx(expected, rel=1e-4)
        graphs = trained.predict(file).graphs
        assert list(graphs["id"]) == list("abcde")
        assert (list(graphs["file"]), list(graphs["frame"])) == (files, frames)
        np.testing.assert_allclose(graphs["energy"], energies)


def test_labels_have_the_keys_of_training_unless_others_are_given(ensemble, structures):
    targets = {"energy": {"unit": "eV", "key": "dft_energy"}, "forces": {"unit": "eV/Å"}}
    trained = trained_on(ensemble, targets=targets)
    expected = evaluate(ensemble, structures)
    structures[0].info["dft_energy"] = structures[0].calc.results["energy"]
    assert evaluate(trained, structures)["energy"].structures == 1  # methods are not mixed
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
    targets = {"energy": Target(level="graph", dim=1)}
    write_store(path, {"trainset": [graph]}, targets=targets, cutoff=4.0)
    found = evaluate(ensemble, path, say=said.append)
    assert list(found) == TARGETS[:2] and found["energy"].structures == 1
    assert said == 2 * ["not evaluated, as no structure has a label: forces"]


def test_missing_labels_do_not_count_and_are_told(ensemble, structures):
    said: list[str] = []
    energies = evaluate(ensemble, structures, say=said.append)["energy"]
    expected = evaluate(ensemble, structures[1:])["forces"]
    found = evaluate(ensemble, broken(0, forces=None)(structures), say=said.append)
    assert found["forces"].measures["mae"].value == expected.measures["mae"].value
    assert found["forces"].structures == len(structures) - 1
    assert found["energy"] == energies
    assert said == [f"forces of {len(structures[0])} atoms has no label and does not count"]


@pytest.mark.parametrize(("factor", "says"), [(1, ""), (1e6, "are they in eV/Å, with the sign")])
def test_labels_far_beyond_the_error_bars_are_doubted(ensemble, structures, factor, says):
    said: list[str] = []
    for atoms in structures:
        atoms.calc.results = {"forces": factor * atoms.calc.results["forces"]}
    evaluate(ensemble, structures, say=said.append)
    doubts = [line for line in said if line.startswith("labels of forces are")]
    assert (says in doubts[0]) if says else not doubts


def test_the_structure_that_makes_most_of_the_squared_errors_is_named(
    ensemble, alloy_store, tmp_path
):
    said: list[str] = []
    found = [*store_records(alloy_store).values()]
    atoms = [one.atoms.copy() for one in found]
    errors = np.random.default_rng(0).normal(size=len(atoms))
    predicted = ensemble.predict(atoms).graphs["energy_mean"]
    for one, energy in zip(atoms, predicted + errors, strict=True):
        one.calc = SinglePointCalculator(one, energy=energy)
    evaluate(ensemble, atoms, say=said.append)
    assert not any("squared" in line for line in said), "no error stands out"
    atoms[17].calc.results["energy"] += 100.0
    evaluate(ensemble, atoms, say=said.append)
    told = [line for line in said if "squared" in line]
    assert len(told) == 1 and re.match(
        r"energy: 99\.\d % of the squ.* of structure 17; look", told[0]
    )
    write(tmp_path / "some.extxyz", atoms)
    evaluate(ensemble, tmp_path / "some.extxyz", say=said.append)
    assert f"those of {tmp_path}/some.extxyz: structure 17; look" in said[-1]
    energies = [{"energy": np.array([one.get_potential_energy()])} for one in atoms]
    graphs = [
        atoms_to_graph(*of, 4.0, None, targets=e) for *of, e in zip(atoms, energies, strict=True)
    ]
    path, targets = tmp_path / "some.gs", {"energy": Target(level="graph", dim=1)}
    write_store(
        path, {"trainset": graphs[:10], "testset": graphs[10:]}, targets=targets, cutoff=4.0
    )
    evaluate(ensemble, path, say=said.append)
    assert said[-1].endswith("those of testset: graph 7; look there first")


def broken(number, **results):
    def changed(structures):
        known = structures[number].calc.results | results
        structures[number].calc.results = {k: v for k, v in known.items() if v is not None}
        return structures

    return changed


@pytest.mark.parametrize(
    ("change", "keys", "says"),
    [
        (broken(1, forces=[1.0, 2.0]), {}, "^structure 1: .* not 3 numbers per atom"),
        (broken(1, forces=np.zeros((3, 8))), {}, "^structure 1: .* not 3 numbers per atom"),
        (broken(1, forces="large"), {}, "^structure 1: .* not 3 numbers per atom"),
        (broken(2, energy=np.inf), {}, "^structure 2: its label of energy is not finite"),
        (renamed, {}, r"^no structure has .*is dft_energy, dft_forces\).*--key energy=KEY"),
        (renamed, {"enrgy": "dft_energy"}, "no target 'enrgy'; its targets are energy"),
        (list, {"forces": "dft"}, r"^no structure .* forces \(looked for dft; there is energy, f"),
        (lambda structures: [], {}, "there are no structures"),
    ],
)
def test_labels_that_will_not_do_are_refused(ensemble, structures, change, keys, says):
    with pytest.raises(InputError, match=says):
        evaluate(ensemble, change(structures), keys=keys)


def test_refusals_name_the_file(ensemble, structures, alloy_store, tmp_path):
    graph = atoms_to_graph(structures[0], 4.0, None)
    write_store(tmp_path / "bare.gs", {"trainset": [graph]}, cutoff=4.0)
    folder = tmp_path / "some"
    folder.mkdir()
    bare, labelled = folder / "bare.xyz", folder / "labelled.xyz"
    write(bare, structures[0].copy(), format="extxyz")
    write(labelled, structures, format="extxyz")
    for data, asked, says in (
        (bare, {}, r"/bare\.xyz: no structure has a label.*is nothing"),
        (labelled, {"split": "testset"}, r"labelled\.xyz: is no GraphStore.*--split"),
        (alloy_store, {"keys": KEYS}, r"store\.gs: a GraphStore names its labels by targets"),
        (alloy_store, {"split": "test"}, "no split 'test'"),
        (structures, {"split": "testset"}, "^structures have no splits"),
        (tmp_path / "nowhere", {}, "nowhere: does not exist"),
        (tmp_path, {}, "holds no file of structures"),
        (tmp_path / "bare.gs", {}, r"bare\.gs: has no labels of energy, forces"),
    ):
        with pytest.raises(InputError, match=says):
            evaluate(ensemble, data, **asked)


@pytest.mark.parametrize("dim", [6, 9])
def test_a_stress_is_read_in_both_orders(dim):
    tensor = np.array([[1.0, 6.0, 5.0], [6.0, 2.0, 4.0], [5.0, 4.0, 3.0]])
    voigt = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    cell = Atoms("Cu", cell=[3, 3, 3], pbc=True)
    labels = {"a": tensor, "b": voigt, "c": tensor.ravel().tolist()}
    found = {name: Found(cell, {"stress": value}) for name, value in labels.items()}
    described = Target(level="graph", dim=dim, unit="eV/Å^3")
    read = every_label(found | {"d": Found(Atoms("Cu"), {})}, "stress", described, {"stress": 1.0})
    np.testing.assert_array_equal(read[:3], [voigt if dim == 6 else tensor.ravel()] * 3)
    assert np.isnan(read[3]).all(), "a molecule has none"
    with pytest.raises(InputError, match="d: its label of stress"):
        infinite = {"stress": [np.inf] * 6}
        every_label(found | {"d": Found(cell, infinite)}, "stress", described, {"stress": 1.0})


def test_the_command_prints_a_table_and_writes_it(
    flow, run, ensemble, alloy_store, structures, tmp_path
):
    expected = evaluate(ensemble, alloy_store, split="testset")
    of_store = ["evaluate", run, alloy_store.path, "--split", "testset", "-o"]
    csv, file = tmp_path / "measures.csv", tmp_path / "measures.json"
    code, said, wrong = flow(*of_store, csv)
    assert code == 0, wrong
    assert "[meV/atom]" in said and "80 % interval holds" in said
    assert re.search(r"\] +structures +5 ", said)
    assert said.splitlines()[-1] == str(csv)
    table = pd.read_csv(csv)
    assert list(dict.fromkeys(table["target"])) == TARGETS
    for row in table.itertuples():
        of = expected[row.target]
        told = (row.value, row.lo, row.hi)
        assert told == pytest.approx(of.measures[row.measure], nan_ok=True)
        assert (row.unit, row.structures, row.values) == (of.unit, of.structures, of.values)
    assert flow(*of_store, file)[0] == 0
    assert json.loads(file.read_text()).keys() == expected.keys()
    new = tmp_path / "new.extxyz"
    write(new, renamed(structures))
    keys = (f"--key={target}={key}" for target, key in KEYS.items())
    code, said, wrong = flow("evaluate", run, new, *keys)
    assert code == 0 and "forces" in said, wrong


def test_the_command_refuses_in_a_sentence(flow, run, alloy_store, tmp_path):
    for words, says in (
        (["-o", tmp_path / "a.parquet"], "must end in .csv or .json"),
        (["-o", tmp_path / "no" / "a.csv"], "there is no directory"),
        (["--key", "energy"], "--key energy: must be TARGET=KEY"),
    ):
        code, said, wrong = flow("evaluate", run, alloy_store.path, *words)
        assert code == 2 and said == ""
        assert says in wrong and wrong.count("\n") == 1
        assert not list(tmp_path.iterdir())
