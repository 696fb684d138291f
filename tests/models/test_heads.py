"""Heads of every kind, their branches, and the noise they predict."""

import ase
import numpy as np
import pytest
import torch
from test_network_cost import assert_counted

from hydragnn_flow.errors import InputError
from hydragnn_flow.models import NOISE_SUFFIX, build_model, network_cost
from hydragnn_flow.testing.networks import COPPER, GOLD, alloy, as_batch, network

LIKELIHOOD = "GaussianNLLLoss"
KINDS = ("mlp", "mlp_per_node", "conv")
GRAPH_HEAD = {
    "num_sharedlayers": 1,
    "dim_sharedlayers": 8,
    "num_headlayers": 1,
    "dim_headlayers": [8],
}


def heads(kind, branches=1, widths=(8, 8)):
    """`output_heads` with node heads of a kind; those of each further branch are wider."""

    def level(head):
        wider = [
            head | {"dim_headlayers": [width + 2 * k for width in head["dim_headlayers"]]}
            for k in range(branches)
        ]
        named = [{"type": f"branch-{k}", "architecture": one} for k, one in enumerate(wider)]
        return named if branches > 1 else head

    node = {"num_headlayers": len(widths), "dim_headlayers": list(widths), "type": kind}
    return {"graph": level(GRAPH_HEAD), "node": level(node)}


@pytest.fixture
def of_four(manifest):
    """A store whose graphs all have four atoms, and the number of a branch."""
    x = manifest.keys["x"]
    number = x.model_copy(update={"node": False, "rows": 1, "dtype": "int64", "shape": (1,)})
    keys = {**manifest.keys, "x": x.model_copy(update={"rows": 4}), "dataset_name": number}
    return manifest.model_copy(update={"keys": keys})


def built(manifest, output_heads=None, *, potential=False, loss=None, **options):
    torch.manual_seed(0)
    asked = {} if output_heads is None else {"output_heads": output_heads}
    values = network("SchNet", potential=potential, **options, **asked)
    values["Training"] |= {} if loss is None else {"loss_function_type": loss}
    return build_model(values, manifest)


def branched(*numbers):
    """A cell for each number of a branch."""
    batch = as_batch(*(alloy(seed) for seed in range(len(numbers))))
    batch.dataset_name = torch.tensor(numbers)[:, None]
    return batch


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("potential", [False, True], ids=["properties", "potential"])
@pytest.mark.parametrize("branches", [1, 3])
def test_every_kind_trains_whole(of_four, kind, potential, branches):
    """All parameters get a gradient, also of a branch that no graph of the batch belongs to."""
    model = built(of_four, heads(kind, branches), potential=potential)
    outputs = model(branched(0, branches - 1))
    sum(value.double().square().sum() for value in outputs.values()).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(grad is not None for grad in gradients.values())
    silent = {name for name, grad in gradients.items() if not grad.abs().sum()}
    assert silent == {name for name in silent if ".branches.1." in name}
    assert bool(silent) == (branches == 3)


def test_a_convolution_head_sees_neighbours(of_four):
    """With one layer of message passing, atoms two edges away matter through the head alone."""
    chain = ase.Atoms([GOLD, COPPER, COPPER], [[0, 0, 0], [3.0, 0, 0], [6.0, 0, 0]])
    other = ase.Atoms([COPPER, COPPER, COPPER], chain.positions)
    for kind, sees in (("mlp", False), ("conv", True)):
        model = built(of_four, heads(kind, widths=(8,)), num_conv_layers=1).double()
        first, second = (model(as_batch(atoms))["charge"][2] for atoms in (chain, other))
        assert (float((first - second).detach().abs()) > 1e-9) == sees


def test_each_place_has_its_own_perceptron(of_four):
    """Equal to perceptrons applied one by one."""
    model = built(of_four, heads("mlp_per_node")).double()
    batch = as_batch(alloy(0), alloy(1))
    nodes, _ = model.encoder(batch, batch.pos.double())
    layers = model.node_heads.branches.branches[0].heads[0]
    expected = torch.empty(8, 1, dtype=torch.float64)
    for place in range(4):
        rows = nodes[place::4]
        for layer in layers:
            linear = hasattr(layer, "weight")
            rows = rows @ layer.weight[place] + layer.bias[place] if linear else layer(rows)
        expected[place::4] = rows
    torch.testing.assert_close(model(batch)["charge"], expected * 0.02 + 0.1)


def test_places_need_graphs_of_one_size(manifest, of_four):
    with pytest.raises(InputError, match=r"mlp_per_node.*write 'mlp'"):
        built(manifest, heads("mlp_per_node"))
    model = built(of_four, heads("mlp_per_node"))
    small, large = alloy(0)[:3], alloy(0).repeat((2, 1, 1))[:5]
    for structures in ((large,), (small, large)):  # together as many atoms as two of four
        with pytest.raises(InputError, match="were trained on graphs of 4 atoms"):
            model(as_batch(*structures))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("potential", [False, True], ids=["properties", "potential"])
def test_a_graph_gets_the_heads_of_its_branch(of_four, kind, potential):
    """Each as if it were alone in the batch, and otherwise than another branch would have it."""
    model = built(of_four, heads(kind, 2), potential=potential).double().eval()
    mixed = model(branched(1, 0, 1))
    for name, values in mixed.items():
        rows = values.reshape(3, -1)
        same, other = (model(branched(k, k, k))[name].reshape(3, -1) for k in (1, 0))
        expected = torch.stack([same[0], other[1], same[2]])
        torch.testing.assert_close(rows, expected, rtol=1e-10, atol=1e-10)
        assert not torch.allclose(same, other)


def test_branches_are_never_guessed(manifest, of_four):
    with pytest.raises(InputError, match="2 branches, but the store's graphs have no key"):
        built(manifest, heads("mlp", 2))
    model = built(of_four, heads("mlp", 2))
    with pytest.raises(InputError, match="the graphs have no key 'dataset_name'"):
        model(as_batch(alloy()))
    for wrong in (2, -1):
        with pytest.raises(InputError, match=f"dataset_name is {wrong}, .* 0 to 1"):
            model(branched(0, wrong))
    single = built(manifest, heads("mlp"))
    assert torch.equal(single(branched(7))["gap"], single(as_batch(alloy()))["gap"])


@pytest.mark.parametrize("kind", KINDS)
def test_flops_of_heads_are_those_of_a_real_step(of_four, kind):
    batch, model = branched(0, 1, 1), built(of_four, heads(kind, 2))
    assert_counted(model, batch)
    # Batches of average size, which are not whole graphs, have a cost as well.
    exact = network_cost(model, batch.num_nodes, batch.num_edges, 3)
    assert network_cost(model, 101, 2000, 26).flops > exact.flops


@pytest.mark.parametrize("loss", ["mse", LIKELIHOOD])
def test_initial_bias_is_in_units_of_the_spread(of_four, loss):
    """A head that says nothing else predicts mean + bias * spread, in every branch."""
    model = built(of_four, heads("mlp", 2), loss=loss, initial_bias=2.0)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.zeros_(parameter)
    outputs = model(branched(0, 1))
    expected = torch.tensor([[2.0, 4.0]] * 2).double()  # means 1 and -2, spreads 0.5 and 3
    torch.testing.assert_close(outputs["gap"], expected)
    torch.testing.assert_close(outputs["charge"], torch.full((8, 1), 0.1))


def test_initial_bias_of_a_potential(manifest):
    plain, raised = (
        built(manifest, potential=True, head="graph", graph_pooling="add", initial_bias=bias)
        for bias in (0.0, 1.5)
    )
    for model in (plain, raised):
        last = model.atomic_energy.branches[0].heads[0][-1]
        torch.nn.init.zeros_(last.weight)
    difference = raised(as_batch(alloy()))["energy"] - plain(as_batch(alloy()))["energy"]
    assert difference.item() == pytest.approx(4 * 1.5 * 0.8)  # atoms, bias, scale [eV]
    with pytest.raises(InputError, match="initial_bias"):
        built(manifest, potential=True, initial_bias=1.0)


def test_noise_stays_above_nothing_and_in_the_targets_unit(of_four):
    """Fresh heads are as unsure as the targets vary; sure ones keep a thousandth of that."""
    model = built(of_four, loss=LIKELIHOOD)
    fresh = model(branched(0))["gap" + NOISE_SUFFIX].detach() / torch.tensor([0.5, 3.0])
    assert float(fresh.min()) > 0.05 and float(fresh.max()) < 5
    last = model.graph_heads.branches.branches[0].heads[0][-1]
    torch.nn.init.constant_(last.bias, -1e4)
    torch.nn.init.zeros_(last.weight)
    sure = model(branched(0))["gap" + NOISE_SUFFIX]
    torch.testing.assert_close(sure, torch.tensor([[5e-4, 3e-3]]).double())


def test_mixed_precision_keeps_the_mean(of_four):
    """In bfloat16, a mean of -2 with a spread of 3 would have a spacing of 0.02."""
    model, batch = built(of_four, loss=LIKELIHOOD), branched(0, 0)
    expected = model(batch)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(batch)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        torch.testing.assert_close(found[name], values, rtol=0.05, atol=0.1)


def test_noise_that_depends_on_the_structure_is_found(of_four):
    """Labels whose noise grows with the share of gold: the predicted noise follows the true one.

    The likelihood is that of a Gaussian (Nix and Weigend, doi:10.1109/ICNN.1994.374138).
    """
    rng = np.random.default_rng(0)
    structures = [alloy() for _ in range(240)]
    for atoms in structures:
        atoms.numbers = rng.choice([COPPER, GOLD], 4)
    share = np.array([(atoms.numbers == GOLD).mean() for atoms in structures])
    true_mean, true_noise = 1.0 + share, 0.05 + 0.6 * share
    labels = torch.tensor(true_mean + true_noise * rng.normal(size=len(share)))
    batch = as_batch(*structures)
    model = built(of_four, loss=LIKELIHOOD)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(120):
        outputs = model(batch)
        mean, noise = outputs["gap"][:, 0], outputs["gap" + NOISE_SUFFIX][:, 0]
        loss = (noise.log() + 0.5 * ((labels - mean) / noise) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = noise.detach().numpy()
    assert np.corrcoef(found, true_noise)[0, 1] > 0.9
    for value in (0.25, 0.75):
        assert found[share == value].mean() == pytest.approx(0.05 + 0.6 * value, rel=0.35)
