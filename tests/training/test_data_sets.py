"""One network on data sets of different levels of theory: its scales, its loss and its errors."""

import numpy as np
import pytest
import torch
from data_set_cases import FAR, PLAIN, branches, one_of, two_level_store
from device_cases import NETWORKS
from in_place_cases import NAMES, prepared, three_sets
from segment_cases import make_spec, network_with
from test_criterion import summed

from hydragnn_flow.config import DataConfig, load_network
from hydragnn_flow.data import prepare_store, write_store
from hydragnn_flow.ensemble.selection import Judged
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model
from hydragnn_flow.training.measures.criterion import Criterion, trivial_errors
from hydragnn_flow.training.measures.losses import Counts, Loss, atoms_per_structure
from hydragnn_flow.training.measures.metrics import Metrics
from hydragnn_flow.training.plan.sampling import drawn_size, judged_by
from hydragnn_flow.training.runner import run_segment


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return two_level_store(tmp_path_factory.mktemp("two"))


def network(**changes):
    heads = {"node": branches()}
    return network_with(Architecture__output_heads=heads, **changes)


def test_a_loss_begins_at_about_one_on_each_data_set(store):
    """As it does on one alone."""
    torch.manual_seed(0)
    model, loss = build_model(network(), store), Loss(load_network(network()), store.manifest)
    for branch in (0, 1):
        batch = store["trainset"].batch(one_of(store, "trainset", branch))
        counts = Counts(batch.num_graphs, batch.num_nodes)
        means = loss.term_means(model(batch), batch, counts)
        assert 0.05 < loss.total(means).item() < 3


@pytest.mark.parametrize("changes", [{}, NETWORKS["equivariant attention"]], ids=["", "finite"])
def test_forces_are_the_slope_of_the_energy_in_every_branch(store, changes):
    torch.manual_seed(0)
    model = build_model(network(**changes), store).double().eval()
    of_both = np.concatenate([one_of(store, "trainset", k)[:2] for k in (1, 0)])
    batch = store["trainset"].batch(of_both)
    batch.pos = batch.pos.double()
    if changes:  # attention reads the positions of graphs that are not periodic
        batch.pbc.fill_(0)
    forces, step = model(batch)["forces"], 1e-4

    def energy(atom, shift):
        moved = batch.clone()
        moved.pos[atom, 0] += shift
        return float((model(moved)["energy"] - model.references(moved)).sum())

    for atom in (0, int(batch.num_nodes) - 1):
        slope = (energy(atom, step) - energy(atom, -step)) / (2 * step)
        assert forces[atom, 0].item() == pytest.approx(-slope, abs=1e-6)


def test_a_data_set_weighs_in_the_loss_what_is_asked(store):
    """Weights are relative: their mean is one."""
    batch = store["trainset"].batch(range(12, 36))
    counts = Counts(batch.num_graphs, batch.num_nodes)
    torch.manual_seed(0)
    outputs = build_model(network(), store)(batch)

    def total(**weights):
        changes = {"Training__branch_weights": weights} if weights else {}
        loss = Loss(load_network(network(**changes)), store.manifest)
        return loss.total(loss.term_means(outputs, batch, counts)).item()

    even, far, plain = total(), total(**{FAR: 1e6}), total(**{PLAIN: 1e6})
    assert far + plain == pytest.approx(2 * even, rel=1e-4)
    assert total(**{FAR: 3.0}) == pytest.approx((1.5 * far + 0.5 * plain) / 2, rel=1e-4)
    with pytest.raises(InputError, match=r"branch_weights names 'fer'.* are plain, far"):
        total(fer=1.0)


def test_a_data_set_of_large_structures_counts_as_much_as_one_of_small_ones(tmp_path):
    """A structure counts on average as one in the forces' term, not as its number of atoms."""
    sources = [
        {"name": name, "format": "emt_alloys", "structures": 30, "atoms": atoms}
        for name, atoms in ((PLAIN, [8, 10]), (FAR, [40, 48]))
    ]
    config = DataConfig.model_validate({"sources": sources, "split": {"val": 0.1, "test": 0.1}})
    unequal = prepare_store(config, 3.0, None, 0, tmp_path / "unequal.gs")
    train = unequal["trainset"]
    batch = train.batch(range(len(train)))
    loss = Loss(load_network(network()), unequal.manifest)
    (place,) = (n for n, term in enumerate(loss.terms) if term.target == "forces")
    of_branch = batch.dataset_name.view(-1)

    def means(wrong):
        """The term where the forces of one data set are wrong by their scale."""
        rows = (of_branch == wrong)[batch.batch][:, None]
        scale = loss.terms[place].scale[wrong][0]
        outputs = {"energy": batch.energy.view(-1, 1), "forces": batch.forces + scale * rows}
        found = loss.term_means(outputs, batch, Counts(batch.num_graphs, batch.num_nodes))
        return float(found[place])

    share = float((of_branch == 0).double().mean())
    assert means(0) == pytest.approx(share, rel=1e-5)
    assert means(1) == pytest.approx(1 - share, rel=1e-5)


def test_labels_that_are_missing_weigh_the_same_in_training_and_in_judging(store, tmp_path):
    """A data set with labels of one structure in four counts in both as if all had one."""
    splits = {name: list(store[name]) for name in store.splits}
    for graphs in splits.values():
        of_far = [graph for graph in graphs if int(graph.dataset_name)]
        for number, graph in enumerate(of_far):
            if number % 4:
                graph.forces[:] = torch.nan
    masked = write_store(tmp_path / "s.gs", splits, targets=store.manifest.targets, cutoff=4.0)
    loss = Loss(load_network(network()), masked.manifest)
    batch = masked["trainset"].batch(range(len(masked["trainset"])))
    counts = Counts(batch.num_graphs, batch.num_nodes)
    for wrong in (0, 1):
        rows = (batch.dataset_name.view(-1) == wrong)[batch.batch][:, None]
        forces = batch.forces.nan_to_num().double() + rows
        outputs = {"energy": batch.energy.double().view(-1, 1), "forces": forces}
        trained = loss.total(loss.term_means(outputs, batch, counts)).item()
        assert loss.judged(loss.sums(outputs, batch), counts) == pytest.approx(trained, rel=1e-6)


def test_a_branch_without_structures_to_train_on_has_those_of_all_sizes(store):
    manifest, known = store.manifest, store.manifest.statistics.by_branch
    three = load_network(network_with(Architecture__output_heads={"node": branches(3)}))
    sizes = [known[branch].atoms / known[branch].graphs for branch in (0, 1)]
    of_all = manifest.splits["trainset"].atoms / manifest.splits["trainset"].graphs
    assert atoms_per_structure(three, manifest) == pytest.approx([*sizes, of_all])
    assert atoms_per_structure(load_network(network_with()), manifest) is None


@pytest.mark.parametrize("name", ["mae", "rmse"])
def test_errors_are_those_of_each_data_set_and_their_mean(store, name):
    """However large each is, and in whatever batches; the criterion is the same by predictions."""
    manifest, val = store.manifest, store["valset"]
    checked = load_network(network())
    metrics = Metrics(Loss(checked, manifest).targets, manifest, name)
    rng = np.random.default_rng(0)
    labels = {target: val.target(target) for target in ("energy", "forces")}
    predictions = {target: v + rng.normal(size=v.shape) for target, v in labels.items()}
    parts = (range(3), range(3, 9), range(9, len(val)))
    found = summed(metrics, map(val.batch, parts), predictions)
    residual = np.abs(predictions["forces"] - labels["forces"])
    of_atom = np.repeat(val.branch, val.n_atoms)
    by_hand = [residual[of_atom == branch].mean() for branch in (0, 1)]
    means = dict(zip((f"@{PLAIN}", f"@{FAR}", ""), [*by_hand, np.mean(by_hand)], strict=True))
    assert {name: found[f"forces_mae{name}"] for name in means} == pytest.approx(means)
    trivial = trivial_errors(store["trainset"], manifest, name)
    assert list(trivial) == [
        f"{target}@{data_set}" for target in ("energy", "forces") for data_set in (PLAIN, FAR)
    ]
    assert trivial[f"energy@{FAR}"] < 1.0  # eV per atom, though energies are 1,000 eV away
    criterion = Criterion.of(checked, manifest, trivial, name)
    stacked = {target: values[None] for target, values in predictions.items()}
    residuals, shares, _ = criterion.residuals(stacked, labels, val.n_atoms, val.branch)
    (error,) = Judged(residuals, shares, criterion.power).criterion(residuals)
    assert criterion.of_metrics(found) == pytest.approx(error, rel=1e-6)


def test_a_part_of_the_validation_split_has_as_many_of_each_data_set(store):
    part = judged_by(store["valset"], (8, 3))
    (batch,) = part.batches([np.arange(len(part))])
    assert np.bincount(batch.dataset_name.view(-1)).tolist() == [4, 4]
    (nearly_all,) = judged_by(store["valset"], (13, 3)).batches([np.arange(13)])
    assert np.bincount(nearly_all.dataset_name.view(-1)).tolist() == [7, 6]


def test_estimates_are_of_the_structures_that_are_drawn(store):
    manifest = store.manifest
    train, known = manifest.splits["trainset"], manifest.statistics.by_branch
    assert drawn_size(manifest, "proportional") == train
    mean = {number: found.atoms / found.graphs for number, found in known.items()}
    equal = drawn_size(manifest, "equal")
    assert equal.graphs == train.graphs
    assert equal.atoms == round(train.graphs * (mean[0] + mean[1]) / 2)
    weighted = drawn_size(manifest, {PLAIN: 3, FAR: 1})
    assert weighted.atoms == round(train.graphs * (3 * mean[0] + mean[1]) / 4)


def test_two_levels_are_learnt_as_well_as_one(store, tmp_path):
    """A few epochs bring both data sets down alike; all together they stayed at thousands."""
    changes = {"Training__num_epoch": 10, "Training__batch_size": 4}
    spec = make_spec(tmp_path / "two", store, 10, network=network(**changes))
    result = run_segment(spec)
    assert result.status == "ok", result.reason
    near, far = (result.metrics[f"energy_mae_per_atom@{name}"] for name in (PLAIN, FAR))
    assert max(near, far) < 0.2
    assert max(near, far) < 4 * min(near, far)
    assert result.metrics["energy_mae_per_atom"] == pytest.approx((near + far) / 2)


def test_a_segment_learns_the_same_in_place(tmp_path):
    """Two files of HydraGNN's and a store, a branch each: errors differ by rounding alone."""
    sources = three_sets(tmp_path)
    of_three = network_with(Architecture__output_heads={"node": branches(3)})
    found = []
    for number, (in_place, mode) in enumerate(
        [(False, "memory"), (True, "memory"), (True, "random")]
    ):
        store = prepared(tmp_path, sources, f"{in_place}.gs", in_place=in_place)
        spec = make_spec(tmp_path / str(number), store, 2, network=of_three, mode=mode)
        result = run_segment(spec)
        assert result.status == "ok", result.reason
        names = [f"{error}@{name}" for error in ("energy_mae", "forces_mae") for name in NAMES]
        found.append({name: result.metrics[name] for name in names})
    for there in found[1:]:
        assert there == pytest.approx(found[0], rel=1e-3)
