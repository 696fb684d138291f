"""HydraGNN's engine EquivariantTransformer; the conformance suites run over it as well."""

import sys
from importlib import import_module
from types import ModuleType

import ase
import numpy as np
import pytest
import torch
from test_network_cost import assert_counted
from torch import nn

from hydragnn_flow.models import network_cost
from hydragnn_flow.models.couplings import components
from hydragnn_flow.models.geometry import Geometry, Space, finite_graphs, padding
from hydragnn_flow.models.global_attention.equivariant_attention import (
    EquivariantAttention,
    EquivariantTransformerLayer,
    Perceptron,
)
from hydragnn_flow.testing.networks import CUTOFF, alloy, as_batch, lively, outputs
from hydragnn_flow.training.loading import moved

ENGINE = {
    "global_attn_engine": "EquivariantTransformer",
    "global_attn_heads": 2,
    "equivariant_attn_allow_scalar_only": True,
    "equivariant_attn_require_tensor_coupling": False,
}
WIDTH, HEADS, RADIAL = 4, 2, 5


def cluster(seed=0):
    atoms = alloy(seed)
    atoms.pbc = False
    return atoms


def graphs(positions, *sizes, finite=True):
    """Graphs of some sizes without edges."""
    graph = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    none = torch.zeros(0, dtype=torch.int64)
    return Geometry(
        sender=none,
        receiver=none,
        vectors=positions.new_zeros(0, 3),
        cutoff=CUTOFF,
        graph=graph,
        n_graphs=len(sizes),
        padding=padding(graph, len(sizes), max(sizes)),
        space=Space(positions, torch.full((len(sizes),), finite), finite),
    )


@pytest.fixture
def theirs(request, monkeypatch):
    """HydraGNN's layer. The rest of the package, which needs MPI, is not imported."""
    checkout = request.config.getoption("--hydragnn")
    if checkout is None:
        pytest.skip("needs a checkout of HydraGNN, named by --hydragnn=PATH")
    for name in [name for name in sys.modules if name.partition(".")[0] == "hydragnn"]:
        monkeypatch.delitem(sys.modules, name)
    package = ModuleType("hydragnn")
    package.__path__ = [str(checkout / "hydragnn")]
    monkeypatch.setitem(sys.modules, "hydragnn", package)
    kept = set(sys.modules)
    yield import_module("hydragnn.globalAtt.equivariant_transformer").EquivariantTransformerLayer
    for name in set(sys.modules) - kept:
        if name.startswith("hydragnn."):
            del sys.modules[name]


@torch.no_grad()
def copy_weights(theirs, ours, reads):
    """From HydraGNN's layer to ours, whose sums have their factors in the weights."""

    def by_degree(linear, inputs, outputs):
        """Weights of an e3nn map for each degree, those of the heads one after the other."""
        found = [[] for _ in range(reads + 1)]
        start = 0
        for path in linear.instructions:
            weight = linear.weight[start : start + inputs * outputs].view(inputs, outputs)
            found[linear.irreps_in[path.i_in].ir.l].append(weight * path.path_weight)
            start += inputs * outputs
        assert start == linear.weight.numel()
        return found

    attention, of_theirs = ours.attention, theirs.attention
    for mine, other in ((attention.query, of_theirs.query), (attention.key, of_theirs.key)):
        for degree, weights in enumerate(by_degree(other, WIDTH, WIDTH)):
            mine.weight[degree] = torch.cat(weights, dim=1)
    for degree, weights in enumerate(by_degree(of_theirs.output, WIDTH, WIDTH)):
        attention.output.weight[degree] = torch.cat(weights, dim=0)
    first, _, last = of_theirs.radial_mlp
    attention.averages.functions.mix.load_state_dict(first.state_dict())
    of_functions = torch.cat([last.weight, last.bias[:, None]], dim=1)
    of_functions = of_functions.view(HEADS, -1, WIDTH, WIDTH, RADIAL + 1)
    product = of_theirs.value_tensor_product
    for number, path in enumerate(product.instructions):
        degrees = (
            product.irreps_in1[path.i_in1].ir.l,
            product.irreps_in2[path.i_in2].ir.l,
            product.irreps_out[path.i_out].ir.l,
        )
        assert attention.averages.paths[number] == degrees
        scale = path.path_weight * (2 * degrees[2] + 1) ** -0.5
        matrices = of_functions[:, number].permute(0, 3, 1, 2) * scale
        attention.averages.matrices[number] = matrices.reshape(HEADS, -1, WIDTH)
    wide = 2 * WIDTH
    for mine, other, shape in (
        (ours.perceptron.first, theirs.feedforward[0], (WIDTH, wide)),
        (ours.perceptron.second, theirs.feedforward[2], (wide, WIDTH)),
    ):
        for degree, (weight,) in enumerate(by_degree(other, *shape)):
            mine.weight[degree] = weight
    ours.attention_norm.gain.copy_(theirs.attention_norm.gain)
    ours.norm.gain.copy_(theirs.feedforward_norm.gain)


@pytest.mark.parametrize(
    ("reads", "harmonics"), [(0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2), (3, 3)]
)
def test_with_hydragnns_weights_it_gives_hydragnns_numbers(reads, harmonics, theirs):
    torch.manual_seed(0)
    irreps = " + ".join(f"{WIDTH}x{degree}{'eo'[degree % 2]}" for degree in range(reads + 1))
    theirs = theirs(
        irreps, heads=HEADS, lmax=harmonics, num_radial=RADIAL, require_tensor_coupling=False
    ).double()
    for parameter in theirs.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    attention = EquivariantAttention(WIDTH, reads, reads, HEADS, harmonics, RADIAL, None)
    perceptron = Perceptron(reads, WIDTH, 2)
    layer = EquivariantTransformerLayer(nn.Identity(), attention, perceptron, sequential=False)
    copy_weights(theirs, layer, reads)
    positions = (2.0 * torch.randn(13, 3).double()).requires_grad_()
    nodes = torch.randn(13, (reads + 1) ** 2, WIDTH).double()
    geometry = graphs(positions, 5, 1, 7)
    flat = [nodes[:, components(degree)].transpose(1, 2).flatten(1) for degree in range(reads + 1)]
    flat_output = theirs(torch.cat(flat, dim=1), positions, geometry.graph)
    layer.double()
    attended = nodes + layer.attention(layer.attention_norm(nodes), geometry)
    output = attended + layer.perceptron(layer.norm(attended))
    expected = torch.cat(
        [
            flat_output[:, WIDTH * degree**2 : WIDTH * (degree + 1) ** 2]
            .view(13, WIDTH, -1)
            .transpose(1, 2)
            for degree in range(reads + 1)
        ],
        dim=1,
    )
    # e3nn's tables are in single precision.
    torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)
    slopes = [torch.autograd.grad(one.square().sum(), positions)[0] for one in (output, expected)]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-5, atol=1e-5)


def test_a_crystal_is_the_limit_of_its_pieces():
    """Seen from the atom in the middle; HydraGNN refuses crystals."""
    torch.manual_seed(0)
    attention = EquivariantAttention(WIDTH, 1, 1, HEADS, 1, RADIAL, None).double()
    kinds = torch.randn(2, 4, WIDTH).double()
    with torch.no_grad():
        crystal = attention(kinds, graphs(torch.zeros(2, 3).double(), 2, finite=False))[0]

    def error(atoms_a_side, spacing):
        axis = np.arange(atoms_a_side) - atoms_a_side // 2
        places = np.stack(np.meshgrid(axis, axis, axis), axis=-1).reshape(-1, 3)
        # As rock salt, with the middle first.
        places = places[np.argsort(np.abs(places).sum(axis=1), kind="stable")]
        positions = torch.from_numpy(places * spacing)
        nodes = kinds[torch.from_numpy(places.sum(axis=1) % 2)]
        with torch.no_grad():
            middle = attention(nodes, graphs(positions, len(places)))[0]
        return float((middle - crystal).norm() / crystal.norm())

    assert error(7, 3.0) < 0.7 * error(3, 3.0)
    assert error(7, 1000.0) < 0.02


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
def test_chunks_change_nothing_but_memory(make, mode):
    batch = as_batch(cluster(0), cluster(1).repeat((2, 1, 1)), alloy(2))
    gradients = []
    for chunk in (None, 512, 3, 1):
        options = {"equivariant_attn_chunk_size": chunk, "equivariant_attn_coupling_mode": mode}
        model = make("PAINN", **ENGINE, **options).double()
        found = model(batch)
        (found["energy"].square().sum() + found["forces"].square().sum()).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for others in gradients[1:]:
        for found, expected in zip(others, gradients[0], strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("potential", [False, True])
def test_chunks_bound_what_pairs_hold(potential, make):
    """With second derivatives too, where torch's own way of computing anew does not."""
    chunked, whole = (
        network_cost(
            make("PAINN", potential=potential, **ENGINE, equivariant_attn_chunk_size=chunk),
            *(400, 10, 1),
        )
        for chunk in (50, None)
    )
    assert chunked.peak_bytes < 0.3 * whole.peak_bytes


def test_atoms_out_of_reach_are_seen_and_where_they_are(make):
    model = lively(make("PAINN", **ENGINE))

    def force(distance):
        atoms = ase.Atoms("CuAu", [[0, 0, 0], [distance, 0, 0]])
        assert as_batch(atoms).num_edges == 0
        return float(outputs(model, atoms)["forces"][0, 0])

    near, far = force(1.5 * CUTOFF), force(1000 * CUTOFF)
    assert abs(near) > 1e-5
    assert abs(far) < 1e-3 * abs(near)


def test_a_lone_atom_attends_to_nothing():
    attention = EquivariantAttention(WIDTH, 1, 1, HEADS, 1, RADIAL, None)
    nodes, lone = torch.randn(3, 4, WIDTH), graphs(torch.zeros(3, 3), 1, 1, 1)
    assert not attention(nodes, lone).any()
    assert attention(nodes, graphs(torch.zeros(3, 3), 1, 1, 1, finite=False)).any()


@pytest.mark.parametrize("structure", [alloy, cluster])
@pytest.mark.parametrize("mpnn_type", ["PAINN", "SchNet"])
def test_precisions(mpnn_type, structure, make):
    batch, forces = as_batch(structure(0), structure(1)), []
    for chunk in (None, 2):
        model = make(mpnn_type, **ENGINE, equivariant_attn_chunk_size=chunk).eval()
        expected = model(batch)["forces"].double()
        with torch.autocast("cpu", torch.bfloat16):
            forces.append(model(batch)["forces"].double())
        assert (forces[-1] - expected).norm() < 0.1 * expected.norm()
        found = model.double()(batch)["forces"]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    # In a backward pass autocast is off, and what is computed anew must not be.
    assert (forces[0] - forces[1]).norm() < 0.01 * forces[0].norm()


@pytest.mark.parametrize(("structure", "finite"), [(cluster, True), (alloy, False)])
@pytest.mark.parametrize("mpnn_type", ["PAINN", "SchNet"])
def test_cost_is_that_of_a_real_step(mpnn_type, structure, finite, make):
    model = make(mpnn_type, potential=False, **ENGINE)
    assert_counted(model, as_batch(structure(0), structure(1)), finite=finite)


def test_periodic_graphs_are_found():
    slab = alloy()
    slab.pbc = (True, True, False)
    batch = as_batch(alloy(), cluster(), slab, ase.Atoms("Cu"))
    assert finite_graphs(batch).tolist() == [False, True, False, True]
    del batch.pbc  # HydraGNN's files may not have it
    assert finite_graphs(batch).tolist() == [False, True, False, True]
    assert moved(batch, torch.device("cpu")).any_finite is True
    assert moved(as_batch(alloy()), torch.device("cpu")).any_finite is False
