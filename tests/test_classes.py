"""Targets of classes, from the words in a file to probabilities in a table."""

import shutil
from itertools import pairwise

import ase.io
import numpy as np
import pandas as pd
import pytest
import torch
from ase import Atoms
from console_cases import Console
from ensemble_cases import untrained_ensemble
from scipy import special
from segment_cases import make_spec, network_with
from sklearn.metrics import roc_auc_score
from torch.nn import functional

from hydragnn_flow import Ensemble, EnsembleCalculator
from hydragnn_flow.config import DataConfig, load_network
from hydragnn_flow.data import prepare_store
from hydragnn_flow.data.sources.labels import one_hot, why_missing
from hydragnn_flow.ensemble.evaluation.evaluate import evaluate, recalibrate
from hydragnn_flow.ensemble.evaluation.measures import measure
from hydragnn_flow.ensemble.predictions.files import write_predictions
from hydragnn_flow.ensemble.summary import read_summary
from hydragnn_flow.ensemble.uncertainty.calibration import fit_temperature
from hydragnn_flow.ensemble.uncertainty.distribution import tempered
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model
from hydragnn_flow.report.errors import errors_frame
from hydragnn_flow.report.html import model_card
from hydragnn_flow.training.measures.losses import Counts, Loss
from hydragnn_flow.training.runner import run_segment

KINDS = {"Cu": "noble", "Au": "noble", "Al": "light", "Mg": "light", "Fe": "magnetic"}
TARGETS = {
    "kind": {"classes": ["light", "noble", "magnetic"]},
    "odd": {"classes": [False, True]},
    "size": "Å",
}
HEAD = {"num_headlayers": 1, "dim_headlayers": [8]}
HEADS = {"graph": {**HEAD, "num_sharedlayers": 1, "dim_sharedlayers": 8}, "node": HEAD}
NETWORK = network_with(
    Architecture__enable_interatomic_potential=False,
    Architecture__energy_peratom_weight=0.0,
    Architecture__force_weight=0.0,
    Architecture__graph_pooling="mean",
    Architecture__output_heads=HEADS,
    Variables_of_interest={"output_names": [*TARGETS], "type": ["graph", "node", "graph"]},
    Training__num_epoch=8,
    Training__Optimizer={"learning_rate": 0.02},
)


def structures(n, seed=0):
    """Chains of one element, which tells their kind, size and whether atoms are odd."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        one = str(rng.choice(list(KINDS)))
        chain = Atoms([one] * int(rng.integers(2, 5)))
        chain.positions[:, 0] = np.arange(len(chain)) * rng.uniform(2.3, 3.0)
        chain.info = {"kind": KINDS[one], "size": float(chain.numbers[0] / 10)}
        chain.arrays["odd"] = chain.numbers % 2 == 1
        found.append(chain)
    return found


def data_of(folder, targets=TARGETS, **files):
    source = {"format": "ase", "train": "all.xyz", "targets": targets, **files}
    split = {"val": 0.1} if files else {"val": 0.2, "test": 0.2}
    return {"source": source, "split": split, "path": str(folder)}


def prepared(folder, frames, targets=TARGETS, **files):
    ase.io.write(folder / "all.xyz", frames)
    config = DataConfig.model_validate(data_of(folder, targets, **files))
    return prepare_store(config, 4.0, None, 0, folder / "store.gs")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("data"), structures(80))


@pytest.fixture(scope="module")
def run(store, tmp_path_factory):
    folder, data = tmp_path_factory.mktemp("run") / "run", data_of(store.path.parent)
    return untrained_ensemble(folder, store, network=NETWORK, data=data)


def test_a_store_has_a_column_of_each_class(store, monkeypatch, capsys):
    said = Console(store.path.parent, monkeypatch, capsys).says("store", "info", store.path)
    assert "kind [classes light, noble, magnetic] per structure" in " ".join(said.split())
    graph = store["trainset"][0]
    kind, odd = store.manifest.targets["kind"], store.manifest.targets["odd"]
    assert (kind.level, kind.dim, kind.classes) == ("graph", 3, ("light", "noble", "magnetic"))
    assert (odd.level, odd.dim, odd.classes) == ("node", 2, ("false", "true"))
    assert graph.kind.reshape(-1, 3).sum() == 1
    assert torch.equal(graph.odd[:, 1], (graph.x[:, 0] % 2).to(graph.odd))
    # A store of a store has them too.
    source = {"format": "hydragnn", "file": store.path.name}
    again = DataConfig.model_validate({"source": source, "path": store.path.parent})
    copy = prepare_store(again, 4.0, None, 0, store.path.with_name("copy.gs"))
    assert copy.manifest.targets == store.manifest.targets
    for in_place in (False, True):
        targets = {"kind": {"classes": ["noble", "light", "magnetic"]}}
        turned = {"source": {**source, "targets": targets}, "in_place": in_place}
        config = DataConfig.model_validate({**turned, "path": store.path.parent})
        with pytest.raises(InputError, match=r"kind\.classes are noble, .* store are light, noble"):
            prepare_store(config, 4.0, None, 0, store.path.with_name("turned.gs"))


@pytest.mark.parametrize(
    ("value", "classes", "found"),
    [
        (True, ("0", "1"), [0, 1]),
        (np.float32(1.0), ("false", "true"), [0, 1]),
        ("No", ("false", "true"), [1, 0]),
        (" b ", ("a", "b"), [0, 1]),
        (-2, ("-2", "0", "2"), [1, 0, 0]),
        (["b", "a"], ("a", "b"), [[0, 1], [1, 0]]),
        (np.array([[1], [0]]), ("0", "1"), [[0, 1], [1, 0]]),
    ],
)
def test_all_spellings_of_a_class_are_one(value, classes, found):
    np.testing.assert_array_equal(one_hot(value, classes), found)


@pytest.mark.parametrize(
    ("label", "classes", "missing"),
    [
        ("none", ("none", "ferro"), False),
        ("Na", ("Na", "K"), False),
        ("none", ("antiferro", "ferro"), True),
        ("n/a", (), True),
        (np.array([1.0, np.nan]), ("0", "1"), True),
        (np.array([1.0, 0.0]), ("0", "1"), False),
    ],
)
def test_a_word_for_none_may_be_a_class(label, classes, missing):
    assert bool(why_missing({"kind": label}, "kind", "kind", classes, "a.xyz")) == missing


SPOILT = [
    ({"kind": "nobel"}, {}, "structure 0: its label 'kind' names the class 'nobel'.*add the class"),
    ({"kind": 0.5}, {}, "names the class '0.5', and not light or noble or magnetic"),
    ({}, {"kind": {"classes": [*TARGETS["kind"]["classes"], "rare"]}}, "0 of .* class 'rare'"),
    ({}, {"odd": {"classes": [0, 1], "level": "graph"}}, "'odd' of shape"),
]


@pytest.mark.parametrize(("info", "targets", "said"), SPOILT, ids=range(len(SPOILT)))
def test_what_cannot_be_learnt_is_said_in_a_sentence(info, targets, said, tmp_path):
    frames = structures(30)
    frames[0].info |= info
    with pytest.raises(InputError, match=said) as caught:
        prepared(tmp_path, frames, TARGETS | targets)
    assert "\n" not in str(caught.value)


def test_a_class_of_the_test_split_alone_is_refused_and_none_is_left_out(tmp_path):
    frames = structures(30)
    for frame in frames:
        frame.info["kind"] = "light"
    del frames[3].info["kind"]
    frames[4].info["kind"] = np.nan
    (tmp_path / "test").mkdir()
    ase.io.write(tmp_path / "test" / "test.xyz", structures(9, seed=1))
    with pytest.raises(InputError, match="0 of 25 training labels name the class 'noble'"):
        prepared(tmp_path, frames, test="test")


@pytest.mark.parametrize("function", ["mse", "rmse", "GaussianNLLLoss"])
def test_the_loss_is_the_cross_entropy_in_units_of_that_of_the_shares(store, function):
    training = NETWORK["Training"] | {"loss_function_type": function}
    network = load_network(NETWORK | {"Training": training})
    loss, batch = Loss(network, store.manifest), store["trainset"].batch(range(9))
    model = build_model(network, store)
    outputs = model(batch)
    torch.testing.assert_close(outputs["kind"].sum(dim=1), torch.ones(9, dtype=torch.float64))
    means = loss.term_means(outputs, batch, Counts(batch.num_graphs, batch.num_nodes))
    shares = torch.tensor(store.manifest.statistics.targets["kind"].mean)
    entropy = torch.special.entr(shares).sum()
    labels = batch.kind.reshape(-1, 3).argmax(dim=1)
    expected = functional.nll_loss(outputs["kind"].log(), labels) / entropy
    torch.testing.assert_close(means[0], expected, check_dtype=False)
    # A class that is as good as excluded has a loss and a slope.
    sure = torch.tensor([[900.0, 0.0, 0.0]], dtype=torch.float64).repeat(9, 1).requires_grad_()
    outputs = outputs | {"kind": sure.softmax(dim=1)}
    means = loss.term_means(outputs, batch, Counts(batch.num_graphs, batch.num_nodes))
    means.sum().backward()
    assert means.isfinite().all() and sure.grad.isfinite().all()
    # Without weights the network predicts the shares.
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    torch.testing.assert_close(model(batch)["kind"][0], shares, check_dtype=False)


def test_classes_and_numbers_are_learnt_together(store, tmp_path):
    one = run_segment(make_spec(tmp_path / "t", store, 8, network=NETWORK), device="cpu")
    assert all(one.metrics[f"{name}_rmse"] < 0.3 for name in ("kind", "odd", "size")), one.metrics
    assert "kind_mae" not in one.metrics and "size_mae" in one.metrics


def test_predictions_are_classes_and_their_probabilities(run, tmp_path):
    ensemble = Ensemble.load(run)
    frames = structures(5, seed=3)
    frames[1].info["kind"] = "nobody knows it"
    del frames[2].info["kind"]
    tables = ensemble.predict(frames, members=True)
    of_kind = [f"kind_probability_{name}" for name in TARGETS["kind"]["classes"]]
    graphs, nodes = tables.graphs, tables.nodes
    np.testing.assert_allclose(graphs[of_kind].sum(axis=1), 1)
    predicted = graphs[of_kind].to_numpy().argmax(axis=1)
    assert graphs["kind_predicted"].tolist() == [TARGETS["kind"]["classes"][k] for k in predicted]
    known = graphs["kind"].notna().tolist()
    assert known == [True, False, False, True, True]
    first = graphs.iloc[0]
    assert first["kind_error"] == pytest.approx(1 - first[f"kind_probability_{first['kind']}"])
    assert "label of kind is not one of light, noble, magnetic" in graphs["note"][1]
    odd = [chain.arrays["odd"] for chain in frames]
    assert nodes["odd"].tolist() == ["true" if one else "false" for one in np.concatenate(odd)]
    assert graphs[f"{of_kind[0]}_member_1"].between(0, 1).all()
    # In files: text for the class, and no empty columns of labels.
    for frame in frames:
        frame.info.pop("kind", None)
    ase.io.write(tmp_path / "some.xyz", frames)
    outs = [tmp_path / f"p{suffix}" for suffix in (".csv", ".parquet", ".extxyz")]
    write_predictions(ensemble, tmp_path / "some.xyz", outs)
    for table in (pd.read_csv(outs[0]), pd.read_parquet(outs[1])):
        assert "kind" not in table and "kind_error" not in table
        assert table["kind_predicted"].tolist() == graphs["kind_predicted"].tolist()
    atoms = ase.io.read(outs[2], index=0)
    assert atoms.info["kind_predicted"] == graphs["kind_predicted"][0]
    assert len(atoms.arrays["odd_predicted"]) == len(atoms)


def test_an_ensemble_of_classes_is_measured_calibrated_and_told_of(run, tmp_path):
    ensemble = Ensemble.load(run)
    frames = structures(43, seed=7)
    frames[0].info |= {"kind": np.nan, "config_size_weight": 0.0}
    frames[1].info |= {"kind": "none", "size": "n/a"}
    frames[2].info["config_weight"] = 0.0
    measures = evaluate(ensemble, frames)
    assert (measures["kind"].structures, measures["odd"].structures) == (40, 42)
    assert measures["size"].structures == 40
    assert {"accuracy", "auc", "ece"} <= measures["kind"].measures.keys()
    assert "mae" in measures["size"].measures
    summary = read_summary(run)
    assert summary["calibration"]["kind"]["temperature"] > 0
    assert summary["errors"]["kind Brier score"]["coverage"] is None
    frame = errors_frame(summary).set_index("")
    assert frame.loc["AUC", "kind Brier score"] and not frame.loc["AUC", "size [Å]"]
    assert "%" not in frame.loc["80 % interval holds", "kind Brier score"]
    ensemble.at(0.5)  # classes have no intervals that would lack structures
    assert "| kind | probability | structure | light, noble, magnetic |" in model_card(run, "out")
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    assert recalibrate(copy, structures(40, seed=8))["kind"] == 40
    changed = Ensemble.load(copy).calibrations["kind"].temperature
    assert changed != ensemble.calibrations["kind"].temperature
    with pytest.raises(InputError, match="no interatomic potential"):
        EnsembleCalculator(ensemble)


def test_classes_keep_their_temperature_if_one_data_set_is_calibrated(tmp_path):
    """Other targets are calibrated; classes alone have nothing to fit."""
    targets = {name: TARGETS[name] for name in ("kind", "size")}
    for seed, name in enumerate("ab"):
        ase.io.write(tmp_path / f"{name}.xyz", structures(60, seed))
    source = data_of(tmp_path, targets)["source"]
    sources = [{**source, "name": name, "train": f"{name}.xyz"} for name in "ab"]
    data = {"sources": sources, "split": {"val": 0.2, "test": 0.2}, "path": str(tmp_path)}
    store = prepare_store(DataConfig.model_validate(data), 4.0, None, 0, tmp_path / "s.gs")
    heads = [{"type": f"branch-{k}", "architecture": HEADS["graph"]} for k in (0, 1)]
    asked = {"output_names": [*targets], "type": ["graph", "graph"]}
    network = {"Architecture": {"output_heads": {"graph": heads}}, "Variables_of_interest": asked}
    network = {name: {**of, **network.get(name, {})} for name, of in NETWORK.items()}
    run = untrained_ensemble(tmp_path / "run", store, network=network, data=data)
    before, said = Ensemble.load(run).calibrations, []
    labelled = structures(40, seed=8)
    assert recalibrate(run, labelled, data_set="a", say=said.append) == {"size": 40}
    assert said == ["kind: classes have no calibration of a data set, and keep theirs"]
    assert Ensemble.load(run).calibrations["kind"] == before["kind"]
    for atoms in labelled:
        del atoms.info["size"]
    with pytest.raises(InputError, match=r"labels of classes only \(kind\).*leave the data set"):
        recalibrate(run, labelled, data_set="a")


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_temperature_of_overconfident_probabilities_is_found(temperature):
    rng = np.random.default_rng(0)
    true = special.softmax(rng.normal(size=(4000, 3)), axis=1)
    labels = (rng.random((4000, 1)) > true.cumsum(axis=1)).sum(axis=1)
    told = special.softmax(temperature * np.log(true), axis=1)
    reference = np.eye(3)[labels]
    reference[::7] = np.nan
    found = fit_temperature(reference, told, np.arange(4000))
    assert found.temperature == pytest.approx(temperature, rel=0.1)
    assert found.structures == 4000 - len(reference[::7])
    np.testing.assert_allclose(np.exp(tempered(told, temperature)), true, rtol=1e-6)
    assert fit_temperature(np.full((2, 3), np.nan), told[:2], np.arange(2)) is None


@pytest.mark.parametrize("n_classes", [2, 4])
def test_measures_of_classes_are_those_of_scikit_learn(n_classes):
    rng = np.random.default_rng(n_classes)
    label = rng.integers(n_classes, size=300)
    found = rng.dirichlet(np.ones(n_classes), 300) + 0.3 * np.eye(n_classes)[label]
    found = np.round(found / found.sum(axis=1, keepdims=True), 1 if n_classes == 2 else 6)
    sample = pd.DataFrame(found).assign(label=label, structure=np.arange(300))
    measured = measure(sample)
    score = found[:, 1] if n_classes == 2 else found / found.sum(axis=1, keepdims=True)
    area = roc_auc_score(label, score, multi_class="ovr")
    largest, hits = found.max(axis=1), found.argmax(axis=1) == label
    edges = np.arange(16) / 15
    gaps = [
        abs((largest - hits)[(lo < largest) & (largest <= hi)].sum()) / 300
        for lo, hi in pairwise(edges)
    ]
    assert measured["auc"].value == pytest.approx(area)
    assert measured["accuracy"].value == pytest.approx(hits.mean())
    assert measured["ece"].value == pytest.approx(sum(gaps))
    for estimate in measured.values():
        assert estimate.lo < estimate.value < estimate.hi
