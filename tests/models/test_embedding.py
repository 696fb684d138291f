"""Rows of the embedding of elements before training."""

import torch
from ase.data import atomic_numbers
from torch.nn.functional import cosine_similarity

from hydragnn_flow.models.embedding import N_ELEMENTS, NodeEmbedding, periodic_features

GROUPS = {
    1: "H Li Na K Rb Cs Fr",
    2: "Be Mg Ca Sr Ba Ra",
    3: "Sc Y La Ce Gd Yb Lu Ac U Lr",
    4: "Ti Zr Hf Rf",
    8: "Fe Ru Os",
    12: "Zn Cd Hg",
    13: "B Al Ga In Tl",
    18: "He Ne Ar Kr Xe Rn Og",
}
PERIODS = ["H He", "Li Ne", "Na Ar", "K Sc Fe Kr", "Rb Y Xe", "Cs La Lu Hf Rn", "Fr Ac Lr Og"]


def test_elements_have_their_places_in_the_periodic_table():
    features = periodic_features()
    assert features.shape[0] == N_ELEMENTS
    assert not features[0].any()
    for column, classes in ((0, GROUPS.values()), (1, PERIODS)):
        values = [features[[atomic_numbers[s] for s in row.split()], column] for row in classes]
        assert all((found == found[0]).all() for found in values)
        firsts = [float(found[0]) for found in values]
        assert firsts == sorted(set(firsts)), "ascending, and each its own"


def test_rows_of_alike_elements_are_alike():
    def likeness(one: str, other: str) -> float:
        first, second = rows[atomic_numbers[one]], rows[atomic_numbers[other]]
        return float(cosine_similarity(first, second, dim=0))

    torch.manual_seed(0)
    embedding = NodeEmbedding(["atomic_number"], [0], 512)
    rows = embedding.elements.weight.detach()
    assert 0.8 < rows.square().mean() < 1.2
    for alike, unlike in (("Co", "Na"), ("Mn", "O")):
        assert likeness("Fe", alike) > 0.7 > likeness("Fe", unlike) + 0.3
    assert likeness("Na", "K") > 0.7
    assert likeness("Na", "K") < 0.99, "no two are the same"
