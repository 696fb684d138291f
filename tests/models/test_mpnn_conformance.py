"""Every message-passing type that ships passes the suites of `hydragnn_flow.testing`."""

from dataclasses import replace
from typing import ClassVar

import pytest

from hydragnn_flow.config.network.mpnn_types import READ_BY, properties_of
from hydragnn_flow.testing import message_passing
from hydragnn_flow.testing.message_passing import PotentialSuite, PropertySuite
from hydragnn_flow.testing.networks import alloy, lively

_BUILT = {}


class _Kept:
    """A network that tests only predict with is built once for all of a class."""

    @pytest.fixture
    def model(self, mpnn_type, properties, make):
        key = type(self).__name__, mpnn_type, str(self.architecture)
        if key not in _BUILT:
            lengths = ["lengths"] if not self.potential and properties.lengths != "never" else None
            _BUILT[key] = lively(make(edge_features=lengths))
        return _BUILT[key]


class TestTypes(_Kept, PropertySuite):
    @pytest.fixture
    def mpnn_type(self, mpnn):
        return mpnn


class TestPotentials(_Kept, PotentialSuite):
    @pytest.fixture
    def mpnn_type(self, potential_type):
        return potential_type


class _Moving(_Kept):
    # Counted for each of them without.
    test_costs_the_same_without_numbers = None
    architecture: ClassVar = {"equivariance": True, "num_conv_layers": 3}

    @pytest.fixture(params=READ_BY["equivariance"])
    def mpnn_type(self, request):
        return request.param


class TestTypesThatMoveTheAtoms(_Moving, PropertySuite):
    pass


class TestPotentialsThatMoveTheAtoms(_Moving, PotentialSuite):
    pass


class _Gps(_Kept):
    """With GPS around the layers, whose batch mates matter in HydraGNN."""

    # As of attention below; test_attention compares with a step.
    test_costs_the_same_without_numbers = None

    @pytest.fixture(params=["multihead", "performer"], autouse=True)
    def _kind(self, request):
        keys = {"global_attn_engine": "GPS", "global_attn_heads": 3}
        self.architecture = keys | {"global_attn_type": request.param}

    @pytest.fixture
    def mpnn_type(self):
        return "CGCNN"


class TestGps(_Gps, PropertySuite):
    # What all keys have in common does not change the attention: no gradient reaches their bias.
    test_every_normalisation_learns_from_its_graph_alone = None


class TestGpsOfPotentials(_Gps, PotentialSuite):
    pass


class _Attending(_Kept):
    """With HydraGNN's EquivariantTransformer around the layers."""

    architecture: ClassVar = {
        "global_attn_engine": "EquivariantTransformer",
        "global_attn_heads": 2,
        "equivariant_attn_allow_scalar_only": True,
        "equivariant_attn_require_tensor_coupling": False,
    }

    # Each of the types that may have it is in one of the classes below, or in both.
    @pytest.fixture(params=("PAINN", "SchNet"))
    def mpnn_type(self, request):
        return request.param

    @pytest.fixture
    def properties(self, mpnn_type):
        """Every type sees angles then."""
        return replace(properties_of(mpnn_type), sees_angles=True)

    # The layers are counted above, and test_equivariant_attention compares with a step.
    test_costs_the_same_without_numbers = None
    # SchNet may not move its atoms.
    test_vectors_are_as_its_properties_say = None


class TestAttention(_Attending, PropertySuite):
    pass


class TestAttentionOfPotentials(_Attending, PotentialSuite):
    pass


class _Finite(_Attending):
    """Clusters, whose atoms also see where the others are."""

    @pytest.fixture(autouse=True)
    def _clusters(self, monkeypatch):
        monkeypatch.setattr(message_passing, "alloy", cluster)

    # They have no periodic images.
    test_supercell_has_the_same_properties = None
    test_supercell_has_eight_times_the_energy = None
    test_choice_of_periodic_image_does_not_matter = None
    test_choice_of_cell_vectors_does_not_matter = None


class TestAttentionOfPotentialsOfClusters(_Finite, PotentialSuite):
    @pytest.fixture(params=("PNAEq", "DimeNet"))
    def mpnn_type(self, request):
        return request.param


class TestAttentionOfClustersToHigherDegrees(_Finite, PotentialSuite):
    architecture: ClassVar = _Attending.architecture | {
        "equivariant_attn_lmax": 2,
        "equivariant_attn_chunk_size": 3,
        "equivariant_attn_coupling_mode": "sequential",
        "num_conv_layers": 3,
        "node_max_ell": 2,
    }

    @pytest.fixture
    def mpnn_type(self):
        return "MACE"


def cluster(*given, **named):
    """The alloy's atoms without their periodic images."""
    atoms = alloy(*given, **named)
    atoms.pbc = False
    return atoms
