"""Networks of engines: our conformance suite on an engine of a user's, and what is refused."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import ase
import numpy as np
import own_engine
import pytest
import torch
from data_set_cases import one_of, two_level_store
from torch import nn

from hydragnn_flow.config import load_network
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model
from hydragnn_flow.models.cost import network_cost, probed_cost
from hydragnn_flow.testing.engines import PotentialEngineSuite, PropertyEngineSuite
from hydragnn_flow.testing.networks import CUTOFF, alloy, as_batch, manifest, network, outputs
from hydragnn_flow.training.measures.losses import Counts, Loss

TESTS = str(Path(own_engine.__file__).parent)


@pytest.fixture(autouse=True)
def _found_by_other_processes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")]))


class TestPotentials(PotentialEngineSuite):
    engine: ClassVar = "own_engine:build"
    architecture: ClassVar = {"width": 6}


class TestProperties(PropertyEngineSuite):
    engine: ClassVar = "own_engine:build"


KEYS = ("radius", "enable_interatomic_potential", "energy_peratom_weight", "force_weight")


def section(engine="own_engine:build", potential=False, **keys):
    values = network("SchNet", potential=potential)
    ours = {key: value for key, value in values["Architecture"].items() if key in KEYS}
    return {"engine": engine, **values, "Architecture": ours | keys}


def built(returned=None, **asked):
    """A model of the engine; its network returns what is given."""
    model = build_model(section(**asked), manifest())
    if returned is not None:
        model.network = _Constant(returned)
    return model


class _Constant(nn.Module):
    def __init__(self, returned):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.returned = returned

    def forward(self, batch):
        return self.returned


def test_outputs_are_in_units_of_the_targets_spread_from_its_mean():
    model = built()
    raw, found = model.network(as_batch(alloy())), model(as_batch(alloy()))
    moments = manifest().statistics.targets["gap"]
    expected = raw["gap"].double() * torch.tensor(moments.std) + torch.tensor(moments.mean)
    torch.testing.assert_close(found["gap"], expected, rtol=1e-6, atol=1e-6)
    assert found["gap"].dtype == torch.float64


def test_energies_lie_above_those_of_the_elements():
    model = built(potential=True)
    raw = model.network(as_batch(alloy()))["energy"].detach().item()
    elements = manifest().statistics.element_energies
    assert outputs(model, alloy())["energy"].item() == pytest.approx(
        0.8 * raw + sum(elements[z] for z in alloy().numbers), abs=1e-5
    )


def test_the_stress_is_that_of_our_own_potentials():
    """Pressed into the wrapper, one of ours must give what it gives by itself."""
    ours, theirs = build_model(network("SchNet"), manifest()), built(potential=True)
    for model in (ours, theirs):
        model.double().eval().stress = True
    theirs.network = _Energy(ours)
    slab = alloy(1)
    slab.pbc = (True, True, False)
    slab.cell[2] = 0.0
    batch = as_batch(alloy(), slab)
    found, expected = theirs(batch), ours(batch)
    assert expected["stress"][1].isnan().all()
    for name in ("energy", "forces", "stress"):
        torch.testing.assert_close(
            found[name], expected[name], rtol=1e-6, atol=1e-9, equal_nan=True
        )


class _Energy(nn.Module):
    """One of our potentials as a network of an engine."""

    def __init__(self, potential):
        super().__init__()
        self.potential = potential

    def forward(self, batch):
        nodes, geometry = self.potential.encoder(batch, batch.pos)
        (raw,) = self.potential.atomic_energy(nodes, geometry, None)
        return {"energy": raw.new_zeros(batch.num_graphs, 1).index_add(0, batch.batch, raw)}


def test_the_network_sees_no_labels():
    model = built()
    batch = as_batch(alloy())
    batch.gap, batch.charge = torch.zeros(1, 2), torch.zeros(4, 1)
    seen = model.inputs(batch)
    assert "gap" not in seen and "charge" not in seen and "gap" in batch


@pytest.mark.parametrize("graphs", [None, 1, 5, 8000])
def test_work_is_counted_as_that_of_our_own_networks(alloy_store, graphs):
    """A network that can be counted both ways; the work of mean graphs is extrapolated."""
    model, train = build_model(network("SchNet"), alloy_store), alloy_store["trainset"]
    size = alloy_store.manifest.splits["trainset"]
    share = 1 if graphs is None else graphs / size.graphs
    asked = (int(share * size.atoms), int(share * size.edges), graphs or size.graphs)
    counted, probed = network_cost(model, *asked), probed_cost(model, train, *asked)
    assert probed.parameters == counted.parameters
    for name in ("flops", "bytes", "peak_bytes"):
        assert getattr(probed, name) == pytest.approx(getattr(counted, name), rel=0.1), name
    assert graphs or probed.launches == pytest.approx(counted.launches, rel=0.05)


GAP, CHARGE = {"gap": torch.zeros(1, 2)}, {"charge": torch.zeros(4, 1)}


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (torch.zeros(1), ("Tensor", "return a dict")),
        ({}, ("returns nothing", "'gap'", "[number of graphs, 2]")),
        (GAP, ("'gap'", "no output 'charge'", "[number of atoms, 1]")),
        ({"gap": torch.zeros(1)} | CHARGE, ("'gap'", "[1]", "return [1, 2]")),
        (GAP | {"charge": torch.zeros(4)}, ("'charge'", "[4]", "[4, 1]")),
        (GAP | {"charge": 0.5}, ("float for 'charge'", "no tensor")),
        (GAP | CHARGE | {"other": 0.5}, ("'other'", "nobody asked for", "'gap'")),
    ],
)
def test_a_wrong_output_is_named(returned, said):
    with pytest.raises(InputError) as refusal:
        built(returned)(as_batch(alloy()))
    assert all(words in str(refusal.value) for words in ("engine own_engine:build", *said))


def test_an_energy_that_does_not_follow_from_the_positions_needs_forces_beside_it():
    energy = {"energy": torch.zeros(1, 1, requires_grad=True)}
    with pytest.raises(InputError, match=r"does not follow from batch\.pos"):
        built(energy, potential=True)(as_batch(alloy()))
    model = built(energy | {"forces": torch.ones(4, 3)}, potential=True)
    np.testing.assert_allclose(outputs(model, alloy())["forces"], 0.8)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"engine": "hydragn"}, ("engine", "did you mean 'hydragnn'")),
        ({"engine": "nowhere:build"}, ("engine", "no module 'nowhere'", "PYTHONPATH")),
        ({"engine": "own_engine:built"}, ("engine", "own_engine has no 'built'")),
        ({"engine": "own_engine:__doc__"}, ("engine", "cannot be called")),
        ({"width": "wide"}, ("Architecture: width", "whole number")),
        ({"widht": 3}, ("'widht'", "did you mean 'width'")),
        ({"radius": "far"}, ("Architecture.radius", "must be a number")),
        ({"radius": 3.0}, ("radius = 3.0 Å", "end at 4.0 Å")),
        ({"engine": "own_engine:fails"}, ("fails cannot build", "KeyError in own_engine.py")),
        ({"engine": "own_engine:Keys"}, ("own_engine:Keys cannot build", "TypeError")),
        ({"engine": "own_engine:no_module"}, ("no_module returns a dict", "no torch.nn.Module")),
        ({"engine": "own_engine:nothing_to_train"}, ("returns a module without weights to train",)),
    ],
)
def test_what_builds_no_network_is_named(keys, said):
    with pytest.raises(InputError) as refusal:
        built(**keys)
    assert all(words in str(refusal.value) for words in said)


def test_a_likelihood_needs_the_noise_of_each_output():
    values, potential = section(), section(potential=True)
    for each in (values, potential):
        each["Training"]["loss_function_type"] = "GaussianNLLLoss"
    model = build_model(values, manifest())
    with pytest.raises(InputError, match="no output 'gap_aleatoric_std'"):
        model(as_batch(alloy()))
    noise = {f"{name}_aleatoric_std": -zeros for name, zeros in (GAP | CHARGE).items()}
    model.network = _Constant(GAP | CHARGE | noise)
    assert (outputs(model, alloy())["gap_aleatoric_std"] > 0).all()
    with pytest.raises(InputError, match="noise nobody knows"):
        build_model(potential, manifest())


def test_each_data_set_has_units_of_its_own(tmp_path):
    store = two_level_store(tmp_path)
    values = section(potential=True, radius=4.0, branches=2)
    torch.manual_seed(0)
    model, loss = build_model(values, store), Loss(load_network(values), store.manifest)
    for branch in (0, 1):
        batch = store["trainset"].batch(one_of(store, "trainset", branch))
        counts = Counts(batch.num_graphs, batch.num_nodes)
        assert 0.05 < loss.total(loss.term_means(model(batch), batch, counts)).item() < 3
    with pytest.raises(InputError, match=r"Architecture\.branches has 2 branches, but the store"):
        build_model(values, manifest())


@pytest.mark.parametrize("potential", [True, False])
def test_with_weights_of_its_own_an_engine_predicts_in_the_datas_units(potential, tmp_path):
    model = built(potential=potential)
    torch.save(model.network.state_dict(), tmp_path / "a.pt")
    model.load_state_dict(model.read_weights(tmp_path / "a.pt"))
    raw, found = model.network(as_batch(alloy())), model(as_batch(alloy()))
    for name, values in raw.items():
        torch.testing.assert_close(found[name].double(), values.double())
    of_encoder = {name.split(".")[1] for name in model.state_dict() if model.is_of_encoder(name)}
    assert of_encoder == {"element", "radial"}


def test_a_network_that_lacks_a_method_is_named(tmp_path):
    assert built().node_features(as_batch(alloy(), ase.Atoms("Cu"))).shape == (5, 8)
    model = built({})
    with pytest.raises(InputError, match="node_features"):
        model.node_features(as_batch(alloy()))
    with pytest.raises(InputError, match=r"own_engine:build reads no weights; .*read_weights"):
        model.read_weights(tmp_path / "a.pt")


def test_a_section_reads_back_the_same():
    values = section(width=5)
    assert load_network(load_network(values).to_json()) == load_network(values)
    assert load_network(values).kind == "own_engine:build"
    assert load_network(values).Architecture.radius == CUTOFF


@pytest.mark.skipif(find_spec("hydragnn") is not None, reason="HydraGNN is installed here")
def test_the_engine_hydragnn_needs_hydragnn():
    with pytest.raises(InputError, match=r"needs the package hydragnn.*install HydraGNN"):
        load_network(section("hydragnn"))
