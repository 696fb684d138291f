"""Attention between all atoms of a structure, in addition to message passing between neighbours."""
