"""Every network file of a HydraGNN checkout: ``pytest --hydragnn=PATH-OF-A-CHECKOUT``."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydragnn_flow.config import NetworkConfig, load_network
from hydragnn_flow.errors import InputError

# Each file that is refused, and words of the reason.
UNWEIGHTED = "needs a weight above zero"  # HydraGNN refuses to train these as well
NAMELESS = "output_names: this key is required"  # their drivers add the names
REFUSED = {
    "examples/ani1_x/ani1x_mlip.json": UNWEIGHTED,
    "examples/csce/csce_gap.json": NAMELESS,
    "examples/dftb_uv_spectrum/dftb_discrete_uv_spectrum.json": NAMELESS,
    "examples/md17/md17_mlip.json": UNWEIGHTED,
    "examples/multibranch/gfm_multibranch_physics-informed.json": UNWEIGHTED,
    "examples/ogb/ogb_gap.json": NAMELESS,
    "examples/qcml/qcml_forces.json": "is not valid JSON",
    "examples/qm7x/qm7x_mlip.json": UNWEIGHTED,
}


@pytest.fixture(scope="module")
def checkout(request: pytest.FixtureRequest) -> Path:
    path = request.config.getoption("--hydragnn")
    if path is None:
        pytest.skip("needs a checkout of HydraGNN, named by --hydragnn=PATH")
    assert isinstance(path, Path)
    return path


def test_its_files_are_accepted_or_refused_for_a_reason(checkout: Path) -> None:
    accepted: dict[str, NetworkConfig] = {}
    refused: dict[str, str] = {}
    for file in sorted(checkout.rglob("*.json")):
        name = file.relative_to(checkout).as_posix()
        # parts of configurations, and what is none at all
        if '"NeuralNetwork"' not in file.read_text(encoding="utf-8"):
            continue
        try:
            accepted[name] = load_network(file)
        except InputError as error:
            refused[name] = str(error)
    unexpected = {name: why for name, why in refused.items() if REFUSED.get(name, "-") not in why}
    assert unexpected == {}
    assert refused.keys() == REFUSED.keys()
    assert len(accepted) >= 54
    for network in accepted.values():
        assert NetworkConfig.model_validate_json(network.model_dump_json()) == network
