"""What a campaign says before it trains."""

from __future__ import annotations

import copy
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from campaign_cases import CONFIG
from rich.console import Console

from hydragnn_flow.campaign import prepare
from hydragnn_flow.config import RunConfig
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import load_site
from hydragnn_flow.report.progress import CampaignView


def prepared(folder: Path, config: dict[str, Any]) -> list[str]:
    """Prepare a run's store; returns the lines that were said."""
    text = StringIO()
    with CampaignView(Console(file=text, width=1000)) as view:
        prepare(RunConfig.model_validate(config), load_site("local"), folder / "run", view)
    return text.getvalue().splitlines()


@pytest.fixture
def config() -> dict[str, Any]:
    """Of a campaign; may be changed."""
    return copy.deepcopy(CONFIG)


def test_keys_that_change_nothing_are_named_once(tmp_path: Path, config: dict[str, Any]) -> None:
    assert not any("change nothing" in line for line in prepared(tmp_path / "all-count", config))
    network = config["network"]
    network["Variables_of_interest"]["output_names"] = ["graph_energy"]
    network["Training"]["perc_train"] = 0.7
    said = [line for line in prepared(tmp_path, config) if line.startswith("network: ")]
    expected = "Training.perc_train, Variables_of_interest.output_names"
    assert said[0] == f"network: keys that change nothing here: {expected}"
    assert [line.split(" is ")[0] for line in said[1:]] == ["network: Training.batch_size = 4"]


def test_a_potential_with_cut_neighbour_lists_is_refused(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    """Most of HydraGNN's are; nothing stays of the preparation."""
    config["network"]["Architecture"]["max_neighbours"] = 12
    with pytest.raises(InputError, match=r"forces are not the gradient .*max_neighbours = 12"):
        prepared(tmp_path, config)
    assert list(tmp_path.iterdir()) == []
    config["network"]["Architecture"]["truncated_neighbours"] = "allow"
    said = [line for line in prepared(tmp_path, config) if "leaves out" in line]
    assert len(said) == 1 and said[0].startswith("max_neighbours = 12 leaves out ")
    # A network that refuses meets the finished store.
    del config["network"]["Architecture"]["truncated_neighbours"]
    with pytest.raises(InputError, match="max_neighbours = 12 leaves out"):
        prepared(tmp_path, config)
    config["network"]["Architecture"] |= {
        "enable_interatomic_potential": False,
        "output_heads": {"graph": {"num_headlayers": 1, "dim_headlayers": [8]}},
    }
    config["network"]["Variables_of_interest"]["type"] = ["graph"]
    assert any("leaves out" in line for line in prepared(tmp_path, config))
