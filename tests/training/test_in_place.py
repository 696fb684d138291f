"""Training on data where they are: the same steps as on a copy of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_set_cases import branches
from in_place_cases import NAMES, prepared, three_sets
from segment_cases import make_spec, network_with

from hydragnn_flow.training.runner import run_segment


@pytest.mark.parametrize("mode", ["memory", "random"])
def test_a_segment_learns_the_same_in_place(tmp_path: Path, mode: str) -> None:
    """Two files of HydraGNN's and a store, a branch each: errors differ by rounding alone."""
    sources = three_sets(tmp_path)
    network = network_with(Architecture__output_heads={"node": branches(3)})
    found = {}
    for name, in_place in (("there", True), ("copies", False)):
        store = prepared(tmp_path, sources, f"{name}.gs", in_place=in_place)
        spec = make_spec(tmp_path / name, store, 2, network=network, mode=mode)
        result = run_segment(spec)
        assert result.status == "ok", result.reason
        found[name] = result.metrics
    errors = [f"{error}@{name}" for error in ("energy_mae", "forces_mae") for name in NAMES]
    for error in errors:
        assert found["there"][error] == pytest.approx(found["copies"][error], rel=1e-3), error
