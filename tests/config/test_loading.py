"""What is right is read as written: shipped files, file names, numbers, rungs."""

from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.config import DataConfig, Parameter, SearchConfig, load_config
from hydragnn_flow.errors import InputError

SHIPPED = sorted((Path(__file__).resolve().parents[2] / "configs").rglob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_configuration_loads(path, tmp_path):
    assert "path" not in yaml.safe_load(path.read_text(encoding="utf-8"))["data"]  # --data gives it
    config = load_config(path, data=tmp_path)
    assert config.name == path.stem
    assert config.data.path == tmp_path.resolve()
    assert config.rungs[-1] == config.network_with({}).Training.num_epoch
    assert path.parent.name != "configs" or config.remarks() == []


def test_shipped_files_are_found_where_there_is_no_clone(
    quickstart, write, configs, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    named = load_config(write({**quickstart, "network": "configs/potential.json"}))
    assert named.network == load_config(configs / "quickstart.yaml").network
    assert load_config("configs/quickstart.yaml").name == "quickstart"
    for other in ("some/configs/quickstart.yaml", "configs/quick*.yaml", "../configs/acac.yaml"):
        with pytest.raises(InputError, match="cannot be read"):
            load_config(other)
    Path("configs").mkdir()
    Path("configs/quickstart.yaml").symlink_to("moved.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        load_config("configs/quickstart.yaml")


def test_file_names_are_relative_to_the_file_that_has_them(
    quickstart, change, write, tmp_path, monkeypatch
):
    monkeypatch.chdir("/")
    path = write(change(quickstart, ("data", "path"), "../silicon"))
    assert load_config(path).data.path == tmp_path.resolve().parent / "silicon"
    assert load_config(path, data=tmp_path).data.path == tmp_path.resolve()


def test_a_network_may_stand_in_place_or_in_a_file(quickstart, write, configs):
    named = load_config(configs / "quickstart.yaml")
    inside = load_config(write(quickstart))
    bare = load_config(write({**quickstart, "network": quickstart["network"]["NeuralNetwork"]}))
    assert named.network == inside.network == bare.network


FRACTIONS = [
    # files of the source besides train, the split as written, its fractions for val and test
    ((), {"test": 0.2}, (0.1, 0.2)),
    ((), {"val": 0.3, "test": 0.2, "by": "composition"}, (0.3, 0.2)),
    (("test",), {}, (0.1, None)),
    (("test",), None, (0.1, None)),
    (("test",), {"val": 0.3}, (0.3, None)),
    (("val",), {"test": 0.2, "by": "group"}, (None, 0.2)),
    (("val", "test"), {}, (None, None)),
]


@pytest.mark.parametrize(("files", "split", "fractions"), FRACTIONS)
def test_fractions_are_of_the_splits_without_files(files, split, fractions):
    source = {"format": "ase", "train": "a", "targets": {"energy": "eV"}, "group": "g"}
    source |= {role: role for role in files}
    values = {"source": source} if split is None else {"source": source, "split": split}
    config = DataConfig.model_validate(values)
    assert (config.split.val, config.split.test) == fractions
    assert DataConfig.model_validate_json(config.model_dump_json()) == config


def test_exponents_without_a_point_are_numbers(quickstart, change, write):
    optimizer = ("network", "NeuralNetwork", "Training", "Optimizer")
    values = change(quickstart, (*optimizer, "learning_rate"), "RATE")
    values = change(values, ("search", "space", "Training.batch_size"), {"choices": ["TWENTY"]})
    path = write(values)
    path.write_text(path.read_text().replace("RATE", "2e-3").replace("TWENTY", "2E+1"))
    config = load_config(path)
    assert config.network["Training"]["Optimizer"]["learning_rate"] == 0.002
    assert config.search.space["Training.batch_size"].choices == (20.0,)


@given(st.integers(1, 10_000), st.integers(1, 200), st.integers(2, 10))
def test_rungs_grow_to_the_last_epoch(num_epoch, min_epochs, reduction_factor):
    known = {"min_epochs": min_epochs, "reduction_factor": reduction_factor}
    space = {"Training.batch_size": Parameter(choices=(8,))}
    search = SearchConfig(trials=1, space=space, **known)
    rungs = search.rung_epochs(num_epoch)
    assert rungs[-1] == num_epoch
    assert all(earlier < later for earlier, later in pairwise(rungs))
    assert rungs[0] == min(min_epochs, num_epoch)
    # all but the last are a factor apart, and the last is no more than that
    assert all(b == a * reduction_factor for a, b in pairwise(rungs[:-1]))
    assert len(rungs) == 1 or rungs[-1] <= rungs[-2] * reduction_factor
    alone = search.model_copy(update={"rungs": "none"})
    assert alone.rung_epochs(num_epoch) == (num_epoch,)


@pytest.mark.parametrize(
    ("num_epoch", "rungs"),
    [(1, (1,)), (2, (2,)), (5, (2, 5)), (18, (6, 18)), (100, (34, 100))],
)
def test_one_rung_comes_before_the_end_by_default(num_epoch, rungs):
    search = SearchConfig(trials=1, space={"Training.batch_size": Parameter(choices=(8,))})
    assert search.rung_epochs(num_epoch) == rungs
