"""HydraGNN checkpoints are read by its engine, also into networks of a checkout."""

import json

import pytest
import torch
from torch import nn

from hydragnn_flow.config.network.mpnn_types import MPNN_TYPES
from hydragnn_flow.engines.hydragnn import HydragnnNetwork
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model
from hydragnn_flow.testing.networks import CUTOFF, alloy, as_batch, manifest
from hydragnn_flow.training.checkpoints.starting import check_weights, weights_of

SECTION = {
    "Architecture": {
        "mpnn_type": "EGNN",
        "hidden_dim": 4,
        "activation_function": "silu",
        "enable_interatomic_potential": True,
        "force_weight": 1.0,
        "pna_deg": None,
    },
    "Variables_of_interest": {
        "input_node_features": [0],
        "output_names": ["energy"],
        "type": ["node"],
    },
}


class Parts(nn.Module):
    """Modules with HydraGNN's names."""

    def __init__(self):
        super().__init__()
        self.graph_convs = nn.ModuleList([nn.Linear(1, 4)])
        self.heads_NN = nn.ModuleList([nn.Linear(4, 1)])


class Wrapper(nn.Module):
    """HydraGNN puts one around potentials."""

    def __init__(self):
        super().__init__()
        self.model = Parts()


def saved(folder, model, section, prefix="module."):
    """A checkpoint as HydraGNN writes it, by DDP, and its configuration."""
    state = {f"{prefix}{name}": value for name, value in model.state_dict().items()}
    file = folder / "trained.pk"
    torch.save({"model_state_dict": state, "optimizer_state_dict": {}}, file)
    file.with_name("config.json").write_text(json.dumps({"NeuralNetwork": section}))
    return file


def _key(section, place, value):
    outer, _, key = place.partition(".")
    return {**section, outer: {**section[outer], key: value}}


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.module."])
def test_names_are_those_of_the_network(prefix, tmp_path):
    trained, network = Wrapper(), HydragnnNetwork(Wrapper(), SECTION)
    trained_otherwise = _key(SECTION, "Architecture.force_weight", 50.0)
    file = saved(tmp_path, trained, trained_otherwise, prefix)
    network.load_state_dict(network.read_weights(file))
    for name, value in trained.state_dict().items():
        assert torch.equal(network.model.state_dict()[name], value)
    assert network.head_names == ("model.model.heads_NN",)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("Architecture.activation_function", "relu", r"activation_function is 'silu'.*'relu'; wri"),
        ("Architecture.pna_deg", [0, 3, 5], r"pna_deg is None.*\[0, 3, 5\]; write what config"),
        ("Architecture.edge_features", ["lengths"], "trained with edge_features, which scales"),
        ("Variables_of_interest.x_minmax", [[0.0], [1.0]], "trained with x_minmax"),
        ("Variables_of_interest.denormalize_output", True, "trained with denormalize_output"),
    ],
)
def test_what_computes_otherwise_is_refused(place, value, words, tmp_path):
    file = saved(tmp_path, Wrapper(), _key(SECTION, place, value))
    with pytest.raises(InputError, match=words):
        HydragnnNetwork(Wrapper(), SECTION).read_weights(file)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    def refused(words):
        with pytest.raises(InputError, match=words):
            HydragnnNetwork(Wrapper(), SECTION).read_weights(file)

    file = saved(tmp_path, Wrapper(), SECTION)
    file.with_name("config.json").unlink()
    refused(r"trained\.pk has no config\.json")
    file.with_name("config.json").write_text('{"NeuralNetwork": {}}')
    refused(r"config\.json is none that HydraGNN has written")
    saved(tmp_path, Wrapper(), SECTION)
    file.write_bytes(file.read_bytes()[:-100])
    refused(r"trained\.pk is no readable HydraGNN checkpoint")
    torch.save({"weights": {}}, file)
    refused(r"no readable HydraGNN checkpoint \(KeyError: 'model_state_dict'")


@pytest.fixture(scope="session")
def engine(request):
    """HydraGNN of the checkout that is named on the command line."""
    checkout = request.config.getoption("--hydragnn")
    if checkout is None:
        pytest.skip("needs a checkout of HydraGNN, named by --hydragnn=PATH")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYDRAGNN_CHECKOUT", str(checkout.resolve()))
        from peers.hydragnn_package import load

        load(checkout)
        yield "hydragnn_engine:build"


HEAD = {"num_headlayers": 2, "dim_headlayers": [8, 6]}
KEYS = {
    **dict.fromkeys(("num_gaussians", "num_filters", "envelope_exponent", "num_radial"), 5),
    **dict.fromkeys(("num_spherical", "int_emb_size", "out_emb_size", "basis_emb_size"), 4),
    **dict.fromkeys(("num_before_skip", "num_after_skip", "max_ell", "node_max_ell"), 1),
    "correlation": 2,
    "radial_type": "bessel",
    "max_neighbours": 80,
}
"""Keys that one type or another reads."""
POTENTIALS = {"SchNet", "EGNN", "PAINN", "PNAPlus", "PNAEq", "DimeNet", "MACE"}


def hydragnn(engine, name, potential):
    """A network of HydraGNN's of a type, with random weights."""
    node = {**HEAD, "type": "mlp"}
    graph = {**HEAD, "num_sharedlayers": 2, "dim_sharedlayers": 7}
    architecture = {
        "mpnn_type": name,
        "hidden_dim": 12,
        "num_conv_layers": 2,
        "radius": CUTOFF,
        "activation_function": "silu",
        **KEYS,
        "enable_interatomic_potential": potential,
        "output_heads": {"node": node} if potential else {"graph": graph, "node": node},
        **({"force_weight": 1.0} if potential else {}),
    }
    names = {"energy": "node"} if potential else {"gap": "graph", "charge": "node"}
    section = {
        "engine": engine,
        "Architecture": architecture,
        "Variables_of_interest": {"output_names": [*names], "type": [*names.values()]},
        "Training": {"num_epoch": 1, "batch_size": 2, "Optimizer": {"learning_rate": 1e-3}},
    }
    return build_model(section, manifest()).eval()


@pytest.mark.parametrize(
    ("name", "potential"),
    [(name, False) for name in MPNN_TYPES] + [(name, True) for name in sorted(POTENTIALS)],
)
def test_outputs_are_those_of_hydragnn(name, potential, engine, tmp_path):
    """In the data's units, with the weights that HydraGNN has saved; new heads leave out theirs."""
    torch.manual_seed(1)
    trained = hydragnn(engine, name, potential)
    network = trained.network
    file = saved(tmp_path, network.model, network.section)
    torch.manual_seed(2)
    model = hydragnn(engine, name, potential)
    weights = model.read_weights(file)
    check_weights(model, weights, file)
    model.load_state_dict(weights)
    batch = as_batch(alloy(0), alloy(1))
    found, expected = model(batch), network(trained.inputs(batch))
    for output, values in expected.items():
        assert values.abs().max() > 0
        torch.testing.assert_close(found[output].to(values.dtype), values)
    kept = weights_of(model, weights, "new")
    check_weights(model, kept, file, "new")
    assert any("graph_convs" in name for name in kept)
    assert not any("heads_NN" in name for name in kept)
