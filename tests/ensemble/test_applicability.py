"""Applicability: structures unlike the training data are named, structures like them are not."""

import re

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.data import GraphSplit, atoms_to_graph, batch_graphs, write_store
from hydragnn_flow.ensemble import applicability as module
from hydragnn_flow.ensemble.applicability import Applicability, Range, fraction_ranges
from hydragnn_flow.ensemble.environments import Surroundings, neighbours_in_shells
from hydragnn_flow.ensemble.predictions.structure_files import store_records
from hydragnn_flow.training.predict import split_batches

CUTOFF = 4.0


@pytest.fixture(scope="module")
def known(alloy_store):
    return Applicability.of(alloy_store["trainset"], alloy_store.manifest)


@pytest.fixture(scope="module")
def alloys(alloy_store):
    records = store_records(alloy_store).values()
    return [record.atoms for record in records if record.file == "testset"]


def notes(known, *structures):
    return known.compare(batch_graphs([atoms_to_graph(one, CUTOFF, None) for one in structures]))


def store_of(folder, structures):
    graphs = [atoms_to_graph(one, CUTOFF, None) for one in structures]
    return write_store(folder / "some.gs", {"trainset": graphs}, cutoff=CUTOFF)


def outside(alloys):
    """Structures unlike fcc alloys near their equilibrium."""
    rng = np.random.default_rng(0)
    for alloy in alloys:
        for factor in (0.75, 0.8, 0.85, 1.15, 1.2, 1.4):
            scaled = alloy.copy()
            scaled.set_cell(alloy.cell * factor, scale_atoms=True)
            yield f"x{factor}", scaled
        slab = alloy.copy()
        slab.center(vacuum=8.0, axis=2)
        yield "slab", slab
        yield "cluster", Atoms(alloy.numbers, alloy.positions)
        holes = alloy * (2, 1, 1)
        del holes[[0, 1, 2]]
        yield "vacancies", holes
        close = alloy.copy()
        close.positions[0] = close.positions[1] + rng.normal(size=3) * 0.5
        yield "close", close
        strange = alloy.copy()
        strange.symbols[0] = "Al"
        yield "new element", strange


def test_structures_outside_are_flagged_and_those_held_out_are_not(alloy_store, known, alloys):
    kinds, structures = zip(*outside(alloys), strict=True)
    found = notes(known, *structures)
    assert len(found) >= 40
    missed = [kind for kind, note in zip(kinds, found, strict=True) if not note]
    assert len(missed) <= 0.1 * len(found), missed
    held_out = [
        note
        for split in ("valset", "testset")
        for batch in split_batches(alloy_store[split])
        for note in known.compare(batch)[0]
    ]
    assert sum(map(bool, held_out)) <= 0.1 * len(held_out), held_out


def test_a_note_says_quantity_value_unit_and_range(alloy_store, known):
    copper = bulk("Cu", cubic=True)
    near = copper.copy()
    near.positions[1] = near.positions[0] + [1.2, 0.0, 0.0]
    one, none, big = notes(known, near, copper, bulk("Cu", a=4.4, cubic=True))
    assert none == ""
    assert "the distance Cu–Cu is 1.2 Å, below 2." in one
    assert "the shortest of such elements in the training data" in one
    assert "the volume per atom is 21.3 Å³, above 1" in big
    pairs = [Atoms([symbol] * 2, [[0, 0, 0], [0.9, 0, 0]]) for symbol in ("Ni", "Au")]
    nickel, gold = (float(re.findall("below (.*) Å, the sh", n)[0]) for n in notes(known, *pairs))
    assert nickel < gold - 0.1, "gold atoms are further apart"
    aluminium = bulk("Al", cubic=True)
    assert notes(known, aluminium) == ["the training data have no Al"], "and nothing else"
    (alone,) = notes(known, Atoms("Cu"))
    assert "the surroundings of atom 0 (Cu) is" in alone and "largest of 98 % in the" in alone


@settings(max_examples=5)
@given(seed=st.integers(0, 2**16))
def test_notes_depend_on_neither_frame_nor_order_nor_cell(known, seed):
    rng = np.random.default_rng(seed)
    slab: Atoms = fcc111("Cu", (2, 2, 3), vacuum=6.0, periodic=True)
    slab.rattle(0.1, rng=rng)
    turned = slab.copy()
    turned.rotate(float(rng.uniform(0, 180)), rng.normal(size=3), rotate_cell=True)
    turned.positions += rng.normal(size=3)
    shuffled = slab[rng.permutation(len(slab))]
    one, *others = notes(known, slab, turned, slab * (2, 1, 1), shuffled)
    assert one
    for other in others:
        assert numbers(other) == pytest.approx(numbers(one), rel=0.01)


def numbers(note):
    """Quantities of a note, without the atoms they are of."""
    parts = (part.split(" is ") for part in note.split("; "))
    return {what.split(" of atom")[0]: float(value.split()[0].strip(",")) for what, value in parts}


def test_molecules_have_a_size_and_a_composition_but_no_volume(tmp_path):
    rng = np.random.default_rng(0)

    def ethanol():
        atoms: Atoms = molecule("CH3CH2OH")
        atoms.rattle(0.03, rng=rng)
        return atoms

    store = store_of(tmp_path, [ethanol() for _ in range(40)])
    known = Applicability.of(store["trainset"], store.manifest)
    one, water = ethanol(), molecule("H2O")
    two = one.copy()
    two.positions += [0, 0, 7.0]
    radical = one.copy()
    del radical[-1]
    like, of_two, of_water, of_radical = notes(known, one, one + two, water, radical)
    assert like == ""
    assert of_two == "the number of atoms is 18, above 9, the largest in the training data"
    assert "the number of atoms is 3, below 9" in of_water
    assert "the fraction of C is 0, below 0.222, the smallest in the training data" in of_water
    assert "the number of atoms is 8" in of_radical


def test_compositions_of_diverse_chemistry_are_seldom_flagged():
    """Most structures lack most elements, so fractions are 0 but for a few per cent."""
    rng = np.random.default_rng(0)

    def fractions(n):
        found, common = np.zeros((n, 119)), 1 / np.arange(1, 81) ** 0.7
        for one in found:
            elements = rng.choice(80, rng.integers(1, 5), False, common / common.sum())
            one[elements + 1] = rng.dirichlet(np.ones(len(elements)))
        return found

    for n in (100, 1000):
        training, others = fractions(n), fractions(300)
        ranges = fraction_ranges(training)
        assert sorted(ranges) == np.flatnonzero(training.any(axis=0)).tolist()
        assert all(of.low == training[:, z].min() for z, of in ranges.items())
        assert all(of.high == training[:, z].max() for z, of in ranges.items())
        beyond = (of.beyond(others[:, z], True, True) for z, of in ranges.items())
        assert len({i for places in beyond for i, _ in places}) <= 0.02 * len(others), n


def test_a_dopant_and_a_solvent_keep_their_fractions():
    """Of two elements, one is nowhere absent, and the other is rare and scarce."""
    rng = np.random.default_rng(0)
    training = np.zeros((400, 119))
    training[::10, 14] = rng.uniform(0.01, 0.04, 40)
    training[:, 31] = rng.uniform(0.4, 0.6, 400)
    training[:, 33] = 1 - training[:, 14] - training[:, 31]
    ranges = fraction_ranges(training)
    more = np.array([0.0, 0.04, 0.2])
    assert [i for i, _ in ranges[14].beyond(more, True, True)] == [2]
    less = np.array([0.2, 0.41, 0.58, 0.8])
    assert [i for i, _ in ranges[31].beyond(less, True, True)] == [0, 3]


@settings(max_examples=10)
@given(seed=st.integers(0, 2**16), n_elements=st.integers(1, 3))
def test_distances_from_usual_surroundings_have_the_mean_of_independent_numbers(seed, n_elements):
    rng = np.random.default_rng(seed)
    numbers = rng.integers(1, 1 + n_elements, 2000)
    counts = rng.normal(size=(2000, 6)) @ rng.normal(size=(6, 6)) + 10.0 * numbers[:, None]
    counts[:, 5] = counts[:, 4]  # what does not vary by itself says nothing
    halves = ((numbers[half], counts[half]) for half in (slice(700), slice(700, None)))
    found = Surroundings.found(halves)
    away = found.distances(numbers, counts)
    assert np.mean(away**2) == pytest.approx(found.whitening.shape[1], rel=1e-6)
    assert found.whitening.shape[1] <= 5


def test_neighbours_are_shared_out_between_the_nearest_distances():
    counts = neighbours_in_shells(np.array([0, 0, 2, 2]), np.array([1.1, 1.25, 0.1, 99.0]), 3)
    assert counts[0] == pytest.approx([0, 1.5, 0.5, 0, 0, 0])
    assert not counts[1:].any()


def test_perfect_crystals_do_not_widen_the_range_of_deviations(alloy_store):
    """There are no forces on their atoms, and members agree on that."""
    forces = np.concatenate([np.full(20, 1e-9), np.geomspace(0.01, 0.1, 60)])
    known = Applicability.of(alloy_store["trainset"], alloy_store.manifest)
    known = known.with_deviations({"forces": forces})
    (note,), _ = known.disagreement({"forces": np.array([0.4])}, alloy_store.manifest)
    assert "forces is 0.4 eV/Å, above 0.1 eV/Å" in note


def test_what_was_found_survives_its_file(alloy_store, known, alloys, tmp_path):
    file = tmp_path / "applicability.json"
    known.save(file)
    structures = [one for _, one in outside(alloys)]
    loaded = Applicability.load(file)
    assert notes(loaded, *structures) == notes(known, *structures)
    assert file.stat().st_size < 100_000
    manifest = alloy_store.manifest.model_copy(update={"node_features": ["charge"]})
    nothing = Applicability.of(alloy_store["trainset"], manifest)
    nothing = nothing.with_deviations({"energy": np.ones(3)})
    assert nothing.compare(alloy_store["testset"].batch([0, 1])) == ["", ""], "nodes are no atoms"
    nothing.save(file)
    assert Applicability.load(file) == nothing


def test_many_structures_are_sampled_evenly(alloy_store, tmp_path, monkeypatch):
    read = []

    def batches(split, selections):
        for chosen in selections:
            read.extend(chosen.tolist())
            yield split.batch(chosen)

    store = store_of(tmp_path, [bulk("Cu", a=a, cubic=True) for a in np.linspace(3.4, 3.8, 21)])
    monkeypatch.setattr(module, "_SAMPLE", 4)
    monkeypatch.setattr(GraphSplit, "batches", batches)
    known = Applicability.of(store["trainset"], alloy_store.manifest)
    assert read == [0, 7, 13, 20] * 3
    assert set(known.elements or ()) == set(alloy_store.manifest.elements), "not only copper"


def test_members_that_differ_more_than_on_calibration_data(alloy_store):
    manifest = alloy_store.manifest
    calibration = {"forces": np.geomspace(0.01, 0.1, 200), "energy": np.full(3, 1.0)}
    known = Applicability.of(alloy_store["trainset"], manifest).with_deviations(calibration)
    found = {"energy": np.full(3, 0.7), "forces": np.array([0.0, 0.354, 0.0])}
    (first, second, third), disagreement = known.disagreement(found, manifest)
    assert first == third == ""
    assert list(disagreement > 1) == [False, True, False]
    wide = Applicability(deviations={"energy": Range(-90.0, 0.0, 900.0)})  # as of few, unequal ones
    assert (wide.disagreement(found, manifest)[1] == 0).all()
    assert "forces is 0.354 eV/Å, above 0.1 eV/Å, the largest in the calibration" in second
    larger = {"energy": np.array([1.5, np.nan])}
    (note, none), disagreement = known.disagreement(larger, manifest)
    assert disagreement == pytest.approx([1.5, np.nan], rel=0.01, nan_ok=True)
    assert "energy is 1.5 eV per atom, above 1 eV per atom" in note and none == ""


@settings(max_examples=20)
@given(n=st.integers(2, 500), seed=st.integers(0, 2**16))
def test_a_range_holds_its_own_data_but_for_the_last_few(n, seed):
    values = np.random.default_rng(seed).normal(size=n)
    found = Range.of(values)
    assert not list(found.beyond(values, True, True)) or n > 300
    far = np.array([-1e6, 1e6])  # of two values alone, little is known
    assert list(found.beyond(far, True, True)) == [(0, found.low), (1, found.high)]
    assert not list(found.beyond(far, False, False))


def test_new_structures_of_the_same_kind_are_seldom_flagged():
    rng = np.random.default_rng(1)
    for n in (20, 200, 2000):
        ranges = [Range.of(rng.normal(size=n)) for _ in range(200)]
        rates = [len([*one.beyond(rng.normal(size=500), True, True)]) / 500 for one in ranges]
        assert np.mean(rates) < 0.006, n
