"""`hydragnn-flow init` writes a configuration that `hydragnn-flow run` takes as it is."""

import pytest
from ase.build import bulk
from source_cases import FORMATS, WITHOUT_FORCES, cif, frames, write_extxyz, write_table

from hydragnn_flow import GraphStore, load_config
from hydragnn_flow.data import prepare_store
from hydragnn_flow.data.reading.inspection import truncated
from hydragnn_flow.data.sources.opening import open_source


@pytest.fixture
def here(console, monkeypatch):
    """The working directory, with an empty one for data."""
    (console.folder / "my data").mkdir()
    monkeypatch.chdir(console.folder)
    return console.folder


@pytest.mark.parametrize("name", ["extxyz", "csv of paths", "json"])
def test_what_it_writes_is_a_configuration(name, console, here):
    _, extension, write_file = FORMATS[name]
    write_file(here / "my data" / f"all.{extension}", frames(60))
    said = console.says("init", "my data")
    config = load_config(here / "my-data.yaml")
    chunks = open_source(config.data, 0).chunks()
    assert sum(chunk.stop - chunk.start for chunk in chunks) == 60
    potential = config.network_with({}).Architecture.enable_interatomic_potential
    assert potential == (name not in WITHOUT_FORCES)
    for words in ("structures: 60 for train", "energy [eV]", "wrote       my-data.yaml"):
        assert words in said
    assert "hydragnn-flow run my-data.yaml" in said


def test_its_data_are_prepared_and_its_unknown_units_marked(console, here):
    structures = frames(50)
    for i, atoms in enumerate(structures):
        atoms.calc = None
        atoms.info |= {"gap": i * i / 100.0, "other [GPa]": 1.0 / (1 + i)}
    write_extxyz(here / "my data" / "all.xyz", structures)
    said = console.says("init", "my data")
    assert "gap [unit unknown]" in said and "not learnt  other" in said, said
    text = (here / "my-data.yaml").read_text()
    assert "gap: {unit: ''}" in text and "# other: {key: 'other [GPa]', unit: GPa}" in text
    config = load_config(here / "my-data.yaml")
    network = config.network_with({}).Architecture
    store = prepare_store(config.data, 5.0, network.max_neighbours, config.seed, here / "some.gs")
    assert store.manifest.splits["trainset"].graphs == 50 - 2 * 12


@pytest.mark.parametrize("key", ["energy", "energy [eV]", "gap"])
def test_a_unit_that_only_the_name_suggests_is_said(key, console, here):
    """A table without units may hold energies per atom."""
    structures = frames(50)
    rows = [[cif(atoms), atoms.get_potential_energy()] for atoms in structures]
    write_table(here / "my data" / "all.csv", ["cif", key], rows)
    said = console.says("init", "my data")
    text = (here / "my-data.yaml").read_text()
    words = "eV assumed, a total; write eV/atom if it is per atom"
    assert (words in said) == (f"# {words}" in text) == (key == "energy")
    (here / "my-data.yaml").write_text(text.replace("gap: {unit: ''}", "gap: {unit: eV}"))
    told = "energy is taken as a total, as its unit is eV"
    assert (told in console.says("prepare", "my-data.yaml")) == (key != "gap")
    text = text.replace("unit: eV", "extensive: true, unit: eV")
    (here / "my-data.yaml").write_text(text.replace("gap: {unit: ''}", "gap: {unit: eV}"))
    assert told not in console.says("prepare", "my-data.yaml", "--run-dir", "other")


def test_its_file_leaves_out_no_neighbours(console, here):
    """However many a crystal has within 5 Å, `prepare` has nothing to warn of."""
    structures = []
    for i in range(50):
        atoms = bulk("Cu", cubic=True, a=3.3)
        atoms.rattle(0.1, seed=i)
        atoms.info["gap"] = i * i / 100.0
        structures.append(atoms)
    write_extxyz(here / "my data" / "all.xyz", structures)
    console.says("init", "my data")
    assert "leaves out" not in console.says("prepare", "my-data.yaml")
    store = GraphStore.open(here / "runs" / "my-data" / "store.gs")
    assert truncated(store) == [] and store.manifest.truncation is not None


def test_what_it_refuses(console, here):
    data = here / "my data"
    write_extxyz(data / "all.xyz", frames(50))
    for taken in ("my-data.yaml", "my-data.json"):
        (here / taken).write_text("mine\n")
        console.refuses("init", "my data", names=[f"{taken}: exists already"])
        (here / taken).unlink()
    write_extxyz(data / "all.xyz", frames(20))
    console.refuses("init", data, names=["holds 20", "fewer than 40", "add some"])
    (data / "all.xyz").unlink()
    console.refuses("init", data, names=["data", "holds no data"])
    write_table(data / "labels.csv", ["name", "gap"], [["a", 1.0]])
    console.refuses("init", data, names=["labels.csv", "no column names"])
    console.refuses("init", data / "labels.csv", names=["labels.csv", "no column names"])
    console.refuses("init", "nowhere", names=["nowhere", "does not exist"])
