"""Typed run configuration and HydraGNN's network schema, validated once at the door."""

from hydragnn_flow.config.data import DataConfig, SplitConfig
from hydragnn_flow.config.network import NetworkConfig, load_network
from hydragnn_flow.config.run import EnsembleConfig, RunConfig, load_config, resolve_config
from hydragnn_flow.config.search import Parameter, SearchConfig

__all__ = [
    "DataConfig",
    "EnsembleConfig",
    "NetworkConfig",
    "Parameter",
    "RunConfig",
    "SearchConfig",
    "SplitConfig",
    "load_config",
    "load_network",
    "resolve_config",
]
