"""`hydragnn-flow init` writes a configuration that `hydragnn-flow run` takes as it is."""

import pytest
from ase.build import bulk
from source_cases import FORMATS, WITHOUT_FORCES, frames, write_extxyz, write_table

from hydragnn_flow import GraphStore, cli, load_config
from hydragnn_flow.data import prepare_store
from hydragnn_flow.data.reading.inspection import truncated
from hydragnn_flow.data.sources import open_source


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working directory, with an empty one for data."""
    here = tmp_path / "here"
    (here / "my data").mkdir(parents=True)
    monkeypatch.chdir(here)
    return here


def init(monkeypatch, capsys, directory):
    monkeypatch.setattr("sys.argv", ["hydragnn-flow", "init", directory])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, said.out + said.err


@pytest.mark.parametrize("name", ["extxyz", "csv of paths", "json"])
def test_what_it_writes_is_a_configuration(name, here, monkeypatch, capsys):
    _, extension, write_file = FORMATS[name]
    write_file(here / "my data" / f"all.{extension}", frames(60))
    code, said = init(monkeypatch, capsys, "my data")
    assert code == 0, said
    config = load_config(here / "my-data.yaml")
    chunks = open_source(config.data, 0).chunks()
    assert sum(chunk.stop - chunk.start for chunk in chunks) == 60
    potential = config.network_with({}).Architecture.enable_interatomic_potential
    assert potential == (name not in WITHOUT_FORCES)
    for words in ("structures: 60 for train", "energy [eV]", "wrote       my-data.yaml"):
        assert words in said
    assert "hydragnn-flow run my-data.yaml" in said


def test_its_data_are_prepared_and_its_unknown_units_marked(here, monkeypatch, capsys):
    structures = frames(50)
    for i, atoms in enumerate(structures):
        atoms.calc = None
        atoms.info |= {"gap": i * i / 100.0, "other [GPa]": 1.0 / (1 + i)}
    write_extxyz(here / "my data" / "all.xyz", structures)
    code, said = init(monkeypatch, capsys, "my data")
    assert code == 0 and "gap [unit unknown]" in said and "not learnt  other" in said, said
    text = (here / "my-data.yaml").read_text()
    assert "gap: {unit: ''}" in text and "# other: {key: 'other [GPa]', unit: GPa}" in text
    config = load_config(here / "my-data.yaml")
    network = config.network_with({}).Architecture
    store = prepare_store(config.data, 5.0, network.max_neighbours, config.seed, here / "some.gs")
    assert store.manifest.splits["trainset"].graphs == 50 - 2 * 12


@pytest.mark.parametrize("size", [3.3, 4.1])
def test_its_file_leaves_out_no_neighbours(size, here, monkeypatch, capsys):
    """However many a crystal has within 5 Å, `prepare` has nothing to warn of."""
    structures = []
    for i in range(50):
        atoms = bulk("Cu", cubic=True, a=size)
        atoms.rattle(0.1, seed=i)
        atoms.info["gap"] = i * i / 100.0
        structures.append(atoms)
    write_extxyz(here / "my data" / "all.xyz", structures)
    code, said = init(monkeypatch, capsys, "my data")
    assert code == 0, said
    monkeypatch.setattr("sys.argv", ["hydragnn-flow", "prepare", "my-data.yaml"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    store = GraphStore.open(here / "runs" / "my-data" / "store.gs")
    assert truncated(store) == [] and store.manifest.truncation is not None
    assert "leaves out" not in capsys.readouterr().out


def test_nothing_is_overwritten(here, monkeypatch, capsys):
    write_extxyz(here / "my data" / "all.xyz", frames(50))
    for taken in ("my-data.yaml", "my-data.json"):
        (here / taken).write_text("mine\n")
        code, said = init(monkeypatch, capsys, "my data")
        assert code == 2 and f"{taken}: exists already and is not overwritten" in said, said
        assert {file.name for file in here.iterdir()} == {"my data", taken}
        (here / taken).unlink()


def test_what_it_refuses(console, monkeypatch):
    data = console.folder / "data"
    console.refuses(monkeypatch, "init", data, names=["data", "does not exist"])
    data.write_text("")
    console.refuses(monkeypatch, "init", data, names=["data", "is a file; give the directory"])
    data.unlink()
    data.mkdir()
    console.refuses(monkeypatch, "init", data, names=["data", "holds no data"])
    write_table(data / "labels.csv", ["name", "gap"], [["a", 1.0]])
    console.refuses(monkeypatch, "init", data, names=["labels.csv", "no column names"])
    (data / "labels.csv").unlink()
    write_extxyz(data / "few.xyz", frames(20))
    console.refuses(monkeypatch, "init", data, names=["holds 20", "fewer than 40", "add some"])
