"""Every message-passing type that ships passes the suites of `hydragnn_flow.testing`."""

from dataclasses import replace
from typing import ClassVar

import pytest

from hydragnn_flow.config.network import MPNN_TYPES
from hydragnn_flow.config.network.architecture import WITH_EQUIVARIANT_ATTENTION
from hydragnn_flow.config.network.mpnn_types import READ_BY, properties_of
from hydragnn_flow.testing import message_passing
from hydragnn_flow.testing.message_passing import PotentialSuite, PropertySuite
from hydragnn_flow.testing.networks import alloy

POTENTIALS = [name for name, kind in MPNN_TYPES.items() if kind.properties.lengths != "never"]


class TestTypes(PropertySuite):
    @pytest.fixture(params=sorted(MPNN_TYPES))
    def mpnn_type(self, request):
        return str(request.param)


class TestPotentials(PotentialSuite):
    @pytest.fixture(params=sorted(POTENTIALS))
    def mpnn_type(self, request):
        return str(request.param)


class _Moving:
    architecture: ClassVar = {"equivariance": True, "num_conv_layers": 3}

    @pytest.fixture(params=READ_BY["equivariance"])
    def mpnn_type(self, request):
        return str(request.param)


class TestTypesThatMoveTheAtoms(_Moving, PropertySuite):
    pass


class TestPotentialsThatMoveTheAtoms(_Moving, PotentialSuite):
    pass


class _Attending:
    """With HydraGNN's EquivariantTransformer around the layers."""

    architecture: ClassVar = {
        "global_attn_engine": "EquivariantTransformer",
        "global_attn_heads": 2,
        "equivariant_attn_allow_scalar_only": True,
        "equivariant_attn_require_tensor_coupling": False,
    }

    @pytest.fixture(params=WITH_EQUIVARIANT_ATTENTION)
    def mpnn_type(self, request):
        return str(request.param)

    @pytest.fixture
    def properties(self, mpnn_type):
        """Every type sees angles then."""
        return replace(properties_of(mpnn_type), sees_angles=True)

    # SchNet may not move its atoms.
    test_vectors_are_as_its_properties_say = None


class TestAttention(_Attending, PropertySuite):
    @pytest.fixture(params=("PAINN", "SchNet"))
    def mpnn_type(self, request):
        return str(request.param)


class TestAttentionOfPotentials(_Attending, PotentialSuite):
    @pytest.fixture(params=("PAINN", "MACE", "SchNet"))
    def mpnn_type(self, request):
        return str(request.param)


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
    pass


class TestAttentionOfClustersToHigherDegrees(_Finite, PotentialSuite):
    architecture: ClassVar = _Attending.architecture | {
        "equivariant_attn_lmax": 2,
        "equivariant_attn_chunk_size": 3,
        "equivariant_attn_coupling_mode": "sequential",
        "num_conv_layers": 3,
        "node_max_ell": 2,
    }
    # It counts each of many chunks.
    test_costs_the_same_without_numbers = None

    @pytest.fixture
    def mpnn_type(self):
        return "MACE"


def cluster(*given, **named):
    """The alloy's atoms without their periodic images."""
    atoms = alloy(*given, **named)
    atoms.pbc = False
    return atoms
