"""Every message-passing type that ships passes the suites of `hydragnn_flow.testing`."""

from __future__ import annotations

from typing import ClassVar

import pytest

from hydragnn_flow.config.network import MPNN_TYPES
from hydragnn_flow.config.network.mpnn_types import READ_BY
from hydragnn_flow.testing.message_passing import PotentialSuite, PropertySuite

POTENTIALS = [name for name, kind in MPNN_TYPES.items() if kind.properties.lengths != "never"]


class TestTypes(PropertySuite):
    @pytest.fixture(params=sorted(MPNN_TYPES))
    def mpnn_type(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


class TestPotentials(PotentialSuite):
    @pytest.fixture(params=sorted(POTENTIALS))
    def mpnn_type(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


class _Moving:
    architecture: ClassVar = {"equivariance": True, "num_conv_layers": 3}

    @pytest.fixture(params=READ_BY["equivariance"])
    def mpnn_type(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


class TestTypesThatMoveTheAtoms(_Moving, PropertySuite):
    pass


class TestPotentialsThatMoveTheAtoms(_Moving, PotentialSuite):
    pass
