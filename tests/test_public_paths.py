"""Every public function that takes a path takes text, and whatever else names one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from ase.io import write
from campaign_cases import CONFIG
from ensemble_cases import untrained_ensemble
from segment_cases import NETWORK
from source_cases import frames

import hydragnn_flow
from hydragnn_flow import Ensemble, GraphStore, build_model, load_config, load_site, trials_frame
from hydragnn_flow.campaign import predict_on_site, profile_on_site, scaling_study
from hydragnn_flow.config import load_network, resolve_config
from hydragnn_flow.config.network import read_json, write_network
from hydragnn_flow.data import check_store, prepare_store, write_store
from hydragnn_flow.ensemble import member_folder, recalibrate, write_predictions
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import DriverFile, sole_driver
from hydragnn_flow.search import JOURNAL, Search, read_trials


@dataclass(frozen=True)
class Named:
    """What names a path, and is none."""

    path: str

    def __fspath__(self):
        return self.path


@pytest.fixture(scope="module")
def run(tmp_path_factory, alloy_store):
    """A directory with an ensemble, a study, files of a configuration and structures."""
    run = untrained_ensemble(tmp_path_factory.mktemp("paths") / "run", alloy_store)
    (run / "run.yaml").write_text(yaml.safe_dump({**CONFIG, "network": NETWORK}))
    write_network(run, NETWORK)
    write(run / "some.xyz", frames(2))
    config = load_config(run / "run.yaml")
    search = Search(run / JOURNAL, config.search, 6, 0)
    search.ask()
    search.commit()
    return run


@pytest.mark.parametrize("kind", [str, Named])
def test_functions_take_what_names_a_path(kind, run, alloy_store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def named(*parts):
        return kind(str(run.joinpath(*parts)))

    store = kind(str(alloy_store.path))

    assert len(read_trials(named())) == len(trials_frame(named())) == 1
    config = load_config(named("run.yaml"), data=named())
    values = yaml.safe_load((run / "run.yaml").read_text())
    assert resolve_config(values, named("run.yaml"), data=named()) == config
    assert read_json(named("config.json"))["NeuralNetwork"] == NETWORK
    assert load_network(named("config.json")) == load_network(NETWORK)
    write_network(kind("network"), NETWORK)
    assert (tmp_path / "network" / "config.json").exists()
    assert load_site(kind("local")).name == "local"
    hydragnn_flow.check_paths(config, kind("other"))

    with GraphStore.open(store, "random", scratch=kind("scratch")) as opened:
        assert isinstance(opened.path, Path)
        graphs = list(opened["trainset"])
        targets, cutoff = opened.manifest.targets, opened.manifest.cutoff
        assert len(GraphStore(store, opened.manifest, scratch=kind("scratch"))["trainset"])
    write_store(kind("new.gs"), {"trainset": graphs}, targets=targets, cutoff=cutoff)
    check_store(kind("new.gs"))
    prepare_store(config.data, 4.0, None, 0, kind("prepared.gs")).close()
    assert build_model(named("config.json"), alloy_store) is not None

    ensemble = Ensemble.load(named())
    write_predictions(ensemble, named("some.xyz"), [kind("a.csv")])
    assert (tmp_path / "a.csv").exists()
    assert recalibrate(named(), store, split="testset") == {"energy": 5, "forces": 5}
    assert member_folder(named("ensemble"), 1) == run / "ensemble" / "members" / "1"

    with sole_driver(kind(str(tmp_path))) as token:
        assert DriverFile(kind(str(tmp_path))).token() == token
    Search(kind("study.journal"), config.search, 6, 0)
    for call in (profile_on_site, scaling_study):
        with pytest.raises(InputError, match="not prepared yet"):
            call(named(), load_site("local"))
    with pytest.raises(InputError, match="nowhere: does not exist"):
        predict_on_site(ensemble, named("nowhere"), [kind("a.csv")], load_site("local"))
