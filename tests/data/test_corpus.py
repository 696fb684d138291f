"""Corpus of what users met, by kinds of faults: each is right, or refused with its cause.

Kinds: A shape by name, B one method, C units, D geometry, E units in files, F elements, G level,
H labels, I convergence, J all of a file, K nothing instead, L environment, M cause, N part of the
labels.
"""

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import ase.io
import numpy as np
import pytest
import yaml
from ase import units
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.cluster import Octahedron
from campaign_cases import CONFIG
from layout_cases import crystals
from source_cases import config, structure_dict, write_extxyz

from hydragnn_flow.campaign.setup.first_config import first_config
from hydragnn_flow.config.run import resolve_config
from hydragnn_flow.data import prepare_store
from hydragnn_flow.data.looking import look
from hydragnn_flow.data.preparing.suspicious import sentences
from hydragnn_flow.data.sources.beyond_ase import converged
from hydragnn_flow.data.sources.opening import open_source
from hydragnn_flow.ensemble.predictions.labels import keys_of_label, label_of
from hydragnn_flow.ensemble.predictions.structure_files import open_path
from hydragnn_flow.errors import InputError

TEXT = Path(__file__).with_name("corpus.yaml").read_text(encoding="utf-8")
KINDS = yaml.safe_load(re.sub(r"(?<=[:\[ ])@(?=[,}\]])", "'@'", TEXT))
ROWS = [
    pytest.param(case, id=f"{kind[0]}{n}")
    for kind, cases in KINDS.items()
    for n, case in enumerate(cases, 1)
]


def filled(content, number):
    """A piece of a file with the number of a structure over seven for @."""
    text = json.dumps(content) if not isinstance(content, str) else content
    for symbols in ("H2", "H3"):
        structure = json.dumps(
            structure_dict(ase.Atoms(symbols, np.eye(3)[: int(symbols[1])], cell=[5] * 3))
        )
        text = text.replace(f'"{symbols}"', structure)
    return text.replace('"@"', str(number / 7)).replace("@", str(number / 7))


def write(path, content, times):
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, np.array(content))
    elif isinstance(content, dict) and path.suffix == ".npz":
        np.savez(path, **content)
    elif isinstance(content, dict) and path.suffix == ".h5":
        with pytest.importorskip("h5py").File(path, "w") as file:
            for key, values in content.items():
                file[key] = values
    elif isinstance(content, list):
        records = [json.loads(filled(one, i)) for i in range(times) for one in content]
        path.write_text(json.dumps(records))
    else:
        is_table = not isinstance(content, str) or "@" not in content
        path.write_text("".join(filled(content, i) for i in range(1 if is_table else times)))


def outcome(case, folder):
    """What comes out in words: of `init`, of reading, or the refusal."""
    for name, content in case["files"].items():
        write(folder / name, content, 1 if "targets" in case else 48)
    try:
        if "targets" not in case:
            finding = look(folder)
            found = first_config(finding, "a", folder.parent, 1).targets
            said = ", ".join(
                " ".join([one.name, one.unit])
                + (f" from {one.key}" if one.key != one.name else "")
                + (" graph" if one.say_level else "")
                + (f" ({one.lacking})" if one.lacking else "")
                for one in found
            )
            return said + "".join(f"; {key}: {why}" for key, why in finding.unusable.items())
        train = case.get("train", next(iter(case["files"])))
        kind = "json" if ".json" in train.lower() else "ase"
        keys = {"targets": case["targets"], **case.get("source", {})}
        source = open_source(config(folder, format=kind, train=train, **keys), 0)
        record, *_ = [one for chunk in source.chunks() for one in source.read(chunk)]
        record.graph(5.0, None)
        values = (
            f"{name}={','.join(map(str, label.tolist()))}" for name, label in record.targets.items()
        )
        lacking = "".join(f"; unlabelled: {said}" for said in source.unlabelled)
        group = f" of {record.group}" if record.group else ""
        return f"{record.atoms.symbols} {' '.join(values)}{group}{lacking}"
    except InputError as error:
        assert "\n" not in str(error)
        return str(error)


@pytest.mark.parametrize("case", [row for row in ROWS if "files" in row.values[0]])
def test_files_are_right_or_the_cause_is_said(case, tmp_path):
    (tmp_path / "data").mkdir()
    said = outcome(case, tmp_path / "data")
    assert re.search(case["expects"], said), said


@pytest.mark.parametrize("case", [row for row in ROWS if "units" in row.values[0]])
def test_units_of_a_potential_fit_before_anything_is_read(case, tmp_path):
    values = copy.deepcopy(CONFIG)
    values["data"]["source"] = {"format": "ase", "train": "a.xyz", "targets": case["units"]}
    weight = {"stress_weight": 1.0} if "stress" in case["units"] else {}
    values["network"]["Architecture"] |= weight
    try:
        said = resolve_config(values, tmp_path / "a.yaml") and "right"
    except (InputError, ValueError) as error:
        said = str(error)
    assert re.search(case["expects"], said), said


@pytest.mark.parametrize("case", [row for row in ROWS if "flags" in row.values[0]])
def test_steps_whose_electrons_have_not_converged(case, tmp_path):
    formats = {"pw.x": "espresso-out", "OUTCAR": "vasp-out", "vasprun.xml": "vasp-xml"}
    (name, text), (_, flags) = case.items()
    (tmp_path / name).write_text(text)
    assert converged(tmp_path / name, formats.get(name, "aims-output")) == flags


def moved(atoms, *, scale=1.0, fractional=False, close=0.0, gone=0.0):
    atoms.set_cell(atoms.cell.array * scale, scale_atoms=True)
    if fractional:
        atoms.positions = atoms.get_scaled_positions()
    if close:
        atoms.positions[0] = atoms.positions[1] + [0, 0, close]
    if gone:
        atoms.cell[:] *= gone
        atoms.positions[0] += atoms.cell.array.sum(axis=0) / 2


def labelled(atoms, *, energy=0.0, times=1.0, forces=1.0):
    atoms.calc.results["energy"] = times * atoms.calc.results["energy"] + energy
    atoms.calc.results["forces"] = forces * atoms.calc.results["forces"]


DOUBTFUL = {
    "D: bohr": (lambda made: [moved(one, scale=1 / 0.529) for one in made], "give .* in Å"),
    "D: nm": (lambda made: [moved(one, scale=0.1) for one in made], "Å apart|in Å"),
    "D: fractions": (lambda made: [moved(one, fractional=True) for one in made], "Å apart|in Å"),
    "D: overlap": (lambda made: moved(made[9], close=0.4), r"structure 9: .* 0\.4 Å apart"),
    "D: torn out": (lambda made: moved(made[9], gone=9.0), "structure 9: 1 of its 4 .* no neigh"),
    "H: shifted": (lambda made: labelled(made[9], energy=50.0), "structure 9: energy"),
    "H: Hartree": (lambda made: [labelled(one, times=30.0) for one in made[3:5]], "[34]: energy"),
    "H: several": (lambda made: [labelled(one, energy=90.0) for one in made[:5]], "[0-4]: energy"),
    "H: unrelaxed": (lambda made: labelled(made[9], forces=500.0), "structure 9: forces"),
    "H: minus": (lambda made: labelled(made[9], energy=-3000.0), "structure 9: energy"),
    "H: zero for none": (lambda made: [labelled(one, energy=-900) for one in made[9:]], "energy"),
}


def test_a_dump_to_predict_has_the_types_of_training(tmp_path):
    """F: nothing else in it tells the elements."""
    write_extxyz(tmp_path / "a.xyz", copy.deepcopy(crystals(60)))
    source = {"format": "ase", "train": "a.xyz", "targets": {"energy": "eV"}}
    values = config(tmp_path, **source, types=["Au", "Cu"])
    trained_on = prepare_store(values, 5.0, None, 0, tmp_path / "s").manifest
    (case,) = (row.values[0] for row in ROWS if row.id == "F1")
    text = case["files"]["a.dump"].replace("1 3 0", "1 2 0")
    (tmp_path / "a.dump").write_text(text)
    read = open_path(tmp_path / "a.dump", trained_on).records(print)
    assert [str(record.atoms.symbols) for record in read] == ["CuAu"]


def test_labels_are_converted_alike_in_preparation_and_comparison(tmp_path):
    """E: a key with different units in several data sets is left out of the comparison."""
    made = copy.deepcopy(crystals(60))
    for atoms in made:
        atoms.info["E"] = atoms.get_potential_energy() / units.Hartree
    ase.io.write(tmp_path / "a.xyz", made, format="extxyz")
    target = {"unit": "eV", "unit_in_file": "Ha", "key": "E"}
    section = {"format": "ase", "train": "a.xyz", "targets": {"energy": target}}
    store = prepare_store(config(tmp_path, **section), 5.0, None, 0, tmp_path / "s")
    stored, manifest = [float(graph.energy) for graph in store["trainset"]], store.manifest
    true = [atoms.get_potential_energy() for atoms in made]
    assert np.abs(np.subtract.outer(stored, true)).min(axis=1).max() < 1e-4
    keys = keys_of_label(manifest, "energy")
    assert keys == {"E": pytest.approx(units.Hartree), "energy": 1.0}
    described = manifest.targets["energy"]
    read = list(open_path(tmp_path / "a.xyz", manifest).records(print))
    for energy, record in zip(true, read, strict=True):
        (label,), wrong = label_of(record.found, "energy", described, keys)
        assert label == pytest.approx(energy) and not wrong
    other = {"targets": {"energy": target | {"unit_in_file": "eV"}}}
    several = manifest.model_copy(update={"provenance": {"sources": [section, other]}})
    _, wrong = label_of(read[0].found, "energy", described, keys_of_label(several, "energy"))
    assert "differs in its unit between data sets" in wrong


def judged(made, folder, **data):
    ase.io.write(folder / "a.xyz", made, format="extxyz")
    source = {"format": "ase", "train": "a.xyz", "targets": {"energy": "eV", "forces": "eV/Å"}}
    values = config(folder, **source).model_copy(update=data)
    found = prepare_store(values, 5.0, None, 0, folder / "s").manifest.provenance["suspicious"]
    return "; ".join(sentences(found)) if found else ""


@pytest.mark.parametrize("what", DOUBTFUL)
def test_what_is_hardly_right_is_named(what, tmp_path):
    change, says = DOUBTFUL[what]
    made = copy.deepcopy(crystals(60))
    change(made)
    try:
        said = judged(made, tmp_path)
    except InputError as error:
        said = str(error)
    assert re.search(says, said), said


@pytest.mark.parametrize(
    ("forces", "unit", "says"),
    [
        (1.0, "eV/Å", "^$"),
        (-1.0, "eV/Å", "by -(1|0.99)"),
        (1 / 25.7, "eV/Å", "by 2[56].* 39 pairs"),
        (1 / 25.7, "Ry/bohr", "^$"),
        (1.0, "", "^$"),
    ],
)
def test_forces_are_the_slope_of_the_energy_along_a_trajectory(forces, unit, says, tmp_path):
    """C, H: also where atoms leave the cell at one side and enter at the other."""
    atoms, random, made = bulk("Cu", cubic=True), np.random.default_rng(3), []
    for _ in range(40):
        atoms.rattle(0.03, rng=random)
        atoms.wrap()
        atoms.calc = EMT()
        labels = {name: atoms.calc.get_property(name, atoms) for name in ("energy", "forces")}
        labels["forces"] = forces * labels["forces"]
        made.append(atoms.copy())
        made[-1].calc = SinglePointCalculator(made[-1], **labels)
    ase.io.write(tmp_path / "a.xyz", made, format="extxyz")
    source = {"format": "ase", "train": "a.xyz", "targets": {"energy": "eV", "forces": unit}}
    store = prepare_store(config(tmp_path, **source), 5.0, None, 0, tmp_path / "s")
    said = "; ".join(store.manifest.provenance.get("suspicious", {}).get("all", []))
    assert re.search(says, said), said


@pytest.mark.parametrize("three_first", [True, False])
def test_the_level_does_not_depend_on_where_chunks_are_cut(three_first, tmp_path):
    symbols = ["H3" if (i < 300) == three_first else "H2" for i in range(600)]
    rows = [{"structure": one, "epsilon": np.eye(3).tolist()} for one in symbols]
    write(tmp_path / "a.json", rows, 1)
    for level in (None, "graph"):
        target = {"epsilon": {"unit": "", "level": level}}
        source = open_source(config(tmp_path, format="json", train="a.json", targets=target), 0)
        if level is None:
            with pytest.raises(InputError, match=r"write data\.source\.targets\.epsilon\.level"):
                [one for chunk in source.chunks() for one in source.read(chunk)]
        else:
            read = [one for chunk in source.chunks()[::-1] for one in source.read(chunk)]
            assert {one.targets["epsilon"].shape for one in read} == {(9,)}


@pytest.mark.parametrize(
    ("utf8", "names"),
    [("1", ["größe.xyz", "名前 2.xyz"]), ("0", ["an@1.xyz", "a b.xyz", "[1].xyz"])],
)
def test_any_environment_reads_any_name(utf8, names, tmp_path):
    text = "2\nenergy={0} Größe={0} species={0}\nH 0 0 0\nH 0 0 1\n"
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("".join(text.format(i / 7) for i in range(48)), "utf-8")
    code = (
        "import sys\nfrom pathlib import Path\nfrom hydragnn_flow.data.looking import look\n"
        "for name in Path(sys.argv[1]).iterdir():\n"
        "    print(ascii(sorted(one.key for one in look(name).labels)))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, tmp_path],
        env={"LC_ALL": "C", "PYTHONUTF8": utf8, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
    )
    assert said.stdout.split("\n")[:-1] == [ascii(["Größe", "energy", "species"])] * len(names)


def clean(kind):
    """Structures of one kind with EMT's labels, in which nothing is wrong."""
    made = []
    for i in range(100):
        random = np.random.default_rng([7, i])
        metals = ["Cu", "Au", "Ni", "Pd", "Ag", "Pt"]
        first = metals[i % 6]
        if kind == "molecules":
            atoms = molecule(["H2O", "CH4", "NH3", "C2H6", "CH3OH", "C6H6", "N2", "CO"][i % 8])
        elif kind == "slabs":
            atoms = fcc111(first, (2, 2, 3), vacuum=6.0)
            if i % 2:
                add_adsorbate(atoms, "O", random.uniform(1.2, 2.5), "fcc")
        elif kind == "clusters":
            atoms = Octahedron(first, 3 + i % 2)
        else:
            squeezed = random.uniform(0.75, 0.85) if kind == "high pressure" else 1.0
            atoms = bulk(first, cubic=True, a=4.0 * squeezed) * (2, 1, 1)
        if kind == "alloys":
            atoms.symbols = random.choice(metals, len(atoms))
        atoms.rattle(0.05 * (i % 3), rng=random)
        atoms.calc = EMT()
        labels = {name: atoms.calc.get_property(name, atoms) for name in ("energy", "forces")}
        atoms.calc = SinglePointCalculator(atoms, **labels)
        made.append(atoms)
    return made


@pytest.mark.parametrize("kind", ["molecules", "slabs", "clusters", "high pressure", "alloys"])
def test_nothing_is_named_in_clean_sets(kind, tmp_path):
    assert judged(clean(kind), tmp_path, suspicious="refuse") == ""
