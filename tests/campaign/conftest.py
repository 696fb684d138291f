"""A campaign's context, on a store that all tests of the room share."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from campaign_cases import CONFIG
from phase_cases import SITE, Campaign
from rich.console import Console
from work_counts import _count_once, counted  # noqa: F401 -- fixtures of the room

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.search import COSTS
from hydragnn_flow.data import GraphStore, prepare_store
from hydragnn_flow.execution import Site
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    config = RunConfig.model_validate(CONFIG)
    return prepare_store(config.data, 4.0, None, 3, tmp_path_factory.mktemp("s") / "store.gs")


@pytest.fixture
def campaign(tmp_path: Path, store: GraphStore) -> Campaign:
    """A campaign's context, with changes to sections of its configuration; others are of `search`.

    Called again, that of the next driver. A search for costs alone has no ensemble.
    """

    def start(
        training: dict[str, Any] | None = None,
        resources: dict[str, Any] | None = None,
        ensemble: dict[str, Any] | None = None,
        site: Site = SITE,
        nodes: int = 1,
        **search: Any,
    ) -> Context:
        values = copy.deepcopy(CONFIG)
        values["search"] |= search
        values["network"]["Training"] |= training or {}
        values["resources"] = resources or {}
        values["ensemble"] |= ensemble or {}
        if {*search.get("objectives", ["val_error"])} <= {*COSTS}:
            del values["ensemble"]
        config = RunConfig.model_validate(values)
        directory = RunDirectory(tmp_path / "run")
        directory.record_start(config)
        view = CampaignView(Console(quiet=True))
        return Context(config, replace(site, nodes=nodes), directory, store, "token", view)

    return start
