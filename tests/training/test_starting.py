"""Beginning with trained weights: what they are put into, what is fitted anew, and what is not."""

from pathlib import Path

import numpy as np
import pytest
import torch
from data_set_cases import branches
from segment_cases import make_spec, network_with
from training_cases import CPU, PROPERTY, member_of, same, stops_at, trainer_of

from hydragnn_flow.config import load_network
from hydragnn_flow.data import write_store
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model
from hydragnn_flow.models.layers import unpack_exact
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.checkpoints.starting import (
    begin_with,
    check_weights,
    freeze,
    keep_weights,
    weights_of,
)
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.plan.batching import Budget
from hydragnn_flow.training.runner import run_segment

UNITS = {"energy": "eV", "forces": "eV/Å"}
SHIFTS = {28: 700.0, 29: -1300.0, 46: 0.5, 47: -20.0, 78: 3.0, 79: 41.0}
"""What another level of theory adds to the energy of each element [eV]."""


@pytest.fixture(scope="module")
def trained(alloy_store, tmp_path_factory):
    """Best weights of a potential after some epochs."""
    folder = tmp_path_factory.mktemp("trained")
    assert run_segment(make_spec(folder, alloy_store, 3)).status == "ok"
    return load_checkpoint(folder / FILE)["best"]


@pytest.fixture
def weights(trained, alloy_store, tmp_path):
    """The file of all of these weights, or of those that go with new heads."""

    def written(heads):
        file = tmp_path / f"{heads}.pt"
        model = build_model(load_network(network_with()), alloy_store)
        keep_weights(file, weights_of(model, trained, heads), heads == "keep")
        return str(file)

    return written


@pytest.fixture(scope="module")
def elsewhere(alloy_store, tmp_path_factory):
    """The same structures at a level of theory that counts energies from elsewhere."""
    splits = {}
    for name in alloy_store.splits:
        splits[name] = [*alloy_store[name]]
        for graph in splits[name]:
            graph.energy = graph.energy + sum(SHIFTS[int(z)] for z in graph.x[:, 0])
    path = tmp_path_factory.mktemp("elsewhere") / "store.gs"
    return write_store(path, splits, units=UNITS, cutoff=4.0)


def predicted(model, store):
    return model.eval()(store["valset"].batch(np.arange(3)))


def test_a_network_begins_with_the_forces_it_made(
    trained, weights, alloy_store, elsewhere, tmp_path
):
    before = build_model(load_network(network_with()), alloy_store)
    before.load_state_dict(trained)
    expected = predicted(before, alloy_store)
    begun = trainer_of(tmp_path, elsewhere, 2, weights=weights("keep"))
    given = predicted(begun.model, elsewhere)
    torch.testing.assert_close(given["forces"], expected["forces"])
    # Energies follow the other zero: they err by no more than they did, not by thousands of eV.
    labels = elsewhere["valset"].target("energy")[:3]
    assert np.abs(given["energy"].detach().numpy() - labels).max() < 2.0
    shifted = unpack_exact(begun.model.state_dict()["element_energies"])
    kept = unpack_exact(trained["element_energies"])
    unused = [z for z in range(len(kept.flatten())) if z not in SHIFTS][:20]
    assert torch.equal(shifted.flatten()[unused], kept.flatten()[unused])


def test_each_branch_has_references_of_its_own(alloy_store, tmp_path):
    """The second data set counts energies from 700 eV per atom above the first."""
    graphs = [*alloy_store["trainset"]][:12]
    for number, graph in enumerate(graphs):
        graph.dataset_name = torch.tensor([[number % 2]])
        graph.energy = graph.energy + 700.0 * (number % 2) * graph.num_nodes
    splits = {"trainset": graphs[:8], "valset": graphs[8:]}
    store = write_store(tmp_path / "two.gs", splits, units=UNITS, cutoff=4.0)
    model = build_model(network_with(Architecture__output_heads={"node": branches()}), store)
    # What weights of elsewhere bring along: references that fit neither.
    state = {k: v * 0 if k == "element_energies" else v for k, v in model.state_dict().items()}
    keep_weights(tmp_path / "weights.pt", state, is_whole=True)
    begin_with(tmp_path / "weights.pt", model, store["trainset"], Budget(graphs=3), CPU, World())
    batch = store["trainset"].batch(np.arange(8))
    rest = (model.eval()(batch)["energy"] - batch.energy.reshape(-1, 1))[:, 0]
    assert float((rest / torch.bincount(batch.batch)).abs().max()) < 5.0


def test_new_heads_are_drawn_and_the_rest_is_kept(trained, weights, elsewhere, tmp_path):
    begun = trainer_of(tmp_path, elsewhere, 2, weights=weights("new"), **PROPERTY)
    state = begun.model.state_dict()
    of_encoder = [name for name in trained if name.startswith("encoder.")]
    assert all(torch.equal(state[name], trained[name]) for name in of_encoder)
    fresh = trainer_of(tmp_path, elsewhere, 2, **PROPERTY).model.state_dict()
    rest = [name for name in state if name not in of_encoder]
    assert all(torch.equal(state[name], fresh[name]) for name in rest)


def test_what_is_frozen_stays_and_has_no_state(trained, weights, elsewhere, tmp_path):
    frozen = ("encoder.embedding", "encoder.layers.layers.0")
    spec = make_spec(tmp_path, elsewhere, 2, weights=weights("keep"), frozen=frozen)
    assert run_segment(spec).status == "ok"
    state = load_checkpoint(tmp_path / FILE)
    for part in ("model", "best"):
        same = {k: torch.equal(v, trained[k]) for k, v in state[part].items()}
        still = {k for k in same if k.startswith(frozen)}
        assert all(same[name] for name in still)
        assert not any(same[k] for k in same if "layers.1" in k and k.endswith("weight"))
    parameters = dict(build_model(load_network(network_with()), elsewhere).named_parameters())
    trainable = [name for name in parameters if not name.startswith(frozen)]
    assert len(state["optimizer"]["state"]) == len(trainable)


def test_a_stopped_trial_goes_on_from_its_own_checkpoint(weights, elsewhere, tmp_path):
    """It does not ask for the weights again, and ends as if it had never stopped."""
    start = {"weights": weights("keep"), "frozen": ("encoder.embedding",)}
    whole, cut = (make_spec(tmp_path / name, elsewhere, 2, **start) for name in ("whole", "cut"))
    run_segment(whole)
    assert run_segment(cut, should_stop=stops_at(4)).status == "interrupted"
    Path(cut.start.weights).unlink()
    assert run_segment(cut).from_step == 3
    ended, expected = (load_checkpoint(spec.folder / FILE) for spec in (cut, whole))
    assert same(ended["model"], expected["model"]) and same(ended["best"], expected["best"])
    # Nor does a member, which reads its trial's checkpoint.
    member = run_segment(make_spec(tmp_path / "member", elsewhere, 3, **start, **member_of(cut)))
    assert (member.status, member.from_epoch) == ("ok", 2)


def test_layers_compute_what_they_did_on_data_with_other_numbers_of_neighbours(
    trained, alloy_store
):
    """With the statistics of where they come from; without them they would not."""
    of_origin = alloy_store.manifest.statistics
    other = alloy_store.manifest.model_copy(
        update={"statistics": of_origin.model_copy(update={"avg_num_neighbors": 3.0})}
    )
    statistics = {
        "average_neighbours": of_origin.avg_num_neighbors,
        "degree_histogram": list(of_origin.degree_histogram),
        "elements": list(alloy_store.manifest.elements),
    }
    found = []
    for changes, manifest in (
        ({}, alloy_store.manifest),
        ({"Architecture__statistics": statistics}, other),
        ({}, other),
    ):
        model = build_model(load_network(network_with(**changes)), manifest)
        model.load_state_dict(trained)
        found.append(predicted(model, alloy_store)["forces"])
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2], rtol=1e-2)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("encoder.layer",), "name some of encoder.embedding, encoder.lay"),
        (("network",), r"start_from\.freeze: .* named .network.; name some of encoder, "),
        (("encoder", "atomic_energy"), "leaves no parameter to train"),
    ],
)
def test_bad_names_of_what_is_frozen(names, words, alloy_store):
    with pytest.raises(InputError, match=words):
        freeze(build_model(network_with(), alloy_store), names)


def test_weights_of_another_network(trained, alloy_store):
    model, name = build_model(network_with(), alloy_store), "encoder.embedding.elements.weight"
    check_weights(model, trained, "a.pt")
    check_weights(model, weights_of(model, trained, "new"), "a.pt", "new")
    less = {key: value for key, value in trained.items() if key != name}
    for other, words in (
        ({**trained, name: torch.zeros(119, 3)}, rf"a\.pt is .* {name} has the shape \[119, 3\]"),
        ({**trained, "encoder.more": torch.zeros(1)}, r"a\.pt has encoder\.more, the network"),
        (less, rf"the network has {name}, a\.pt has not"),
    ):
        with pytest.raises(InputError, match=words):
            check_weights(model, other, "a.pt")
