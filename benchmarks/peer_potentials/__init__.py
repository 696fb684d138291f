"""PaiNN and MACE of schnetpack and mace-torch, for ``peers_accuracy.py``."""
