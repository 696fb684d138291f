"""The weights that all trials begin with, from where they were trained to a segment."""

import copy
import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from campaign_cases import CONFIG
from own_engine import Neighbours
from rich.console import Console
from segment_cases import NETWORK

from hydragnn_flow.campaign.setup import starting, stores
from hydragnn_flow.campaign.setup.engine_probe import EngineProbe
from hydragnn_flow.campaign.setup.start import with_start
from hydragnn_flow.campaign.setup.starting import bring_weights, check_start, weights_for
from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.origins import StartConfig
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.training.checkpoints.checkpoint import load_checkpoint, save_checkpoint

TESTS = str(Path(__file__).resolve().parents[1])


def trial(folder, store, *, epochs=(1, 4)):
    """A trial's folder with a checkpoint of each sending; biases of its best weights are epochs."""
    folder = folder / "earlier" / "trials" / "0"
    folder.mkdir(parents=True)
    (folder.parents[1] / "store.gs").symlink_to(store.path)
    (folder / "config.json").write_text(json.dumps({"NeuralNetwork": NETWORK}))
    for epoch in epochs:
        state = build_model(NETWORK, store).state_dict()
        best = {key: value * 0 + epoch for key, value in state.items()}
        progress = {"epoch": epoch, "step": 0}
        save_checkpoint(folder / f"checkpoint-{epoch}.pt", {"best": best, "progress": progress})
    return folder


def config_with(start):
    values = copy.deepcopy(CONFIG)
    values["search"]["space"] = {"Training.batch_size": {"choices": [2, 4]}}
    return RunConfig.model_validate({**values, "start_from": start})


@pytest.fixture
def bring(tmp_path, store):
    """Bring the weights of a configuration into a run, as each of its drivers does."""

    def into_the_run(config):
        directory = RunDirectory(tmp_path / "run")
        directory.record_start(config)
        bring_weights(config.start_from, config.network_with({}), directory, store)
        return directory

    return into_the_run


def test_the_furthest_checkpoint_of_a_trial_is_brought(tmp_path, store, bring):
    folder = trial(tmp_path, store)
    assert RunDirectory(tmp_path / "run").started_from() is None
    start = {"path": str(folder), "heads": "new", "freeze": "encoder"}
    directory = bring(config_with(start))
    state = load_checkpoint(directory.weights)
    assert not state["is_whole"]
    assert all(name.startswith("encoder.") for name in state["weights"])
    assert all((value == 4).all() for value in state["weights"].values())
    said = directory.started_from()
    assert said is not None
    assert said.startswith(f"{folder / 'checkpoint-4.pt'} (SHA-256 ")
    assert said.endswith("with new heads; not trained: encoder.embedding, encoder.layers")


def test_once_begun_the_weights_are_those_in_the_run(tmp_path, store, bring):
    folder = trial(tmp_path, store)
    config = config_with({"path": str(folder)})
    directory = bring(config)
    before = directory.weights.read_bytes()
    later = trial(tmp_path / "more", store, epochs=(9,)) / "checkpoint-9.pt"
    later.rename(folder / later.name)
    directory.trial(0).mkdir(parents=True)
    assert bring(config).weights.read_bytes() == before
    directory.weights.unlink()
    with pytest.raises(InputError, match=r"weights\.pt: is missing, and trials have begun with it"):
        bring(config)


def test_another_start_is_another_configuration(tmp_path, store):
    directory = RunDirectory(tmp_path / "run")
    directory.record_start(config_with({"path": "a"}))
    directory.journal.touch()
    with pytest.raises(InputError, match=r"run\.yaml: .*start_from\.path differs"):
        directory.check(config_with({"path": "b"}))


def test_files_that_hold_no_weights(tmp_path, store):
    folder = trial(tmp_path, store, epochs=())
    with torch.device("meta"):
        model = build_model(NETWORK, store)
    with pytest.raises(InputError, match=r"start_from: .*0 has no checkpoint; name another"):
        weights_for(StartConfig(path=folder), model)
    file = folder / "checkpoint.pt"
    save_checkpoint(file, {"progress": {"epoch": 0, "step": 0}})
    with pytest.raises(InputError, match=r"checkpoint\.pt holds no weights; name another"):
        weights_for(StartConfig(path=file), model)
    file.write_bytes(b"none")
    with pytest.raises(InputError, match=r"is not a readable checkpoint .*; name another in start"):
        weights_for(StartConfig(path=file), model)


def test_a_damaged_note(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.start.parent.mkdir()
    directory.start.write_text("{}")
    with pytest.raises(InputError, match=r"start\.json: is damaged"):
        directory.started_from()


@pytest.fixture(scope="module")
def probe(store):
    """A process that tries networks of engines, whose start takes seconds."""
    paths = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch, EngineProbe(store.path) as probe:
        patch.setenv("PYTHONPATH", paths)
        yield probe


@pytest.fixture
def with_engine(tmp_path, probe, monkeypatch):
    """A campaign whose networks an engine builds, and a file of its weights."""
    for module in (starting, stores):
        monkeypatch.setattr(module, "EngineProbe", lambda path: nullcontext(probe))
    weights = Neighbours({"energy": ("graph", 1)}, 8, 4.0).state_dict()
    torch.save(weights, tmp_path / "trained.pk")
    values = copy.deepcopy(CONFIG)
    values["search"]["space"] = {"Training.batch_size": {"choices": [2, 4]}}
    values["network"]["engine"] = "own_engine:build"
    kept = ("radius", "enable_interatomic_potential", "energy_peratom_weight", "force_weight")
    architecture = values["network"]["Architecture"]
    values["network"]["Architecture"] = {key: architecture[key] for key in kept}
    return RunConfig.model_validate({**values, "start_from": str(tmp_path / "trained.pk")})


@pytest.mark.parametrize("heads", ["keep", "new"])
def test_an_engine_reads_its_own_weights(heads, with_engine, tmp_path, bring):
    start = {"path": tmp_path / "trained.pk", "heads": heads, "freeze": ("network.element",)}
    config = with_engine.model_copy(update={"start_from": StartConfig.model_validate(start)})
    directory = bring(config)
    state = load_checkpoint(directory.weights)
    trained = torch.load(tmp_path / "trained.pk")
    for name, value in trained.items():
        if heads == "keep" or not name.startswith("heads."):
            assert torch.equal(state["weights"].pop(f"network.{name}"), value)
    assert set(state["weights"]) == ({"scale", "element_energies"} if heads == "keep" else set())
    assert state["is_whole"] == (heads == "keep")
    said = directory.started_from()
    assert said is not None and said.startswith(f"{tmp_path / 'trained.pk'} (SHA-256 ")


def test_weights_of_another_network_of_an_engine(with_engine, tmp_path, store):
    torch.save(Neighbours({"energy": ("graph", 1)}, 5, 4.0).state_dict(), tmp_path / "trained.pk")
    with pytest.raises(InputError, match=r"trained\.pk is of another .* has the shape \[100, 5\]"):
        check_start(with_engine.start_from, with_engine.network_with({}), store)
    (tmp_path / "trained.pk").unlink()
    with pytest.raises(InputError, match=r"a\.yaml: start_from: there is no file .*trained\.pk"):
        with_start(with_engine, "a.yaml")


def test_an_engine_that_returns_a_wrong_name_is_refused(with_engine, store):
    network = {**with_engine.network, "engine": "own_engine:wrong_name"}
    config = with_engine.model_copy(update={"network": network, "start_from": None})
    with pytest.raises(InputError, match="own_engine:wrong_name returns 'energys', but no output"):
        stores.checked_store(config, store.path, CampaignView(Console(quiet=True)))
