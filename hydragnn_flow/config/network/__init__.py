"""Schema of HydraGNN's network configuration, with its JSON form and its key names.

Users' HydraGNN files are accepted unchanged. Keys this package does not honour are refused by name,
unless they change nothing here or hold the value that switches the feature off.
"""

from hydragnn_flow.config.network.architecture import Architecture
from hydragnn_flow.config.network.hydragnn_keys import unused_keys
from hydragnn_flow.config.network.load import (
    NETWORK,
    EngineNetwork,
    HydraNetwork,
    NetworkConfig,
    VariablesOfInterest,
    engine_of,
    load_network,
    network_section,
    write_network,
)
from hydragnn_flow.config.network.mpnn_types import MPNN_TYPES
from hydragnn_flow.plain_files import read_json

__all__ = [
    "MPNN_TYPES",
    "NETWORK",
    "Architecture",
    "EngineNetwork",
    "HydraNetwork",
    "NetworkConfig",
    "VariablesOfInterest",
    "engine_of",
    "load_network",
    "network_section",
    "read_json",
    "unused_keys",
    "write_network",
]
