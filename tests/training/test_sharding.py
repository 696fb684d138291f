"""Sharding: a network of which each rank holds a part trains as one that is whole."""

import shutil

import ddp_rank
import numpy as np
import pytest
import torch
import traffic_rank
from hypothesis import given
from hypothesis import strategies as st
from segment_cases import make_spec, network_with
from torch import nn
from training_cases import CPU, PROPERTY, segment, trainer_of

from hydragnn_flow.config import load_network
from hydragnn_flow.config.network import MPNN_TYPES
from hydragnn_flow.errors import InputError
from hydragnn_flow.placement import Work
from hydragnn_flow.training.checkpoints.checkpoint import (
    FILE,
    Rows,
    copy_checkpoint,
    load_checkpoint,
    remove_checkpoint,
    save_checkpoint,
    sweep_parts,
)
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.parallel import parallel
from hydragnn_flow.training.runner import run_segment

pytestmark = pytest.mark.xdist_group("ranks")  # which one process forks


def sharded(strategy, *, potential=True, **changes):
    sharding = {"strategy": strategy}
    if strategy == "HYBRID_SHARD":
        sharding["group"] = 2
    kind = {} if potential else PROPERTY
    given = {"Training__batch_size": 5, "Training__sharding": sharding, **kind}
    return network_with(**given | changes)


NETWORKS = {
    "full": sharded("FULL_SHARD"),
    "full, property": sharded("FULL_SHARD", potential=False),
    "gradients": sharded("SHARD_GRAD_OP", Architecture__mpnn_type="PAINN"),
    "hybrid": sharded("HYBRID_SHARD", Architecture__mpnn_type="EGNN"),
    "hybrid, property": sharded("HYBRID_SHARD", potential=False, Architecture__mpnn_type="PNA"),
    "hybrid, kept": sharded(
        "HYBRID_SHARD",
        potential=False,
        Training__sharding={"strategy": "HYBRID_SHARD_ZERO2", "group": 2},
    ),
    "recomputed potential": sharded("FULL_SHARD", Training__conv_checkpointing=True),
    "in micro-batches": sharded("FULL_SHARD", Training__accumulation_steps=2),
    "Muon": sharded("FULL_SHARD", Training__Optimizer__type="Muon"),
    # more ranks than graphs in a step
    "one by one": sharded("FULL_SHARD", potential=False, Training__batch_size=1),
}
MORE = {
    "gradients, property": sharded("SHARD_GRAD_OP", potential=False),
    "recomputed": sharded("FULL_SHARD", potential=False, Training__conv_checkpointing=True),
    "rmse": sharded("FULL_SHARD", Training__loss_function_type="rmse"),
    "SGD, clipped": sharded(
        "FULL_SHARD", Training__Optimizer__type="SGD", Training__gradient_clip=0.1
    ),
    "no average": sharded("SHARD_GRAD_OP", Training__ema_decay=0.0),
    "fp64": sharded("FULL_SHARD", Training__precision="fp64"),
}
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD")
# Of the strategies one for each network, in turn.
TYPES = {
    f"{mpnn_type}, {strategy}, {kind}": sharded(
        strategy,
        potential=kind == "potential",
        Architecture__mpnn_type=mpnn_type,
        Training__precision="fp64",  # some types multiply what is rounded
    )
    for number, (mpnn_type, properties) in enumerate(MPNN_TYPES.items())
    for kind, strategy in (
        ("property", STRATEGIES[number % 3]),
        ("potential", STRATEGIES[(number + 1) % 3]),
    )
    if kind == "property" or properties.properties.lengths != "never"
}


def specs_of(networks, folder, store):
    """A segment of each network, in a folder of its name."""
    return {
        name: make_spec(folder / name, store, 1, network=network).to_dict()
        for name, network in networks.items()
    }


def on_ranks(size, networks, folder, store):
    """Answers of all ranks by network."""
    return ddp_rank.on_ranks_by_name(size, specs_of(networks, folder, store), folder)


def check_equal(name, network, ranks, folder, store, within=1e-5):
    training = {k: v for k, v in network["Training"].items() if k != "sharding"}
    spec = make_spec(folder / "alone", store, 1, network={**network, "Training": training})
    alone = ddp_rank.train(spec.to_dict(), World())
    ddp_rank.check_equal(ranks, alone, within, name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def on_four_ranks(folder, alloy_store):
    return on_ranks(4, NETWORKS, folder, alloy_store)


@pytest.mark.parametrize("name", NETWORKS)
def test_four_parts_train_as_the_whole(tmp_path, on_four_ranks, name, alloy_store):
    check_equal(name, NETWORKS[name], on_four_ranks[name], tmp_path, alloy_store)


@pytest.mark.slow
def test_every_type_trains_in_parts(tmp_path, alloy_store):
    networks = {**MORE, **TYPES}
    found = on_ranks(4, networks, tmp_path, alloy_store)
    for number, (name, network) in enumerate(networks.items()):
        (alone := tmp_path / f"alone-{number}").mkdir()
        within = 1e-9 if network["Training"].get("precision") == "fp64" else 1e-5
        check_equal(name, network, found[name], alone, alloy_store, within)


def test_ranks_hold_their_part(on_four_ranks):
    """Rows are divided, so that a rank may hold a row more of each parameter than others."""
    for name, parts in (("full", 4), ("gradients", 4), ("hybrid", 2)):
        ranks = [rank["held"] for rank in on_four_ranks[name]]
        for kind in ("parameters", "gradients", "optimiser"):
            numbers = [held[kind] for held in ranks]
            assert sum(numbers) % (4 // parts) == 0
            whole = sum(numbers) * parts // 4
            assert max(numbers) <= 1.15 * whole / parts
        assert ranks[0]["optimiser"] == 2 * ranks[0]["parameters"]


CONTINUED = ("full", "full, property", "hybrid")


@pytest.fixture(scope="module")
def goes_on_alone(tmp_path_factory, alloy_store):
    """Losses of one process that has never stopped."""
    found = {}
    for name in CONTINUED:
        folder = tmp_path_factory.mktemp("alone")
        trainer = trainer_of(folder, alloy_store, 1, network=NETWORKS[name])
        ddp_rank.train_on(trainer, World())
        found[name] = ddp_rank.train_on(trainer, World())
    return found


def other_strategies(network):
    """The same network, trained otherwise."""
    strategies = {"by parts": "SHARD_GRAD_OP", "by replicas": "NO_SHARD", "by halves": "FULL_SHARD"}
    return {
        how: {**network, "Training": {**network["Training"], "sharding": {"strategy": strategy}}}
        for how, strategy in strategies.items()
    }


@pytest.mark.parametrize("size", [1, 2])
def test_any_width_and_strategy_continues_it(
    tmp_path, folder, on_four_ranks, goes_on_alone, alloy_store, size
):
    networks = {}
    for name in CONTINUED:
        for how, network in other_strategies(NETWORKS[name]).items():
            networks[f"{name} {how}"] = network
            shutil.copytree(folder / name, tmp_path / f"{name} {how}")
    if size == 1:
        specs = specs_of(networks, tmp_path, alloy_store)
        found = {name: [ddp_rank.train(spec, World())] for name, spec in specs.items()}
    else:
        found = on_ranks(size, networks, tmp_path, alloy_store)
    for name, ranks in found.items():
        expected = goes_on_alone[name.partition(" by ")[0]]
        for rank in ranks:
            np.testing.assert_allclose(rank["losses"], expected, rtol=1e-5)


def damage(file):
    """Flip a bit."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_checkpoint_without_a_part_is_refused(tmp_path, folder, on_four_ranks):
    for how, words in (("gone", "cannot be read"), ("short", "not the"), ("other", "not the part")):
        copy = tmp_path / how
        shutil.copytree(folder / "full", copy)
        (parts,) = copy.glob("*.parts")
        part = parts / "part-00002.pt"
        if how == "gone":
            part.unlink()
        elif how == "short":
            part.write_bytes(part.read_bytes()[:-10])
        else:
            damage(part)
        with pytest.raises(InputError, match=words) as error:
            load_checkpoint(copy / FILE)
        assert "part-00002.pt" in str(error.value)
    # A rank that does not compare this part's sum may stumble over it.
    part.write_bytes(bytes(part.stat().st_size))
    with pytest.raises(InputError, match=r"part-00002\.pt: is not the part that was written"):
        load_checkpoint(copy / FILE, share=(1, 4))


def test_ranks_pass_over_what_any_of_them_finds_damaged(
    tmp_path, folder, on_four_ranks, alloy_store
):
    """The first rank looks at the checkpoint and at every other part, the second at the rest."""
    places = {"of the first": FILE, "of the second": "*.parts/part-00001.pt"}
    for name, place in places.items():
        shutil.copytree(folder / "full", tmp_path / name)
        (file,) = (tmp_path / name).glob(place)
        damage(file)
    found = on_ranks(2, dict.fromkeys(places, NETWORKS["full"]), tmp_path, alloy_store)
    for name in places:
        for rank, begun in zip(found[name], on_four_ranks["full"], strict=False):
            np.testing.assert_allclose(rank["losses"], begun["losses"], rtol=1e-5)


def test_a_checkpoint_goes_with_its_parts(tmp_path, folder, on_four_ranks):
    shutil.copytree(folder / "full", tmp_path / "t")
    copy_checkpoint(tmp_path / "t" / FILE, tmp_path / "copy.pt")
    assert "parts" not in torch.load(tmp_path / "copy.pt", weights_only=True)
    remove_checkpoint(tmp_path / "t" / FILE)
    assert [*(tmp_path / "t").iterdir()] == []


def test_a_successor_that_predicts_alone_keeps_its_predecessors_parts(
    tmp_path, folder, on_four_ranks, alloy_store
):
    """One that ended between its last save and the end of its predictions."""
    network = NETWORKS["full"]
    shutil.copytree(folder / "full", tmp_path / "t")
    (tmp_path / "t" / FILE).rename(tmp_path / "t" / "checkpoint-first.pt")
    spec = make_spec(tmp_path / "t", alloy_store, 0, network=network, attempt="second")
    result = run_segment(spec)
    assert (result.status, result.checkpoint) == ("ok", "checkpoint-second.pt")
    assert [file.name for file in (tmp_path / "t").glob("*.pt")] == ["checkpoint-second.pt"]
    state = load_checkpoint(tmp_path / "t" / "checkpoint-second.pt")
    assert state["predicted"].keys() == {"valset"}
    assert not any(value.is_meta for value in state["best"].values())


def test_a_checkpoint_names_no_folder_elsewhere(tmp_path):
    """Or to take it away would take away what it likes."""
    victim = tmp_path / "victim.parts"
    victim.mkdir()
    for name in ("../victim.parts", str(victim), "victim", "sub/victim.parts"):
        (trial := tmp_path / "trial").mkdir(exist_ok=True)
        (trial / "mine.parts").mkdir(exist_ok=True)
        save_checkpoint(trial / FILE, {"parts": {"folder": name, "files": [[1, 1]]}})
        with pytest.raises(InputError, match="names no folder of parts"):
            load_checkpoint(trial / FILE)
        remove_checkpoint(trial / FILE)
        sweep_parts(trial, 0.0)
        assert victim.exists()


def test_parts_that_no_checkpoint_names_are_swept(tmp_path, folder, on_four_ranks):
    shutil.copytree(folder / "full", tmp_path / "t")
    (named,) = (tmp_path / "t").glob("*.parts")
    shutil.copytree(named, tmp_path / "t" / "checkpoint-0123.parts")
    sweep_parts(tmp_path / "t", 3600.0)
    assert len([*(tmp_path / "t").glob("*.parts")]) == 2
    sweep_parts(tmp_path / "t", 0.0)
    assert [*(tmp_path / "t").glob("*.parts")] == [named]


@given(rows=st.integers(0, 40), parts=st.integers(1, 9), others=st.integers(1, 9))
def test_rows_are_those_of_the_whole(rows, parts, others):
    """However many ranks have written them, and however many read them."""
    whole = torch.arange(3.0 * rows).reshape(rows, 3)
    each, read = -(-rows // parts), max(1, -(-rows // others))
    divided = Rows([whole[part * each :][:each] for part in range(parts)])
    assert divided.shape == whole.shape
    again = [divided[first : first + read] for first in range(0, rows, read)]
    assert torch.equal(torch.cat([*again, whole[:0]]), whole)


@pytest.mark.parametrize(
    ("sharding", "changes", "words"),
    [
        ({"strategy": "HYBRID_SHARD"}, {}, "needs group"),
        ({"strategy": "HYBRID_SHARD", "group": 3}, {}, "group = 3 does not divide 4 GCDs"),
    ],
)
def test_a_strategy_that_cannot_be_is_refused(sharding, changes, words):
    with pytest.raises(InputError, match=words):
        network = load_network(sharded("FULL_SHARD", Training__sharding=sharding, **changes))
        parallel(nn.Linear(1, 1), network.Training, World(0, 4), CPU)


def test_zero_redundancy_is_a_strategy():
    zero = {"Training__Optimizer__use_zero_redundancy": True}
    asked = load_network(network_with(**zero)).Training
    assert asked.is_sharded and not asked.sharding.reshards
    assert not load_network(sharded("NO_SHARD", **zero)).Training.is_sharded


# Changes of a network, and times that a step gathers the weights.
WAYS = {
    "DDP": ({}, 0),
    "FULL_SHARD": ({"Training__sharding": {"strategy": "FULL_SHARD"}}, 2),
    "SHARD_GRAD_OP": ({"Training__sharding": {"strategy": "SHARD_GRAD_OP"}}, 1),
}


def test_what_is_sent_is_what_is_planned(tmp_path, alloy_store):
    """By the cost model, of every strategy."""
    wide = {"Architecture__hidden_dim": 64, "Training__batch_size": 4}
    specs = {
        name: segment(tmp_path, alloy_store, 1, **wide, **keys).to_dict()
        for name, (keys, _) in WAYS.items()
    }
    for answers in ddp_rank.on_ranks(2, traffic_rank.sent, tmp_path / "meeting", specs):
        for name, (_, gathers) in WAYS.items():
            sent, whole = answers[name]
            work = Work(
                flops=0.0,
                bytes=0.0,
                launches=0.0,
                activation_bytes=0.0,
                parameter_bytes=whole,
                parts=2 if gathers else 1,
                gathers=gathers,
            )
            assert sent == pytest.approx(work.exchanged_bytes(2), rel=0.1), name
