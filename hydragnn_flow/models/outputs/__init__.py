"""Outputs of a network: heads of graphs and nodes, and what they pool, share or depend on."""
