"""`start_from`: what a path may lead to, and the networks that cannot begin with its weights."""

import copy
import json

import pytest
import yaml
from campaign_cases import CONFIG
from segment_cases import NETWORK, network_with

from hydragnn_flow import load_config
from hydragnn_flow.campaign.setup.origin import find_origin
from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.network import write_network
from hydragnn_flow.config.origins import StartConfig
from hydragnn_flow.data.store.manifest import save_manifest
from hydragnn_flow.ensemble.summary import VERSION
from hydragnn_flow.errors import InputError
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentResult
from hydragnn_flow.testing.networks import manifest

DATA = manifest().model_copy(update={"elements": [28, *manifest().elements]})
"""Data with nickel in the validation split alone."""
STATISTICS = {
    "average_neighbours": max(DATA.statistics.avg_num_neighbors, 1.0),
    "degree_histogram": tuple(DATA.statistics.degree_histogram),
    "elements": tuple(manifest().elements),
}


def segment(kind, number, width):
    epochs = {"from_epoch": 0, "to_epoch": 1}
    values = {"status": "ok", "parameters": {"Architecture.hidden_dim": width}, **epochs}
    return SegmentResult(kind=kind, number=number, rung=0, **values)


@pytest.fixture
def run(tmp_path):
    """The JSON files of a finished run with two members, of which the second is the better."""
    directory = RunDirectory(tmp_path / "earlier")
    run, rows = directory.path, []
    for k in (0, 1):
        write_network(run / "ensemble" / "members" / str(k), NETWORK)
        rows.append({"member": k, "trial": k, "weight": 0.5, "best_val_error": 0.5 - k / 10})
    summary = {"version": VERSION, "coverage": 0.9, "members": rows, "calibration": {}}
    directory.summary.write_text(json.dumps(summary))
    (run / "ensemble" / "manifest.json").write_text(DATA.model_dump_json())
    network = network_with(Architecture__hidden_dim=6)
    (run / "run.yaml").write_text(yaml.safe_dump(CONFIG | {"network": network}))
    directory.store.mkdir()
    save_manifest(directory.store, DATA)
    directory.record([segment("trial", 3, 12), segment("trial", 33, 9), segment("member", 3, 8)])
    for name in ("3/checkpoint-ab.pt", "4/checkpoint.pt", "5/a.csv"):
        (run / "trials" / name).parent.mkdir(parents=True)
        (run / "trials" / name).write_bytes(b"neither")
    return run


def written(folder, start, network=NETWORK, **space):
    values = copy.deepcopy(CONFIG) | {"network": network, "start_from": start}
    values["search"]["space"] = {"Training.batch_size": {"choices": [2, 4]}, **space}
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


@pytest.mark.parametrize(
    ("path", "file"),
    [
        (".", "ensemble/members/1"),
        ("ensemble", "ensemble/members/1"),
        ("ensemble/members/0", "ensemble/members/0"),
        ("trials/3", "trials/3"),
        ("trials/3/checkpoint-ab.pt", "trials/3/checkpoint-ab.pt"),
    ],
)
def test_what_a_path_may_lead_to(run, path, file):
    origin = find_origin(StartConfig(path=run / path))
    assert origin.path == run / file
    assert origin.network == NETWORK
    statistics = dict(origin.statistics)
    assert statistics == {k: [*v] if isinstance(v, tuple) else v for k, v in STATISTICS.items()}


def test_layers_are_made_as_those_of_the_weights(run, tmp_path):
    config = load_config(written(tmp_path, "earlier"))
    assert config.start_from == StartConfig(path=run)
    statistics = config.network_with({}).Architecture.statistics
    assert statistics is not None and dict(statistics) == STATISTICS
    # The resolved configuration says the same, without a look at the weights.
    again = RunConfig.model_validate(json.loads(config.model_dump_json()))
    assert again == config


def test_weights_that_had_begun_with_others_keep_their_statistics(run):
    given = {"average_neighbours": 3.0, "degree_histogram": [1], "elements": [1]}
    write_network(run / "trials" / "3", network_with(Architecture__statistics=given))
    assert find_origin(StartConfig(path=run / "trials" / "3")).statistics == given


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere", "nowhere does not exist; correct the path"),
        ("trials", "trials has no config.json and is no trial's folder in a run"),
        ("trials/4/checkpoint.pt", "4 nor the files of its run say the network of a trial"),
        ("trials/5/a.csv", "a.csv is no checkpoint"),
        ("run.yaml", "is no checkpoint"),
    ],
)
def test_what_it_may_not(run, tmp_path, path, words):
    with pytest.raises(InputError, match=rf"run\.yaml: start_from.*{words}"):
        load_config(written(tmp_path, {"path": f"earlier/{path}"}))


def test_a_run_without_an_ensemble_or_its_data(run, tmp_path):
    (run / "ensemble" / "ensemble.json").unlink()
    with pytest.raises(InputError, match="has no finished ensemble; name the folder of one of its"):
        load_config(written(tmp_path, "earlier"))
    trial = written(tmp_path, "earlier/trials/3")
    (run / "store.gs").rename(run / "elsewhere.gs")
    with pytest.raises(InputError, match=r"3 is not in a run or an ensemble, whose manifest\.json"):
        load_config(trial)
    (run / "store.gs").mkdir()
    (run / "store.gs" / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match=r"manifest\.json: version None"):
        load_config(trial)


SMALL_HEAD = {"node": {"num_headlayers": 1, "dim_headlayers": [6]}}


@pytest.mark.parametrize(
    ("key", "value", "heads", "words"),
    [
        ("Architecture.mpnn_type", "EGNN", "new", "is 'EGNN'"),
        ("Architecture.hidden_dim", 8, "new", "is 8"),
        ("Architecture.radius", 3.5, "new", "is 3.5"),
        ("Architecture.output_heads", SMALL_HEAD, "keep", "is"),
        ("Training.loss_function_type", "GaussianNLLLoss", "keep", "= 'GaussianNLLLoss' is True"),
    ],
)
def test_another_network_is_refused(run, tmp_path, key, value, heads, words):
    network = network_with(**{key.replace(".", "__"): value})
    with pytest.raises(InputError, match=rf"run\.yaml: network: {key} {words}.*members/1"):
        load_config(written(tmp_path, {"path": "earlier", "heads": heads}, network))


def test_heads_may_differ_where_they_are_new(run, tmp_path):
    network = network_with(Architecture__output_heads=SMALL_HEAD)
    load_config(written(tmp_path, {"path": "earlier", "heads": "new"}, network))


def test_what_is_loaded_may_not_be_searched(run, tmp_path):
    words = (
        r"search\.space\.Architecture\.hidden_dim: Architecture\.hidden_dim is 8, but .* 12; rem"
    )
    with pytest.raises(InputError, match=words):
        load_config(written(tmp_path, "earlier", **{"Architecture.hidden_dim": {"int": [8, 16]}}))
    for free in ("Architecture.force_weight", "Training.Optimizer.learning_rate"):
        load_config(written(tmp_path, "earlier", **{free: {"float": [1e-3, 1e-2]}}))
