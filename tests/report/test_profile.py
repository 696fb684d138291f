"""Where a step's time goes, measured on small networks."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
import torch
from campaign_cases import CONFIG
from rich.console import Console
from segment_cases import NETWORK, make_spec, network_with

from hydragnn_flow.config import RunConfig
from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import InputError
from hydragnn_flow.report.profile import network_of, profile_network, profile_tables
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import Search
from hydragnn_flow.training.profile import ALONE, CACHED, LOADER, REAL, profile_training


@pytest.mark.slow  # each in processes of its own
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_mode_is_measured(alloy_store: GraphStore, ranks: int) -> None:
    told: list[str] = []
    profile = profile_network(NETWORK, alloy_store.path, ranks=ranks, seconds=0.1, say=told.append)
    modes = [REAL, CACHED, *([ALONE] if ranks == 2 else []), LOADER]
    assert told == modes and list(profile.timings) == modes
    train = alloy_store["trainset"]
    steps = -(-len(train) // 4)
    assert profile.graphs == pytest.approx(len(train) / steps)
    assert profile.atoms == pytest.approx(train.n_atoms.sum() / steps)
    assert profile.edges == pytest.approx(train.n_edges.sum() / steps)
    # Reading a batch is a part of training on it.
    assert profile.timings[LOADER].seconds < profile.timings[REAL].seconds
    assert all(timing.cpu_seconds > 0 for timing in profile.timings.values())
    assert min(profile.breakdown.values()) >= 0
    assert profile.peak_memory_gib > 0 and profile.flops_per_second > 0

    text = StringIO()
    Console(file=text, width=120).print(profile_tables(profile))
    for words in ("waiting for data", "GFLOP/s", "peak memory", "energy", *modes):
        assert words in text.getvalue()


def test_more_work_is_more_operations(tmp_path: Path, alloy_store: GraphStore) -> None:
    narrow, wide = (
        profile_training(
            make_spec(tmp_path / f"{width}", alloy_store, 1, network=network),
            alloy_store,
            torch.device("cpu"),
            seconds=0.01,
        )
        for width in (12, 24)
        for network in [network_with(Architecture__hidden_dim=width)]
    )
    assert wide.flops > 2 * narrow.flops


def test_a_trial_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    config = RunConfig.model_validate(CONFIG)
    directory = RunDirectory(tmp_path)
    directory.record_start(config)
    with Search(directory.journal, config.search, config.num_epoch, config.seed) as search:
        for _ in range(4):
            asked = search.ask()
        search.commit()
    assert network_of(directory, 3) == config.network_values(asked.parameters)
    with pytest.raises(InputError, match=r"has no trial 4; see `hydragnn-flow status`"):
        network_of(directory, 4)


@pytest.mark.slow
def test_what_the_store_lacks_is_told_in_a_sentence(alloy_store: GraphStore) -> None:
    network = network_with(Architecture__radius=9.0)
    with pytest.raises(InputError, match=r"radius = 9.0 Å is beyond the store's neighbour lists"):
        profile_network(network, alloy_store.path, seconds=0.1)
