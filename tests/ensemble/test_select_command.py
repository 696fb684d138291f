"""`hydragnn-flow select`: what it writes, and what it refuses."""

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ensemble_cases import untrained_ensemble

from hydragnn_flow import Ensemble, cli
from hydragnn_flow.ensemble import select_structures


@pytest.fixture(scope="module")
def run(alloy_store, tmp_path_factory):
    return untrained_ensemble(tmp_path_factory.mktemp("select") / "run", alloy_store)


@pytest.fixture
def folder(tmp_path):
    """Two files of several structures with labels, some that cannot be predicted; and notes."""
    folder = tmp_path / "new"
    folder.mkdir()
    for symbol in ("Cu", "Au"):
        structures = []
        for seed in range(3):
            atoms = bulk(symbol, cubic=True)
            atoms.rattle(0.1, seed=seed)
            atoms.info |= {"origin": f"{symbol} {seed}", "energy": 1.0}
            atoms.arrays["forces"] = np.ones((4, 3))
            structures.append(atoms)
        if symbol == "Cu":
            structures.insert(1, bulk("W"))
        ase.io.write(folder / f"{symbol}.extxyz", structures)
    (folder / "notes.txt").write_text("no structures\n")
    return folder


def flow(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["hydragnn-flow", "select", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, said.out + said.err


def test_the_selected_are_written_in_order_with_where_they_come_from(
    run, folder, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out.extxyz"
    code, said = flow(monkeypatch, capsys, run, folder, "-n", 6, "-o", out)
    assert code == 0, said
    assert "notes.txt" in said and "out.extxyz: 6 of 6 structures" in said
    files = ["Au.extxyz"] * 3 + ["Cu.extxyz"] * 3
    frames = [0, 1, 2, 0, 2, 3]
    structures: list[Atoms] = [
        ase.io.read(folder / name, frame) for name, frame in zip(files, frames, strict=True)
    ]
    expected = select_structures(Ensemble.load(run), structures, 6)
    written = ase.io.read(out, ":")
    assert [atoms.info["file"] for atoms in written] == [files[i] for i in expected.indices]
    assert [atoms.info["frame"] for atoms in written] == [frames[i] for i in expected.indices]
    for atoms, i in zip(written, expected.indices, strict=True):
        assert atoms.info["origin"] == structures[i].info["origin"]
        assert atoms.info["uncertainty"] == pytest.approx(expected.uncertainties[i])
        np.testing.assert_allclose(atoms.positions, structures[i].positions, atol=1e-7)
        assert atoms.calc is None  # the label is to be computed
        assert "energy" not in atoms.info and "forces" not in atoms.arrays


def test_structures_of_a_store_are_those_it_was_made_of(
    run, alloy_store, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out.extxyz"
    code, said = flow(monkeypatch, capsys, run, alloy_store.path, "-n", 5, "-o", out)
    assert code == 0 and "out.extxyz: 5 of 24 structures" in said, said
    ensemble = Ensemble.load(run)
    whole = ensemble.predict(alloy_store).graphs
    for atoms in ase.io.read(out, ":"):
        row = whole.query(
            f"split == {atoms.info['split']!r} and graph_id == {atoms.info['graph_id']}"
        )
        again = ensemble.predict(atoms).graphs
        np.testing.assert_allclose(row["energy_mean"], again["energy_mean"], rtol=1e-4)
        assert "energy" not in again, "the label is to be computed"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{folder}", "-n", 7], "new: 7 of 6 structures cannot be selected"),
        (["{folder}", "-n", 1, "-o", "out.csv"], "out.csv: must end in .extxyz"),
        (["{folder}/none", "-n", 1], "none: does not exist"),
        (["{folder}/notes.txt", "-n", 1], "notes.txt"),
        (["{folder}/Cu.extxyz", "-n", 1, "-o", "{folder}/Cu.extxyz"], "holds the structures"),
    ],
)
def test_what_it_refuses(run, folder, alloy_store, monkeypatch, capsys, words, says):
    monkeypatch.chdir(folder.parent)
    filled = [str(word).format(folder=folder, store=alloy_store.path) for word in words]
    code, said = flow(monkeypatch, capsys, run, *filled)
    assert code == 2 and says in said.replace("\n", " "), said
    assert not (folder.parent / "selected.extxyz").exists()
