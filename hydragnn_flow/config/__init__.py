"""Schema of the run configuration, a YAML file, and of HydraGNN's network section in it.

Everything is validated here, before data are read or a job starts: a mistake then costs a second,
not a node hour. Other subpackages receive typed, immutable sections.
"""

from hydragnn_flow.config.data import DataConfig
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
    "load_config",
    "load_network",
    "resolve_config",
]
