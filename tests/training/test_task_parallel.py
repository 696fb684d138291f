"""Task parallelism: ranks that have the heads of some branches each train as one that has all."""

import copy
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from data_set_cases import alloys
from ddp_rank import check_equal, on_ranks_by_name, train, train_on
from hypothesis import given
from hypothesis import strategies as st
from segment_cases import make_spec, network_with
from training_cases import CPU, by_rank, plan_epoch

from hydragnn_flow.config import DataConfig, RunConfig, load_network
from hydragnn_flow.data import GraphStore, prepare_store
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model
from hydragnn_flow.models.heads import BranchedHeads
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.checkpoints.starting import freeze
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.parallel import Division, division_of, parallel
from hydragnn_flow.training.plan.batching import Budget, plan_in_order
from hydragnn_flow.training.trainer import Trainer

pytestmark = pytest.mark.xdist_group("ranks")  # which one process forks

WIDE = {"num_headlayers": 2, "dim_headlayers": [48, 48]}
SHARED = {"num_sharedlayers": 1, "dim_sharedlayers": 16}


def divided(n=8, *, property_heads=False, head=None, **changes):
    """A network of ``n`` branches in fp64; other orders of a sum round otherwise by 1e-15."""
    level = "graph" if property_heads else "node"
    head = head or (WIDE | SHARED if property_heads else WIDE | {"type": "mlp"})
    heads = [{"type": f"branch-{k}", "architecture": head} for k in range(n)]
    given = {
        "Training__batch_size": 12,
        "Training__precision": "fp64",
        "Training__task_parallel": True,
        "Architecture__enable_interatomic_potential": not property_heads,
        "Architecture__output_heads": {level: heads},
        "Variables_of_interest__type": [level],
    }
    return network_with(**given | changes)


CLIPPED = {"Training__Optimizer__type": "SGD", "Training__gradient_clip": 0.1}
NETWORKS: dict[str, dict[str, Any]] = {
    "potential": divided(),
    "property": divided(property_heads=True),
    "single precision": divided(Training__precision="fp32"),
    "clipped": divided(**CLIPPED, Training__accumulation_steps=2),
    "Muon": divided(Training__Optimizer__type="Muon"),
    "rmse": divided(Training__loss_function_type="rmse", property_heads=True),
    "noise of a potential": divided(Training__loss_function_type="GaussianNLLLoss"),
    "convolutions": divided(head={"type": "conv", "num_headlayers": 1, "dim_headlayers": [12]}),
    # more ranks than graphs in a step
    "one by one": divided(Training__batch_size=2),
    "by cost": divided(Training__Batching={"mode": "node_budget", "max_nodes": 120}),
    "drawn": divided(),
    "frozen": divided(),
    # branches that several ranks have
    "three": divided(3),
    "three, property": divided(3, property_heads=True, Training__batch_size=5),
    "three, clipped": divided(3, **CLIPPED, Training__accumulation_steps=2),
}
CHANGES: dict[str, dict[str, Any]] = {
    "drawn": {"sampling": "equal", "budget": ("steps", 20)},
    "frozen": {"frozen": ("encoder",)},
    "potential": {"kind": "member"},
    "three": {"kind": "member"},
}
# Segments one after the other, the first of which is "potential".
CHAIN = {
    "then whole": {"task_parallel": False},
    "then divided": {},
    "then by rows": {"task_parallel": False, "sharding": {"strategy": "FULL_SHARD"}},
    "then divided again": {},
}


def data_sets(folder, n):
    """A store of ``n`` data sets, the later ones of more and of larger structures."""
    sources = [alloys(8 + 2 * k, name=f"set{k}", atoms=[8, 8 + 4 * (k // 2)]) for k in range(n)]
    config = DataConfig.model_validate({"sources": sources, "split": {"val": 0.25, "test": 0.1}})
    return prepare_store(config, 4.0, None, 0, folder / f"{n}.gs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("divided")


@pytest.fixture(scope="module")
def stores(folder):
    return {n: data_sets(folder, n) for n in (8, 3)}


def spec_of(name, folder, stores, **training):
    network = copy.deepcopy(NETWORKS[name])
    network["Training"] |= training
    store = stores[3 if name.startswith("three") else 8]
    return make_spec(folder, store, 1, network=network, **CHANGES.get(name, {}))


@pytest.fixture(scope="module")
def on_four_ranks(folder, stores):
    specs = {name: spec_of(name, folder / name, stores) for name in NETWORKS}
    for how, changes in CHAIN.items():
        specs[how] = spec_of("potential", folder / "potential", stores, **changes)
    values = {name: spec.to_dict() for name, spec in specs.items()}
    return on_ranks_by_name(4, values, folder)


@pytest.fixture(scope="module")
def goes_on_alone(tmp_path_factory, stores):
    """Losses of one process that has never stopped."""
    spec = spec_of("potential", tmp_path_factory.mktemp("alone"), stores)
    trainer = Trainer(spec, GraphStore.open(spec.store.path), CPU, World())
    return [train_on(trainer, World()) for _ in range(len(CHAIN) + 2)]


@pytest.mark.parametrize("name", NETWORKS)
def test_ranks_with_heads_of_their_own_train_as_one(tmp_path, on_four_ranks, name, stores):
    alone = train(spec_of(name, tmp_path, stores).to_dict(), World())
    within = 1e-5 if name == "single precision" else 1e-6
    check_equal(on_four_ranks[name], alone, within)


def test_ranks_hold_the_heads_of_their_branches(tmp_path, on_four_ranks, stores):
    for name in ("potential", "property"):
        model = build_model(NETWORKS[name], stores[8])
        whole = sum(weight.numel() for weight in model.parameters())
        encoder = sum(weight.numel() for weight in model.encoder.parameters())
        for rank in on_four_ranks[name]:
            held = rank["held"]
            assert held["parameters"] == encoder + (whole - encoder) // 4
            assert held["parameters"] <= 0.4 * whole
            assert held["gradients"] == held["parameters"]
            assert held["optimiser"] == 2 * held["parameters"]


def test_any_width_and_strategy_continues_it(
    tmp_path, folder, on_four_ranks, goes_on_alone, stores
):
    """On four ranks in turn divided, whole and by rows; at last on one."""
    for name, losses in zip(["potential", *CHAIN], goes_on_alone, strict=False):
        for rank in on_four_ranks[name]:
            np.testing.assert_allclose(rank["losses"], losses, rtol=1e-6, err_msg=name)
    assert len([*(folder / "potential").glob("*.parts")]) == 1
    state = load_checkpoint(folder / "potential" / FILE)
    assert "parts" not in state
    shutil.copytree(folder / "potential", tmp_path / "t")
    spec = spec_of("potential", tmp_path / "t", stores, task_parallel=False)
    found = train(spec.to_dict(), World())
    np.testing.assert_allclose(found["losses"], goes_on_alone[-1], rtol=1e-6)


def test_graphs_of_a_branch_that_is_gone_are_refused(stores):
    torch.manual_seed(0)
    network = divided(3)
    whole = build_model(network, stores[3]).double().eval()
    graphs = stores[3]["trainset"]
    branch = graphs.branch
    for kept in ({1}, {0, 2}):
        part = copy.deepcopy(whole)
        for module in part.modules():
            if isinstance(module, BranchedHeads):
                module.keep(kept)
        assert set(dict(part.named_parameters())) < set(dict(whole.named_parameters()))
        mine = graphs.batch(np.flatnonzero(np.isin(branch, list(kept))))
        torch.testing.assert_close(part(mine), whole(mine), rtol=1e-12, atol=1e-12)
        others = graphs.batch(np.flatnonzero(~np.isin(branch, list(kept))))
        with pytest.raises((IndexError, RuntimeError), match="index"):
            part(others)


LOADS = st.lists(st.integers(0, 10**6).map(float), min_size=2, max_size=20)


@given(loads=LOADS, world=st.integers(2, 40))
def test_every_rank_is_in_one_group_and_has_as_much_to_do_as_can_be(loads, world):
    division = Division.of(loads, world)
    assert sorted(rank for ranks in division.ranks for rank in ranks) == [*range(world)]
    assert sorted(one for own in division.branches for one in own) == [*range(len(loads))]
    assert all(division.branches) and all(division.ranks)
    assert len(division.ranks) == len(division.branches) == min(world, len(loads))
    for group, ranks in enumerate(division.ranks):
        assert [*ranks] == [*range(ranks[0], ranks[-1] + 1)]
        assert all(division.group_of(rank) == group for rank in ranks)
    if world <= len(loads):
        each = [sum(loads[one] for one in own) for own in division.branches]
        assert max(each) <= sum(loads) / world + max(loads)
        return
    sizes = [len(ranks) for ranks in division.ranks]
    busiest = max(load / size for load, size in zip(loads, sizes, strict=True))
    # A rank that went elsewhere would leave behind ranks that are busier still.
    for load, size in zip(loads, sizes, strict=True):
        assert size == 1 or load / (size - 1) >= busiest


@given(
    branches=st.lists(st.integers(0, 7), min_size=1, max_size=60),
    world=st.integers(2, 12),
    seed=st.integers(0, 99),
)
def test_graphs_go_to_ranks_that_have_their_branch(branches, world, seed):
    class Some:
        branch = np.array(branches)

    division = Division.of(np.bincount(branches, minlength=8).tolist(), world)
    costs = np.random.default_rng(seed).integers(1, 50, len(branches))
    found = division.in_order(Some)(np.arange(len(branches)), costs)  # type: ignore[arg-type]
    for branch, rank in zip(branches, found, strict=True):
        assert branch in division.branches[division.group_of(rank)]


@pytest.mark.parametrize("world", [3, 12])
def test_a_step_has_the_same_graphs(stores, world):
    """And each rank those of its branches."""
    train = stores[8]["trainset"]
    network = load_network(NETWORKS["potential"])
    division = division_of(network, stores[8].manifest, train, "proportional", world)
    runs = train.branch_runs
    np.testing.assert_array_equal(runs.branch_of(np.arange(len(train))), train.branch)
    for budget in (Budget(graphs=12), Budget(atoms=120)):
        whole = plan_epoch(train, budget, 1, 2, 1)
        dealt = plan_epoch(train, budget, 1, 2, world, dealing=division.step_of(train))
        order = plan_in_order(train, budget, world, division.in_order(train))
        assert sorted(np.concatenate([step.order for step in order])) == [*range(len(train))]
        for one, other in zip(whole, dealt, strict=True):
            assert sorted(one.order) == sorted(other.order)
            assert one.atoms == other.atoms
        for step in [*dealt, *order]:
            for rank, graphs in enumerate(by_rank(step)):
                mine = division.branches[division.group_of(rank)]
                assert set(runs.branch_of(graphs)) <= set(mine)


def test_data_sets_that_are_drawn_more_often_get_more_ranks(stores):
    """The third has most atoms."""
    store, network = stores[3], load_network(NETWORKS["three"])
    sizes = {}
    for weights in ({"set0": 1, "set1": 1, "set2": 20}, {"set0": 20, "set1": 1, "set2": 1}):
        division = division_of(network, store.manifest, store["trainset"], weights, 12)
        sizes[weights["set0"]] = [len(ranks) for ranks in division.ranks]
    assert max(sizes[1]) == sizes[1][2] > 8
    assert max(sizes[20]) == sizes[20][0] > 8


def test_what_cannot_be_divided_is_refused(stores, alloy_store):
    for network, words in (
        (divided(Training__sharding={"strategy": "FULL_SHARD"}), r"sharding\.strategy"),
        ({**divided(), "engine": "hydragnn"}, "engine is hydragnn"),
    ):
        with pytest.raises(InputError, match=words):
            load_network(network)
    alone = load_network(network_with(Training__task_parallel=True))
    with pytest.raises(InputError, match="output_heads has one"):
        division_of(alone, alloy_store.manifest, alloy_store["trainset"], "proportional", 2)
    of_three = load_network(NETWORKS["three"])
    with GraphStore.open(stores[3].path, "stream") as streamed:
        train = streamed["trainset"]
        with pytest.raises(InputError, match=r"data\.mode = stream"):
            division_of(of_three, streamed.manifest, train, "proportional", 2)
    model = build_model(of_three, stores[3])
    freeze(model, ("encoder", "atomic_energy.branches.1"))
    division = Division.of([1.0, 1.0, 1.0], 3)
    with pytest.raises(InputError, match=r"nothing to train to rank 1, which has .* branch 1"):
        parallel(model, of_three.Training, World(0, 3), CPU, division)


def test_a_campaign_that_cannot_divide_heads_is_refused():
    values: dict[str, Any] = {
        "name": "divided",
        "network": network_with(Training__task_parallel=True),
        "search": {"trials": 2, "space": {"Architecture.hidden_dim": {"int": [8, 16]}}},
        "ensemble": {"size": 2, "epochs": 10},
    }
    one, two = ({"name": name, "format": "emt_alloys"} for name in ("one", "two"))
    both = {"sources": [one, two], "split": {"val": 0.1, "test": 0.1}}
    RunConfig.model_validate({**values, "data": both})
    for change, words in (
        ({"mode": "stream"}, "data.mode = stream"),
        ({"sources": [one]}, "one branch"),
    ):
        with pytest.raises(ValueError, match=words):
            RunConfig.model_validate({**values, "data": both | change})
