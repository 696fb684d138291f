"""`start_from`: what a path may lead to, and the networks that cannot begin with its weights."""

import copy
import json
from pathlib import Path

import pytest
import yaml
from campaign_cases import CONFIG
from segment_cases import NETWORK, network_with

from hydragnn_flow.config import RunConfig, load_config
from hydragnn_flow.config.start_from import StartConfig, find_origin
from hydragnn_flow.errors import InputError

MANIFEST = {
    "elements": [28, 29, 79],
    "unseen": [79],
    "statistics": {"avg_num_neighbors": 7.5, "degree_histogram": [0, 3, 5]},
}
STATISTICS = {"average_neighbours": 7.5, "degree_histogram": (0, 3, 5), "elements": (28, 29)}


def network_file(folder, network=NETWORK):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"NeuralNetwork": network}))
    return folder


@pytest.fixture
def run(tmp_path):
    """The JSON files of a finished run with two members, of which the second is the better."""
    run = tmp_path / "earlier"
    errors = [{"member": k, "best_val_error": 0.5 - k / 10} for k in (0, 1)]
    for k in (0, 1):
        network_file(run / "ensemble" / "members" / str(k))
    (run / "ensemble" / "ensemble.json").write_text(json.dumps({"members": errors}))
    (run / "ensemble" / "manifest.json").write_text(json.dumps(MANIFEST))
    (run / "trials" / "3").mkdir(parents=True)
    lines = [
        {"kind": kind, "number": number, "parameters": {"Architecture.hidden_dim": width}}
        for kind, number, width in (("trial", 3, 12), ("trial", 33, 9), ("member", 3, 8))
    ]
    (run / "segments.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (run / "store.gs").mkdir()
    (run / "store.gs" / "manifest.json").write_text(json.dumps(MANIFEST))
    network = network_with(Architecture__hidden_dim=6)
    (run / "run.yaml").write_text(yaml.safe_dump(CONFIG | {"network": network}))
    for name in ("3/checkpoint-ab.pt", "4/checkpoint.pt", "5/a.pk"):
        (run / "trials" / name).parent.mkdir(exist_ok=True)
        (run / "trials" / name).write_bytes(b"neither")
    return run


def written(folder, start, network=NETWORK, **space):
    values = copy.deepcopy(CONFIG) | {"network": network, "start_from": start}
    values["search"]["space"] = {"Training.batch_size": {"choices": [2, 4]}, **space}
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


@pytest.mark.parametrize(
    ("path", "member", "file"),
    [
        (".", None, "ensemble/members/1/checkpoint.pt"),
        (".", 0, "ensemble/members/0/checkpoint.pt"),
        ("ensemble", None, "ensemble/members/1/checkpoint.pt"),
        ("ensemble/members/0", None, "ensemble/members/0"),
        ("trials/3", None, "trials/3"),
        ("trials/3/checkpoint-ab.pt", None, "trials/3/checkpoint-ab.pt"),
    ],
)
def test_what_a_path_may_lead_to(run, path, member, file):
    origin = find_origin(StartConfig(path=run / path, member=member))
    assert origin.file == run / file
    assert origin.network == NETWORK
    assert origin.statistics is not None
    assert origin.statistics["degree_histogram"] == [0, 3, 5]
    assert origin.statistics["elements"] == [28, 29]


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
    network_file(run / "trials" / "3", network_with(Architecture__statistics=given))
    assert find_origin(StartConfig(path=run / "trials" / "3")).statistics == given


@pytest.mark.parametrize(
    ("path", "member", "words"),
    [
        ("nowhere", None, "nowhere does not exist; correct the path"),
        (".", 7, "has no member 7; its members are 0, 1"),
        ("trials/3", 1, "is no ensemble; remove the key"),
        ("trials", None, "trials has no config.json and is no trial's folder in a run"),
        ("trials/4/checkpoint.pt", None, "4 nor the files of its run say the network of a trial"),
        ("trials/5/a.pk", None, "has no config.json that says its network"),
        ("run.yaml", None, "is no checkpoint"),
    ],
)
def test_what_it_may_not(run, tmp_path, path, member, words):
    start = {"path": f"earlier/{path}", **({} if member is None else {"member": member})}
    with pytest.raises(InputError, match=rf"run\.yaml: start_from.*{words}"):
        load_config(written(tmp_path, start))


def test_a_run_without_an_ensemble(run, tmp_path):
    (run / "ensemble" / "ensemble.json").unlink()
    with pytest.raises(InputError, match="has no finished ensemble; name the folder of one of its"):
        load_config(written(tmp_path, "earlier"))


def test_weights_without_their_data(run, tmp_path):
    (run / "store.gs" / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"3 is not in a run or an ensemble, whose manifest\.json"):
        load_config(written(tmp_path, "earlier/trials/3"))
    (run / "store.gs" / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match=r"manifest\.json: is damaged"):
        load_config(written(tmp_path, "earlier/trials/3"))


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"path": "earlier", "heads": "old"}, r"start_from\.heads: must be 'keep' or 'new'"),
        ({"freeze": "encoder"}, r"start_from\.path: this key is required"),
        ({"path": "earlier", "frozen": []}, "unknown key 'frozen'; did you mean 'freeze'"),
        (3, "start_from: must be a mapping"),
    ],
)
def test_bad_sections(run, tmp_path, section, words):
    with pytest.raises(InputError, match=words):
        load_config(written(tmp_path, section))


@pytest.mark.parametrize(
    ("changes", "heads", "words"),
    [
        ({"Architecture__mpnn_type": "EGNN"}, "new", "Architecture.mpnn_type is 'EGNN'"),
        ({"Architecture__hidden_dim": 8}, "new", "Architecture.hidden_dim is 8"),
        ({"Architecture__radius": 3.5}, "new", "Architecture.radius is 3.5"),
        (
            {"Architecture__output_heads": {"node": {"num_headlayers": 1, "dim_headlayers": [6]}}},
            "keep",
            "Architecture.output_heads is",
        ),
        (
            {"Training__loss_function_type": "GaussianNLLLoss"},
            "keep",
            "Training.loss_function_type = 'GaussianNLLLoss' is True",
        ),
    ],
)
def test_another_network_is_refused(run, tmp_path, changes, heads, words):
    start = {"path": "earlier", "heads": heads}
    with pytest.raises(InputError, match=rf"run\.yaml: network: {words}.*members/1/checkpoint\.pt"):
        load_config(written(tmp_path, start, network_with(**changes)))


def test_heads_may_differ_where_they_are_new(run, tmp_path):
    changes = {"Architecture__output_heads": {"node": {"num_headlayers": 1, "dim_headlayers": [6]}}}
    load_config(written(tmp_path, {"path": "earlier", "heads": "new"}, network_with(**changes)))


def test_what_is_loaded_may_not_be_searched(run, tmp_path):
    wide = {"Architecture.hidden_dim": {"int": [8, 16]}}
    words = (
        r"search\.space\.Architecture\.hidden_dim: Architecture\.hidden_dim is 8, but .* 12; rem"
    )
    with pytest.raises(InputError, match=words):
        load_config(written(tmp_path, "earlier", **wide))
    weights = {"Architecture.force_weight": {"float": [0.5, 2.0]}}
    rate = {"Training.Optimizer.learning_rate": {"float": [1e-4, 1e-3]}}
    load_config(written(tmp_path, "earlier", **rate))
    load_config(written(tmp_path, "earlier", **weights))


def test_names_of_what_is_frozen():
    assert StartConfig(path=Path("a")).frozen == ()
    assert StartConfig(path=Path("a"), freeze=("x.y",)).frozen == ("x.y",)
    assert "encoder.layers" in StartConfig(path=Path("a"), freeze="encoder").frozen
