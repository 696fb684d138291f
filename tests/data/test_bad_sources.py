"""Refusals of sources: one sentence that names file, structure and what is wrong with it."""

import json
import os
import re
import sqlite3
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest
import source_cases as cases
from hypothesis import given, settings
from hypothesis import strategies as st
from source_cases import UNITS, config, frames, read_all, read_train

from hydragnn_flow.data.sources.ase_files import AseFiles, AseSource
from hydragnn_flow.data.sources.opening import fingerprint, open_source
from hydragnn_flow.errors import InputError


def refused(folder, said, **source):
    with pytest.raises(InputError, match=said) as caught:
        read_train(folder, **source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["nowhere.xyz", "*.xyz", "empty"])
def test_no_files(tmp_path, name):
    (tmp_path / "empty").mkdir()
    values = config(tmp_path, format="ase", train=name, targets=UNITS)
    said = rf"{re.escape(name)} \(data\.source\.train\) matches no files .* --data"
    for call in (open_source(values, seed=0).chunks, lambda: fingerprint(values)):
        with pytest.raises(InputError, match=said):
            call()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read every file")
def test_a_file_nobody_may_read(tmp_path):
    values, _ = cases.write_case("extxyz", tmp_path)
    (tmp_path / "part-9.xyz").chmod(0)
    with pytest.raises(InputError, match=r"part-9\.xyz \(data\.source\.train\) cannot be read"):
        open_source(values, seed=0).chunks()


GOOD = '1\nenergy=-1.5 Properties=species:S:1:pos:R:3:forces:R:3 pbc="F F F"\nH 0 0 0 0.5 0 0\n'


def two_and(old, new):
    """Two good structures, and a third that is spoilt."""
    assert old in GOOD
    return GOOD * 2 + GOOD.replace(old, new)


SECTIONS = {
    "xyz": {"format": "ase", "targets": UNITS},
    "txt": {"format": "ase"},
    "csv": {"format": "csv", "structure": "cif"},
    "json": {"format": "json"},
}


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        ("xyz", "", "holds no structures"),
        ("xyz", "\n\n", "holds no structures"),
        ("xyz", two_and("H 0 0 0", "1 0 0 0"), "structure 2 .*'1' is no chemical element"),
        ("xyz", two_and("-1.5", "-1,5"), ".*energy=-1,5 has a decimal comma; write a point"),
        ("xyz", two_and("-1.5", '"-1,5"'), "structure 2 .*energy=-1,5 has a decimal comma"),
        ("xyz", two_and("-1.5", "[1,5]"), "structure 2 has two whole numbers in its .*'energy'"),
        ("xyz", two_and("H 0 0 0", "H 0 0,5 0"), "structure 2 .*'0,5', which has a decimal comma"),
        ("xyz", two_and("-1.5", "-1e300"), "structure 2 has 1e.300 in its label 'energy'.*square"),
        ("xyz", two_and("1\n", "2\n"), "structure 2 cannot be read: the file ends before its 2"),
        ("xyz", two_and("1\n", "0\n"), "structure 3 begins with 'H 0 0 0 0.5 0 0'"),
        ("xyz", GOOD * 2 + "\n" + GOOD, "structure 2 comes after an empty line"),
        ("xyz", two_and("H 0 0 0", "Qq 0 0 0"), "structure 2 cannot be read"),
        ("txt", "About these data\n", "is of no format ASE knows"),
        ("csv", "cif,energy\n", "holds no structures"),
        ("csv", 'cif,energy\n"C,1\n', r"cannot be read as a table \(unexpected end"),
        ("csv", "cif,energy,energy\nC,1,1\n", "has two columns 'energy'"),
        ("json", "[]", "holds no structures"),
        ("json", "{", "is not JSON"),
        ("json", '{"a": []}', "is neither a list of records nor a table"),
        ("json", '{"columns": ["a"], "data": [[1], [1, 2]]}', "structure 1 has not got one value"),
        ("json", '{"columns": ["a"], "data": {"0": 1}}', "columns and data .* must be lists"),
        ("json", "[3]", "structure 0 cannot be read .*mapping"),
        ("json", "[" * 100_000, "is not JSON"),
    ],
)
def test_bad_files(tmp_path, kind, content, said):
    (tmp_path / f"a.{kind}").write_text(content)
    section = {"targets": {"energy": "eV"}, **SECTIONS[kind]}
    refused(tmp_path, rf"a\.{kind}:? ?{said}", train=f"a.{kind}", **section)


DUMP = """ITEM: TIMESTEP
0
ITEM: NUMBER OF ATOMS
2
ITEM: BOX BOUNDS pp pp pp
0 5
0 5
0 5
ITEM: ATOMS id {} x y z
1 {} 0 0 0
2 {} 1 1 1
"""
LMP = "\n\n2 atoms\n0 5 xlo xhi\n0 5 ylo yhi\n0 5 zlo zhi\n{}\nAtoms\n\n1 1 0 0 0\n2 2 1 1 1\n"
ELEMENTS: list[tuple[str, list[str] | None, str]] = [
    (DUMP.format("type", 1, 2), None, ""),
    (DUMP.format("type", 1, 2), ["Fe"], ""),
    (DUMP.format("type", 1, 2), ["Fe", "D"], "FeH"),
    (DUMP.format("type element", "1 He", "1 H"), None, "HeH"),
    (DUMP.format("type mass", "1 55.8", "1 16"), None, "FeO"),
    (LMP.format(""), None, ""),
    (LMP.format(""), ["Fe", "O"], "FeO"),
    (LMP.format("Atom Type Labels\n\n1 c3\n2 hc\n"), None, ""),
    (LMP.format("Masses\n\n1 55.85\n2 2.014\n"), None, "FeH"),
    (LMP.format("Masses\n\n1 15.035\n2 14.027\n"), None, ""),  # CH3 and CH2
]


@pytest.mark.parametrize(("text", "types", "formula"), ELEMENTS, ids=range(len(ELEMENTS)))
def test_types_of_lammps_are_no_elements(tmp_path, text, types, formula):
    (tmp_path / "a.lammps-data").write_text(text)
    if text.startswith("ITEM"):
        (tmp_path / "a.lammps-data").rename(tmp_path / "a.dump")
    (file,) = tmp_path.iterdir()
    read = AseFiles(AseSource(format="ase", train=file.name, targets=UNITS, types=types), tmp_path)
    if formula:
        (found,) = read.structures(file, 0, 1)
        assert str(found.atoms.symbols) == formula
    else:
        with pytest.raises(InputError, match=r"of type \d, is not known; .*data\.source\.types"):
            list(read.structures(file, 0, 1))


@pytest.mark.parametrize("name", cases.FORMATS)
def test_a_key_that_is_not_there_is_said_before_anything_is_counted(tmp_path, name):
    values, _ = cases.write_case(name, tmp_path)
    section = values.source.model_dump()
    for file in tmp_path.glob("part-*"):
        file.write_bytes(b"damaged")
    for what, changes, near in (
        ("label 'enrgy'", {"targets": {"enrgy": "eV"}}, "'energy'"),
        ("group 'grop'", {"group": "grop"}, "'group'"),
        ("structure 'structur'", {"structure": "structur"}, "'structure'|it has: "),
    ):
        if changes.keys() <= section.keys():
            spoilt = values.model_validate(values.model_dump() | {"source": section | changes})
            with pytest.raises(
                InputError,
                match=rf"test\..*: structure 0( \(id \d\))? has no {what} \(.*({near})"
                r"|test\.csv has no column 'structur' \(it has: cif, .*data\.source\.structure",
            ) as caught:
                open_source(spoilt, seed=0).chunks()
            setting = {"targets": "targets.enrgy.key"}.get(*changes, *changes)
            assert f"correct data.source.{setting}" in str(caught.value)


@pytest.mark.parametrize("name", cases.FORMATS)
def test_a_file_that_became_shorter(tmp_path, name):
    values, structures = cases.write_case(name, tmp_path)
    source = open_source(values, seed=0)
    last = source.chunks()[-1]
    Path(last.file).unlink()
    cases.FORMATS[name][2](Path(last.file), structures["test"][:3])
    with pytest.raises(InputError, match=r"test\..* ends at structure 3, though it had 4"):
        list(open_source(values, seed=0).read(last))


@pytest.mark.parametrize("name", cases.FORMATS)
def test_a_file_of_nothing_or_of_something_else(tmp_path, name):
    values, _ = cases.write_case(name, tmp_path)
    file = next(tmp_path.glob("part-9.*"))
    for content in (b"", b"\0\1\2" * 100, b"[1, 2", b'{"a": 1}', b"\x1f\x8b\x08nonsense", b"x,y\n"):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"part-9\.") as caught:
            open_source(values, seed=0).chunks()
        assert "\n" not in str(caught.value)
        assert file.read_bytes() == content


def test_another_database_is_left_as_it_is(tmp_path):
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("CREATE TABLE precious (x)")
    connection.close()
    before = (tmp_path / "a.db").read_bytes()
    refused(tmp_path, r"a\.db is .* no ase\.db", format="ase", train="a.db", targets=UNITS)
    assert (tmp_path / "a.db").read_bytes() == before


def pick(row, column, value):
    return [*row[:column], value, *row[column + 1 :]]


@pytest.mark.parametrize("mark", [",", ";"])
@pytest.mark.parametrize(("header", "first"), [("", "first row"), ("name{}gap\n", "header")])
def test_a_bad_row_is_named_by_its_line(tmp_path, header, first, mark):
    for number, atoms in enumerate(frames(4)):
        (tmp_path / f"{number}.cif").write_text(cases.cif(atoms))
    rows = [f"{number}.cif{mark}0.5\n" for number in range(4)]
    (tmp_path / "a.csv").write_text(header.format(mark) + "".join(rows[:3]) + "3.cif\n")
    line = 5 if header else 4
    said = rf"structure 3 \(line {line}\) has 1 cell where the {first} has 2; correct the row"
    section = {"format": "csv", "structure": "name" if header else "id"}
    refused(tmp_path, said, train="a.csv", targets={"gap" if header else "target": "eV"}, **section)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda row: [*row, 1], r"\(line \d+\) has 4 cells where the header has 3"),
        (lambda row: row[1:], r"\(line \d+\) has 2 cells where the header has 3"),
        (lambda row: pick(row, 1, "low"), r"has a label 'energy' .* numbers \('low'\)"),
        (lambda row: pick(row, 0, ""), "has an empty structure 'cif'"),
        (lambda row: pick(row, 0, "nowhere.cif"), r"names .*nowhere\.cif, which is not .* row$"),
        (lambda row: pick(row, 0, "data_x\nhello\n"), "cannot be read"),
        (lambda row: pick(row, 0, row[0] * 2), r"cannot be read \(2 structures where"),
        (
            lambda row: pick(row, 0, row[0].replace("  1.0000\n", "  0.5\n")),
            r"site 0 holds \w+ 0\.",
        ),
    ],
)
def test_bad_csv(tmp_path, spoil, said):
    rows = [[cases.cif(a), a.calc.results["energy"], "g"] for a in frames(3)]
    assert spoil(rows[2]) != rows[2]
    cases.write_table(tmp_path / "a.csv", ["cif", "energy", "group"], [*rows[:2], spoil(rows[2])])
    source = {**SECTIONS["csv"], "group": "group", "targets": {"energy": "eV"}}
    refused(tmp_path, rf"a\.csv:? structure 2 .*{said}", train="a.csv", **source)


SITE = "structure/sites/0"
HALF_CU = {"element": "Cu", "occu": 0.5}


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("outputs/energy", [], "has a label 'energy' of shape"),
        ("outputs/forces", [[1.0, 2.0, 3.0]], r"has a label 'forces' of shape \[1, 3\], .*\.level"),
        ("structure", None, "has an empty structure 'structure'"),
        ("structure/lattice", {}, r"cannot be read \(KeyError\('matrix'\)\)"),
        (f"{SITE}/species/0/occu", 0.5, r"cannot be read \(site 0 holds \w+ 0\.5: partial occup"),
        (f"{SITE}/species", [HALF_CU] * 2, "site 0 holds Cu 0.5, Cu 0.5: part"),
        (f"{SITE}/species/0/element", "Qq", "cannot be read .*Qq"),
    ],
)
def test_bad_json_records(tmp_path, place, value, said):
    entries = [cases.record(atoms) for atoms in frames(3)]
    *parents, last = [int(key) if key.isdigit() else key for key in place.split("/")]
    reduce(getitem, parents, entries[2])[last] = value
    (tmp_path / "a.json").write_text(json.dumps(entries))
    said = rf"a\.json: structure 2 .*{said}"
    refused(tmp_path, said, format="json", train="a.json", targets=UNITS)


@pytest.mark.parametrize("name", ["extxyz", "csv of CIF", "json", "json table"])
def test_a_file_cut_anywhere_is_refused_or_lacks_structures_at_its_end(tmp_path, name):
    values, structures = cases.write_case(name, tmp_path)
    file = next(tmp_path.glob("test.*"))
    content = file.read_bytes()
    energies = [atoms.calc.results["energy"] for atoms in structures["test"]]

    @settings(max_examples=25)
    @given(length=st.integers(0, len(content) - 1))
    def check(length):
        file.write_bytes(content[:length])
        try:
            found = cases.read_all(open_source(values, seed=0))["test"]
        except InputError as error:
            assert file.name in str(error)
            return
        assert 0 < len(found) <= 4
        # the last number of a text may have lost digits, which nothing shows
        for structure, energy in zip(found[:-1], energies, strict=False):
            assert structure.targets["energy"] == pytest.approx([energy], abs=1e-7)

    check()


LABELS = [
    ("energy", [0, 597], "eV", "but energy is one number of the structure"),
    ("energy", [[1.0], [2.0], [3.0]], "eV", "but energy is one number of the structure"),
    ("forces", [1.0, 2.0, 3.0, 4.0], "eV/Å", "but forces is three numbers of each atom"),
    ("forces", [[1.0]] * 3, "eV/Å", "but forces is three numbers of each atom"),
    ("stress", [[1.0, 2.0, 3.0]] * 2, "GPa", r"stress.* \(\[\[1.0|fit its number of atoms"),
    ("stress", [1.0], "GPa", "but stress is six or nine numbers"),
    ("stress", [[1.0, 0.0, 0.0]] * 3, {"unit": "eV/Å³", "key": "virials"}, "gives a stress only"),
    ("dielectric", [[1.0, 0.0, 0.0]] * 3, "", r"its label 'dielectric' has the shape \[3, 3\]"),
    ("spins", [1.0, 2.0, 3.0], "", r"write data\.source\.targets\.spins\.level: graph, or node"),
]


@pytest.mark.parametrize(("name", "value", "target", "said"), LABELS, ids=range(len(LABELS)))
def test_a_label_that_is_not_what_its_name_says_or_of_no_known_level(
    tmp_path, name, value, target, said
):
    entries = [cases.record(atoms) for atoms in (frames(3)[2], frames(3)[2])]
    for entry in entries:
        key = target["key"] if isinstance(target, dict) else name
        entry["outputs"][key] = value
        entry["structure"]["lattice"]["pbc"] = [True, True, False]
    (tmp_path / "a.json").write_text(json.dumps(entries))
    said = rf"a\.json: structure 0.*{said}"
    refused(tmp_path, said, format="json", train="a.json", targets={name: target})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("-1.5", "nan", "structure 2 has the label 'energy' = nan"),
        ("energy=-1.5 ", "", "structure 2 has no label 'energy' (it has: forces"),
        ("-1.5", "n/a", "structure 2 has the label 'energy' = 'n/a'"),
        ("-1.5", "-1.5 config_weight=0", "structure 2 has config_weight = 0"),
        ("-1.5", "-1.5 config_forces_weight=0.0", "structure 2 has config_forces_weight = 0"),
    ],
)
def test_structures_tell_which_label_they_lack_unless_all_lack_it(tmp_path, old, new, said):
    (tmp_path / "a.xyz").write_text(two_and(old, new))
    section = {"format": "ase", "train": "a.xyz", "targets": UNITS}
    source = open_source(config(tmp_path, **section), seed=0)
    lacking = [record.lacking for record in read_all(source)["train"] if record.lacking]
    (one,) = lacking + source.unlabelled
    assert said in one
    (tmp_path / "a.xyz").write_text(GOOD.replace(old, new))
    refused(tmp_path, re.escape(said.replace("2", "0")), **section)
