"""HydraGNN's layers at their former path, which recorded runs have as `mpnn_type`."""

from hydragnn_flow.models.hydragnn import *  # noqa: F403
