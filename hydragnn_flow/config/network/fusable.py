"""Conditions for fused training: several networks of one shape in one process."""

from __future__ import annotations

from hydragnn_flow.config.network.load import HydraNetwork, NetworkConfig

FUSABLE_TYPES = ("CGCNN", "EGNN", "GIN", "PAINN", "PNA", "PNAEq", "PNAPlus", "SAGE", "SchNet")
"""Message-passing types whose tensors have one row per atom, edge or graph."""


def fusing_refusal(network: NetworkConfig) -> str:
    """Return why such networks cannot be trained fused, in a few words; empty if they can."""
    if not isinstance(network, HydraNetwork):
        return "networks of an engine cannot be fused"
    architecture, training = network.Architecture, network.Training
    if architecture.mpnn_type not in FUSABLE_TYPES:
        kind, known = architecture.mpnn_type, ", ".join(FUSABLE_TYPES)
        return f"networks of the type {kind} cannot be fused, only those of {known}"
    if architecture.global_attn_engine is not None:
        return "networks with global attention cannot be fused"
    if training.precision == "bf16":
        return "training in bf16 cannot be fused"
    if training.accumulation_steps > 1:
        return "steps of several micro-batches cannot be fused"
    return ""
